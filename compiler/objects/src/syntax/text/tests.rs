use super::*;

#[track_caller]
fn refuse(bytes: &[u8], message: &str, offset: usize, line: usize) {
    let error = text(bytes.to_vec()).unwrap_err();
    assert_eq!((error.message.as_str(), error.offset, error.line), (message, offset, line));
    assert!(error.help.is_some());
}

#[test]
fn a_byte_order_mark_goes() {
    assert_eq!(text(b"\xef\xbb\xbfa: 1".to_vec()).unwrap(), "a: 1");
    assert_eq!(text(b"a: \xef\xbb\xbf".to_vec()).unwrap(), "a: \u{feff}");
    assert_eq!(text(Vec::new()).unwrap(), "");
}

#[test]
fn invalid_utf_8_is_refused_with_its_place() {
    refuse(b"a: 1\nb: \xc3\xa9 \xff\n", "byte 0xff is not UTF-8 text", 11, 2);
    refuse(b"a: \xe9", "byte 0xe9 is not UTF-8 text", 3, 1);
    refuse(b"a: 1\nlong enough: \x00", "a NUL byte in the text", 18, 2);
    refuse(b"\xff\xfea\0:\0", "the file is UTF-16 text", 0, 1);
    refuse(b"\xfe\xff\0a\0:", "the file is UTF-16 text", 0, 1);
    refuse(b"\xff\xfe\0\0a\0\0\0", "the file is UTF-32 text", 0, 1);
    refuse(b"a\0:\0 \0b\0", "the file is UTF-16 or UTF-32 text, or binary", 0, 1);
    refuse(b"\x1f\x8b\x08\0\0\0\0\0", "the file is compressed with gzip", 0, 1);
}

#[test]
fn json_begins_with_a_brace_and_is_no_yaml() {
    assert_eq!(format(" \n{\"a\": 1}{\"b\": 2}"), SyntaxFormat::Json);
    assert_eq!(format("{\"a\": 1,}x"), SyntaxFormat::Json);
    assert_eq!(format("{\"a\": "), SyntaxFormat::Json);
    assert_eq!(format("[1]"), SyntaxFormat::Yaml);
    assert_eq!(format("a: {}"), SyntaxFormat::Yaml);
    assert_eq!(format(""), SyntaxFormat::Yaml);
    assert_eq!(format("{a: 1}"), SyntaxFormat::Yaml);
    assert_eq!(format("{\"a\": 1, # one\n}"), SyntaxFormat::Yaml);
    assert_eq!(format("{\"a\": 1}\n---\n{\"b\": 2}\n"), SyntaxFormat::Yaml);
}
