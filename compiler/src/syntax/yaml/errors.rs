//! What the parser says, in words for people who write manifests.

use saphyr_parser::ScanError;

use super::place::Place;
use crate::syntax::{Span, SyntaxError};

/// What the parser says, what we say, what to do.
const WORDS: &[(&str, &str, &str)] = &[
    (
        "mapping values are not allowed in this context",
        "a `:` where no mapping can be",
        "check the indentation; put a value that contains `: ` in quotes",
    ),
    ("simple key", "expected `:` after this key", "check the indentation of this line and the ones above it"),
    (
        "did not find expected key",
        "this does not fit into the mapping around it",
        "check the indentation of this line and the ones above it",
    ),
    (
        "did not find expected '-' indicator",
        "this does not fit into the list around it",
        "check the indentation of this line and the ones above it",
    ),
    (
        "invalid indentation",
        "the indentation does not fit any line above",
        "indent the items of one mapping or list alike",
    ),
    ("unexpected end of stream", "this quote is never closed", "close it, or put the whole value in quotes"),
    ("unexpected document indicator", "this quote is never closed", "close it, or put the whole value in quotes"),
    (
        "unknown escape character",
        "an escape sequence that YAML does not know",
        "in double quotes, a backslash is written `\\\\`",
    ),
    ("unexpected character", "a value cannot start with this character", "put the value in quotes"),
    (
        "unknown anchor",
        "an alias to an anchor that is not there",
        "an anchor (`&name`) must stand before its aliases (`*name`)",
    ),
    (
        "the handle wasn't declared",
        "this tag's prefix is not declared",
        "declare it with a %TAG line, or remove the tag",
    ),
];

/// The error, at its place.
pub(super) fn translate(error: &ScanError, place: &Place<'_>) -> SyntaxError {
    let byte = place.byte(*error.marker());
    let info = error.info();
    if info == "recursion limit exceeded" {
        return SyntaxError::too_deep(place.character(byte));
    }
    if let Some(tab) = tab_indent(place, byte) {
        return SyntaxError::new(tab, "a tab in the indentation").help("YAML is indented with spaces only");
    }
    let at = if byte >= place.end() {
        Span::new(place.trim_back(byte), place.trim_back(byte))
    } else {
        place.character(byte)
    };
    match WORDS.iter().find(|(theirs, _, _)| info.contains(theirs)) {
        Some((_, message, help)) => SyntaxError::new(at, *message).help(*help),
        None => SyntaxError::new(at, info),
    }
}

/// The tab before the first visible character of the line where the parser stopped, or of the line above it.
fn tab_indent(place: &Place<'_>, byte: usize) -> Option<Span> {
    let line = place.line_start(byte);
    let above = place.line_start(line.saturating_sub(1).max(place.start()));
    [line, above].into_iter().find_map(|start| {
        let rest = place.rest(start);
        let indent = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let tab = start + rest.get(..indent)?.find('\t')?;
        let content = rest.get(indent..)?;
        let blank = content.is_empty() || content.starts_with(['\n', '\r', '#']);
        (!blank).then(|| Span::new(tab, tab + 1))
    })
}

/// The first character that YAML does not allow in a text at all.
pub(super) fn forbidden(place: &Place<'_>) -> Option<SyntaxError> {
    let (offset, character) = place.chunk.char_indices().find(|(_, character)| is_forbidden(*character))?;
    let start = place.start() + offset;
    let span = Span::new(start, start + character.len_utf8());
    let message = format!("control character U+{:04X}", u32::from(character));
    Some(SyntaxError::new(span, message).help("remove it; in double quotes it can be written as an escape sequence"))
}

fn is_forbidden(character: char) -> bool {
    let control = character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{85}');
    control || matches!(character, '\u{fffe}' | '\u{ffff}')
}
