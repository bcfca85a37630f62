//! The tokens of JSON, their positions, and the errors for missing tokens.

use std::borrow::Cow;

use crate::syntax::{Span, SyntaxError, SyntaxValue};

/// A position in a text, and the end of reading.
#[derive(Debug)]
pub(super) struct JsonReader<'t> {
    text: &'t str,
    /// The text up to where reading ends.
    bytes: &'t [u8],
    at: usize,
}

type JsonResult<T> = std::result::Result<T, SyntaxError>;

impl<'t> JsonReader<'t> {
    pub(super) fn new(text: &'t str, span: Span) -> Self {
        let text = text.get(..span.end as usize).unwrap_or(text);
        Self { text, bytes: text.as_bytes(), at: span.start as usize }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Moves to the end: nothing more will be read.
    pub(super) fn stop(&mut self) {
        self.at = self.bytes.len();
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The first byte of the next token.
    pub(super) fn peek_token(&mut self) -> Option<u8> {
        loop {
            match self.peek() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other,
            }
        }
    }

    pub(super) fn expect(&mut self, byte: u8, message: &str) -> JsonResult<()> {
        if self.peek_token() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(message))
    }

    /// Moves to the next key of an object and past its colon; `None` after the closing brace.
    pub(super) fn next_key(&mut self, first: bool) -> JsonResult<Option<(Cow<'t, str>, Span)>> {
        if !self.goes_on(b'}', first, "expected `,` or `}` in this object")? {
            return Ok(None);
        }
        match self.peek_token() {
            Some(b'"') => {}
            Some(b'}') => return Err(self.trailing_comma()),
            _ => return Err(self.unexpected("expected a key in double quotes")),
        }
        let start = self.at;
        let key = self.string()?;
        let key_span = Span::new(start, self.at);
        self.expect(b':', "expected `:` after the key")?;
        Ok(Some((key, key_span)))
    }

    /// Moves to the next item of an array; false after the closing bracket.
    pub(super) fn next_element(&mut self, first: bool) -> JsonResult<bool> {
        if !self.goes_on(b']', first, "expected `,` or `]` in this list")? {
            return Ok(false);
        }
        if self.peek_token() == Some(b']') {
            return Err(self.trailing_comma());
        }
        Ok(true)
    }

