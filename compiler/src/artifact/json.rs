//! JSON out: members in the order given, one top-level member a line, so that two manifests can be compared with `diff`.

use std::fmt::Write as _;

/// A value. Members of objects stand in the order of their making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Json {
    Number(u64),
    Signed(i64),
    Bool(bool),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Json {
    fn from(number: u32) -> Self {
        Self::Number(u64::from(number))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Json {
    /// A list of things.
    pub(super) fn list<T: Into<Json>>(items: impl IntoIterator<Item = T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// An object by its members.
    pub(super) fn object<K: Into<String>>(members: impl IntoIterator<Item = (K, Json)>) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// The text; the members and items of the first two levels have a line each.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out.push('\n');
        out
    }

    /// The same at the end of a text, so many levels down.
    pub(super) fn write(&self, out: &mut String, depth: usize) {
        match self {
            Self::Number(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Signed(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Bool(is) => {
                let _ = write!(out, "{is}");
            }
            Self::Text(text) => quote(out, text),
            Self::List(items) => {
                bracket(out, depth, ['[', ']'], items, |out, item| item.write(out, depth + 1));
            }
            Self::Object(members) => bracket(out, depth, ['{', '}'], members, |out, (key, value)| {
                quote(out, key);
                out.push_str(": ");
                value.write(out, depth + 1);
            }),
        }
    }
}

fn bracket<T>(out: &mut String, depth: usize, marks: [char; 2], items: &[T], write: impl Fn(&mut String, &T)) {
    const LINES: usize = 2;
    let lines = depth < LINES && !items.is_empty();
    out.push(marks[0]);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match lines {
            true => new_line(out, depth + 1),
            false if index > 0 => out.push(' '),
            false => {}
        }
        write(out, item);
    }
    if lines {
        new_line(out, depth);
    }
    out.push(marks[1]);
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: Json, expected: &str) {
        assert_eq!(json.text(), expected);
    }

    #[test]
    fn two_levels_have_a_line_each_and_the_rest_stands_on_it() {
        let inner = Json::object([("b", Json::list([1u32, 2])), ("c", Json::list::<u32>([]))]);
        check(
            Json::object([("a", Json::List(vec![inner]))]),
            "{\n  \"a\": [\n    {\"b\": [1, 2], \"c\": []}\n  ]\n}\n",
        );
    }

    #[test]
    fn quotes_and_controls_are_escaped() {
        check("a\"\\\n\u{1}é".into(), "\"a\\\"\\\\\\n\\u0001é\"\n");
    }
}
