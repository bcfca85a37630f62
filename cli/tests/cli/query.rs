//! `weir query`: JSON lines in, JSON lines out.

use crate::support::Place;
use weir_testing::schema::check_schema;

#[track_caller]
fn check(arguments: &str, input: &str, code: i32, expected: &[&str]) {
    let place = Place::shop().file("drop.txt", "192.0.2.0/24\n");
    let ran = place.run_with_input(&format!("query shop.yaml --flows - {arguments}"), input).exits(code);
    assert_eq!(ran.out.lines().collect::<Vec<_>>(), expected);
    for line in ran.out.lines() {
        check_schema("query", &serde_json::from_str(line).expect("JSON"));
    }
}

#[test]
fn an_allowed_flow_names_the_rules_that_allow() {
    check(
        "",
        r#"{"id": {"a": 1}, "src": {"pod": "shop/web"}, "dst": {"pod": "shop/db"}, "proto": "tcp", "port": 5432}"#,
        0,
        &[concat!(
            r#"{"id":{"a": 1},"verdict":"allow","egress":"allow","ingress":"allow","#,
            r#""because":[{"direction":"ingress","policy":"shop/db","rule":"spec.ingress[0]"}]}"#
        )],
    );
}

#[test]
fn a_denied_flow_names_the_policies_that_isolate() {
    check(
        "--engine reference -o jsonl",
        r#"{"id": "x", "src": {"ip": "10.0.0.9"}, "dst": {"ip": "10.0.0.2"}, "proto": "UDP", "port": 5432}"#,
        0,
        &[concat!(
            r#"{"id":"x","verdict":"deny","egress":"allow","ingress":"deny","#,
            r#""because":[{"direction":"ingress","policy":"shop/db"}]}"#
        )],
    );
}

#[test]
fn a_list_that_denies_is_named_as_one() {
    check(
        "--deny-list drop.txt -n shop",
        r#"{"src": {"pod": "web"}, "dst": {"ip": "192.0.2.1"}, "proto": "ICMP"}"#,
        0,
        &[concat!(
            r#"{"id":null,"verdict":"deny","egress":"deny","ingress":"allow","#,
            r#""because":[{"direction":"egress","policy":"drop.txt","kind":"CidrList"}]}"#
        )],
    );
}

#[test]
fn an_unknown_name_is_answered_with_the_most_similar_one() {
    let flow = |name: &str| {
        format!("{{\"src\":{{\"pod\":\"{name}\"}},\"dst\":{{\"pod\":\"shop/db\"}},\"proto\":\"TCP\",\"port\":80}}\n")
    };
    let flows = format!("{}{}{}", flow("shop/wbe"), flow("shop/unlike"), flow("shop/wbe"));
    let ran = Place::shop().run_with_input("query shop.yaml --flows -", &flows).exits(1);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].contains("no pod or workload shop/wbe; did you mean `shop/web`?"), "{ran:#?}");
    assert!(!lines[1].contains("did you mean"), "{ran:#?}");
    assert_eq!(lines[0], lines[2]);
}

#[test]
fn flows_without_a_verdict_are_skipped_in_order() {
    check(
        "",
        concat!(
            "{\"id\": 1, \"src\": {\"pod\": \"shop/none\"}, \"dst\": {\"ip\": \"::1\"}, \"proto\": \"TCP\", \"port\": 1}\n",
            "\n",
            "{\"id\": 2, \"src\": {\"pod\": \"shop/web\"}, \"dst\": {\"pod\": \"shop/web\"}, \"proto\": \"TCP\", \"port\": 0}\r\n",
            "{\"id\": 3, \"src\": 7}\n",
            "{\"id\": 4,\n",
            "{\"id\": 5, \"src\": {\"pod\": \"shop/web\", \"ip\": \"10.0.0.2\"}, \"dst\": {\"ip\": \"1.1.1.1\"}, \"proto\": \"TCP\", \"port\": 1}\n",
            "{\"id\": 6, \"src\": {\"pod\": \"shop/web\"}, \"dst\": {\"ip\": \"1.1.1.1\"}, \"proto\": \"TCP\", \"port\": 65536}\n",
            "{\"id\": 7, \"src\": {\"pod\": \"shop/web\"}, \"dst\": {\"ip\": \"::1\"}, \"proto\": \"TCP\", \"port\": 1}\n",
            "{\"id\": 8, \"src\": {\"pod\": \"shop/web\"}, \"dst\": {\"ip\": \"1.1.1.1\"}, \"proto\": \"GRE\"}\n",
            "{\"id\": 9, \"src\": {\"pod\": \"shop/web\"}, \"dst\": {\"ip\": \"1.1.1.1\"}, \"proto\": \"SCTP\"}",
        ),
        1,
        &[
            r#"{"id":1,"verdict":"skip","reason":"src: there is no pod or workload shop/none"}"#,
            r#"{"id":2,"verdict":"allow","egress":"allow","ingress":"allow","because":[]}"#,
            r#"{"id":3,"verdict":"skip","reason":"not a flow: invalid type: integer `7`, expected an object with `pod`, `ip`, or `namespace` and `labels`"}"#,
            r#"{"id":null,"verdict":"skip","reason":"not a flow: EOF while parsing a value"}"#,
            r#"{"id":5,"verdict":"skip","reason":"src: 10.0.0.2 is not an address of shop/web"}"#,
            r#"{"id":6,"verdict":"skip","reason":"65536 is not a port"}"#,
            r#"{"id":7,"verdict":"skip","reason":"source and destination have no address family in common"}"#,
            r#"{"id":8,"verdict":"skip","reason":"`GRE` is not a protocol: write TCP, UDP, SCTP or ICMP"}"#,
            r#"{"id":9,"verdict":"skip","reason":"SCTP needs a port"}"#,
        ],
    );
}

#[test]
fn input_with_errors_gives_no_answers() {
    let place = Place::new()
        .file("bad.yaml", crate::support::SHOP.replace("podSelector:\n    match", "podselector:\n    match"));
    let ran = place.run_with_input("query bad.yaml --flows -", "{}").exits(2).complains("error[unknown-field]");
    assert_eq!(ran.out, "");
}

#[test]
fn an_answer_comes_before_the_next_question() {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::Stdio;
    let place = Place::shop();
    let mut command = place.command("query shop.yaml --flows -");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("weir runs");
    let mut questions = child.stdin.take().expect("a pipe");
    let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
    for id in 1..=2 {
        let question =
            format!("{{\"id\":{id},\"src\":{{\"ip\":\"1.1.1.1\"}},\"dst\":{{\"ip\":\"1.1.1.2\"}},\"proto\":\"ICMP\"}}");
        writeln!(questions, "{question}").expect("taken");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("a line");
        assert!(answer.starts_with(&format!("{{\"id\":{id},")), "{answer}");
    }
    drop(questions);
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn standard_input_cannot_contain_objects_and_flows() {
    Place::new()
        .run_with_input("query - --flows -", crate::support::SHOP)
        .exits(2)
        .complains("standard input (`-`) is named twice");
}
