//! JSON output: members in the order given, one line for each top-level member, so that `diff` can compare two
//! manifests.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A JSON value. The members of an object keep the order in which they were added. Texts are borrowed where possible: a
/// snapshot has millions of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Json<'a> {
    Number(u64),
    Signed(i64),
    Bool(bool),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    /// The text of a value that has no lines of its own, or of several that [`begin_item`] separates.
    Written(&'a str),
    /// A list of numbers. There can be millions of them, too many for one tree node each.
    Numbers(&'a [u32]),
    Object(Vec<(&'a str, Json<'a>)>),
}

impl From<u64> for Json<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Json<'_> {
    fn from(number: u32) -> Self {
        Self::Number(u64::from(number))
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Json<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl<'a> Json<'a> {
    /// A list of things.
    pub(super) fn list<T: Into<Json<'a>>>(items: impl IntoIterator<Item = T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// An object by its members.
    pub(super) fn object(members: impl IntoIterator<Item = (&'a str, Json<'a>)>) -> Self {
        Self::Object(members.into_iter().collect())
    }

    /// Appends the JSON text; the members and items of the first two levels have a line each.
    pub(super) fn write_text(&self, out: &mut String) {
        self.write(out, 0);
        out.push('\n');
    }

    /// Appends the JSON text to `out`, as a value `depth` levels down.
    pub(super) fn write(&self, out: &mut String, depth: usize) {
        match self {
            Self::Number(number) => digits(out, *number),
            Self::Written(text) => out.push_str(text),
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
            Self::Numbers(numbers) => bracket(out, depth, ['[', ']'], numbers, |out, number| {
                digits(out, u64::from(*number));
            }),
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

/// The level of the items of a top-level list.
pub(super) const ITEM_DEPTH: usize = 2;

/// Begins an item of a top-level list whose text is made without [`Json::List`].
pub(super) fn begin_item(out: &mut String) {
    if !out.is_empty() {
        out.push(',');
        new_line(out, ITEM_DEPTH);
    }
}

/// Appends a number. A manifest can have hundreds of thousands of them, and `write!` costs several times more.
pub(super) fn digits(out: &mut String, mut number: u64) {
    let (mut text, mut at) = ([0; 20], 20);
    while at == 20 || number > 0 {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // ASCII, so never the default.
    out.push_str(str::from_utf8(&text[at..]).unwrap_or_default());
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Appends a text in quotes.
pub(super) fn quote(out: &mut String, text: &str) {
    out.push('"');
    let mut plain = 0;
    // Escaped characters are ASCII, so the plain text between them begins and ends at character boundaries.
    for (at, byte) in text.bytes().enumerate().filter(|(_, byte)| *byte < b' ' || matches!(byte, b'"' | b'\\')) {
        out.push_str(text.get(plain..at).unwrap_or_default());
        plain = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
    }
    out.push_str(text.get(plain..).unwrap_or_default());
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &Json) -> String {
        let mut text = String::new();
        json.write_text(&mut text);
        text
    }

    #[track_caller]
    fn check(json: Json, expected: &str) {
        assert_eq!(text(&json), expected);
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
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 11, 99, 100, 4_294_967_295, u64::MAX] {
            check(Json::Number(number), &format!("{number}\n"));
        }
        check(Json::Numbers(&[0, 10, u32::MAX]), "[\n  0,\n  10,\n  4294967295\n]\n");
    }

    #[test]
    fn items_that_are_written_alone_stand_as_in_a_list() {
        let items = [Json::list([1u32]), Json::from(2u32)];
        let mut alone = String::new();
        for item in &items {
            begin_item(&mut alone);
            item.write(&mut alone, ITEM_DEPTH);
        }
        let object = |list| text(&Json::object([("a", Json::List(list))]));
        assert_eq!(object(vec![Json::Written(&alone)]), object(items.to_vec()));
    }

    #[test]
    fn quotes_and_controls_are_escaped() {
        check("a\"\\\n\u{1}é".into(), "\"a\\\"\\\\\\n\\u0001é\"\n");
    }
}
