//! Scalars → values: tags, keys, anchors and aliases, and their bounds.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::cursor::{YamlCursor, YamlResult, forbidden};
use super::merge::is_merge;
use super::properties::{Handles, Properties};
use super::scalars::Raw;
use super::{MAX_ALIASED, binary};
use crate::syntax::scalar::{self, Scalar};
use crate::syntax::{MAX_DEPTH, Span, SyntaxError, SyntaxNode, SyntaxValue};

/// Reads one document.
#[derive(Debug)]
pub(super) struct DocumentBuilder<'t> {
    pub(super) cursor: YamlCursor<'t>,
    pub(super) handles: Handles,
    /// Whether the text may contain aliases. Otherwise anchored values need not be kept.
    aliases: bool,
    /// The anchored values; `None` while a value is not complete.
    anchors: BTreeMap<&'t str, Option<Anchored<'t>>>,
    /// The unused rest of [`MAX_ALIASED`].
    budget: usize,
}

/// An anchored value, with its height and the cost of a copy.
#[derive(Debug)]
struct Anchored<'t> {
    node: SyntaxNode<'t>,
    height: usize,
    cost: usize,
}

/// A key, or a merge key.
#[derive(Debug)]
pub(super) enum MappingKey<'t> {
    Name(Cow<'t, str>),
    Merge,
}

