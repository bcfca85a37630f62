use super::*;
use crate::watch::scope::WatchScope;

fn policies() -> WatchCursor {
    let resource = super::super::resources::kinds().into_iter().find(|it| it.kind == "NetworkPolicy");
    WatchCursor::new(resource.expect("it is watched"))
}

fn policy(name: &str, version: u32, spec: &str) -> String {
    format!(
        r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"name":"{name}","namespace":"shop",
        "resourceVersion":"{version}"}},"spec":{spec}}}"#
    )
}

fn line(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

fn bookmark(version: u32, annotations: &str) -> String {
    line(
        "BOOKMARK",
        &format!(
            r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"resourceVersion":"{version}",
            "annotations":{annotations}}}}}"#
        ),
    )
}

const END: &str = r#"{"k8s.io/initial-events-end":"true"}"#;

/// Feeds lines to the cursor. Returns its events and faults as text.
fn feed(cursor: &mut WatchCursor, lines: &[String]) -> String {
    let mut emitted = Vec::new();
    for line in lines {
        if let Err(fault) = cursor.line(line, |event| emitted.push(shown(&event))) {
            emitted.push(format!("fault: {fault}"));
        }
    }
    emitted.join("; ")
}

fn shown(event: &ApiEvent) -> String {
    match event {
        ApiEvent::Applied(object) => format!("applied {}", object.meta.name),
        ApiEvent::Partial { object, message } => format!("partial {}: {message}", object.meta.name),
        ApiEvent::Malformed(it) => format!("malformed {}: {}", it.key.name, it.message),
        ApiEvent::Deleted(key) => format!("deleted {}", key.name),
        ApiEvent::Listed { names, .. } => format!("listed {}", names.names().join(",")),
    }
}

fn refused(code: u16) -> WatchFault {
    WatchFault::Refused { code, message: "no".to_owned() }
}

fn request_kind(cursor: &WatchCursor) -> &'static str {
    let uri = cursor.uri(0);
    match (uri.contains("sendInitialEvents=true"), uri.contains("limit=")) {
        (true, false) => "streaming",
        (false, true) => "listing",
        _ => "watching",
    }
}

#[test]
fn streamed_list_is_complete_only_after_its_end_bookmark() {
    let mut cursor = policies();
    cursor.begin();
    let lines = [line("ADDED", &policy("a", 5, "{}")), line("ADDED", &policy("b", 3, "{}"))];
    assert_eq!(feed(&mut cursor, &lines), "applied a; applied b");
    assert_eq!(request_kind(&cursor), "streaming");
    assert_eq!(feed(&mut cursor, &[bookmark(9, END)]), "listed a,b");
    assert!(cursor.uri(0).ends_with("timeoutSeconds=240&resourceVersion=9"), "{}", cursor.uri(0));
}

#[test]
fn object_deleted_during_a_streamed_list_is_not_listed() {
    let mut cursor = policies();
    cursor.begin();
    let lines = [line("ADDED", &policy("a", 5, "{}")), line("DELETED", &policy("a", 6, "{}")), bookmark(9, END)];
    assert_eq!(feed(&mut cursor, &lines), "applied a; deleted a; listed ");
}

