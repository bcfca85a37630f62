use proptest::prelude::*;

use super::*;

/// Prints a tree in the simplest form.
fn print(node: &SyntaxNode<'_>) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match &node.value {
        SyntaxValue::Null => "null".to_owned(),
        SyntaxValue::Bool(value) => value.to_string(),
        SyntaxValue::Int(number) => number.to_string(),
        SyntaxValue::Float(number) => format!("{number:e}"),
        SyntaxValue::Str(text) => quote(text),
        SyntaxValue::Seq(items) => format!("[{}]", join(items.iter().map(print).collect())),
        SyntaxValue::Map(entries) => {
            let entry = |entry: &MappingEntry<'_>| format!("{}: {}", quote(&entry.key), print(&entry.value));
            format!("{{{}}}", join(entries.iter().map(entry).collect()))
        }
    }
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..='\u{1f}' => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => quoted.push(character),
        }
    }
    quoted + "\""
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(print(&parse(text, Span::of(text)).unwrap()), expected, "{text}");
}

/// Checks the error message, and the text that it points at.
#[track_caller]
fn refuse(text: &str, message: &str, at: &str) {
    let error = parse(text, Span::of(text)).unwrap_err();
    assert_eq!((error.message.as_str(), error.span.slice(text)), (message, at), "{text}");
}

