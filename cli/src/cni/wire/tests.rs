use std::thread;

use proptest::prelude::*;

use super::*;

const GOOD: &str = r#"{"verb":"add","pod":{"namespace":"shop","name":"web","uid":"u-1"},"interfaces":["veth7"],"addresses":["10.0.0.5"],"wait":{"secs":3,"nanos":5}}"#;

#[test]
fn question_survives_the_protocol_unchanged() {
    let question = parse_question(GOOD).expect("it is a question");
    assert_eq!((question.pod.path().as_str(), question.wait), ("shop/web", Duration::new(3, 5)));
    assert_eq!(super::parse_question(&serde_json::to_string(&question).expect("JSON")), Ok(question));
}

#[test]
fn question_with_values_out_of_bounds_is_refused() {
    let refused = |from: &str, to: &str| {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD);
        parse_question(&text).expect_err(&text)
    };
    assert!(refused("\"secs\":3", "\"secs\":18446744073709551615").contains("wait"));
    assert!(refused("\"secs\":3", "\"secs\":601").contains("wait"));
    assert!(refused("\"nanos\":5", "\"nanos\":4294967296").contains("not a question"));
    for name in ["", "..", "a/b", "sixteen-bytes-xx", "a b", "a\\u001b[2J"] {
        assert!(refused("veth7", name).contains("interface"), "{name}");
    }
    for name in ["", "..%2f", "Web", "a\\nb"] {
        assert!(refused("\"web\"", &format!("\"{name}\"")).contains("pod"), "{name}");
    }
    let many = vec!["\"veth7\""; MOST + 1].join(",");
    assert!(refused("\"veth7\"", &many).contains("interfaces"));
}

#[test]
fn endless_line_ends_at_the_time_limit() {
    let (mut here, there) = UnixStream::pair().expect("a pair");
    let dripping = thread::spawn(move || while here.write_all(b"x").is_ok() {});
    assert!(read_line(&there, Duration::from_millis(50)).is_err());
    drop(there);
    dripping.join().expect("it ends with the other end");
}

proptest! {
    /// An accepted question has times that can be added to the current time, and names that can be printed.
    #[test]
    fn no_line_makes_the_question_parser_panic(cut in 0..GOOD.len(), keep in 0..GOOD.len(), text in ".{0,40}", secs: u64, nanos: u64) {
        let changed = format!("{}{text}{}", &GOOD[..cut], &GOOD[keep..]);
        let timed = GOOD.replace("\"secs\":3,\"nanos\":5", &format!("\"secs\":{secs},\"nanos\":{nanos}"));
        for line in [text.as_str(), &changed, &timed] {
            if let Ok(question) = parse_question(line) {
                prop_assert!((Instant::now() + question.wait + MARGIN) > Instant::now());
                prop_assert!(question.interfaces.iter().all(|it| it.is_ascii() && it.len() < 16));
                prop_assert!(question.verb == Verb::Status || question.pod.path().is_ascii());
            }
        }
    }

    #[test]
    fn no_bytes_make_the_line_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut here, there) = UnixStream::pair().expect("a pair");
        here.write_all(&bytes).expect("there is room");
        drop(here);
        if let Ok(line) = read_line(&there, Duration::from_secs(1)) {
            prop_assert!(line.ends_with('\n'));
            _ = parse_question(&line);
        }
    }
}