/// A value on one line that may turn out to be a key.
#[derive(Debug)]
pub(super) enum Simple<'t> {
    Scalar(Raw<'t>),
    Node(SyntaxNode<'t>),
    /// A copy of the anchored value, in place of an alias.
    Alias(SyntaxNode<'t>),
}

/// A value or a key that is read, but to which its anchor and tag are not applied yet. A scalar means different things in the
/// two positions: a plain `<<` merges, and `1e6` is another text as a key.
#[derive(Debug)]
pub(super) struct Unfinished<'t> {
    pub(super) properties: Properties<'t>,
    pub(super) simple: Simple<'t>,
}

impl<'t> Unfinished<'t> {
    /// An empty value at `at`, perhaps with an anchor or a tag before it.
    pub(super) fn empty(properties: Properties<'t>, at: usize) -> Self {
        let end = properties.span.map_or(Span::new(at, at).end, |span| span.end);
        let raw = Raw { text: Cow::Borrowed(""), span: Span { start: end, end }, plain: true };
        Self { properties, simple: Simple::Scalar(raw) }
    }
}

impl<'t> DocumentBuilder<'t> {
    pub(super) fn new(text: &'t str, span: Span) -> YamlResult<Self> {
        let chunk = span.slice(text);
        if let Some(error) = forbidden(chunk, span.start as usize) {
            return Err(error);
        }
        let end = span.start as usize + super::split::content(chunk).len();
        Ok(Self {
            cursor: YamlCursor::new(text, span.start as usize, end),
            handles: Handles::default(),
            aliases: chunk.contains('*'),
            anchors: BTreeMap::new(),
            budget: MAX_ALIASED,
        })
    }

    /// Reads the whole document; `None` if it is empty.
    pub(super) fn document(mut self) -> YamlResult<Option<SyntaxNode<'t>>> {
        self.cursor.skip_mark();
        self.handles = self.cursor.directives()?;
        self.cursor.skip_space()?;
        if self.cursor.ended() {
            return Ok(None);
        }
        let node = self.block_node(-1, 0)?;
        self.cursor.skip_space()?;
        if !self.cursor.ended() {
            return Err(self.misplaced("the value before it"));
        }
        Ok(Some(node).filter(|node| node.value != SyntaxValue::Null))
    }

    /// Makes a value from its anchor, tag and content. Its span includes the anchor and the tag.
    pub(super) fn finish(&mut self, unfinished: Unfinished<'t>) -> YamlResult<SyntaxNode<'t>> {
        let Unfinished { properties, simple } = unfinished;
        let mut node = match (simple, properties.span) {
            (Simple::Scalar(raw), _) => scalar_node(raw, properties.tag.as_deref())?,
            (Simple::Alias(_), Some(span)) => {
                let error = SyntaxError::new(span, "an alias cannot have an anchor or a tag");
                return Err(error.help("remove it: the alias stands for the whole value, with its tag"));
            }
            (Simple::Node(node) | Simple::Alias(node), _) => node,
        };
        if let Some(span) = properties.span {
            node.span.start = span.start;
        }
        if let Some(anchor) = properties.anchor {
            self.keep(anchor, &node)?;
        }
        Ok(node)
    }

    /// Makes a key from its anchor, tag and content.
    pub(super) fn finish_key(&mut self, unfinished: Unfinished<'t>) -> YamlResult<(MappingKey<'t>, Span)> {
        let tag = unfinished.properties.tag.as_deref();
        let key = match &unfinished.simple {
            Simple::Scalar(raw) if is_merge(&raw.text, raw.plain, tag) => Some(MappingKey::Merge),
            // The number as Go prints it: as a value `1e6` is the integer 1000000, as a key it is `1e+06`.
            Simple::Scalar(raw) => match resolve(raw, tag)? {
                Scalar::Float(number) if number.is_finite() => Some(MappingKey::Name(scalar::float_key(number).into())),
                Scalar::Float(number) => return Ok((MappingKey::Name(scalar::float_key(number).into()), raw.span)),
                Scalar::Uint(_) => {
                    let error = SyntaxError::new(raw.span, "a key that is too large a number");
                    return Err(error.help("put the key in quotes"));
                }
                _ => None,
            },
            Simple::Node(_) | Simple::Alias(_) => None,
        };
        let node = self.finish(unfinished)?;
        let key = key.map_or_else(|| key_of(&node).map(MappingKey::Name), Ok)?;
        Ok((key, node.span))
    }

    /// Stores an anchor whose value is about to begin.
    pub(super) fn open(&mut self, properties: &Properties<'t>) {
        if let Some(anchor) = properties.anchor {
            self.anchors.insert(anchor, None);
        }
    }

    /// Stores the value of an anchor. The copy counts against the budget.
    fn keep(&mut self, anchor: &'t str, node: &SyntaxNode<'t>) -> YamlResult<()> {
        // An anchor of the same name inside of the value came later, so its value stays.
        if !self.aliases || !matches!(self.anchors.get(anchor), Some(None)) {
            return Ok(());
        }
        let (cost, height) = measure(node);
        self.pay(cost, node.span)?;
        self.anchors.insert(anchor, Some(Anchored { node: node.clone(), height, cost }));
        Ok(())
    }

    /// The value of the alias at the current position.
    pub(super) fn alias(&mut self, depth: usize) -> YamlResult<SyntaxNode<'t>> {
        let start = self.cursor.at;
        let name = self.cursor.name()?;
        let span = Span::new(start, self.cursor.at);
        let anchored = match self.anchors.get(name) {
            Some(Some(anchored)) => anchored,
            Some(None) => {
                return Err(SyntaxError::new(span, "this alias stands inside the value that it stands for"));
            }
            None => {
                let error = SyntaxError::new(span, format!("there is no anchor `&{name}` for this alias"));
                return Err(
                    error.help("an anchor must stand before its aliases; put a value that begins with `*` in quotes")
                );
            }
        };
        if depth + anchored.height > MAX_DEPTH {
            return Err(SyntaxError::too_deep(span));
        }
        self.budget = spend(self.budget, anchored.cost, span)?;
        let mut node = anchored.node.clone();
        place_at(&mut node, span);
        Ok(node)
    }

    fn pay(&mut self, cost: usize, span: Span) -> YamlResult<()> {
        self.budget = spend(self.budget, cost, span)?;
        Ok(())
    }

    /// The error for a token that fits nowhere.
    pub(super) fn misplaced(&self, parent: &str) -> SyntaxError {
        if self.cursor.indicator(b':') {
            let error = self.cursor.error("a `:` where no mapping can be");
            return error.help("check the indentation; put a value that contains `: ` in quotes");
        }
        self.cursor
            .error(&format!("this does not fit to {parent}"))
            .help("check the indentation of this line and the ones above it")
    }
}

