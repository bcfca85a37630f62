//! The parts before a value: its anchor (`&name`) and its tag (`!!str`); and the directives before a document.

use std::borrow::Cow;
use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use super::cursor::{YamlCursor, YamlResult, is_blank_or_break};
use crate::syntax::scalar;
use crate::syntax::{Span, SyntaxError};

/// Anchor and tag of a value.
#[derive(Debug, Default)]
pub(super) struct Properties<'t> {
    pub(super) anchor: Option<&'t str>,
    pub(super) tag: Option<String>,
    /// The span of both.
    pub(super) span: Option<Span>,
}

impl Properties<'_> {
    /// Combines these with the properties of the next line.
    pub(super) fn and(self, inner: Self) -> YamlResult<Self> {
        if let (Some(_), Some(_), Some(span)) = (&self.anchor, &inner.anchor, inner.span) {
            return Err(SyntaxError::new(span, "a second anchor for one value"));
        }
        if let (Some(_), Some(_), Some(span)) = (&self.tag, &inner.tag, inner.span) {
            return Err(SyntaxError::new(span, "a second tag for one value"));
        }
        let span = match (self.span, inner.span) {
            (Some(first), Some(last)) => Some(Span { start: first.start, end: last.end }),
            (first, last) => first.or(last),
        };
        Ok(Self { anchor: self.anchor.or(inner.anchor), tag: self.tag.or(inner.tag), span })
    }
}

/// The declared prefixes of tags in a document.
#[derive(Debug, Default)]
pub(super) struct Handles {
    declared: BTreeMap<String, String>,
    /// Whether there was a `%YAML` line.
    version: bool,
}

