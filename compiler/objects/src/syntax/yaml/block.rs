//! Block style: values nested by indentation.
//!
//! In all functions, `indent` is the column of the surrounding block; the values of that block are further right.

use super::build::{DocumentBuilder, MappingKey, Simple, Unfinished};
use super::cursor::YamlResult;
use super::merge::Mapping;
use super::properties::Properties;
use crate::syntax::{MAX_DEPTH, MappingEntry, Span, SyntaxError, SyntaxNode, SyntaxValue};

/// The largest distance from the start of a key to its colon. Longer keys need a `?`.
pub(super) const MAX_KEY: usize = 1024;

/// A position where a key may have begun.
struct Start {
    at: usize,
    line: usize,
    column: isize,
    fresh: bool,
}

impl<'t> DocumentBuilder<'t> {
    /// Reads the value at the current position.
    pub(super) fn block_node(&mut self, indent: isize, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        let unfinished = self.unfinished(Properties::default(), indent, false, depth)?;
        self.finish(unfinished)
    }

    /// Reads the value at the current position; `outer` are the anchor and tag on lines above it. `shared` if a list
    /// may begin in the column of the surrounding block, because that is a mapping.
    fn unfinished(
        &mut self,
        outer: Properties<'t>,
        indent: isize,
        shared: bool,
        depth: usize,
    ) -> YamlResult<Unfinished<'t>> {
        let start = self.start();
        let properties = self.cursor.properties(&self.handles)?;
        self.open(&properties);
        if properties.span.is_some() && (self.cursor.line != start.line || self.cursor.ended()) {
            return self.node_below(outer.and(properties)?, indent, shared, depth);
        }
        let simple = match self.cursor.peek() {
            // The anchor or tag makes an empty key.
            Some(b':') if self.cursor.indicator(b':') && properties.span.is_some() && start.fresh => {
                Unfinished::empty(Properties::default(), self.cursor.at).simple
            }
            Some(byte @ (b'-' | b'?' | b':')) if self.cursor.indicator(byte) => {
                let node = self.indicated(byte, &start, depth)?;
                return Ok(Unfinished { properties: outer, simple: Simple::Node(node) });
            }
            Some(b'|' | b'>') => Simple::Scalar(self.cursor.block_scalar(indent)?),
            _ => self.simple(indent, depth)?,
        };
        if self.cursor.line == start.line && self.colon() {
            self.check_key(&start)?;
            let key = self.finish_key(Unfinished { properties, simple })?;
            let node = self.mapping(start.column, start.at, Some(key), depth)?;
            return Ok(Unfinished { properties: outer, simple: Simple::Node(node) });
        }
        Ok(Unfinished { properties: outer.and(properties)?, simple })
    }

    /// Reads the value on a line below its anchor or tag, if there is one.
    fn node_below(
        &mut self,
        properties: Properties<'t>,
        indent: isize,
        shared: bool,
        depth: usize,
    ) -> YamlResult<Unfinished<'t>> {
        self.open(&properties);
        if self.is_deeper(indent) {
            return self.unfinished(properties, indent, shared, depth);
        }
        if !shared || !self.is_shared_list(indent) {
            return Ok(Unfinished::empty(properties, self.cursor.at));
        }
        let simple = Simple::Node(self.list(indent, true, depth)?);
        Ok(Unfinished { properties, simple })
    }

    fn start(&self) -> Start {
        let cursor = &self.cursor;
        Start { at: cursor.at, line: cursor.line, column: cursor.column(), fresh: cursor.fresh }
    }

    /// Reads a block that its first character announces.
    fn indicated(&mut self, byte: u8, start: &Start, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        if !self.cursor.fresh {
            let message = if byte == b'-' { "a list cannot begin here" } else { "a mapping cannot begin here" };
            return Err(self.cursor.error(message).help("start it on a line of its own"));
        }
        match byte {
            b'-' => self.list(start.column, false, depth),
            _ => self.mapping(start.column, start.at, None, depth),
        }
    }

    /// Reads a value whose end does not depend on indentation.
    pub(super) fn simple(&mut self, indent: isize, depth: usize) -> YamlResult<Simple<'t>> {
        let simple = match self.cursor.peek() {
            Some(b'[' | b'{') => {
                if self.cursor.flow == 0 {
                    self.cursor.block_indent = indent;
                }
                Simple::Node(self.brackets(depth)?)
            }
            Some(b'*') => Simple::Alias(self.alias(depth)?),
            Some(quote @ (b'"' | b'\'')) => Simple::Scalar(self.cursor.quoted(quote)?),
            _ => {
                self.check_plain()?;
                self.cursor.fresh = false;
                return Ok(Simple::Scalar(self.cursor.plain(indent)?));
            }
        };
        self.cursor.fresh = false;
        Ok(simple)
    }

    fn check_plain(&self) -> YamlResult<()> {
        let Some(byte) = self.cursor.peek() else {
            return Err(self.cursor.error("expected a value"));
        };
        let open = match byte {
            b'-' => !self.cursor.indicator(byte),
            b'?' | b':' => self.cursor.flow == 0 && !self.cursor.indicator(byte),
            _ => !b",[]{}#&*!|>'\"%@`".contains(&byte),
        };
        if open {
            return Ok(());
        }
        let message = format!("a value cannot begin with `{}`", char::from(byte));
        Err(self.cursor.error(&message).help("put the value in quotes"))
    }

    /// Whether the value just read is a key: a colon follows, and then white space.
    fn colon(&mut self) -> bool {
        self.cursor.skip_blanks();
        self.cursor.indicator(b':')
    }

    fn check_key(&self, start: &Start) -> YamlResult<()> {
        if !start.fresh {
            let error = self.cursor.error("a `:` where no mapping can be");
            return Err(error.help("put a value that contains `: ` in quotes, or start the mapping on a new line"));
        }
        if self.cursor.at - start.at > MAX_KEY {
            let span = Span::new(start.at, start.at + 1);
            let error = SyntaxError::new(span, format!("this key is longer than {MAX_KEY} characters"));
            return Err(error.help("write `? ` before it"));
        }
        Ok(())
    }

    /// Reads a mapping in this column. The key of its first entry may have been read already.
    fn mapping(
        &mut self,
        column: isize,
        start: usize,
        first: Option<(MappingKey<'t>, Span)>,
        depth: usize,
    ) -> YamlResult<SyntaxNode<'t>> {
        self.check_depth(depth, start)?;
        let mut mapping = Mapping::default();
        let mut next = first;
        let mut end;
        loop {
            let (key, key_span, value, aliased) = match next.take() {
                Some((key, span)) => self.after_key(key, span, column, depth + 1)?,
                None => self.entry(column, depth + 1)?,
            };
            end = value.span.end.max(key_span.end);
            match key {
                MappingKey::Name(key) => mapping.insert(MappingEntry { key, key_span, value }),
                MappingKey::Merge => mapping.merge(key_span, value, aliased)?,
            }
            if !self.another(column, "the mapping around it")? {
                break;
            }
        }
        let span = Span { start: Span::new(start, start).start, end };
        Ok(SyntaxNode { span, value: SyntaxValue::Map(mapping.into_entries()) })
    }

    /// Whether another entry of a block in this column follows.
    fn another(&mut self, column: isize, block: &str) -> YamlResult<bool> {
        self.cursor.skip_space()?;
        if self.cursor.ended() || (self.cursor.fresh && self.cursor.column() < column) {
            return Ok(false);
        }
        if !self.cursor.fresh || self.cursor.column() > column {
            return Err(self.misplaced(block));
        }
        Ok(true)
    }

    /// Reads one entry of a mapping, from its key.
    fn entry(&mut self, column: isize, depth: usize) -> YamlResult<(MappingKey<'t>, Span, SyntaxNode<'t>, bool)> {
        if self.cursor.indicator(b'?') {
            return self.long_entry(column, depth);
        }
        let start = self.start();
        if self.cursor.indicator(b':') {
            return Err(self.cursor.error("a key that is null").help("write the key before the `:`"));
        }
        if self.cursor.indicator(b'-') {
            return Err(self.misplaced("the mapping around it"));
        }
        let properties = self.cursor.properties(&self.handles)?;
        self.open(&properties);
        let simple = match self.cursor.indicator(b':') {
            true => Unfinished::empty(Properties::default(), self.cursor.at).simple,
            false => self.simple(column, depth)?,
        };
        if self.cursor.line != start.line || !self.colon() {
            let end = match &simple {
                Simple::Scalar(raw) => raw.span.end,
                Simple::Node(node) | Simple::Alias(node) => node.span.end,
            };
            let line = self.cursor.line_from(start.at);
            let span = Span { start: line.start, end: line.end.min(end).max(line.start) };
            let error = SyntaxError::new(span, "expected `:` after this key");
            return Err(error.help("check the indentation of this line and the ones above it"));
        }
        self.check_key(&start)?;
        let (key, span) = self.finish_key(Unfinished { properties, simple })?;
        self.after_key(key, span, column, depth)
    }

    /// Reads the rest of an entry, from the colon after its key.
    fn after_key(
        &mut self,
        key: MappingKey<'t>,
        span: Span,
        column: isize,
        depth: usize,
    ) -> YamlResult<(MappingKey<'t>, Span, SyntaxNode<'t>, bool)> {
        self.cursor.at += 1;
        self.cursor.fresh = false;
        let (value, aliased) = self.value(column, depth)?;
        Ok((key, span, value, aliased))
    }

    /// Reads `? key`, and then `: value` on another line.
    fn long_entry(&mut self, column: isize, depth: usize) -> YamlResult<(MappingKey<'t>, Span, SyntaxNode<'t>, bool)> {
        self.cursor.at += 1;
        self.cursor.fresh = true;
        let key = self.unfinished_value(column, depth)?;
        let (key, span) = self.finish_key(key)?;
        self.cursor.skip_space()?;
        if !self.cursor.fresh || self.cursor.column() != column || !self.cursor.indicator(b':') {
            let value = self.finish(Unfinished::empty(Properties::default(), span.end as usize))?;
            return Ok((key, span, value, false));
        }
        self.cursor.at += 1;
        self.cursor.fresh = true;
        let (value, aliased) = self.value(column, depth)?;
        Ok((key, span, value, aliased))
    }

    /// Reads the value after the colon of an entry in this column. Also returns whether it is an alias.
    fn value(&mut self, column: isize, depth: usize) -> YamlResult<(SyntaxNode<'t>, bool)> {
        let unfinished = self.unfinished_value(column, depth)?;
        let aliased = matches!(unfinished.simple, Simple::Alias(_));
        Ok((self.finish(unfinished)?, aliased))
    }

    /// Reads the value after the `?` or the colon of an entry in this column.
    fn unfinished_value(&mut self, column: isize, depth: usize) -> YamlResult<Unfinished<'t>> {
        let (end, line) = (self.cursor.at, self.cursor.line);
        self.cursor.skip_space()?;
        if self.belongs(column, line) {
            return self.unfinished(Properties::default(), column, true, depth);
        }
        if self.is_shared_list(column) {
            let simple = Simple::Node(self.list(column, true, depth)?);
            return Ok(Unfinished { properties: Properties::default(), simple });
        }
        Ok(Unfinished::empty(Properties::default(), end))
    }

    /// Whether the current position belongs to an indicator on `line`, in the block of this column.
    fn belongs(&self, column: isize, line: usize) -> bool {
        !self.cursor.ended() && (self.cursor.line == line || self.is_deeper(column))
    }

    /// Whether the token on this new line belongs to a value of the block in this column. Blocks of text need no deeper
    /// indentation for their first line.
    fn is_deeper(&self, column: isize) -> bool {
        let cursor = &self.cursor;
        let is_text = matches!(cursor.peek(), Some(b'|' | b'>'));
        !cursor.ended() && (cursor.column() > column || (cursor.column() == column && is_text))
    }

    /// Whether a list begins in this column. As a value of a mapping it needs no deeper indentation.
    fn is_shared_list(&self, column: isize) -> bool {
        !self.cursor.ended() && self.cursor.column() == column && self.cursor.indicator(b'-')
    }

    /// Reads a list in this column; `shared` if it is the column of the mapping around it.
    fn list(&mut self, column: isize, shared: bool, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        let start = self.cursor.at;
        self.check_depth(depth, start)?;
        let mut items: Vec<SyntaxNode<'t>> = Vec::new();
        loop {
            items.push(self.item(column, depth + 1)?);
            if !self.another(column, "the list around it")? || (shared && !self.cursor.indicator(b'-')) {
                break;
            }
            if !self.cursor.indicator(b'-') {
                return Err(self.misplaced("the list around it"));
            }
        }
        let end = items.last().map_or(start, |item| item.span.end as usize);
        Ok(SyntaxNode { span: Span::new(start, end), value: SyntaxValue::Seq(items) })
    }

    fn item(&mut self, column: isize, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        self.cursor.at += 1;
        self.cursor.fresh = true;
        let (end, line) = (self.cursor.at, self.cursor.line);
        self.cursor.skip_space()?;
        if self.belongs(column, line) {
            return self.block_node(column, depth);
        }
        self.finish(Unfinished::empty(Properties::default(), end))
    }

    pub(super) fn check_depth(&self, depth: usize, at: usize) -> YamlResult<()> {
        if depth < MAX_DEPTH {
            return Ok(());
        }
        Err(SyntaxError::too_deep(Span::new(at, at + 1)))
    }
}
