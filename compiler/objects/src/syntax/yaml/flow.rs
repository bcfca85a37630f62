//! Flow style: values nested by brackets. Line ends and indentation do not matter in them.

use super::block::MAX_KEY;
use super::build::{DocumentBuilder, MappingKey, Simple, Unfinished};
use super::cursor::YamlResult;
use super::merge::Mapping;
use super::properties::Properties;
use crate::syntax::{MappingEntry, Span, SyntaxError, SyntaxNode, SyntaxValue};

impl<'t> DocumentBuilder<'t> {
    /// Reads a list or mapping in brackets.
    pub(super) fn brackets(&mut self, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        let start = self.cursor.at;
        self.check_depth(depth, start)?;
        let is_list = self.cursor.peek() == Some(b'[');
        self.cursor.flow += 1;
        self.cursor.at += 1;
        let value = if is_list {
            SyntaxValue::Seq(self.flow_list(start, depth + 1)?)
        } else {
            SyntaxValue::Map(self.flow_mapping(start, depth + 1)?)
        };
        self.cursor.flow -= 1;
        Ok(SyntaxNode { span: Span::new(start, self.cursor.at), value })
    }

    fn flow_list(&mut self, open: usize, depth: usize) -> YamlResult<Vec<SyntaxNode<'t>>> {
        let mut items = Vec::new();
        while self.flow_goes_on(b']', open, items.is_empty())? {
            items.push(self.flow_item(depth)?);
        }
        Ok(items)
    }

    fn flow_mapping(&mut self, open: usize, depth: usize) -> YamlResult<Vec<MappingEntry<'t>>> {
        let mut mapping = Mapping::default();
        let mut first = true;
        while self.flow_goes_on(b'}', open, first)? {
            first = false;
            self.flow_entry(&mut mapping, depth)?;
        }
        Ok(mapping.into_entries())
    }

    /// Skips the comma between two members, or the closing bracket. False after the closing bracket.
    fn flow_goes_on(&mut self, close: u8, open: usize, first: bool) -> YamlResult<bool> {
        self.cursor.skip_space()?;
        if !first && self.cursor.peek() == Some(b',') {
            self.cursor.at += 1;
            self.cursor.skip_space()?;
        } else if !first && !self.cursor.ended() && self.cursor.peek() != Some(close) {
            let close = char::from(close);
            return Err(self.cursor.error(&format!("expected `,` or `{close}`")));
        }
        match self.cursor.peek() {
            None => {
                let error = SyntaxError::new(Span::new(open, open + 1), "this bracket is never closed");
                Err(error.help("close it, or put the value in quotes"))
            }
            Some(byte) if byte == close => {
                self.cursor.at += 1;
                Ok(false)
            }
            Some(b',') => Err(self.cursor.error("nothing stands before this comma")),
            Some(_) => Ok(true),
        }
    }

    /// Reads one member of a list: a value, or `key: value` as a mapping with one entry.
    fn flow_item(&mut self, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        let start = self.cursor.at;
        let (long, properties, simple) = self.flow_key(depth)?;
        if !long && self.cursor.peek() != Some(b':') {
            return self.finish(flow_value_of(properties, simple, start));
        }
        self.check_depth(depth, start)?;
        let mut mapping = Mapping::default();
        self.flow_value(&mut mapping, properties, simple, depth + 1)?;
        let entries = mapping.into_entries();
        let end = entries.iter().map(|entry| entry.value.span.end as usize).max().unwrap_or(self.cursor.at);
        Ok(SyntaxNode { span: Span::new(start, end), value: SyntaxValue::Map(entries) })
    }

    fn flow_entry(&mut self, mapping: &mut Mapping<'t>, depth: usize) -> YamlResult<()> {
        let (_, properties, simple) = self.flow_key(depth)?;
        self.flow_value(mapping, properties, simple, depth)
    }

    /// Reads a key, or a value that may turn out to be one; returns also whether a `?` announced the key.
    fn flow_key(&mut self, depth: usize) -> YamlResult<(bool, Properties<'t>, Option<Simple<'t>>)> {
        let (start, line) = (self.cursor.at, self.cursor.line);
        let long = self.long_key()?;
        let properties = self.cursor.properties(&self.handles)?;
        self.open(&properties);
        let simple = self.flow_simple(depth)?;
        self.cursor.skip_space()?;
        self.check_flow_key(long, start, line)?;
        Ok((long, properties, simple))
    }

    fn check_flow_key(&self, long: bool, start: usize, line: usize) -> YamlResult<()> {
        let found = !long && self.cursor.peek() == Some(b':');
        if found && (self.cursor.line != line || self.cursor.at - start > MAX_KEY) {
            let error = self.cursor.error("expected `,` or a closing bracket");
            return Err(error.help("a key and its `:` stand on one line, within 1024 characters"));
        }
        Ok(())
    }

    /// Skips the `?` before a key.
    fn long_key(&mut self) -> YamlResult<bool> {
        let long = self.cursor.peek() == Some(b'?');
        if long {
            self.cursor.at += 1;
            self.cursor.skip_space()?;
        }
        Ok(long)
    }

    /// Reads a value in brackets; `None` if a comma, colon or bracket follows instead.
    fn flow_simple(&mut self, depth: usize) -> YamlResult<Option<Simple<'t>>> {
        match self.cursor.peek() {
            Some(b',' | b':' | b']' | b'}') | None => Ok(None),
            _ if self.cursor.indicator(b'-') => {
                let error = self.cursor.error("a list in a block cannot begin inside brackets");
                Err(error.help("is the bracket before it closed?"))
            }
            _ => self.simple(-1, depth).map(Some),
        }
    }

    /// Reads the value after a key, if there is a colon, and adds the entry to the mapping.
    fn flow_value(
        &mut self,
        mapping: &mut Mapping<'t>,
        properties: Properties<'t>,
        key: Option<Simple<'t>>,
        depth: usize,
    ) -> YamlResult<()> {
        if key.is_none() && properties.span.is_none() {
            return Err(self.cursor.error("a key that is null").help("write the key before the `:`"));
        }
        let key = flow_value_of(properties, key, self.cursor.at);
        let (key, key_span) = self.finish_key(key)?;
        let mut end = key_span.end as usize;
        let mut simple = None;
        let mut properties = Properties::default();
        if self.cursor.peek() == Some(b':') {
            self.cursor.at += 1;
            end = self.cursor.at;
            self.cursor.skip_space()?;
            properties = self.cursor.properties(&self.handles)?;
            self.open(&properties);
            simple = self.flow_simple(depth)?;
        }
        let aliased = matches!(simple, Some(Simple::Alias(_)));
        let value = self.finish(flow_value_of(properties, simple, end))?;
        match key {
            MappingKey::Name(key) => mapping.insert(MappingEntry { key, key_span, value }),
            MappingKey::Merge => mapping.merge(key_span, value, aliased)?,
        }
        Ok(())
    }
}

/// The value that was read in brackets, or an empty value at `at`.
fn flow_value_of<'t>(properties: Properties<'t>, simple: Option<Simple<'t>>, at: usize) -> Unfinished<'t> {
    match simple {
        Some(simple) => Unfinished { properties, simple },
        None => Unfinished::empty(properties, at),
    }
}