impl<'t> YamlCursor<'t> {
    /// Reads the anchor and tag on this line, in either order, and the white space after them.
    pub(super) fn properties(&mut self, handles: &Handles) -> YamlResult<Properties<'t>> {
        let mut properties = Properties::default();
        let (start, line) = (self.at, self.line);
        loop {
            match self.peek() {
                _ if self.line != line && self.flow == 0 => return Ok(properties),
                Some(b'&') if properties.anchor.is_none() => properties.anchor = Some(self.name()?),
                Some(b'!') if properties.tag.is_none() => properties.tag = Some(self.tag(handles)?),
                _ => return Ok(properties),
            }
            properties.span = Some(Span::new(start, self.at));
            self.fresh = false;
            self.skip_space()?;
        }
    }

    /// Reads the name of an anchor or alias, from its `&` or `*`.
    pub(super) fn name(&mut self) -> YamlResult<&'t str> {
        let start = self.at;
        self.at += 1;
        self.skip_until(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')));
        let ends = is_blank_or_break(self.peek())
            || matches!(self.peek(), Some(b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`'));
        if self.at == start + 1 || !ends {
            let error = SyntaxError::new(Span::new(start, start + 1), "not the name of an anchor");
            return Err(error.help("put a value that begins with `&` or `*` in quotes"));
        }
        Ok(self.slice(start + 1, self.at))
    }

    fn tag(&mut self, handles: &Handles) -> YamlResult<String> {
        let start = self.at;
        self.at += 1;
        let verbatim = self.peek() == Some(b'<');
        self.at += usize::from(verbatim);
        let inside = self.at;
        self.skip_until(|byte| !is_of_tag(byte));
        let name = self.slice(inside, self.at);
        if verbatim && (self.peek() != Some(b'>') || name.is_empty()) {
            let error = SyntaxError::new(self.line_from(start), "expected a tag between `!<` and `>`");
            return Err(error.help("put a value that begins with `!` in quotes"));
        }
        self.at += usize::from(verbatim);
        if !is_blank_or_break(self.peek()) {
            let error = SyntaxError::new(self.line_from(start), "white space must follow a tag");
            return Err(error.help("put a value that begins with `!` in quotes"));
        }
        if verbatim {
            return Ok(unescape(name, inside)?.into_owned());
        }
        let Some((prefix, suffix)) = handles.resolve(name) else {
            let error = SyntaxError::new(Span::new(start, self.at), "not a tag, or one whose prefix is not declared");
            return Err(error.help("declare its prefix with a %TAG line, or remove the tag"));
        };
        Ok(format!("{prefix}{}", unescape(suffix, self.at - suffix.len())?))
    }

    /// Reads the `%` lines before a document, and its `---`.
    pub(super) fn directives(&mut self) -> YamlResult<Handles> {
        let mut handles = Handles::default();
        let mut directive = None;
        self.skip_space()?;
        while self.peek() == Some(b'%') && self.column() == 0 {
            let span = self.line_from(self.at);
            handles.directive(self.slice(self.at, span.end as usize), span)?;
            directive = Some(span);
            self.at = span.end as usize;
            self.line_break();
            // As in libyaml, the next line may contain tabs.
            self.fresh = false;
            self.skip_space()?;
        }
        if self.column() == 0 && self.rest().starts_with(b"---") && is_blank_or_break(self.peek_at(3)) {
            self.at += 3;
            self.skip_blanks();
            self.fresh = self.line_break();
            self.skip_mark();
        } else if let Some(span) = directive {
            return Err(SyntaxError::new(span, "a line of `---` must follow the directives"));
        }
        Ok(handles)
    }
}

impl Handles {
    /// Reads one `%` line.
    fn directive(&mut self, line: &str, span: Span) -> YamlResult<()> {
        let line = line.split(" #").next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("%YAML"), Some("1.1"), None, None) if !self.version => {
                self.version = true;
                Ok(())
            }
            (Some("%YAML"), Some("1.1"), None, None) => Err(SyntaxError::new(span, "a second %YAML line")),
            (Some("%YAML"), ..) => {
                Err(SyntaxError::new(span, "Kubernetes reads YAML 1.1 only").help("remove this line"))
            }
            (Some("%TAG"), Some(handle), Some(prefix), None)
                if is_handle(handle) && prefix.bytes().all(is_of_tag) && !self.declared.contains_key(handle) =>
            {
                let at = span.start as usize + line.rfind(prefix).unwrap_or_default();
                self.declared.insert(handle.to_owned(), unescape(prefix, at)?.into_owned());
                Ok(())
            }
            _ => {
                Err(SyntaxError::new(span, "not a directive of YAML")
                    .help("put a value that begins with `%` in quotes"))
            }
        }
    }

    /// The prefix and the rest of a tag, given the part after its first `!`.
    fn resolve<'n>(&self, name: &'n str) -> Option<(&str, &'n str)> {
        let (handle, suffix) = match name.split_once('!') {
            Some((inner, suffix)) if inner.bytes().all(is_of_handle) => (format!("!{inner}!"), suffix),
            // The tag `!` itself has no prefix.
            _ if name.is_empty() => return Some(("!", name)),
            _ => ("!".to_owned(), name),
        };
        if suffix.is_empty() {
            return None;
        }
        let default = match handle.as_str() {
            "!!" => Some(scalar::YAML),
            "!" => Some("!"),
            _ => None,
        };
        Some((self.declared.get(&handle).map(String::as_str).or(default)?, suffix))
    }
}

fn is_of_tag(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-;/?:@&=+$,.!~*'()[]%".contains(&byte)
}

/// `!`, `!!` or `!name!`
fn is_handle(text: &str) -> bool {
    let name = text.strip_prefix('!').and_then(|rest| rest.strip_suffix('!'));
    text == "!" || name.is_some_and(|name| name.bytes().all(is_of_handle))
}

fn is_of_handle(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// A tag without its escape sequences, such as `%21` for `!`; `at` is its position.
fn unescape(tag: &str, at: usize) -> YamlResult<Cow<'_, str>> {
    let is_escape = |after: &str| after.len() > 2 && after.bytes().skip(1).take(2).all(|it| it.is_ascii_hexdigit());
    let bad = tag.match_indices('%').map(|(start, _)| start).find(|start| !tag.get(*start..).is_some_and(is_escape));
    if let Some(start) = bad {
        let error = SyntaxError::new(Span::new(at + start, at + start + 1), "two hexadecimal digits must follow a `%`");
        return Err(error.help("put a value that begins with `!` in quotes"));
    }
    percent_decode_str(tag)
        .decode_utf8()
        .map_err(|_| SyntaxError::new(Span::new(at, at + tag.len()), "the escape sequences of this tag are not UTF-8"))
}
