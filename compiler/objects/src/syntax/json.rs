//! JSON (RFC 8259, strict) → trees. A list of a hundred megabytes can be read item by item, without a tree of the
//! whole.
//!
//! `kubectl get -o json` prints one `List` object. [`documents`] finds the spans of an object's fields by counting
//! brackets only; [`elements`] then reads the items one at a time, and each can be dropped before the next. Strings
//! without escapes are borrowed from the text.
//!
//! There is no safe place to continue after a syntax error in JSON. Values before the error are used, values after it
//! are not.

use std::borrow::Cow;

use super::{Entry, MAX_DEPTH, Node, Span, SyntaxError, Value};
use scan::Reader;

mod scan;

/// An object whose fields are known only by their spans.
#[derive(Clone, Debug)]
pub struct Shallow<'t> {
    /// The object.
    pub span: Span,
    /// Its fields, in the order written.
    pub entries: Vec<ShallowEntry<'t>>,
    /// Set if the object does not end correctly. The last entry may then be cut off. [`elements`] of it still yields
    /// its complete items, and then reports this error or a more precise one.
    pub error: Option<SyntaxError>,
}

/// One field of a [`Shallow`] object.
#[derive(Clone, Debug)]
pub struct ShallowEntry<'t> {
    /// The key.
    pub key: Cow<'t, str>,
    /// The position of the key.
    pub key_span: Span,
    /// The span of the value. Its inside is not checked yet.
    pub value: Span,
}

/// The objects of a text, one after the other: kubectl accepts several JSON values in one file.
pub fn documents(text: &str) -> Documents<'_> {
    Documents { reader: Reader::new(text, Span::of(text)), first: true }
}

/// The iterator of [`documents`].
#[derive(Debug)]
pub struct Documents<'t> {
    reader: Reader<'t>,
    first: bool,
}

impl<'t> Iterator for Documents<'t> {
    type Item = Result<Shallow<'t>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.reader.peek_token()? {
            b'{' => {
                let shallow = self.reader.shallow();
                if shallow.error.is_some() {
                    self.reader.stop();
                }
                self.first = false;
                Some(Ok(shallow))
            }
            _ => {
                let error = self.reader.not_an_object(self.first);
                self.reader.stop();
                Some(Err(error))
            }
        }
    }
}

/// The fields of the object in `span`, without parsing their values.
pub fn shallow(text: &str, span: Span) -> Shallow<'_> {
    let mut reader = Reader::new(text, span);
    match reader.peek_token() {
        Some(b'{') => reader.shallow(),
        _ => Shallow { span, entries: Vec::new(), error: Some(reader.not_an_object(true)) },
    }
}

/// The items of the array in `span`, read one at a time. Ends after the first error.
pub fn elements(text: &str, span: Span) -> Elements<'_> {
    Elements { reader: Reader::new(text, span), position: Position::Before }
}

/// The iterator of [`elements`].
#[derive(Debug)]
pub struct Elements<'t> {
    reader: Reader<'t>,
    position: Position,
}

#[derive(Debug, PartialEq)]
enum Position {
    Before,
    Within,
    After,
}

impl<'t> Iterator for Elements<'t> {
    type Item = Result<Node<'t>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.position == Position::After {
            return None;
        }
        let element = self.step();
        if !matches!(element, Ok(Some(_))) {
            self.position = Position::After;
        }
        element.transpose()
    }
}

impl<'t> Elements<'t> {
    fn step(&mut self) -> Result<Option<Node<'t>>, SyntaxError> {
        let first = self.position == Position::Before;
        if first {
            self.reader.expect(b'[', "expected a list")?;
            self.position = Position::Within;
        }
        if !self.reader.next_element(first)? {
            return Ok(None);
        }
        // Two levels down: the object, and the list in it.
        self.reader.value(2).map(Some)
    }
}

/// The only value in `span`.
///
/// # Errors
/// Fails if the text is not JSON, or if anything follows the value.
pub fn parse(text: &str, span: Span) -> Result<Node<'_>, SyntaxError> {
    let mut reader = Reader::new(text, span);
    let node = reader.value(0)?;
    match reader.peek_token() {
        None => Ok(node),
        Some(_) => Err(reader.unexpected("something follows the end of the JSON value")),
    }
}

/// Checks that a text is a sequence of well-formed JSON values.
pub(super) fn check(text: &str) -> Result<(), SyntaxError> {
    let mut reader = Reader::new(text, Span::of(text));
    while reader.peek_token().is_some() {
        reader.value(0)?;
    }
    Ok(())
}

impl<'t> Reader<'t> {
    fn value(&mut self, depth: usize) -> Result<Node<'t>, SyntaxError> {
        let first = self.peek_token();
        let start = self.at();
        let value = match first {
            Some(b'"') => Value::Str(self.string()?),
            Some(b'{' | b'[') if depth >= MAX_DEPTH => return Err(SyntaxError::too_deep(self.here())),
            Some(b'{') => Value::Map(self.object(depth + 1)?),
            Some(b'[') => Value::Seq(self.array(depth + 1)?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            _ => return Err(self.not_a_value()),
        };
        Ok(Node { span: Span::new(start, self.at()), value })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<Entry<'t>>, SyntaxError> {
        self.expect(b'{', "expected an object")?;
        let mut entries = Vec::new();
        while let Some((key, key_span)) = self.next_key(entries.is_empty())? {
            let value = self.value(depth)?;
            entries.push(Entry { key, key_span, value });
        }
        Ok(entries)
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Node<'t>>, SyntaxError> {
        self.expect(b'[', "expected a list")?;
        let mut items = Vec::new();
        while self.next_element(items.is_empty())? {
            items.push(self.value(depth)?);
        }
        Ok(items)
    }

    fn shallow(&mut self) -> Shallow<'t> {
        let start = self.at();
        let mut entries = Vec::new();
        let error = self.shallow_entries(&mut entries).err();
        Shallow { span: Span::new(start, self.at()), entries, error }
    }

    fn shallow_entries(&mut self, entries: &mut Vec<ShallowEntry<'t>>) -> Result<(), SyntaxError> {
        self.expect(b'{', "expected an object")?;
        while let Some((key, key_span)) = self.next_key(entries.is_empty())? {
            self.peek_token();
            let start = self.at();
            let skipped = self.skip_value();
            entries.push(ShallowEntry { key, key_span, value: Span::new(start, self.at()) });
            skipped?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
