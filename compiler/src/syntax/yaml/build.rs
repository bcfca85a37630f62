//! From the parser's events to a tree.

use std::borrow::Cow;
use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput, Tag};

use super::MAX_ALIASED;
use super::errors;
use super::merge::{Mapping, is_merge};
use super::place::Place;
use crate::syntax::scalar::{self, Scalar};
use crate::syntax::{Entry, MAX_DEPTH, Node, Span, SyntaxError, Value};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Reads one document.
pub(super) struct Builder<'t> {
    parser: Parser<'t, StrInput<'t>>,
    place: Place<'t>,
    /// Without an alias in the text there is no need to keep what anchors stand for.
    aliases: bool,
    /// By the parser's number; `None` while the anchored value is not complete.
    anchors: BTreeMap<usize, Option<Anchored<'t>>>,
    /// What is left of [`MAX_ALIASED`].
    budget: usize,
}

/// What an anchor stands for.
struct Anchored<'t> {
    node: Node<'t>,
    height: usize,
    cost: usize,
}

/// A key, or the wish to merge.
enum Key<'t> {
    Name(Cow<'t, str>),
    Merge,
}

impl<'t> Builder<'t> {
    pub(super) fn new(text: &'t str, span: Span) -> Result<Self> {
        let place = Place::new(text, span);
        if let Some(error) = errors::forbidden(&place) {
            return Err(error);
        }
        let parser = Parser::new_from_str(place.chunk);
        let aliases = place.chunk.contains('*');
        Ok(Self { parser, place, aliases, anchors: BTreeMap::new(), budget: MAX_ALIASED })
    }

