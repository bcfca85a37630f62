//! Makes text from outside visible: escapes the characters that a terminal or a log would act on or would not show.
//!
//! Problem: names, values and messages come from the user's files, from the API server and from other programs. A
//! control character in them moves the cursor or changes colours, a line break creates a line that a CI system takes
//! for a command, and a bidirectional override or a zero-width letter makes a text look like another one.
//!
//! Strategy: [`line()`] is the only function that escapes them. Its result is one line in which every character is
//! visible. The command line tool calls it for each line that it prints (`Page`), so no message can forget it. It does
//! not escape backslashes: people read the result, and no program parses it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Characters that terminals act on or do not show: the categories Cc, Cf, Zl and Zp of Unicode 14 and later, and
/// everything that is "default ignorable" (variation selectors, fillers, tags). First and last of each range, sorted.
const HIDDEN: [(u32, u32); 27] = [
    (0x0, 0x1f),
    (0x7f, 0x9f),
    (0xad, 0xad),
    (0x34f, 0x34f),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1345f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

/// Whether terminals act on the character or do not show it.
pub fn is_hidden(letter: char) -> bool {
    let code = u32::from(letter);
    // Nearly all text is printable ASCII.
    if (0x20..0x7f).contains(&code) {
        return false;
    }
    let after = HIDDEN.partition_point(|(first, _)| *first <= code);
    after.checked_sub(1).and_then(|at| HIDDEN.get(at)).is_some_and(|(_, last)| code <= *last)
}

/// One line in which every character is visible: hidden ones become `\n`, `\t` or `\u{1b}`.
pub fn line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    text.chars().for_each(|letter| push(&mut out, letter));
    Cow::Owned(out)
}

/// Appends one character as [`line()`] writes it.
pub fn push(out: &mut String, letter: char) {
    match letter {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        letter if is_hidden(letter) => _ = write!(out, "\\u{{{:x}}}", u32::from(letter)),
        letter => out.push(letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        for (text, expected) in [
            ("shop/web: ü, 東京, é", "shop/web: ü, 東京, é"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[2J\u{7f}\u{9b}", "\\u{1b}[2J\\u{7f}\\u{9b}"),
            ("\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}", "\\u{202e}\\u{2066}\\u{200b}\\u{2028}\\u{feff}"),
            ("\u{e0041}\u{fe0f}\u{ad}\u{3164}", "\\u{e0041}\\u{fe0f}\\u{ad}\\u{3164}"),
        ] {
            assert_eq!(line(text), expected);
        }
    }

    #[test]
    fn ranges_are_sorted_and_apart() {
        assert!(HIDDEN.iter().all(|(first, last)| first <= last));
        assert!(HIDDEN.windows(2).all(|pair| matches!(pair, [(_, last), (first, _)] if last < first)));
    }

    #[test]
    fn every_control_character_is_hidden() {
        assert!(('\0'..=char::MAX).filter(|it| it.is_control()).all(is_hidden));
        assert!((' '..='~').all(|it| !is_hidden(it)));
    }
}
