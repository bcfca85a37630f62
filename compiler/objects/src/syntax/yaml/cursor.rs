//! A place in one document: lines, columns, white space and comments.

use crate::syntax::{Span, SyntaxError};

pub(super) type YamlResult<T> = std::result::Result<T, SyntaxError>;

/// A place in one document.
#[derive(Debug)]
pub(super) struct YamlCursor<'t> {
    text: &'t str,
    /// The text up to the end of the document.
    bytes: &'t [u8],
    /// The next byte.
    pub(super) at: usize,
    /// The start of its line. Also identifies the line.
    pub(super) line: usize,
    /// The number of open brackets.
    pub(super) flow: usize,
    /// The indentation of the block around the outermost bracket.
    pub(super) block_indent: isize,
    /// Whether a mapping can begin here: there are only white space, `-` and `?` before this on its line.
    pub(super) fresh: bool,
}

impl<'t> YamlCursor<'t> {
    pub(super) fn new(text: &'t str, start: usize, end: usize) -> Self {
        let text = text.get(..end).unwrap_or(text);
        Self { text, bytes: text.as_bytes(), at: start, line: start, flow: 0, block_indent: -1, fresh: true }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(super) fn peek_at(&self, offset: usize) -> Option<u8> {
        self.bytes.get(self.at + offset).copied()
    }

    pub(super) fn ended(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The column in bytes. The text before a block's first column is ASCII.
    pub(super) fn column(&self) -> isize {
        (self.at - self.line) as isize
    }

    pub(super) fn rest(&self) -> &'t [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(super) fn slice(&self, start: usize, end: usize) -> &'t str {
        self.text.get(start..end).unwrap_or_default()
    }

    /// Whether an indicator is here: this byte, followed by white space.
    pub(super) fn indicator(&self, byte: u8) -> bool {
        self.peek() == Some(byte) && is_blank_or_break(self.peek_at(1))
    }

    /// Moves to the next byte for which `stop` holds, or to the end.
    pub(super) fn skip_until(&mut self, stop: impl Fn(u8) -> bool) {
        let rest = self.rest();
        self.at += rest.iter().position(|byte| stop(*byte)).unwrap_or(rest.len());
    }

    pub(super) fn skip_blanks(&mut self) {
        self.skip_until(|byte| !matches!(byte, b' ' | b'\t'));
    }

    /// Skips a line break, if there is one.
    pub(super) fn line_break(&mut self) -> bool {
        match (self.peek(), self.peek_at(1)) {
            (Some(b'\r'), Some(b'\n')) => self.at += 2,
            (Some(b'\r' | b'\n'), _) => self.at += 1,
            _ => return false,
        }
        self.line = self.at;
        true
    }

    /// Skips white space, comments and line ends up to the next token.
    pub(super) fn skip_space(&mut self) -> YamlResult<()> {
        loop {
            let tabs = self.flow > 0 || !self.fresh;
            self.skip_until(|byte| byte != b' ' && !(tabs && byte == b'\t'));
            if self.peek() == Some(b'#') {
                self.skip_until(|byte| matches!(byte, b'\n' | b'\r'));
            }
            if self.line_break() {
                self.fresh |= self.flow == 0;
            } else {
                break;
            }
        }
        if self.peek() == Some(b'\t') { Err(self.tab()) } else { Ok(()) }
    }

    /// Skips a byte order mark, which is allowed only at the beginning of a document.
    pub(super) fn skip_mark(&mut self) {
        if self.column() == 0 && self.rest().starts_with("\u{feff}".as_bytes()) {
            self.at += '\u{feff}'.len_utf8();
            self.line = self.at;
        }
    }

    /// The character at the current position; at the end, the position after the last visible character.
    pub(super) fn here(&self) -> Span {
        match self.slice(self.at, self.bytes.len()).chars().next() {
            Some(character) => Span::new(self.at, self.at + character.len_utf8()),
            None => {
                let end = self.text.trim_end().len();
                Span::new(end, end)
            }
        }
    }

    pub(super) fn error(&self, message: &str) -> SyntaxError {
        SyntaxError::new(self.here(), message)
    }

    pub(super) fn tab(&self) -> SyntaxError {
        self.error("a tab in the indentation").help("YAML is indented with spaces only")
    }

    /// The span from `start` to the end of its line.
    pub(super) fn line_from(&self, start: usize) -> Span {
        let line = self.slice(start, self.bytes.len()).split(['\n', '\r']).next().unwrap_or_default();
        Span::new(start, start + line.len())
    }
}

pub(super) fn is_blank_or_break(byte: Option<u8>) -> bool {
    matches!(byte, None | Some(b' ' | b'\t' | b'\n' | b'\r'))
}

/// The first character that YAML does not allow anywhere in a text.
pub(super) fn forbidden(text: &str, start: usize) -> Option<SyntaxError> {
    // Fast path: most text is plain ASCII without control characters.
    let suspicious = |byte: &u8| *byte >= 0x7f || (*byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r'));
    let first = text.bytes().position(|byte| suspicious(&byte))?;
    let first = (0..=first).rev().find(|byte| text.is_char_boundary(*byte))?;
    let (offset, character) = text.get(first..)?.char_indices().find(|(_, character)| is_forbidden(*character))?;
    let start = start + first + offset;
    let span = Span::new(start, start + character.len_utf8());
    let message = format!("control character U+{:04X}", u32::from(character));
    Some(SyntaxError::new(span, message).help("remove it; in double quotes it can be written as an escape sequence"))
}

fn is_forbidden(character: char) -> bool {
    let control = character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{85}');
    control || matches!(character, '\u{fffe}' | '\u{ffff}')
}
