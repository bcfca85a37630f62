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

use super::{MAX_DEPTH, MappingEntry, Span, SyntaxError, SyntaxNode, SyntaxValue};
use scan::JsonReader;

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
pub fn documents(text: &str) -> JsonDocuments<'_> {
    JsonDocuments { reader: JsonReader::new(text, Span::of(text)), first: true }
}

/// The iterator of [`documents`].
#[derive(Debug)]
pub struct JsonDocuments<'t> {
    reader: JsonReader<'t>,
    first: bool,
}

impl<'t> Iterator for JsonDocuments<'t> {
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
    let mut reader = JsonReader::new(text, span);
    match reader.peek_token() {
        Some(b'{') => reader.shallow(),
        _ => Shallow { span, entries: Vec::new(), error: Some(reader.not_an_object(true)) },
    }
}

/// The items of the array in `span`, read one at a time. Ends after the first error.
pub fn elements(text: &str, span: Span) -> JsonElements<'_> {
    JsonElements { reader: JsonReader::new(text, span), position: JsonPosition::Before }
}

/// The iterator of [`elements`].
#[derive(Debug)]
pub struct JsonElements<'t> {
    reader: JsonReader<'t>,
    position: JsonPosition,
}

#[derive(Debug, PartialEq)]
enum JsonPosition {
    Before,
    Within,
    After,
}

impl<'t> Iterator for JsonElements<'t> {
    type Item = Result<SyntaxNode<'t>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.position == JsonPosition::After {
            return None;
        }
        let element = self.step();
        if !matches!(element, Ok(Some(_))) {
            self.position = JsonPosition::After;
        }
        element.transpose()
    }
}

impl<'t> JsonElements<'t> {
    fn step(&mut self) -> Result<Option<SyntaxNode<'t>>, SyntaxError> {
        let first = self.position == JsonPosition::Before;
        if first {
            self.reader.expect(b'[', "expected a list")?;
            self.position = JsonPosition::Within;
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
pub fn parse(text: &str, span: Span) -> Result<SyntaxNode<'_>, SyntaxError> {
    let mut reader = JsonReader::new(text, span);
    let node = reader.value(0)?;
    match reader.peek_token() {
        None => Ok(node),
        Some(_) => Err(reader.unexpected("something follows the end of the JSON value")),
    }
}

/// Says which parts of a value are needed.
pub trait Needed: Copy {
    /// The needed parts of a field; `None` if the field is not needed at all.
    fn field(self, name: &str) -> Option<Self>;
    /// The needed parts of each item of a list.
    fn item(self) -> Self;
}

/// The only value in `span`, without the fields that are not needed. Skipped fields are not checked: the text must be
/// known to be valid.
///
/// # Errors
/// Fails if a part that is needed is not JSON, or if anything follows the value.
pub fn parse_needed<N: Needed>(text: &str, span: Span, needed: N) -> Result<SyntaxNode<'_>, SyntaxError> {
    let mut reader = JsonReader::new(text, span);
    let node = reader.needed_value(0, needed)?;
    match reader.peek_token() {
        None => Ok(node),
        Some(_) => Err(reader.unexpected("something follows the end of the JSON value")),
    }
}

/// Checks that a text is a sequence of well-formed JSON values.
pub(super) fn check(text: &str) -> Result<(), SyntaxError> {
    let mut reader = JsonReader::new(text, Span::of(text));
    while reader.peek_token().is_some() {
        reader.value(0)?;
    }
    Ok(())
}

impl<'t> JsonReader<'t> {
    fn value(&mut self, depth: usize) -> Result<SyntaxNode<'t>, SyntaxError> {
        let first = self.peek_token();
        let start = self.at();
        let value = match first {
            Some(b'"') => SyntaxValue::Str(self.string()?),
            Some(b'{' | b'[') if depth >= MAX_DEPTH => return Err(SyntaxError::too_deep(self.here())),
            Some(b'{') => SyntaxValue::Map(self.object(depth + 1)?),
            Some(b'[') => SyntaxValue::Seq(self.array(depth + 1)?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", SyntaxValue::Bool(true))?,
            Some(b'f') => self.word("false", SyntaxValue::Bool(false))?,
            Some(b'n') => self.word("null", SyntaxValue::Null)?,
            _ => return Err(self.not_a_value()),
        };
        Ok(SyntaxNode { span: Span::new(start, self.at()), value })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<MappingEntry<'t>>, SyntaxError> {
        self.expect(b'{', "expected an object")?;
        let mut entries = Vec::new();
        while let Some((key, key_span)) = self.next_key(entries.is_empty())? {
            let value = self.value(depth)?;
            entries.push(MappingEntry { key, key_span, value });
        }
        Ok(entries)
    }

    fn array(&mut self, depth: usize) -> Result<Vec<SyntaxNode<'t>>, SyntaxError> {
        self.expect(b'[', "expected a list")?;
        let mut items = Vec::new();
        while self.next_element(items.is_empty())? {
            items.push(self.value(depth)?);
        }
        Ok(items)
    }

    fn needed_value<N: Needed>(&mut self, depth: usize, needed: N) -> Result<SyntaxNode<'t>, SyntaxError> {
        let first = self.peek_token();
        let start = self.at();
        let value = match first {
            Some(b'{' | b'[') if depth >= MAX_DEPTH => return Err(SyntaxError::too_deep(self.here())),
            Some(b'{') => SyntaxValue::Map(self.needed_object(depth + 1, needed)?),
            Some(b'[') => SyntaxValue::Seq(self.needed_array(depth + 1, needed)?),
            _ => return self.value(depth),
        };
        Ok(SyntaxNode { span: Span::new(start, self.at()), value })
    }

    fn needed_object<N: Needed>(&mut self, depth: usize, needed: N) -> Result<Vec<MappingEntry<'t>>, SyntaxError> {
        self.expect(b'{', "expected an object")?;
        let (mut entries, mut first) = (Vec::new(), true);
        while let Some((key, key_span)) = self.next_key(first)? {
            first = false;
            match needed.field(&key) {
                Some(needed) => {
                    let value = self.needed_value(depth, needed)?;
                    entries.push(MappingEntry { key, key_span, value });
                }
                None => {
                    self.peek_token();
                    self.skip_value()?;
                }
            }
        }
        Ok(entries)
    }

    fn needed_array<N: Needed>(&mut self, depth: usize, needed: N) -> Result<Vec<SyntaxNode<'t>>, SyntaxError> {
        self.expect(b'[', "expected a list")?;
        let mut items = Vec::new();
        while self.next_element(items.is_empty())? {
            items.push(self.needed_value(depth, needed.item())?);
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
