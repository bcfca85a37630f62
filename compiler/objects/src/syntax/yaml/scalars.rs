//! The characters of scalars: plain, quoted, and in blocks. Folding and chomping work as in libyaml.

use std::borrow::Cow;

use super::cursor::{YamlCursor, YamlResult, is_blank_or_break};
use super::escape;
use crate::syntax::{Span, SyntaxError};

/// A scalar as written.
#[derive(Debug)]
pub(super) struct Raw<'t> {
    pub(super) text: Cow<'t, str>,
    pub(super) span: Span,
    /// Neither quoted nor a block: its meaning depends on its text.
    pub(super) plain: bool,
}

impl<'t> YamlCursor<'t> {
    /// Reads a plain scalar. Lines that are indented deeper than the block around it continue it.
    pub(super) fn plain(&mut self, indent: isize) -> YamlResult<Raw<'t>> {
        let start = self.at;
        let mut end = self.plain_line();
        let mut folded: Option<String> = None;
        loop {
            let breaks = self.plain_breaks(indent)?;
            self.fresh |= breaks > 0 && self.flow == 0;
            let goes_on = breaks > 0 && !self.ended() && (self.flow > 0 || self.column() > indent);
            let next = self.at;
            let next_end = if goes_on { self.plain_line() } else { next };
            if next_end == next {
                break;
            }
            self.fresh = false;
            let text = folded.get_or_insert_with(|| self.slice(start, end).to_owned());
            fold(text, breaks);
            text.push_str(self.slice(next, next_end));
            end = next_end;
        }
        let text = folded.map_or_else(|| Cow::Borrowed(self.slice(start, end)), Cow::Owned);
        Ok(Raw { text, span: Span::new(start, end), plain: true })
    }

    /// Reads the rest of a line that belongs to a plain scalar; returns the end of its last visible character.
    fn plain_line(&mut self) -> usize {
        let start = self.at;
        let mut end = start;
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => {
                    self.at += 1;
                    continue;
                }
                b'\n' | b'\r' => break,
                b':' if is_blank_or_break(self.peek_at(1)) => break,
                b',' | b'?' | b'[' | b']' | b'{' | b'}' if self.flow > 0 => break,
                // White space before `#` makes it a comment.
                b'#' if end != self.at || self.at == start => break,
                _ => {
                    self.at += 1;
                    end = self.at;
                }
            }
        }
        end
    }

    /// Skips line ends and indentation; returns the number of line ends.
    fn plain_breaks(&mut self, indent: isize) -> YamlResult<usize> {
        // As in libyaml, a tab is refused in brackets too, where the block around them would be indented.
        let indent = if self.flow > 0 { self.block_indent } else { indent };
        let mut breaks = 0;
        loop {
            if self.line_break() {
                breaks += 1;
                continue;
            }
            match self.peek() {
                Some(b'\t') if breaks > 0 && self.column() <= indent => return Err(self.tab()),
                Some(b' ' | b'\t') => self.at += 1,
                _ => return Ok(breaks),
            }
        }
    }

    /// Reads a quoted scalar, from its opening quote.
    pub(super) fn quoted(&mut self, quote: u8) -> YamlResult<Raw<'t>> {
        let start = self.at;
        self.at += 1;
        self.quoted_run(quote);
        let simple = self.peek() == Some(quote) && !(quote == b'\'' && self.peek_at(1) == Some(quote));
        let text = if simple {
            Cow::Borrowed(self.slice(start + 1, self.at))
        } else {
            self.at = start + 1;
            Cow::Owned(self.quoted_parts(quote, start)?)
        };
        self.at += 1;
        Ok(Raw { text, span: Span::new(start, self.at), plain: false })
    }

    /// Skips characters that need no decoding, including white space within a line.
    fn quoted_run(&mut self, quote: u8) {
        self.skip_until(|byte| byte == quote || matches!(byte, b'\n' | b'\r') || (byte == b'\\' && quote == b'"'));
    }

    fn quoted_parts(&mut self, quote: u8, open: usize) -> YamlResult<String> {
        let mut text = String::new();
        loop {
            let start = self.at;
            self.quoted_run(quote);
            text.push_str(self.slice(start, self.at));
            match self.peek() {
                None => {
                    let error = SyntaxError::new(self.line_from(open), "this quote is never closed");
                    return Err(error.help("close it, or put the whole value in quotes"));
                }
                Some(b'\n' | b'\r') => {
                    // White space around line ends is dropped, unless it is written as an escape sequence.
                    let blanks = self.slice(start, self.at);
                    let visible = blanks.trim_end_matches([' ', '\t']).len();
                    text.truncate(text.len() - (blanks.len() - visible));
                    fold(&mut text, self.quoted_breaks());
                }
                Some(b'\\') if matches!(self.peek_at(1), Some(b'\n' | b'\r')) => {
                    self.at += 1;
                    let breaks = self.quoted_breaks() - 1;
                    text.extend(std::iter::repeat_n('\n', breaks));
                }
                Some(b'\\') => text.push(escape::sequence(self)?),
                Some(_) if quote == b'\'' && self.peek_at(1) == Some(quote) => {
                    text.push('\'');
                    self.at += 2;
                }
                Some(_) => return Ok(text),
            }
        }
    }

    fn quoted_breaks(&mut self) -> usize {
        let mut breaks = 0;
        while self.line_break() {
            breaks += 1;
            self.skip_blanks();
        }
        breaks
    }

    /// Reads a literal (`|`) or folded (`>`) block; `parent` is the column of the surrounding block.
    pub(super) fn block_scalar(&mut self, parent: isize) -> YamlResult<Raw<'t>> {
        let start = self.at;
        let folds = self.peek() == Some(b'>');
        let (chomp, increment) = self.block_header()?;
        let mut indent = increment.map(|columns| parent.max(0) + columns);
        let mut text = String::new();
        let mut blank_lines = self.block_breaks(parent, &mut indent)?;
        let (mut line_ends, mut was_blank) = (0, true);
        let mut end = self.at;
        while indent == Some(self.column()) && !self.ended() {
            let blank = matches!(self.peek(), Some(b' ' | b'\t'));
            if folds && line_ends > 0 && !was_blank && !blank {
                fold(&mut text, 1 + blank_lines);
            } else {
                text.extend(std::iter::repeat_n('\n', line_ends + blank_lines));
            }
            was_blank = blank;
            let line = self.at;
            self.skip_until(|byte| matches!(byte, b'\n' | b'\r'));
            end = self.at;
            text.push_str(self.slice(line, end));
            line_ends = usize::from(self.line_break());
            blank_lines = self.block_breaks(parent, &mut indent)?;
        }
        match chomp {
            Chomp::Strip => {}
            Chomp::Clip => text.extend(std::iter::repeat_n('\n', line_ends)),
            Chomp::Keep => text.extend(std::iter::repeat_n('\n', line_ends + blank_lines)),
        }
        self.fresh = true;
        Ok(Raw { text: Cow::Owned(text), span: Span::new(start, end.max(start + 1)), plain: false })
    }

    /// Reads from the `|` or `>` to the end of its line.
    fn block_header(&mut self) -> YamlResult<(Chomp, Option<isize>)> {
        let mut chomp = None;
        let mut increment = None;
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek() {
            match byte {
                b'+' if chomp.is_none() => chomp = Some(Chomp::Keep),
                b'-' if chomp.is_none() => chomp = Some(Chomp::Strip),
                b'1'..=b'9' if increment.is_none() => increment = Some(isize::from(byte - b'0')),
                _ => break,
            }
            self.at += 1;
        }
        self.skip_blanks();
        if self.peek() == Some(b'#') {
            self.skip_until(|byte| matches!(byte, b'\n' | b'\r'));
        }
        if !self.ended() && !self.line_break() {
            let error =
                SyntaxError::new(self.line_from(start), "a block of text starts on the line after its `|` or `>`");
            return Err(error.help("put a value that begins with `|` or `>` in quotes"));
        }
        Ok((chomp.unwrap_or(Chomp::Clip), increment))
    }

    /// Skips empty lines and the next line's indentation; returns the number of lines. Determines the indentation if it
    /// is not known yet.
    fn block_breaks(&mut self, parent: isize, indent: &mut Option<isize>) -> YamlResult<usize> {
        let (mut breaks, mut deepest) = (0, 0);
        loop {
            while self.peek() == Some(b' ') && indent.is_none_or(|indent| self.column() < indent) {
                self.at += 1;
            }
            deepest = deepest.max(self.column());
            if self.peek() == Some(b'\t') && indent.is_none_or(|indent| self.column() < indent) {
                return Err(self.tab());
            }
            if !self.line_break() {
                break;
            }
            breaks += 1;
        }
        indent.get_or_insert(deepest.max(parent + 1).max(1));
        Ok(breaks)
    }
}

/// The treatment of the line ends after a block.
enum Chomp {
    Strip,
    Clip,
    Keep,
}

/// A single line end becomes a space; of several, all but one are kept.
fn fold(text: &mut String, breaks: usize) {
    match breaks {
        1 => text.push(' '),
        _ => text.extend(std::iter::repeat_n('\n', breaks.saturating_sub(1))),
    }
}
