//! Texts that are almost YAML or JSON, for readers of these languages.
//!
//! Three forms, because each reaches other code: tokens in any order (scanner), lines of any indentation (blocks), and
//! edits of a text that is valid (all of it, and the only form of which most are accepted).

use super::Random;

/// Tokens that a scanner treats specially, and the white space between them.
const TOKENS: [&str; 81] = [
    "a",
    "b",
    "1",
    "~",
    "é",
    "-",
    "- ",
    "? ",
    "?",
    ": ",
    ":",
    ",",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "[]",
    "{}",
    "#",
    " #c",
    "&a ",
    "&b",
    "*a",
    "*b",
    "*a ",
    "!",
    "! ",
    "!!str ",
    "!!int ",
    "!!s%74r ",
    "!%",
    "!<!a> ",
    "!e!x ",
    "!!binary ",
    "|",
    ">",
    "|\n",
    ">-\n",
    "|+\n",
    "|2\n",
    "'",
    "''",
    "\"",
    "\\",
    "\\n",
    "\\x41",
    "\\u00e9",
    "\\\n",
    "\n",
    "\n",
    "\n ",
    "\n  ",
    "\n    ",
    "\r\n",
    "\r",
    "\t",
    " ",
    "  ",
    "<<: ",
    "<<",
    "<<: *a",
    "%",
    "%TAG !e! a%21\n",
    "%YAML 1.1\n",
    "---\n",
    "--- ",
    "...\n",
    "@",
    "`",
    "=",
    "\u{feff}",
    "\u{a0}",
    "\u{85}",
    "\u{2028}",
    "!!timestamp ",
    "_",
    ".",
    "1e6",
    "0x",
    "null",
];

/// Plain scalars whose type is easily mistaken.
const SCALARS: [&str; 60] = [
    "y",
    "N",
    "yes",
    "no",
    "On",
    "off",
    "true",
    "TRUE",
    "False",
    "tRUE",
    "null",
    "Null",
    "~",
    "0",
    "-0",
    "+1",
    "010",
    "08",
    "0o17",
    "0b101",
    "-0b11",
    "0x1F",
    "0X1f",
    "-0x1",
    "+0x1",
    "1_000",
    "_1",
    "1_",
    "0_8",
    "0x_1",
    "1e3",
    "1E+3",
    "1e-3",
    "1.",
    ".5",
    "-.5",
    "+.5",
    ".5_0",
    "1.5_0",
    ".",
    "-",
    ".inf",
    "-.INF",
    "+.Inf",
    ".nan",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "1e22",
    "123456789.125",
    "2001-12-14",
    "1:30",
    "<<",
    "=",
    "12e03",
    "1e6",
    "-2.50",
];

/// Beginnings and ends of lines.
const LINES: [&str; 40] = [
    "a: b",
    "b:",
    "c: 1",
    "- a",
    "- b: c",
    "-",
    "- - d",
    "- ",
    "? a",
    "? - b",
    ": c",
    ": - d",
    "? <<",
    "<<: *x",
    "<<: [*x, *y]",
    "&x a: b",
    "a: &x",
    "a: &y {b: c}",
    "- &x",
    "*x : d",
    "- *x",
    "x y",
    "# c",
    "",
    "a: |",
    "- >-",
    "b: >+1",
    "a: 'b",
    "c'",
    "a: \"b",
    "c\\",
    "d\"",
    "a: [b,",
    "c]",
    "a: {b: c,",
    "}",
    "!!map",
    "a: !!str",
    "!t a: !t b",
    "\"k\": v",
];