#[test]
fn malformed_object_is_emitted_and_listed_and_hides_no_other() {
    let mut cursor = policies();
    cursor.begin();
    let odd = policy("odd", 5, r#"{"podSelektor":{}}"#);
    let lines = [line("ADDED", &odd), line("ADDED", &policy("b", 3, "{}")), bookmark(9, END)];
    let emitted = feed(&mut cursor, &lines);
    assert!(emitted.starts_with("partial odd: spec.podSelektor: "), "{emitted}");
    assert!(emitted.ends_with("[unknown-field]; applied b; listed b,odd"), "{emitted}");
}

#[test]
fn watch_continues_at_the_last_version_after_a_fault() {
    let mut cursor = policies();
    cursor.begin();
    feed(&mut cursor, &[bookmark(9, END), line("MODIFIED", &policy("a", 12, "{}"))]);
    cursor.begin();
    assert!(cursor.uri(0).ends_with("resourceVersion=12"));
    feed(&mut cursor, &[line("MODIFIED", &policy("a", 13, "{}")), line("DELETED", &policy("a", 14, "{}"))]);
    cursor.begin();
    assert!(cursor.uri(0).ends_with("resourceVersion=14"));
    feed(&mut cursor, &[line("ADDED", &policy("a", 15, "{}")), line("ADDED", &policy("b", 16, r#"{"odd":1}"#))]);
    cursor.begin();
    assert!(cursor.uri(0).ends_with("resourceVersion=16"), "of an object of which only parts can be read");
    feed(&mut cursor, &[bookmark(40, "null")]);
    for fault in
        [WatchFault::Closed, WatchFault::Silent, refused(500), refused(429), WatchFault::Broken("reset".to_owned())]
    {
        cursor.failed(&fault);
        cursor.begin();
        assert!(cursor.uri(0).ends_with("resourceVersion=40"), "after {fault}: {}", cursor.uri(0));
    }
    assert_eq!(cursor.failed(&WatchFault::Closed), NextRequest::AtOnce);
    assert_eq!(cursor.failed(&refused(500)), NextRequest::Later);
}

#[test]
fn line_in_any_form_is_read_as_the_usual_one() {
    let object = policy("a", 12, "{}");
    let forms = [
        line("ADDED", &object),
        line("MODIFIED", &object) + "\r\n",
        format!(r#"{{ "type": "ADDED", "object": {object} }}"#),
        format!(r#"{{"object":{object},"type":"MODIFIED"}}"#),
        format!(r#"{{"type":"ADDED","object":{object},"sequence":7}}"#),
        format!(r#"{{"type":"ADDED","object":{object},"sequence":{{}}}}"#),
    ];
    for form in forms {
        let mut cursor = policies();
        cursor.begin();
        feed(&mut cursor, &[bookmark(9, END)]);
        assert_eq!(feed(&mut cursor, std::slice::from_ref(&form)), "applied a", "{form}");
        cursor.begin();
        assert!(cursor.uri(0).ends_with("resourceVersion=12"), "{form}");
    }
    for damaged in
        [r#"{"type":"ADDED","object":{}"#, r#"{"type":"ADDED","object":"#, r#"{"type":"ADDED","object":{}}}"#]
    {
        let mut cursor = policies();
        cursor.begin();
        let emitted = feed(&mut cursor, &[damaged.to_owned()]);
        assert!(emitted.starts_with("fault: invalid answer of the API server: "), "{damaged}: {emitted}");
    }
}

#[test]
fn expired_version_leads_to_a_new_list() {
    let expired = r#"{"kind":"ErrorStatus","code":410,"reason":"Expired","message":"too old resource version"}"#;
    let mut cursor = policies();
    cursor.begin();
    feed(&mut cursor, &[line("ADDED", &policy("a", 5, "{}")), bookmark(9, END)]);
    let emitted = feed(&mut cursor, &[line("ERROR", expired)]);
    assert_eq!(emitted, "fault: the API server answered 410: too old resource version");
    assert_eq!((cursor.failed(&refused(410)), request_kind(&cursor)), (NextRequest::AtOnce, "streaming"));
    cursor.begin();
    assert_eq!(feed(&mut cursor, &[bookmark(10, END)]), "listed ");
}

#[test]
fn server_that_cannot_stream_gets_an_ordinary_list_request() {
    // 422: the feature is off. 500, 504: etcd 3.4. Other servers ignore the parameter, or stop in the middle.
    for fault in [
        refused(422),
        refused(400),
        refused(500),
        refused(504),
        WatchFault::NoInitialEnd,
        WatchFault::Silent,
        WatchFault::Closed,
    ] {
        let mut cursor = policies();
        cursor.begin();
        assert_eq!((cursor.failed(&fault), request_kind(&cursor)), (NextRequest::AtOnce, "listing"), "after {fault}");
    }
    let mut cursor = policies();
    cursor.begin();
    assert_eq!(feed(&mut cursor, &[bookmark(9, "null")]), "fault: the API server does not stream lists");
}

/// A server whose etcd was restored from a backup sends nothing after a version that it has not reached.
#[test]
fn a_watch_that_is_silent_twice_leads_to_a_list() {
    let mut cursor = policies();
    cursor.begin();
    assert_eq!(feed(&mut cursor, &[bookmark(9, END)]), "listed ");
    let silent = |cursor: &mut WatchCursor| {
        cursor.watch_was_silent();
        (cursor.failed(&WatchFault::Silent), request_kind(cursor))
    };
    assert_eq!(silent(&mut cursor), (NextRequest::Later, "watching"));
    feed(&mut cursor, &[bookmark(10, "null")]);
    assert_eq!(silent(&mut cursor), (NextRequest::Later, "watching"), "there was a bookmark in between");
    cursor.failed(&WatchFault::Silent);
    assert_eq!(request_kind(&cursor), "watching", "a request without an answer does not count");
    cursor.failed(&refused(500));
    assert_eq!(silent(&mut cursor), (NextRequest::Later, "watching"), "there was another fault in between");
    assert_eq!(silent(&mut cursor), (NextRequest::Later, "streaming"));
}

#[test]
fn refused_stream_is_retried_if_a_list_would_be_refused_too() {
    for fault in [refused(401), refused(403), refused(404), refused(429), WatchFault::Broken("refused".to_owned())] {
        let mut cursor = policies();
        cursor.begin();
        assert_eq!((cursor.failed(&fault), request_kind(&cursor)), (NextRequest::Later, "streaming"), "after {fault}");
    }
}

#[test]
fn paged_list_is_read_though_its_items_have_no_kind() {
    let mut cursor = policies();
    cursor.begin();
    cursor.failed(&refused(422));
    cursor.begin();
    let item =
        |name: &str| format!(r#"{{"metadata":{{"name":"{name}","namespace":"shop"}},"spec":{{"podSelector":{{}}}}}}"#);
    let page = |items: &str, token: &str| {
        format!(
            r#"{{"kind":"NetworkPolicyList","metadata":{{"resourceVersion":"7","continue":"{token}"}},"items":[{items}]}}"#
        )
    };
    let mut emitted = Vec::new();
    cursor.page(&page(&item("a"), "a b"), |event| emitted.push(shown(&event))).expect("a page");
    assert!(cursor.uri(0).ends_with("?limit=500&continue=a%20b"), "{}", cursor.uri(0));
    cursor.begin();
    cursor.page(&page(&item("b"), ""), |event| emitted.push(shown(&event))).expect("a page");
    assert_eq!(emitted, ["applied a", "applied b", "listed a,b"]);
    assert!(cursor.uri(0).ends_with("resourceVersion=7"));
}

#[test]
fn null_items_are_an_empty_list() {
    let mut cursor = policies();
    cursor.failed(&refused(422));
    cursor.begin();
    let mut emitted = Vec::new();
    let text = r#"{"metadata":{"resourceVersion":"7"},"items":null}"#;
    cursor.page(text, |event| emitted.push(shown(&event))).expect("a page");
    assert_eq!(emitted, ["listed "]);
}

#[test]
fn expired_continue_token_leads_to_a_new_list() {
    let mut cursor = policies();
    cursor.failed(&refused(422));
    cursor.begin();
    let text = r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[]}"#;
    cursor.page(text, |_| ()).expect("a page");
    assert_eq!((cursor.failed(&refused(410)), request_kind(&cursor)), (NextRequest::AtOnce, "streaming"));
}

#[test]
fn truncated_line_is_a_fault_and_does_not_panic() {
    let whole = line("ADDED", &policy("a", 5, r#"{"podSelector":{}}"#));
    for length in 0..whole.len() {
        let mut cursor = policies();
        cursor.begin();
        let emitted = feed(&mut cursor, &[whole[..length].to_owned()]);
        assert!(emitted.starts_with("fault: invalid answer of the API server"), "{length}: {emitted}");
    }
}

#[test]
fn order_changes_the_selector_and_starts_a_list_that_carries_its_number() {
    let node = super::super::resources::resources("near").into_iter().find(|it| it.kind == "Node");
    let mut cursor = WatchCursor::new(node.expect("it is watched"));
    assert!(cursor.uri(0).ends_with("&fieldSelector=metadata.name%3Dnear"), "{}", cursor.uri(0));
    cursor.begin();
    assert_eq!(feed(&mut cursor, &[bookmark(9, END)]), "listed ");
    cursor.obey(FollowOrder { scope: WatchScope::All, number: 7 }, "near");
    assert_eq!(request_kind(&cursor), "streaming");
    assert!(!cursor.uri(0).contains("fieldSelector"), "{}", cursor.uri(0));
    cursor.begin();
    let mut orders = Vec::new();
    let end = cursor.line(&bookmark(10, END), |event| match event {
        ApiEvent::Listed { order, .. } => orders.push(order),
        other => panic!("{other:?}"),
    });
    assert_eq!((end, orders), (Ok(()), vec![7]));
}
