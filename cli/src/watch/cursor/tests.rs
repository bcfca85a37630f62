use super::*;

fn policies() -> Cursor {
    let resource = super::super::resources::resources("n1").into_iter().find(|it| it.kind == "NetworkPolicy");
    Cursor::new(resource.expect("it is watched"))
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
fn feed(cursor: &mut Cursor, lines: &[String]) -> String {
    let mut told = Vec::new();
    for line in lines {
        if let Err(fault) = cursor.line(line, |event| told.push(shown(&event))) {
            told.push(format!("fault: {fault}"));
        }
    }
    told.join("; ")
}

fn shown(event: &Event) -> String {
    match event {
        Event::Applied(object) => format!("applied {}", object.meta.name),
        Event::Partial { object, message } => format!("partial {}: {message}", object.meta.name),
        Event::Malformed { key, message, .. } => format!("malformed {}: {message}", key.name),
        Event::Deleted(key) => format!("deleted {}", key.name),
        Event::Listed { keys, .. } => {
            format!("listed {}", keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join(","))
        }
    }
}

fn refused(code: u16) -> Fault {
    Fault::Refused { code, message: "no".to_owned() }
}

fn asks(cursor: &Cursor) -> &'static str {
    let uri = cursor.uri(0);
    match (uri.contains("sendInitialEvents=true"), uri.contains("limit=")) {
        (true, false) => "streaming",
        (false, true) => "listing",
        _ => "watching",
    }
}

#[test]
fn a_streamed_list_is_complete_when_the_server_says_so() {
    let mut cursor = policies();
    cursor.begin();
    let lines = [line("ADDED", &policy("a", 5, "{}")), line("ADDED", &policy("b", 3, "{}"))];
    assert_eq!(feed(&mut cursor, &lines), "applied a; applied b");
    assert_eq!(asks(&cursor), "streaming");
    assert_eq!(feed(&mut cursor, &[bookmark(9, END)]), "listed a,b");
    assert!(cursor.uri(0).ends_with("timeoutSeconds=240&resourceVersion=9"), "{}", cursor.uri(0));
}

#[test]
fn what_goes_while_the_list_streams_is_not_listed() {
    let mut cursor = policies();
    cursor.begin();
    let lines = [line("ADDED", &policy("a", 5, "{}")), line("DELETED", &policy("a", 6, "{}")), bookmark(9, END)];
    assert_eq!(feed(&mut cursor, &lines), "applied a; deleted a; listed ");
}

#[test]
fn a_malformed_object_is_told_and_listed_and_hides_no_other() {
    let mut cursor = policies();
    cursor.begin();
    let odd = policy("odd", 5, r#"{"podSelektor":{}}"#);
    let lines = [line("ADDED", &odd), line("ADDED", &policy("b", 3, "{}")), bookmark(9, END)];
    let told = feed(&mut cursor, &lines);
    assert!(told.starts_with("partial odd: spec.podSelektor: "), "{told}");
    assert!(told.ends_with("[unknown-field]; applied b; listed b,odd"), "{told}");
}

#[test]
fn the_watch_goes_on_where_it_was() {
    let mut cursor = policies();
    cursor.begin();
    feed(&mut cursor, &[bookmark(9, END), line("MODIFIED", &policy("a", 12, "{}"))]);
    assert!(cursor.uri(0).ends_with("resourceVersion=12"));
    feed(&mut cursor, &[bookmark(40, "null")]);
    for fault in [Fault::Closed, Fault::Silent, refused(500), refused(429), Fault::Broken("reset".to_owned())] {
        cursor.failed(&fault);
        cursor.begin();
        assert!(cursor.uri(0).ends_with("resourceVersion=40"), "after {fault}: {}", cursor.uri(0));
    }
    assert_eq!(cursor.failed(&Fault::Closed), Next::AtOnce);
    assert_eq!(cursor.failed(&refused(500)), Next::Later);
}

#[test]
fn an_expired_version_is_listed_anew() {
    let expired = r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}"#;
    let mut cursor = policies();
    cursor.begin();
    feed(&mut cursor, &[line("ADDED", &policy("a", 5, "{}")), bookmark(9, END)]);
    let told = feed(&mut cursor, &[line("ERROR", expired)]);
    assert_eq!(told, "fault: the API server says 410: too old resource version");
    assert_eq!((cursor.failed(&refused(410)), asks(&cursor)), (Next::AtOnce, "streaming"));
    cursor.begin();
    assert_eq!(feed(&mut cursor, &[bookmark(10, END)]), "listed ");
}

#[test]
fn servers_that_cannot_stream_are_asked_for_a_list() {
    // 422: the feature is off. 500, 504: etcd 3.4. Other servers ignore the parameter, or stop in the middle.
    for fault in
        [refused(422), refused(400), refused(500), refused(504), Fault::NoInitialEnd, Fault::Silent, Fault::Closed]
    {
        let mut cursor = policies();
        cursor.begin();
        assert_eq!((cursor.failed(&fault), asks(&cursor)), (Next::AtOnce, "listing"), "after {fault}");
    }
    let mut cursor = policies();
    cursor.begin();
    assert_eq!(feed(&mut cursor, &[bookmark(9, "null")]), "fault: the API server does not stream lists");
}

#[test]
fn who_may_not_watch_may_not_list_either() {
    for fault in [refused(401), refused(403), refused(404), refused(429), Fault::Broken("refused".to_owned())] {
        let mut cursor = policies();
        cursor.begin();
        assert_eq!((cursor.failed(&fault), asks(&cursor)), (Next::Later, "streaming"), "after {fault}");
    }
}

#[test]
fn a_list_has_pages_and_its_items_need_not_say_what_they_are() {
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
    let mut told = Vec::new();
    cursor.page(&page(&item("a"), "a b"), |event| told.push(shown(&event))).expect("a page");
    assert!(cursor.uri(0).ends_with("?limit=500&continue=a%20b"), "{}", cursor.uri(0));
    cursor.begin();
    cursor.page(&page(&item("b"), ""), |event| told.push(shown(&event))).expect("a page");
    assert_eq!(told, ["applied a", "applied b", "listed a,b"]);
    assert!(cursor.uri(0).ends_with("resourceVersion=7"));
}

#[test]
fn an_empty_list_may_be_null() {
    let mut cursor = policies();
    cursor.failed(&refused(422));
    cursor.begin();
    let mut told = Vec::new();
    let text = r#"{"metadata":{"resourceVersion":"7"},"items":null}"#;
    cursor.page(text, |event| told.push(shown(&event))).expect("a page");
    assert_eq!(told, ["listed "]);
}

#[test]
fn a_token_that_has_expired_begins_the_list_anew() {
    let mut cursor = policies();
    cursor.failed(&refused(422));
    cursor.begin();
    let text = r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[]}"#;
    cursor.page(text, |_| ()).expect("a page");
    assert_eq!((cursor.failed(&refused(410)), asks(&cursor)), (Next::AtOnce, "streaming"));
}

#[test]
fn a_line_that_is_cut_is_a_fault_and_no_panic() {
    let whole = line("ADDED", &policy("a", 5, r#"{"podSelector":{}}"#));
    for length in 0..whole.len() {
        let mut cursor = policies();
        cursor.begin();
        let told = feed(&mut cursor, &[whole[..length].to_owned()]);
        assert!(told.starts_with("fault: what the API server sent"), "{length}: {told}");
    }
}