fn scalar_node<'t>(raw: Raw<'t>, tag: Option<&str>) -> YamlResult<SyntaxNode<'t>> {
    let span = raw.span;
    let value = match resolve(&raw, tag)? {
        Scalar::Null => SyntaxValue::Null,
        Scalar::Bool(value) => SyntaxValue::Bool(value),
        Scalar::Int(number) => SyntaxValue::Int(number),
        Scalar::Uint(number) => SyntaxValue::Float(number as f64),
        Scalar::Float(number) if number.is_finite() => SyntaxValue::number(number),
        Scalar::Float(_) => {
            return Err(SyntaxError::new(span, format!("`{}` is a number that JSON cannot carry", raw.text))
                .help("put it in quotes if it is meant as a string"));
        }
        Scalar::Str if tag.is_some_and(|tag| tag.strip_prefix(scalar::YAML) == Some("binary")) => {
            let decoded = binary::decode(&raw.text);
            SyntaxValue::Str(decoded.ok_or_else(|| SyntaxError::new(span, "not valid base64 data"))?.into())
        }
        Scalar::Str => SyntaxValue::Str(raw.text),
    };
    Ok(SyntaxNode { span, value })
}

fn resolve(raw: &Raw<'_>, tag: Option<&str>) -> YamlResult<Scalar> {
    match tag {
        None if raw.plain => Ok(scalar::plain(&raw.text)),
        None => Ok(Scalar::Str),
        Some(tag) => scalar::tagged(tag, &raw.text).map_err(|found| {
            let asked = tag.strip_prefix(scalar::YAML).unwrap_or_default();
            SyntaxError::new(raw.span, format!("{found} with the tag `!!{asked}`")).help("remove the tag")
        }),
    }
}

/// A key as a string, converted as in `sigs.k8s.io/yaml`.
fn key_of<'t>(node: &SyntaxNode<'t>) -> YamlResult<Cow<'t, str>> {
    match &node.value {
        SyntaxValue::Str(text) => Ok(text.clone()),
        SyntaxValue::Bool(value) => Ok(value.to_string().into()),
        SyntaxValue::Int(number) => Ok(number.to_string().into()),
        SyntaxValue::Float(number) => Ok(scalar::float_key(*number).into()),
        SyntaxValue::Null => Err(SyntaxError::new(node.span, "a key that is null").help("put the key in quotes")),
        SyntaxValue::Seq(_) | SyntaxValue::Map(_) => Err(SyntaxError::new(node.span, "a list or mapping as a key")
            .help("a template (`{{ … }}`) must be rendered first; otherwise put the key in quotes")),
    }
}

fn spend(budget: usize, cost: usize, span: Span) -> YamlResult<usize> {
    budget.checked_sub(cost).ok_or_else(|| {
        let message = format!("aliases make this document more than {MAX_ALIASED} values larger");
        SyntaxError::new(span, message).help("write the values out, or split the document")
    })
}

/// The cost of copying a tree, and its height.
fn measure(node: &SyntaxNode<'_>) -> (usize, usize) {
    match &node.value {
        SyntaxValue::Str(text) => (1 + text.len() / 64, 0),
        SyntaxValue::Seq(items) => inside(items.iter().map(measure)),
        SyntaxValue::Map(entries) => inside(entries.iter().map(|entry| {
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

/// Gives every span in a copied tree the position of the alias.
fn place_at(node: &mut SyntaxNode<'_>, span: Span) {
    node.span = span;
    match &mut node.value {
        SyntaxValue::Seq(items) => items.iter_mut().for_each(|item| place_at(item, span)),
        SyntaxValue::Map(entries) => entries.iter_mut().for_each(|entry| {
            entry.key_span = span;
            place_at(&mut entry.value, span);
        }),
        _ => {}
    }
}