    /// The whole document; `None` if it holds nothing.
    pub(super) fn document(mut self) -> Result<Option<Node<'t>>> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) if root.is_some() => {
                    let error = SyntaxError::new(span, "another document begins here");
                    return Err(error.help("separate documents with a line of `---`"));
                }
                Event::DocumentStart(_) => root = Some(self.next_node(0)?),
                _ => {}
            }
        }
        Ok(root.filter(|node| node.value != Value::Null))
    }

    fn next(&mut self) -> Result<(Event<'t>, Span)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.place.span(span))),
            Some(Err(error)) => Err(errors::translate(&error, &self.place)),
            None => Ok((Event::StreamEnd, Span::new(self.place.end(), self.place.end()))),
        }
    }

    fn next_node(&mut self, depth: usize) -> Result<Node<'t>> {
        let (event, span) = self.next()?;
        self.node(event, span, depth)
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node<'t>> {
        match event {
            Event::Alias(anchor) => self.alias(anchor, span, depth),
            Event::Scalar(text, style, anchor, tag) => {
                let node = self.scalar(text, style, tag.as_deref(), span)?;
                self.keep(anchor, &node)?;
                Ok(node)
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if depth >= MAX_DEPTH => {
                Err(SyntaxError::too_deep(self.place.character(span.start as usize)))
            }
            Event::SequenceStart(anchor, _) => self.sequence(anchor, span, depth + 1),
            Event::MappingStart(anchor, _) => self.mapping(anchor, span, depth + 1),
            _ => Err(SyntaxError::new(self.place.character(span.start as usize), "expected a value")),
        }
    }

    fn sequence(&mut self, anchor: usize, span: Span, depth: usize) -> Result<Node<'t>> {
        self.open(anchor);
        let mut items: Vec<Node<'t>> = Vec::new();
        let end = loop {
            let (event, at) = self.next()?;
            if event == Event::SequenceEnd {
                break at;
            }
            items.push(self.node(event, at, depth)?);
        };
        let last = items.last().map_or(span.end, |item| item.span.end);
        let node = Node { span: self.collection(span, last, end), value: Value::Seq(items) };
        self.keep(anchor, &node)?;
        Ok(node)
    }

    fn mapping(&mut self, anchor: usize, span: Span, depth: usize) -> Result<Node<'t>> {
        self.open(anchor);
        let mut mapping = Mapping::default();
        let mut last = span.end;
        let end = loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                break at;
            }
            let (key, key_span) = self.key(event, at, depth)?;
            let (event, at) = self.next()?;
            let aliased = matches!(event, Event::Alias(_));
            let value = self.node(event, self.after_key(key_span, at), depth)?;
            last = value.span.end;
            match key {
                Key::Name(key) => mapping.insert(Entry { key, key_span, value }),
                Key::Merge => mapping.merge(key_span, value, aliased)?,
            }
        };
        let node = Node { span: self.collection(span, last, end), value: Value::Map(mapping.into_entries()) };
        self.keep(anchor, &node)?;
        Ok(node)
    }

    /// A list or mapping in brackets ends with its bracket, any other with its last value.
    fn collection(&self, start: Span, last: u32, end: Span) -> Span {
        let bracket = end.start < end.end && self.place.rest(end.start as usize).starts_with([']', '}']);
        Span { start: start.start, end: if bracket { end.start + 1 } else { last.max(start.start) } }
    }

    /// Where nothing stands after a key, the parser names the place of what comes next.
    fn after_key(&self, key: Span, value: Span) -> Span {
        Span { start: value.start.max(key.end), end: value.end.max(key.end) }
    }

    fn key(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<(Key<'t>, Span)> {
        let Event::Scalar(text, style, anchor, tag) = event else {
            let node = self.node(event, span, depth)?;
            return Ok((Key::Name(key_of(&node)?), node.span));
        };
        let name = tag.as_deref().map(tag_name);
        if is_merge(&text, style == ScalarStyle::Plain, name.as_deref()) {
            return Ok((Key::Merge, self.scalar_span(&text, style, tag.is_some(), span)));
        }
        // The number itself: as a value `1e6` is the integer 1000000, as a key it is `1e+06`.
        let number = match self.resolve(&text, style, tag.as_deref(), span)? {
            Scalar::Float(number) => Some(scalar::float_key(number)),
            _ => None,
        };
        if let Some(key) = number {
            return Ok((Key::Name(key.into()), self.scalar_span(&text, style, tag.is_some(), span)));
        }
        let node = self.scalar(text, style, tag.as_deref(), span)?;
        self.keep(anchor, &node)?;
        Ok((Key::Name(key_of(&node)?), node.span))
    }

    fn scalar(&self, text: Cow<'t, str>, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Result<Node<'t>> {
        let resolved = self.resolve(&text, style, tag, span)?;
        let span = self.scalar_span(&text, style, tag.is_some(), span);
        let value = match resolved {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Int(number) => Value::Int(number),
            Scalar::Uint(number) => Value::Float(number as f64),
            Scalar::Float(number) if number.is_finite() => Value::number(number),
            Scalar::Float(_) => {
                return Err(SyntaxError::new(span, format!("`{text}` is a number that JSON cannot carry"))
                    .help("put it in quotes if it is meant as a string"));
            }
            Scalar::Str if tag.is_some_and(|tag| tag_name(tag) == "tag:yaml.org,2002:binary") => {
                let decoded = super::binary::decode(&text);
                Value::Str(decoded.ok_or_else(|| SyntaxError::new(span, "not valid base64 data"))?.into())
            }
            Scalar::Str => Value::Str(self.borrow(text, span)),
        };
        Ok(Node { span, value })
    }

    fn resolve(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Result<Scalar> {
        let Some(tag) = tag else {
            return Ok(if style == ScalarStyle::Plain { scalar::plain(text) } else { Scalar::Str });
        };
        let name = tag_name(tag);
        scalar::tagged(&name, text).map_err(|found| {
            let span = self.scalar_span(text, style, true, span);
            let asked = name.strip_prefix(scalar::YAML).unwrap_or_default();
            SyntaxError::new(span, format!("{found} with the tag `!!{asked}`")).help("remove the tag")
        })
    }

    /// The parser's spans of scalars, without the white space and comments that it includes at their ends.
    fn scalar_span(&self, text: &str, style: ScalarStyle, tagged: bool, span: Span) -> Span {
        let start = span.start as usize;
        match style {
            ScalarStyle::Plain if text.is_empty() && !tagged => {
                let colon = self.place.rest(start).starts_with(':');
                let at = if colon { start + 1 } else { self.place.trim_back(start) };
                Span::new(at, at)
            }
            ScalarStyle::Plain => span,
            ScalarStyle::SingleQuoted => Span::new(start, self.place.quoted_end(span, b'\'')),
            ScalarStyle::DoubleQuoted => Span::new(start, self.place.quoted_end(span, b'"')),
            ScalarStyle::Literal | ScalarStyle::Folded => {
                Span::new(start, self.place.trim_back(span.end as usize).max(start))
            }
        }
    }

    /// The string as it stands in the text, if it stands there like this.
    fn borrow(&self, text: Cow<'t, str>, span: Span) -> Cow<'t, str> {
        let rest = self.place.rest(span.start as usize);
        let written = rest.get(..(span.end - span.start) as usize).unwrap_or_default();
        let quotes = usize::from(written.starts_with(['"', '\'']));
        match written.get(quotes..written.len().saturating_sub(quotes)) {
            Some(inner) if inner == text => Cow::Borrowed(inner),
            _ => text,
        }
    }

    fn open(&mut self, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, None);
        }
    }

    /// Remembers what an anchor stands for. The copy counts against the budget.
    fn keep(&mut self, anchor: usize, node: &Node<'t>) -> Result<()> {
        if anchor == 0 || !self.aliases {
            return Ok(());
        }
        let (cost, height) = measure(node);
        self.pay(cost, node.span)?;
        self.anchors.insert(anchor, Some(Anchored { node: node.clone(), height, cost }));
        Ok(())
    }

    fn alias(&mut self, anchor: usize, span: Span, depth: usize) -> Result<Node<'t>> {
        let Some(Some(anchored)) = self.anchors.get(&anchor) else {
            return Err(SyntaxError::new(span, "this alias stands inside the value that it stands for"));
        };
        if depth + anchored.height > MAX_DEPTH {
            return Err(SyntaxError::too_deep(span));
        }
        let cost = anchored.cost;
        self.pay(cost, span)?;
        let Some(Some(anchored)) = self.anchors.get(&anchor) else {
            return Err(SyntaxError::new(span, "an alias to an anchor that is not there"));
        };
        let mut node = anchored.node.clone();
        place_at(&mut node, span);
        Ok(node)
    }

    fn pay(&mut self, cost: usize, span: Span) -> Result<()> {
        let Some(left) = self.budget.checked_sub(cost) else {
            let message = format!("aliases make this document more than {MAX_ALIASED} values larger");
            return Err(SyntaxError::new(span, message).help("write the values out, or split the document"));
        };
        self.budget = left;
        Ok(())
    }
}

