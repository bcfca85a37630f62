//! Every expectation of [`as_kubectl`] and [`refuse`] was compared with `sigs.k8s.io/yaml` 1.6.

use proptest::prelude::*;

use super::*;
use crate::syntax::{MAX_DEPTH, MappingEntry, SyntaxValue};

/// A tree on one line: `{key: value}`, `[item]`, strings in quotes.
fn show(node: &SyntaxNode<'_>) -> String {
    match &node.value {
        SyntaxValue::Null => "null".to_owned(),
        SyntaxValue::Bool(value) => value.to_string(),
        SyntaxValue::Int(number) => number.to_string(),
        SyntaxValue::Float(number) => format!("{number:?}"),
        SyntaxValue::Str(text) => format!("{text:?}"),
        SyntaxValue::Seq(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", ")),
        SyntaxValue::Map(entries) => {
            let entry = |entry: &MappingEntry<'_>| format!("{}: {}", entry.key, show(&entry.value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

/// All documents, or the error message and the text that it points at.
fn read(text: &str) -> Vec<String> {
    documents(text)
        .map(|document| match document {
            Ok(document) => show(&document.root),
            Err(error) => format!("{} at {:?}", error.message, error.span.slice(text)),
        })
        .collect()
}

#[track_caller]
fn as_kubectl(text: &str, expected: &str) {
    assert_eq!(read(text), [expected], "{text}");
}

#[track_caller]
fn refuse(text: &str, message: &str, at: &str) {
    assert_eq!(read(text), [format!("{message} at {at:?}")], "{text}");
}

#[test]
fn blocks_nest_by_indentation() {
    as_kubectl(
        "a:\n  b: 1\n  c:\n  - d\n  - e: 2\n    f: 3\n  -\n  - - g\n    - h\n",
        r#"{a: {b: 1, c: ["d", {e: 2, f: 3}, null, ["g", "h"]]}}"#,
    );
    as_kubectl("a:\nb:\n- 1\nc: 2\n", "{a: null, b: [1], c: 2}");
    as_kubectl("- a: 1\n\n  # c\n  b: 2 # d\n", "[{a: 1, b: 2}]");
    as_kubectl("'a' : 1\n\"b\": 2\n? c\n: 3\n? d\n", "{a: 1, b: 2, c: 3, d: null}");
    as_kubectl("a:\r\n  b: 1\r\n  c: |\r\n    x\r\n", r#"{a: {b: 1, c: "x\n"}}"#);
    as_kubectl("a:\tb\t# c\n", r#"{a: "b"}"#);
    as_kubectl("a: b:c d#e\n", r#"{a: "b:c d#e"}"#);
}

#[test]
fn brackets_nest_in_any_indentation() {
    as_kubectl("a: [1, {b: c, \"d\":e, f}, [], g: h,]\n", r#"{a: [1, {b: "c", d: "e", f: null}, [], {g: "h"}]}"#);
    as_kubectl("a:\n  b: {\nc: d,\n\te: [ # f\n]\n}\ng: 1\n", r#"{a: {b: {c: "d", e: []}}, g: 1}"#);
    as_kubectl("a: [b,\n\n c\n d]\n", r#"{a: ["b", "c d"]}"#);
    as_kubectl("{a:1, b: }", "{a:1: null, b: null}");
    as_kubectl("[a\n, ? b : c]", r#"["a", {b: "c"}]"#);
}

#[test]
fn plain_scalars_go_on_where_lines_are_deeper() {
    as_kubectl("a: b\n  c\n\n  d\ne: f\n", r#"{a: "b c\nd", e: "f"}"#);
    as_kubectl("a: b\n  # c\nd: e\n", r#"{a: "b", d: "e"}"#);
    as_kubectl("- a\n b\n", r#"["a b"]"#);
}

#[test]
fn quotes_fold_lines_and_know_escapes() {
    as_kubectl("a: 'b\nc  \n\n  d''e'\n", r#"{a: "b c\nd'e"}"#);
    as_kubectl("a: \"b \\\n   c\\n\\x41\\u00e9\\U0001F600\\_\\\"\"# d\n", r#"{a: "b c\nAé😀\u{a0}\""}"#);
    as_kubectl("a: \"b \\  \n  c\"\n", r#"{a: "b   c"}"#);
    as_kubectl("a: ''\nb: \"\"\n", r#"{a: "", b: ""}"#);
    refuse(r#"a: "\/""#, "an escape sequence that YAML does not know", "\\/");
    refuse(r#"a: "\ud800""#, "an escape sequence that is no Unicode character", "\\u");
    refuse(r#"a: "\xé""#, "too few hexadecimal digits in this escape sequence", "\\x");
    refuse("a: 'é\nb: c\n", "this quote is never closed", "'é");
    refuse("a: 'b' c\n", "this does not fit to the mapping around it", "c");
}

#[test]
fn blocks_of_text_are_chomped_and_folded() {
    as_kubectl("a: |\n  x\n   y\n\nb: |-\n  x\n\nc: |+\n  x\n\nd: 1\n", r#"{a: "x\n y\n", b: "x", c: "x\n\n", d: 1}"#);
    as_kubectl("a: >\n  x\n  y\n\n  z\n   w\n  v\n", r#"{a: "x y\nz\n w\nv\n"}"#);
    as_kubectl("a: >-2 # c\n    x\n   y\n", r#"{a: "  x\n y"}"#);
    as_kubectl("a: |\n\n  # x\n # y\nb: |\nc: 1\n", r##"{a: "\n# x\n", b: "", c: 1}"##);
    as_kubectl("- |\n x\n- >\n y", r#"["x\n", "y"]"#);
    as_kubectl("a:\n|-\n b\nc:\n- d\n-\n>-\n e\n", r#"{a: "b", c: ["d", "e"]}"#);
    refuse("a: |x\n", "a block of text starts on the line after its `|` or `>`", "|x");
    refuse("a: |\n\tx\n", "a tab in the indentation", "\t");
}

#[test]
fn scalars_mean_what_they_do_in_yaml_1_1() {
    as_kubectl(
        "[010, 0x50, 8_080, 1e3, 80.0, 1.10, y, on, ~, 1:30, '12', 2001-12-14]",
        r#"[8, 80, 8080, 1000, 80, 1.1, true, true, null, "1:30", "12", "2001-12-14"]"#,
    );
    as_kubectl("[0b-11, !!binary //9h, 0b+_1]", "[-3, \"\u{fffd}\u{fffd}a\", 1]");
    as_kubectl(
        "[!!str 12, ! 12, !!int '12', !!float 1, !mine yes, !!binary aMOpbGw=]",
        r#"["12", "12", 12, 1, "yes", "hélll"]"#.replace("élll", "éll").as_str(),
    );
    refuse("a: .nan\n", "`.nan` is a number that JSON cannot carry", ".nan");
    refuse("a: !!int x\n", "a string with the tag `!!int`", "x");
    refuse("a: !# b\n", "white space must follow a tag", "!# b");
    refuse("a: !e!int 3\n", "not a tag, or one whose prefix is not declared", "!e!int");
}

#[test]
fn keys_become_strings() {
    as_kubectl(
        "1: a\n0x10: b\ntrue: c\ny: d\n1e6: e\n1.5: f\n2001-12-14: g\n",
        r#"{1: "a", 16: "b", true: "c", true: "d", 1e+06: "e", 1.5: "f", 2001-12-14: "g"}"#,
    );
    as_kubectl("? 1e6\n: a\n? 1.5\n", r#"{1e+06: "a", 1.5: null}"#);
    for (text, key) in [("~: a\n", "~"), ("? ~\n", "~"), (": a\n", ":")] {
        refuse(text, "a key that is null", key);
    }
    refuse("? [a]\n: b\n", "a list or mapping as a key", "[a]");
    refuse("a: {{ .Values.b }}\n", "a list or mapping as a key", "{ .Values.b }");
}

#[test]
fn duplicate_keys_are_kept() {
    as_kubectl("a: 1\nb: 2\na: 3\n", "{a: 1, b: 2, a: 3}");
}

#[test]
fn merges_make_no_duplicates() {
    let base = "x: &x {p: 1, q: 2}\n";
    let check = |merge: &str, expected: &str| {
        as_kubectl(&format!("{base}{merge}"), &format!("{{x: {{p: 1, q: 2}}, y.: {expected}}}"));
    };
    check("y.:\n  <<: *x\n  q: 3\n", "{p: 1, q: 3}");
    check("y.: {<<: *x, r: 3}\n", "{p: 1, q: 2, r: 3}");
    check("y.:\n  <<: [{p: 5}, *x]\n", "{p: 5, q: 2}");
    check("y.:\n  <<: *x\n  <<: {p: 6}\n", "{p: 6, q: 2}");
    // In kubectl a merge overrides earlier keys.
    check("y.:\n  q: 3\n  <<: *x\n", "{q: 2, p: 1}");
    check("y.:\n  <<: *x\n  r: 3\n  r: 4\n", "{p: 1, q: 2, r: 3, r: 4}");
    check("y.:\n  '<<': 1\n", "{<<: 1}");
    refuse("a:\n  <<: 1\n", "only mappings can be merged", "1");
    refuse("x: &x [{a: 1}]\nb:\n  <<: *x\n", "only mappings can be merged", "*x");
    check("y.:\n  ? <<\n  : *x\n  ? r\n  : 3\n", "{p: 1, q: 2, r: 3}");
    refuse("a: 1\n? <<\n", "only mappings can be merged", "");
}

#[test]
fn aliases_stand_for_what_was_anchored_last() {
    as_kubectl("a: &x 1\nb: &x [2]\nc: *x\n*x : d\n".replace("*x : d\n", "").as_str(), "{a: 1, b: [2], c: [2]}");
    as_kubectl("a: &x k\n*x : !!str &y\nb: *y\n", r#"{a: "k", k: "", b: ""}"#);
    as_kubectl("&a a: &b\n  c: 1\nd: *a\ne: *b\n", r#"{a: {c: 1}, d: "a", e: {c: 1}}"#);
    as_kubectl("- &a\n  - b\n- &c !!str\n  12\n- *c\n", r#"[["b"], "12", "12"]"#);
    as_kubectl("- &a [&a b, c]\n- *a\n", r#"[["b", "c"], "b"]"#);
    as_kubectl("&a 1e6: b\nc: *a\nd: {&a <<: {e: f}}\n", r#"{1e+06: "b", c: 1000000, d: {e: "f"}}"#);
    refuse("a: *nil\n", "there is no anchor `&nil` for this alias", "*nil");
    refuse("a: &a [*a]\n", "this alias stands inside the value that it stands for", "*a");
    refuse("a: *.yaml\n", "not the name of an anchor", "*");
    refuse("&a\n&b\nc\n", "a second anchor for one value", "&b");
}

#[test]
fn aliases_with_anchors_or_tags_are_refused() {
    let message = "an alias cannot have an anchor or a tag";
    refuse("a: &x b\nc: !!str &y *x\n", message, "!!str &y");
    refuse("a: &x b\nc: [d, !!str *x]\n", message, "!!str");
    for text in [
        "a: &x {b: c}\nd: &y *x\n",
        "a: &x b\nc: {d: &y *x}\n",
        "a: &x b\n&y *x : c\n",
        "a: &x b\nc: {&y *x : d}\n",
        "a: &x b\n? &y *x\n: c\n",
        "- &x b\n- &y\n  *x\n",
    ] {
        refuse(text, message, "&y");
    }
    // Here the anchor is the mapping's.
    as_kubectl("- &x b\n- &y\n  *x : c\n- *y\n", r#"["b", {b: "c"}, {b: "c"}]"#);
}

#[test]
fn properties_may_stand_alone() {
    // The list below an anchor is the next item, unless the anchor is that of a mapping's value.
    as_kubectl("- &a\n- b\n- *a\n", r#"[null, "b", null]"#);
    as_kubectl("- !!null\n- [1]\n", "[null, [1]]");
    as_kubectl("a: &a\n- b\nc: *a\n", r#"{a: ["b"], c: ["b"]}"#);
    as_kubectl("- a: !!seq\n  - b\n", r#"[{a: ["b"]}]"#);
    as_kubectl("- !!str : b\n- {!!str : c, d: e}\n- [!t : f]\n", r#"[{: "b"}, {: "c", d: "e"}, [{: "f"}]]"#);
    as_kubectl("a: b\n!!str : c\n", r#"{a: "b", : "c"}"#);
    refuse("a: b\n&c? : d\n", "a value cannot begin with `?`", "?");
    refuse("- &a : b\n", "a key that is null", "&a ");
}

#[test]
fn tags_have_escape_sequences() {
    as_kubectl("[!!s%74r 1, !<tag%3Ayaml.org,2002:str> 2, !%C3%A9 3]", r#"["1", "2", "3"]"#);
    as_kubectl("%TAG !e! tag:yaml.org,2002:\r---\r- !e!str 3\r", r#"["3"]"#);
    as_kubectl("%TAG !e! tag:yaml.org%2C2002:\n---\n- !e!str 3\n", r#"["3"]"#);
    for text in ["a: !!s%7 1\n", "a: !a%41%zz 1\n", "a: !<%> 1\n", "%TAG !e! e%\n---\na\n"] {
        refuse(text, "two hexadecimal digits must follow a `%`", "%");
    }
    refuse("a: !%c3 1\n", "the escape sequences of this tag are not UTF-8", "%c3");
    for directive in ["%TAG !e! é", "%TAG e!e! a"] {
        refuse(&format!("{directive}\n---\na\n"), "not a directive of YAML", directive);
    }
    for tag in ["!<b 1", "!<> 1"] {
        refuse(&format!("a: {tag}\n"), "expected a tag between `!<` and `>`", tag);
    }
}

#[test]
fn mistakes_are_named_where_they_are() {
    refuse("é: b: c\n", "a `:` where no mapping can be", ":");
    refuse("a: - b\n", "a list cannot begin here", "-");
    refuse("a:\n  b: 1\n c: 2\n", "this does not fit to the mapping around it", "c");
    refuse("a:\n  - b\n c: 2\n", "this does not fit to the mapping around it", "c");
    refuse("- a\nb: c\n", "this does not fit to the list around it", "b");
    refuse("a: b\n  c: d\n", "a `:` where no mapping can be", ":");
    refuse("a: 1\nbé\nc: 2\n", "expected `:` after this key", "bé");
    for text in ["a:\n\tb: c\n", "a: b\n\t\nc: d\n", "\ta: b\n", "a: {b\n\tc: 1}\n"] {
        refuse(text, "a tab in the indentation", "\t");
    }
    refuse("a: [b\nc: d\n", "expected `,` or a closing bracket", ":");
    refuse("a: [b", "this bracket is never closed", "[");
    refuse("a: [,]", "nothing stands before this comma", ",");
    refuse("a: ]\n", "a value cannot begin with `]`", "]");
    refuse("a: @b\n", "a value cannot begin with `@`", "@");
    refuse("a: %b\n", "a value cannot begin with `%`", "%");
    refuse("a: é\u{1}\n", "control character U+0001", "\u{1}");
    refuse("a: 1\n]\n", "a value cannot begin with `]`", "]");
    refuse("a\nb: c\n", "a `:` where no mapping can be", ":");
    refuse(&format!("{}: 1\n", "k".repeat(1025)), "this key is longer than 1024 characters", "k");
}

#[test]
fn documents_are_apart() {
    let text = "# none\n---\n---\na: 1\n--- {b: 2}\n---\nc: [\n--- # d\n...\n# none\n...\ne: 5\n...\n%YAML 1.1\n# f\n---\ng: 6\n---x: 7\n---\n~\n";
    let numbers: Vec<u32> = documents(text).filter_map(Result::ok).map(|document| document.number).collect();
    assert_eq!(read(text), ["{a: 1}", "{b: 2}", "this bracket is never closed at \"[\"", "{e: 5}", "{g: 6, ---x: 7}"]);
    assert_eq!(numbers, [1, 2, 4, 5]);
}

#[test]
fn byte_order_marks_stand_before_documents() {
    let text = "\u{feff}a: 1\n---\n\u{feff}b: 2\n\u{feff}c: 3\n";
    assert_eq!(read(text), ["{a: 1}", "{b: 2, \u{feff}c: 3}"]);
    // A no-break space is not white space, but a value.
    assert_eq!(read("\u{a0}\n--- b\n"), ["\"\\u{a0}\"", "\"b\""]);
}

#[test]
fn directives_need_a_document() {
    as_kubectl("%TAG !e! tag:yaml.org,2002:\n---\na: !e!str 3\n", r#"{a: "3"}"#);
    as_kubectl("%YAML 1.1\n\t# b\n---\na: 1\n", "{a: 1}");
    refuse("%YAML 1.1\n%YAML 1.1\n---\na: 1\n", "a second %YAML line", "%YAML 1.1");
    refuse("%YAML 1.2\n---\na: 1\n", "Kubernetes reads YAML 1.1 only", "%YAML 1.2");
    refuse("%YAML 1.1\na: 1\n", "a line of `---` must follow the directives", "%YAML 1.1");
    refuse("%a\n---\nb\n", "not a directive of YAML", "%a");
}

/// The spans of keys and values, as text.
fn spans(text: &str) -> Vec<&str> {
    fn visit<'t>(node: &SyntaxNode<'_>, text: &'t str, spans: &mut Vec<&'t str>) {
        spans.push(node.span.slice(text));
        match &node.value {
            SyntaxValue::Seq(items) => items.iter().for_each(|item| visit(item, text, spans)),
            SyntaxValue::Map(entries) => entries.iter().for_each(|entry| {
                spans.push(entry.key_span.slice(text));
                visit(&entry.value, text, spans);
            }),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for document in documents(text).flatten() {
        visit(&document.root, text, &mut found);
    }
    found
}

#[test]
fn spans_are_bytes_and_exact() {
    assert_eq!(spans("é: 'ü' # x\n"), ["é: 'ü'", "é", "'ü'"]);
    assert_eq!(
        spans("---\n\"ß\" : [ä, {b: }] \n---\nc: d\n"),
        ["\"ß\" : [ä, {b: }]", "\"ß\"", "[ä, {b: }]", "ä", "{b: }", "b", "", "c: d", "c", "d"]
    );
    assert_eq!(
        spans("a:\n- b\n-\nc: |\n  é\n\nd: x\n  y\n"),
        ["a:\n- b\n-\nc: |\n  é\n\nd: x\n  y", "a", "- b\n-", "b", "", "c", "|\n  é", "d", "x\n  y"]
    );
    assert_eq!(spans("a: &x !!str 1\nb: *x\n"), ["a: &x !!str 1\nb: *x", "a", "&x !!str 1", "b", "*x"]);
    assert_eq!(spans("x: &x {p: 1}\ny.: {<<: *x}\n").split_off(5), ["y.", "{<<: *x}", "<<", "*x"]);
}

#[test]
fn the_span_of_nothing_is_behind_its_colon() {
    let text = "a:   # c\nb: 1\n";
    let Some(Ok(document)) = documents(text).next() else { panic!() };
    let SyntaxValue::Map(entries) = document.root.value else { panic!() };
    assert_eq!(entries.first().map(|entry| entry.value.span), Some(Span::new(2, 2)));
}

#[test]
fn a_document_can_be_read_again_from_its_span() {
    let text = "# é\n---\na: 1\n...\n%YAML 1.1\n---\nb: *é\n---\nc: 'ü'\n";
    for document in documents(text).flatten() {
        assert_eq!(parse(text, document.span), Ok(Some(document.root)));
    }
}

#[test]
fn depth_is_bounded() {
    let message = "nested more than 256 levels deep";
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    as_kubectl(&nested(MAX_DEPTH), &nested(MAX_DEPTH));
    refuse(&nested(MAX_DEPTH + 1), message, "[");
    refuse(&"- ".repeat(1 << 19), message, "-");
    refuse(&"{a: ".repeat(1 << 18), message, "{");
    refuse(&"? ".repeat(1 << 19), message, "?");
    let stairs: String = (0..400).map(|column| " ".repeat(column) + "a:\n").collect();
    refuse(&stairs, message, "a");
    let mut chain = String::from("a0: &a0 1\n");
    (1..400).for_each(|link| chain += &format!("a{link}: &a{link} [*a{}]\n", link - 1));
    refuse(&chain, message, "*a255");
}

#[test]
fn aliases_are_bounded() {
    let message = format!("aliases make this document more than {MAX_ALIASED} values larger");
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let inner = vec![format!("*a{}", level - 1); 10].join(", ");
        laughs += &format!("a{level}: &a{level} [{inner}]\n");
    }
    assert!(read(&laughs)[0].starts_with(&message));
    let long = format!("a: &a {}\nb:\n{}", "x".repeat(1 << 20), "- *a\n".repeat(1 << 15));
    assert!(read(&long)[0].starts_with(&message));
    let merges = format!("a: &a {{{}}}\n{}", "k: v, ".repeat(1000), "- {<<: *a}\n".repeat(1000).replace("- ", "b: "));
    assert!(read(&merges)[0].starts_with(&message));
    let modest = format!("a: &a [1, 2, 3]\nb:\n{}", "- *a\n".repeat(50_000));
    assert_eq!(documents(&modest).filter(Result::is_ok).count(), 1);
}

#[test]
fn long_texts_take_time_in_proportion() {
    // Anything quadratic would take minutes here.
    let many = 1 << 17;
    for text in [
        "k: v\n",
        "# c\n",
        "- 'a'\n",
        "a: &a x\n",
        "--- a\n",
        "!t ",
        "&a ",
        "\t",
        "  x\n",
        "'",
        "[],",
        "%a\n",
        "x ",
        "...\n",
    ] {
        for before in ["", "a: |\n", "[", "a: \"", "a: ", "- "] {
            documents(&(before.to_owned() + &text.repeat(many))).for_each(drop);
        }
    }
}

const SAMPLE: &str = "a: &d {x: 1, y: yes}\nb:\n  <<: *d\n  c: [1, ~, 'é', \"\\u00e9\"]\nd:\n- e: |\n    f\n- g: >-\n    h\n  i: !!str 1\n? j\n: k\n";

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "([-:?,&*!|>%@#'\"\\[\\]{}a1~<=.\\\\é \t\r\n]|- |: |\n  |<<: |---\n){0,60}") {
        for document in documents(&text) {
            let span = match document {
                Ok(document) => document.root.span,
                Err(error) => error.span,
            };
            prop_assert!(text.get(span.start as usize..span.end as usize).is_some(), "{:?}", span);
        }
    }

    #[test]
    fn no_mutation_makes_the_reader_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), "[-:?,&*!|>'\"\\[\\]{}# \t\né]{0,2}", 0_usize..4), 1..4)
    ) {
        let mut text: Vec<char> = SAMPLE.chars().collect();
        for (place, insert, delete) in edits {
            let start = place.index(text.len());
            let end = (start + delete).min(text.len());
            text.splice(start..end, insert.chars());
            prop_assume!(!text.is_empty());
        }
        let text: String = text.into_iter().collect();
        for document in documents(&text) {
            let span = document.map_or_else(|error| error.span, |document| document.root.span);
            prop_assert!(text.get(span.start as usize..span.end as usize).is_some(), "{:?}", span);
        }
    }

    #[test]
    fn json_reads_the_same_as_yaml(numbers in prop::collection::vec((any::<i32>(), "[a-z\"\\\\é ]{0,8}"), 0..6)) {
        let members: Vec<String> = numbers.iter().map(|(number, text)| format!("{{{text:?}: [{number}, {text:?}]}}")).collect();
        let text = format!("[{}]", members.join(",\n"));
        let json = crate::syntax::json::parse(&text, Span::of(&text)).unwrap();
        prop_assert_eq!(documents(&text).next().unwrap().unwrap().root, json);
    }
}