/// Valid texts to edit.
const BASES: [&str; 6] = [
    "a: &d {x: 1, y: yes}\nb:\n  <<: *d\n  c: [1, ~, 'é', \"\\u00e9\"]\nd:\n- e: |\n    f\n- g: >-\n    h\n  i: !!str 1\n? j\n: k\n",
    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: web\n  annotations: {a/b: \"c\\td\"}\nspec:\n  podSelector:\n    matchLabels: &l\n      app: web\n  ingress:\n  - from:\n    - podSelector: {matchLabels: *l}\n    ports: [{port: 80, protocol: TCP}]\n",
    "%TAG !e! tag:yaml.org,2002:\n--- !e!map\n? &k !!str 1\n: !e!seq\n  - 0x10\n  - *k\n\"q\": 'it''s'\n",
    "- &a [b, c: d, ? e : f]\n- {g, h: , i: [*a]}\n-\n  - j\n  -\n   - k\n- l\n  m\n\n  n\n",
    "a: |+1\n  b\n\n c\n\nd: >\n e\n f\n\n  g\n h\n# i\nj: \"k\n  l\\\n  m\n\n  n\"\no: 'p\n\n q'\n",
    "m: {<<: [{a: 1}, &x {a: 2, b: 3}], c: 4}\nn:\n  b: 5\n  <<: *x\n  1.5: six\n  0x7: seven\n  true: eight\n",
];

/// A text for readers of YAML.
pub fn yaml(random: &mut Random) -> String {
    match random.below(4) {
        0 => random.several(23, |random| random.pick(&TOKENS)).concat(),
        1 => lines(random),
        2 => scalars(random),
        _ => edited(random.pick(&BASES), &TOKENS, random),
    }
}

fn lines(random: &mut Random) -> String {
    let mut text = String::new();
    random.list(1..=8, |_, random| {
        text += &" ".repeat(random.below(5));
        text += random.pick(&LINES);
        if random.once_in(4) {
            text += [" ", "  ", ": "][random.below(3)];
            text += random.pick(&LINES);
        }
        text += if random.once_in(20) { "\r\n" } else { "\n" };
    });
    text
}

/// Scalars as values and as keys, some of them with tags.
fn scalars(random: &mut Random) -> String {
    const TAGS: [&str; 12] =
        ["", "", "", "", "!!str ", "!!int ", "!!float ", "!!bool ", "!!null ", "! ", "!x ", "!!binary "];
    const FORMS: [&str; 6] = ["- T", "- {T: b}", "- T: b", "- ? T\n  : b", "- [T]", "- \"T\""];
    let mut text = String::new();
    random.list(1..=3, |_, random| {
        let mut scalar = random.pick(&SCALARS).to_owned();
        if random.once_in(4) {
            scalar = edited(&scalar, &["_", ".", "e", "-", "+", "0", "x", "9"], random);
        }
        let tagged = format!("{}{scalar}", random.pick(&TAGS));
        text += &random.pick(&FORMS).replace('T', &tagged);
        text += "\n";
    });
    text
}

/// A text with one to three edits.
fn edited(base: &str, tokens: &[&str], random: &mut Random) -> String {
    let mut text: Vec<char> = base.chars().collect();
    random.list(1..=3, |_, random| {
        let start = random.below(text.len() + 1);
        let end = (start + random.below(4)).min(text.len());
        match random.below(4) {
            0 => drop(text.drain(start..end)),
            1 => drop(text.splice(start..start, random.pick(tokens).chars())),
            2 => drop(text.splice(start..end, random.pick(tokens).chars())),
            _ => {
                let part = text[start..end].to_vec();
                let at = random.below(text.len() + 1);
                drop(text.splice(at..at, part));
            }
        }
    });
    text.into_iter().collect()
}

/// A text for readers of JSON.
pub fn json(random: &mut Random) -> String {
    const TOKENS: [&str; 40] = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\"a\"",
        "\"b\"",
        "1",
        "-",
        "0",
        "01",
        "1.5",
        "1e5",
        "1E-2",
        "1e400",
        "-0",
        "1.",
        ".5",
        "true",
        "false",
        "null",
        "nul",
        " ",
        "\n",
        "\t",
        "\r",
        "\\",
        "\\n",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\ud800",
        "\\/",
        "\\x",
        "é",
        "\u{1}",
        "9223372036854775808",
        "18446744073709551616",
        "/**/",
    ];
    if random.once_in(4) {
        return random.several(15, |random| random.pick(&TOKENS)).concat();
    }
    let mut text = String::new();
    value(4, random, &mut text);
    if random.once_in(2) { edited(&text, &TOKENS, random) } else { text }
}