fn tag_name(tag: &Tag) -> String {
    format!("{}{}", tag.handle, tag.suffix)
}

/// A key as a string, as `sigs.k8s.io/yaml` makes it one.
fn key_of<'t>(node: &Node<'t>) -> Result<Cow<'t, str>> {
    match &node.value {
        Value::Str(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string().into()),
        Value::Int(number) => Ok(number.to_string().into()),
        Value::Float(number) => Ok(scalar::float_key(*number).into()),
        Value::Null => Err(SyntaxError::new(node.span, "a key that is null").help("put the key in quotes")),
        Value::Seq(_) | Value::Map(_) => {
            Err(SyntaxError::new(node.span, "a list or mapping as a key").help("put the key in quotes"))
        }
    }
}

/// The cost of copying a tree, and its height.
fn measure(node: &Node<'_>) -> (usize, usize) {
    match &node.value {
        Value::Str(text) => (1 + text.len() / 64, 0),
        Value::Seq(items) => inside(items.iter().map(measure)),
        Value::Map(entries) => inside(entries.iter().map(|entry| {
            let (cost, height) = measure(&entry.value);
            (cost + entry.key.len() / 64, height)
        })),
        _ => (1, 0),
    }
}

fn inside(measures: impl Iterator<Item = (usize, usize)>) -> (usize, usize) {
    let (cost, height) = measures.fold((1, 0), |sum, node| (sum.0 + node.0, sum.1.max(node.1)));
    (cost, height + 1)
}

/// Gives a copied tree the place of the alias.
fn place_at(node: &mut Node<'_>, span: Span) {
    node.span = span;
    match &mut node.value {
        Value::Seq(items) => items.iter_mut().for_each(|item| place_at(item, span)),
        Value::Map(entries) => entries.iter_mut().for_each(|entry| {
            entry.key_span = span;
            place_at(&mut entry.value, span);
        }),
        _ => {}
    }
}