#[test]
fn values_of_every_kind_are_read() {
    check(r#" {"a": [1, -2, true, false, null, "x"], "b": {}} "#, r#"{"a": [1, -2, true, false, null, "x"], "b": {}}"#);
    check("[]", "[]");
    check(r#""\u00e9\ud83d\ude00\n\/\"\\""#, "\"é😀\\u000a/\\\"\\\\\"");
}

#[test]
fn integral_numbers_are_integers() {
    check("[80.0, 1e3, -0, 0.5, 1E-1]", "[80, 1000, 0, 5e-1, 1e-1]");
    check("[9223372036854775807, 9223372036854775808]", "[9223372036854775807, 9.223372036854776e18]");
}

#[test]
fn half_a_surrogate_pair_is_replaced() {
    check(
        r#"["\ud800", "\ude00x", "\ud800\u0041", "\ud800\ud83d\ude00"]"#,
        "[\"\u{fffd}\", \"\u{fffd}x\", \"\u{fffd}A\", \"\u{fffd}😀\"]",
    );
}

#[test]
fn strings_without_escapes_are_borrowed() {
    let node = parse(r#"["plain é", "a\tb"]"#, Span { start: 0, end: 20 }).unwrap();
    let SyntaxValue::Seq(items) = node.value else { panic!() };
    let borrowed: Vec<bool> =
        items.iter().map(|item| matches!(item.value, SyntaxValue::Str(Cow::Borrowed(_)))).collect();
    assert_eq!(borrowed, [true, false]);
}

#[test]
fn duplicate_keys_are_kept() {
    check(r#"{"a": 1, "a": 2}"#, r#"{"a": 1, "a": 2}"#);
}

#[test]
fn mistakes_are_named_where_they_are() {
    let end = "the text ends in the middle of a JSON value";
    refuse(r#"{"a": 1"#, end, "");
    refuse(r#"{"a""#, end, "");
    refuse("[1, ", end, "");
    refuse("", end, "");
    for (text, close) in [(r#"["é", 1,]"#, "]"), (r#"{"a": 1,}"#, "}")] {
        refuse(text, "nothing follows the last comma", close);
    }
    refuse(r#"{"a": 1 "b": 2}"#, "expected `,` or `}` in this object", "\"");
    refuse("[1 2]", "expected `,` or `]` in this list", "2");
    refuse("{a: 1}", "expected a key in double quotes", "a");
    refuse(r#"{"a" 1}"#, "expected `:` after the key", "1");
    refuse("{'a': 1}", "expected a key in double quotes", "'");
    for word in ["nul", "NaN"] {
        refuse(&format!("[{word}]"), &format!("`{word}` is not a JSON value"), word);
    }
    refuse("[,]", "expected a value", ",");
    refuse("[\"é\n\"]", "a line ends inside a string", "\n");
    refuse("[\"a\tb\"]", "a tab inside a string", "\t");
    refuse(r#"["é"#, "this string is not closed", "\"é");
    for (text, escape) in [(r#"["\x"]"#, "\\x"), (r#"["\u12g4"]"#, "\\u")] {
        refuse(text, "not an escape sequence of JSON", escape);
    }
    refuse("[010]", "a number may not start with a zero", "010");
    for text in ["[1.]", "[-]"] {
        refuse(text, "expected a digit in this number", "]");
    }
    refuse("[1e999]", "a number beyond all bounds", "1e999");
    for (text, rest) in [("{} {}", "{"), ("[1] // one", "/")] {
        refuse(text, "something follows the end of the JSON value", rest);
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    check(&nested(MAX_DEPTH), &nested(MAX_DEPTH));
    refuse(&nested(MAX_DEPTH + 1), "nested more than 256 levels deep", "[");
    refuse(&"[".repeat(1 << 20), "nested more than 256 levels deep", "[");
    refuse(&"{\"a\":".repeat(1 << 18), "nested more than 256 levels deep", "{");
}

/// The spans of documents, of their fields and of the items of `items`.
fn walk(text: &str) -> (Vec<String>, Option<String>) {
    let mut seen = Vec::new();
    for document in documents(text) {
        let shallow = match document {
            Ok(shallow) => shallow,
            Err(error) => return (seen, Some(error.message)),
        };
        seen.push(shallow.span.slice(text).to_owned());
        for entry in &shallow.entries {
            seen.push(format!("{}={}", entry.key, entry.value.slice(text)));
            if entry.key != "items" {
                continue;
            }
            for item in elements(text, entry.value) {
                match item {
                    Ok(item) => seen.push(item.span.slice(text).to_owned()),
                    Err(error) => return (seen, Some(error.message)),
                }
            }
        }
        if let Some(error) = shallow.error {
            return (seen, Some(error.message));
        }
    }
    (seen, None)
}

#[track_caller]
fn check_walk(text: &str, seen: &[&str], error: Option<&str>) {
    let found = walk(text);
    assert_eq!((found.0.iter().map(String::as_str).collect(), found.1.as_deref()), (seen.to_vec(), error));
}

#[test]
fn lists_are_read_item_by_item() {
    let list = r#"{"kind": "List", "items": [{"a": "]}"}, [2], 3 ]}"#;
    check_walk(list, &[list, "kind=\"List\"", r#"items=[{"a": "]}"}, [2], 3 ]"#, r#"{"a": "]}"}"#, "[2]", "3"], None);
}

#[test]
fn several_objects_may_follow_each_other() {
    check_walk("{\"é\": 1}{} \n {\"b\":2}", &["{\"é\": 1}", "é=1", "{}", "{\"b\":2}", "b=2"], None);
    check_walk("{} ]", &["{}"], Some("something follows the end of the JSON object"));
    check_walk("[1]", &[], Some("expected an object"));
}

#[test]
fn items_before_a_mistake_count() {
    let text = r#"{"items": [1, 2, tru], "kind": "List"}"#;
    check_walk(text, &[text, "items=[1, 2, tru]", "1", "2"], Some("`tru` is not a JSON value"));
    let text = r#"{"items": [1, {"a": "#;
    check_walk(text, &[text, r#"items=[1, {"a": "#, "1"], Some("the text ends in the middle of a JSON value"));
}

fn trees() -> impl Strategy<Value = SyntaxNode<'static>> {
    let leaf = prop_oneof![
        Just(SyntaxValue::Null),
        any::<bool>().prop_map(SyntaxValue::Bool),
        any::<i64>().prop_map(SyntaxValue::Int),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(SyntaxValue::number),
        any::<String>().prop_map(|text| SyntaxValue::Str(text.into())),
    ];
    let node = |value| SyntaxNode { span: Span::default(), value };
    leaf.prop_map(node).prop_recursive(4, 40, 6, move |inner| {
        let entry = |(key, value): (String, _)| MappingEntry { key: key.into(), key_span: Span::default(), value };
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(SyntaxValue::Seq),
            prop::collection::vec((any::<String>(), inner).prop_map(entry), 0..6).prop_map(SyntaxValue::Map),
        ]
        .prop_map(node)
    })
}

proptest! {
    #[test]
    fn printed_values_are_read_back(tree in trees()) {
        let text = print(&tree);
        prop_assert_eq!(print(&parse(&text, Span::of(&text)).unwrap()), text);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\[\\]{}\":,0-9eE.+tfn\\\\u \n\u{e9}-]{0,60}") {
        let _ = parse(&text, Span::of(&text));
        walk(&text);
    }

    #[test]
    fn cutting_good_text_anywhere_gives_an_error_and_no_panic(tree in trees(), cut in any::<prop::sample::Index>()) {
        let text = format!("{{\"items\": [{}]}}", print(&tree));
        let mut end = cut.index(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let cut = text.get(..end).unwrap();
        prop_assert!(parse(cut, Span::of(cut)).is_err());
        prop_assert!(end == 0 || walk(cut).1.is_some());
    }
}
