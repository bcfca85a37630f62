//! Escape sequences in double quotes.

use super::cursor::{YamlCursor, YamlResult};
use crate::syntax::{Span, SyntaxError};

/// The character that the escape sequence at the current position means.
pub(super) fn sequence(cursor: &mut YamlCursor<'_>) -> YamlResult<char> {
    let start = cursor.at;
    let letter = cursor.peek_at(1);
    cursor.at += 2;
    let character = match letter {
        Some(b'0') => '\0',
        Some(b'a') => '\u{7}',
        Some(b'b') => '\u{8}',
        Some(b't' | b'\t') => '\t',
        Some(b'n') => '\n',
        Some(b'v') => '\u{b}',
        Some(b'f') => '\u{c}',
        Some(b'r') => '\r',
        Some(b'e') => '\u{1b}',
        Some(byte @ (b' ' | b'"' | b'\'' | b'\\')) => char::from(byte),
        Some(b'N') => '\u{85}',
        Some(b'_') => '\u{a0}',
        Some(b'L') => '\u{2028}',
        Some(b'P') => '\u{2029}',
        Some(b'x') => return hex(cursor, start, 2),
        Some(b'u') => return hex(cursor, start, 4),
        Some(b'U') => return hex(cursor, start, 8),
        _ => return Err(error(cursor, start, "an escape sequence that YAML does not know")),
    };
    Ok(character)
}

fn hex(cursor: &mut YamlCursor<'_>, start: usize, length: usize) -> YamlResult<char> {
    let digits = cursor.slice(cursor.at, cursor.at + length);
    if digits.len() != length || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(error(cursor, start, "too few hexadecimal digits in this escape sequence"));
    }
    cursor.at += length;
    let character = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
    character.ok_or_else(|| error(cursor, start, "an escape sequence that is no Unicode character"))
}

fn error(cursor: &YamlCursor<'_>, start: usize, message: &str) -> SyntaxError {
    let line = cursor.line_from(start);
    let end = start + cursor.slice(start, line.end as usize).chars().take(2).map(char::len_utf8).sum::<usize>();
    SyntaxError::new(Span::new(start, end.max(start + 1)), message)
        .help("in double quotes, a backslash itself is written `\\\\`")
}
