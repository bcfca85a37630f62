//! From the parser's positions, which count characters of one document, to bytes of the text.

use saphyr_parser::Marker;

use crate::syntax::Span;

/// One byte position is kept for so many characters.
const STRIDE: usize = 64;

/// A document's stretch of the text.
#[derive(Debug)]
pub(super) struct Place<'t> {
    text: &'t str,
    /// Where the document starts.
    start: usize,
    /// The document.
    pub(super) chunk: &'t str,
    /// Byte positions of every [`STRIDE`]th character; empty if every character is a byte.
    marks: Vec<u32>,
}

impl<'t> Place<'t> {
    pub(super) fn new(text: &'t str, span: Span) -> Self {
        let chunk = span.slice(text);
        let mut marks = Vec::new();
        if !chunk.is_ascii() {
            marks.extend(chunk.char_indices().step_by(STRIDE).map(|(byte, _)| byte as u32));
        }
        Self { text, start: span.start as usize, chunk, marks }
    }

    /// The byte of the text where the parser is.
    pub(super) fn byte(&self, marker: Marker) -> usize {
        let index = marker.index();
        if self.marks.is_empty() {
            return self.start + index.min(self.chunk.len());
        }
        let Some(near) = self.marks.get(index / STRIDE).map(|byte| *byte as usize) else {
            return self.start + self.chunk.len();
        };
        let rest = self.chunk.get(near..).unwrap_or_default();
        let bytes: usize = rest.chars().take(index % STRIDE).map(char::len_utf8).sum();
        self.start + near + bytes
    }

    pub(super) fn span(&self, span: saphyr_parser::Span) -> Span {
        let start = self.byte(span.start);
        Span::new(start, self.byte(span.end).max(start))
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn end(&self) -> usize {
        self.start + self.chunk.len()
    }

    /// Where the line of this byte starts.
    pub(super) fn line_start(&self, byte: usize) -> usize {
        let before = self.text.get(self.start..byte).unwrap_or_default();
        before.rfind(['\n', '\r']).map_or(self.start, |end| self.start + end + 1)
    }

    /// The character here.
    pub(super) fn character(&self, byte: usize) -> Span {
        let length = self.rest(byte).chars().next().map_or(0, char::len_utf8);
        Span::new(byte, byte + length)
    }

    /// The document from here on.
    pub(super) fn rest(&self, byte: usize) -> &'t str {
        self.text.get(byte..self.start + self.chunk.len()).unwrap_or_default()
    }

    /// The last byte that is no white space before this one.
    pub(super) fn trim_back(&self, byte: usize) -> usize {
        let before = self.text.get(self.start..byte).unwrap_or_default();
        self.start + before.trim_end_matches([' ', '\t', '\r', '\n']).len()
    }

    /// One past the closing quote of a quoted scalar, whose span may begin with its anchor and tag.
    pub(super) fn quoted_end(&self, span: Span, quote: u8) -> usize {
        let text = span.slice(self.text);
        let mut open = text;
        while open.starts_with(['&', '!']) {
            let property = open.find([' ', '\t', '\r', '\n']).unwrap_or(open.len());
            open = skip_space(open.get(property..).unwrap_or_default());
        }
        let start = text.len() - open.len();
        let length = quoted_length(open.as_bytes(), quote).unwrap_or(open.len());
        span.start as usize + start + length
    }
}

/// Over white space and comments.
fn skip_space(text: &str) -> &str {
    let mut text = text.trim_start();
    while text.starts_with('#') {
        text = text.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    text
}

fn quoted_length(text: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    loop {
        match *text.get(at)? {
            b'\\' if quote == b'"' => at += 2,
            byte if byte == quote && quote == b'\'' && text.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}