fn value(depth: usize, random: &mut Random, text: &mut String) {
    const STRINGS: [&str; 10] =
        ["", "a", "é", "a b", "\\u0041", "\\ud83d\\ude00", "\\\"\\\\\\/", "\\b\\f\\n\\r\\t", "/", "\u{7f}\u{fffd}"];
    const NUMBERS: [&str; 14] = [
        "0",
        "-0",
        "1",
        "-12",
        "1.0",
        "2.50",
        "1e3",
        "1E+3",
        "12e-3",
        "123456789012345678",
        "9223372036854775807",
        "-9223372036854775808",
        "1e21",
        "0.1",
    ];
    const SPACE: [&str; 6] = ["", "", "", " ", "\n", "\t\r "];
    match random.below(if depth == 0 { 3 } else { 5 }) {
        0 => *text += &format!("\"{}\"", random.pick(&STRINGS)),
        1 => *text += random.pick(&NUMBERS),
        2 => *text += ["true", "false", "null"][random.below(3)],
        kind => {
            let (open, close) = if kind == 3 { ('[', ']') } else { ('{', '}') };
            text.push(open);
            random.list(0..=3, |index, random| {
                *text += if index > 0 { "," } else { "" };
                *text += random.pick(&SPACE);
                if kind == 4 {
                    *text += &format!("\"{}\"{}:", random.pick(&STRINGS), random.pick(&SPACE));
                }
                value(depth - 1, random, text);
                *text += random.pick(&SPACE);
            });
            text.push(close);
        }
    }
}

/// A text that is almost an address or a CIDR.
pub fn cidr(random: &mut Random) -> String {
    const TOKENS: [&str; 24] = [
        ".", ":", "::", "/", "0", "00", "1", "10", "255", "256", "a", "ffff", "fffff", "012", "%", "-", "+", " ", "32",
        "33", "128", "129", "x", "::ffff:",
    ];
    const BASES: [&str; 16] = [
        "10.0.0.0/8",
        "192.0.2.77/24",
        "255.255.255.255/32",
        "0.0.0.0/0",
        "010.0.0.0/08",
        "::/0",
        "2001:db8::1/64",
        "::ffff:10.1.2.3/120",
        "::ffff:0:0/90",
        "1:2:3:4:5:6:7:8/128",
        "64:ff9b::1.2.3.4/96",
        "fe80::/10",
        "1::/16",
        "::1",
        "10.0.0.1",
        "0:0:0:0:0:ffff:1.2.3.4/96",
    ];
    match random.below(4) {
        0 => random.several(11, |random| random.pick(&TOKENS)).concat(),
        _ => edited(random.pick(&BASES), &TOKENS, random),
    }
}

/// A label selector and labels, as JSON. Some of the keys, values and operators are not valid.
pub fn selector(random: &mut Random) -> String {
    const KEYS: [&str; 14] =
        ["app", "tier", "app", "tier", "a.b/c", "A_b-C.9", "", "-a", "a/", "/a", "a/b/c", "A.b/c", "é", "a b"];
    const VALUES: [&str; 12] = ["web", "db", "web", "db", "", "1", "A_b-C.9", "-a", "a-", "a/b", "é", "a b"];
    const OPERATORS: [&str; 9] =
        ["In", "NotIn", "Exists", "DoesNotExist", "In", "NotIn", "Exists", "DoesNotExist", "in"];
    // Most of them valid, so that matches are compared too.
    let key = |random: &mut Random| if random.once_in(12) { random.pick(&KEYS) } else { random.pick(&KEYS[..6]) };
    let value = |random: &mut Random| if random.once_in(12) { random.pick(&VALUES) } else { random.pick(&VALUES[..7]) };
    let pairs = |random: &mut Random, valid: bool| {
        let pair = |random: &mut Random| match valid {
            true => (random.pick(&KEYS[..6]).to_owned(), random.pick(&VALUES[..7]).into()),
            false => (key(random).to_owned(), value(random).into()),
        };
        random.several(2, pair).into_iter().collect::<serde_json::Map<String, serde_json::Value>>()
    };
    let expression = |random: &mut Random| {
        let operator = if random.once_in(12) { random.pick(&OPERATORS) } else { random.pick(&OPERATORS[..8]) };
        let fits = !random.once_in(12);
        let takes_values = matches!(operator, "In" | "NotIn") == fits;
        let values = if takes_values { vec![value(random); 1 + random.below(2)] } else { Vec::new() };
        serde_json::json!({"key": key(random), "operator": operator, "values": values})
    };
    let selector =
        serde_json::json!({"matchLabels": pairs(random, false), "matchExpressions": random.several(2, expression)});
    serde_json::json!({"selector": selector, "labels": pairs(random, true)}).to_string()
}