    /// Skips the comma between two members, or the closing bracket. False after the closing bracket.
    fn goes_on(&mut self, close: u8, first: bool, message: &str) -> JsonResult<bool> {
        match self.peek_token() {
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ if first => Ok(true),
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.unexpected(message)),
        }
    }

    pub(super) fn word(&mut self, word: &str, value: SyntaxValue<'t>) -> JsonResult<SyntaxValue<'t>> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.not_a_value());
        }
        self.at += word.len();
        Ok(value)
    }

    fn rest(&self) -> &'t [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(super) fn number(&mut self) -> JsonResult<SyntaxValue<'t>> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let leading = self.peek();
        let mut integral = true;
        if self.digits()? > 1 && leading == Some(b'0') {
            let error = SyntaxError::new(Span::new(start, self.at), "a number may not start with a zero");
            return Err(error.help("JSON has no octal numbers"));
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            integral = false;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
            integral = false;
        }
        let span = Span::new(start, self.at);
        let digits = span.slice(self.text);
        if integral && let Ok(number) = digits.parse() {
            return Ok(SyntaxValue::Int(number));
        }
        match digits.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(SyntaxValue::number(number)),
            _ => Err(SyntaxError::new(span, "a number beyond all bounds")),
        }
    }

    fn digits(&mut self) -> JsonResult<usize> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 {
            return Err(self.unexpected("expected a digit in this number"));
        }
        Ok(count)
    }

    pub(super) fn string(&mut self) -> JsonResult<Cow<'t, str>> {
        let open = self.at;
        self.at += 1;
        let mut owned = String::new();
        loop {
            let plain = self.plain_run();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    if owned.is_empty() {
                        return Ok(Cow::Borrowed(plain));
                    }
                    owned.push_str(plain);
                    return Ok(Cow::Owned(owned));
                }
                Some(b'\\') => {
                    owned.push_str(plain);
                    let escaped = self.escape()?;
                    owned.push(escaped);
                }
                Some(_) => return Err(self.control()),
                None => return Err(self.cut_off_string(open)),
            }
        }
    }

    /// The text up to the next quote, backslash or control character.
    fn plain_run(&mut self) -> &'t str {
        let start = self.at;
        let stop = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
        let length = self.rest().iter().position(stop).unwrap_or(self.rest().len());
        self.at += length;
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn escape(&mut self) -> JsonResult<char> {
        let start = self.at;
        self.at += 1;
        let byte = self.peek();
        self.at += 1;
        match byte {
            Some(byte @ (b'"' | b'\\' | b'/')) => Ok(char::from(byte)),
            Some(b'b') => Ok('\u{8}'),
            Some(b'f') => Ok('\u{c}'),
            Some(b'n') => Ok('\n'),
            Some(b'r') => Ok('\r'),
            Some(b't') => Ok('\t'),
            Some(b'u') => self.unicode_escape(start),
            _ => Err(self.bad_escape(start)),
        }
    }

    /// Reads the digits after `\u`. Half of a surrogate pair becomes U+FFFD, as in Go.
    fn unicode_escape(&mut self, start: usize) -> JsonResult<char> {
        let high = self.hex(start)?;
        if !(0xd800..0xdc00).contains(&high) || !self.rest().starts_with(b"\\u") {
            return Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let second = self.at;
        self.at += 2;
        let low = self.hex(second)?;
        if (0xdc00..0xe000).contains(&low) {
            let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        self.at = second;
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex(&mut self, start: usize) -> JsonResult<u32> {
        let digits = self.rest().get(..4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let Some(digits) = digits else {
            return Err(self.bad_escape(start));
        };
        self.at += 4;
        let nibble = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default();
        Ok(digits.iter().fold(0, |code, digit| code << 4 | nibble(*digit)))
    }

    /// Skips a value by counting brackets. Moves to the end of the text if they are not closed.
    pub(super) fn skip_value(&mut self) -> JsonResult<()> {
        let open = self.here();
        match self.peek() {
            Some(b'"') => return self.skip_string(),
            Some(b'{' | b'[') => {}
            _ => {
                let end = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                self.at += self.rest().iter().position(end).unwrap_or(self.rest().len());
                return if open == self.here() { Err(self.not_a_value()) } else { Ok(()) };
            }
        }
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
        Err(self.unexpected("unclosed"))
    }

    fn skip_string(&mut self) -> JsonResult<()> {
        let open = self.at;
        self.at += 1;
        loop {
            let stop = |byte: &u8| *byte == b'"' || *byte == b'\\';
            self.at += self.rest().iter().position(stop).unwrap_or(self.rest().len());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => self.at = (self.at + 2).min(self.bytes.len()),
                None => return Err(self.cut_off_string(open)),
            }
        }
    }
}

/// Error messages.
impl JsonReader<'_> {
    /// The character at the current position; at the end of the text, the position after the last one.
    pub(super) fn here(&self) -> Span {
        let at = self.at.min(self.bytes.len());
        let length = self.text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        Span::new(at, at + length)
    }

    pub(super) fn unexpected(&self, message: &str) -> SyntaxError {
        let error = SyntaxError::new(self.here(), message);
        match self.peek() {
            None => {
                let message = "the text ends in the middle of a JSON value";
                SyntaxError::new(self.here(), message).help("the file may have been cut off")
            }
            Some(b'\'') => error.help("strings stand in double quotes"),
            Some(b'/' | b'#') => error.help("JSON has no comments"),
            Some(b'"' | b'{' | b'[') if message.contains("`,`") => error.help("a comma may be missing before this"),
            Some(_) => error,
        }
    }

    pub(super) fn not_a_value(&self) -> SyntaxError {
        let word: String = self
            .rest()
            .iter()
            .take(16)
            .take_while(|byte| byte.is_ascii_alphanumeric())
            .map(|byte| char::from(*byte))
            .collect();
        if word.is_empty() {
            return self.unexpected("expected a value");
        }
        let span = Span::new(self.at, self.at + word.len());
        SyntaxError::new(span, format!("`{word}` is not a JSON value")).help("strings stand in double quotes")
    }

    pub(super) fn not_an_object(&self, first: bool) -> SyntaxError {
        let message = if first { "expected an object" } else { "something follows the end of the JSON object" };
        self.unexpected(message)
    }

    fn trailing_comma(&self) -> SyntaxError {
        SyntaxError::new(self.here(), "nothing follows the last comma").help("remove the comma")
    }

    fn cut_off_string(&self, open: usize) -> SyntaxError {
        let line = self.text.get(open..).unwrap_or_default().lines().next().unwrap_or_default();
        let span = Span::new(open, open + line.len());
        SyntaxError::new(span, "this string is not closed").help("the file may have been cut off")
    }

    fn control(&self) -> SyntaxError {
        let byte = self.peek().unwrap_or_default();
        let message = match byte {
            b'\n' | b'\r' => "a line ends inside a string".to_owned(),
            b'\t' => "a tab inside a string".to_owned(),
            _ => format!("control character {byte:#04x} inside a string"),
        };
        SyntaxError::new(self.here(), message).help(format!("write it as `\\u{byte:04x}`, or close the string"))
    }

    fn bad_escape(&self, start: usize) -> SyntaxError {
        let shown: usize = self.text.get(start..).unwrap_or_default().chars().take(2).map(char::len_utf8).sum();
        SyntaxError::new(Span::new(start, start + shown), "not an escape sequence of JSON")
            .help("a backslash itself is written `\\\\`")
    }
}
