//! One change of one list or scalar, as new text.

use std::ops::Range;

use weir_objects::origin::{FieldPath, PathStep};
use weir_objects::source::ObjectSource;
use weir_objects::syntax::{MappingEntry, Span, SyntaxFormat, SyntaxNode, SyntaxValue, json, yaml};

use crate::tree::Tree;

/// A change of a text.
#[derive(Clone, Debug)]
pub(crate) enum TextChange {
    /// Appends an item to a list, which need not exist.
    Append { list: FieldPath, item: Tree },
    /// Removes an item.
    Remove { list: FieldPath, index: usize },
    /// Writes other items in place of one.
    Replace { list: FieldPath, index: usize, items: Vec<Tree> },
    /// Writes another scalar.
    Scalar { path: FieldPath, text: Tree },
}

impl TextChange {
    /// The removal of the item at a path; `None` if the path does not end with an index.
    pub(crate) fn remove_at(path: &FieldPath) -> Option<Self> {
        let (PathStep::Index(index), parents) = path.steps().split_last()? else { return None };
        let list = parents.iter().fold(FieldPath::root(), |path, step| match step {
            PathStep::Field(name) => path.field(name.clone()),
            PathStep::Key(name) => path.key(name),
            PathStep::Index(index) => path.index(*index as usize),
        });
        Some(Self::Remove { list, index: *index as usize })
    }

    /// The list or the scalar.
    pub(crate) fn path(&self) -> &FieldPath {
        match self {
            Self::Append { list, .. } | Self::Remove { list, .. } | Self::Replace { list, .. } => list,
            Self::Scalar { path, .. } => path,
        }
    }
}

/// Why a change cannot be made in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The text does not have the expected form.
    Form,
    /// A comment beside the item would be lost, or would seem to be about another item.
    Comment,
}

/// New text for a range of the old one.
type Replacement = (Range<usize>, String);

/// The text with the change.
pub(super) fn splice(text: &str, source: &ObjectSource, change: &TextChange) -> Result<String, Obstacle> {
    let root = match source.format {
        SyntaxFormat::Json => json::parse(text, source.span).ok(),
        SyntaxFormat::Yaml => yaml::parse(text, source.span).ok().flatten(),
        SyntaxFormat::List => None,
    };
    let object = root.as_ref().and_then(|root| descend(root, &source.items)).ok_or(Obstacle::Form)?;
    let edit = TextEdit { text, object, is_json: source.format == SyntaxFormat::Json };
    if let TextChange::Remove { list, index } = change
        && edit.is_beside_comment(list, *index)
    {
        return Err(Obstacle::Comment);
    }
    let mut replacements = edit.replacements(change).ok_or(Obstacle::Form)?;
    replacements.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut edited = text.to_owned();
    for (range, replacement) in replacements {
        edited.replace_range(range, &replacement);
    }
    Ok(edited)
}

/// The object in a List document.
fn descend<'n, 't>(root: &'n SyntaxNode<'t>, items: &[u32]) -> Option<&'n SyntaxNode<'t>> {
    items.iter().try_fold(root, |object, index| {
        let SyntaxValue::Seq(items) = &entry(object, "items")?.value.value else { return None };
        items.get(*index as usize)
    })
}

/// How the item of a list is written.
enum Style {
    /// On lines of its own, after a dash in this column; the item begins in the second column.
    Block { dash: usize, column: usize },
    /// In brackets.
    Flow,
}

/// A field that was looked for.
struct Found<'n, 't> {
    parent: &'n SyntaxNode<'t>,
    name: String,
    key: Option<Span>,
    node: Option<&'n SyntaxNode<'t>>,
}

struct TextEdit<'n, 't> {
    text: &'t str,
    object: &'n SyntaxNode<'t>,
    is_json: bool,
}

impl<'n, 't> TextEdit<'n, 't> {
    fn replacements(&self, change: &TextChange) -> Option<Vec<Replacement>> {
        match change {
            TextChange::Append { list, item } => self.append(list, item),
            TextChange::Remove { list, index } => self.remove(list, *index),
            TextChange::Replace { list, index, items } => self.replace(list, *index, items),
            TextChange::Scalar { path, text } => {
                let span = range(self.find(path)?.node?.span);
                let text = if self.is_json { text.json() } else { text.block(0).trim_end().to_owned() };
                Some(vec![(span, text)])
            }
        }
    }

    /// The field at a path. Its parent exists; the field itself may not.
    fn find(&self, path: &FieldPath) -> Option<Found<'n, 't>> {
        let mut found = Found { parent: self.object, name: String::new(), key: None, node: Some(self.object) };
        for step in path.steps() {
            let parent = found.node?;
            found = match step {
                PathStep::Field(name) | PathStep::Key(name) => {
                    let entry = entry(parent, name);
                    let (key, node) = (entry.map(|it| it.key_span), entry.map(|it| &it.value));
                    Found { parent, name: name.to_string(), key, node }
                }
                PathStep::Index(index) => {
                    let SyntaxValue::Seq(items) = &parent.value else { return None };
                    Found { parent, name: String::new(), key: None, node: Some(items.get(*index as usize)?) }
                }
            };
        }
        Some(found)
    }

    fn items(&self, list: &FieldPath) -> Option<(Found<'n, 't>, &'n [SyntaxNode<'t>])> {
        let found = self.find(list)?;
        let SyntaxValue::Seq(items) = &found.node?.value else { return None };
        Some((found, items))
    }

    fn append(&self, list: &FieldPath, item: &Tree) -> Option<Vec<Replacement>> {
        let found = self.find(list)?;
        let last = match found.node.map(|it| &it.value) {
            Some(SyntaxValue::Seq(items)) => items.last(),
            None | Some(SyntaxValue::Null) => None,
            Some(_) => return None,
        };
        let Some(last) = last else { return self.begin(&found, item) };
        let end = last.span.end as usize;
        Some(vec![match self.style(last)? {
            Style::Flow => (end..end, format!(", {}", self.line(item))),
            Style::Block { dash, .. } => self.lines_after(end, format!("{:dash$}- {}", "", item.block(dash + 2))),
        }])
    }

    /// Writes the first item of a list that is empty or absent.
    fn begin(&self, found: &Found<'_, '_>, item: &Tree) -> Option<Vec<Replacement>> {
        if let Some(key) = found.key {
            let colon = self.colon(key)?;
            let end = found.node.map_or(colon, |it| (it.span.end as usize).max(colon));
            let list = match self.key_column(key).filter(|_| !self.is_json) {
                Some(column) => {
                    let dash = column + 2;
                    format!("\n{:dash$}- {}", "", item.block(dash + 2).trim_end())
                }
                None => format!(" [{}]", self.line(item)),
            };
            return Some(vec![(colon..end, list)]);
        }
        let SyntaxValue::Map(entries) = &found.parent.value else { return None };
        let (first, last) = (entries.first()?, entries.last()?);
        let end = last.value.span.end.max(last.key_span.end) as usize;
        Some(vec![match self.text[found.parent.span.start as usize..].starts_with('{') {
            true => (end..end, format!(", {}: [{}]", self.line(&Tree::Text(found.name.clone())), self.line(item))),
            false => {
                let column = self.key_column(first.key_span)?;
                let dash = column + 2;
                let lines = format!("{:column$}{}:\n{:dash$}- {}", "", found.name, "", item.block(dash + 2));
                self.lines_after(end, lines)
            }
        }])
    }

    fn remove(&self, list: &FieldPath, index: usize) -> Option<Vec<Replacement>> {
        let (found, items) = self.items(list)?;
        let item = items.get(index)?;
        let Style::Block { .. } = self.style(item)? else {
            return Some(vec![(flow_range(items, index)?, String::new())]);
        };
        let (start, end) = (item.span.start as usize, item.span.end as usize);
        let mut replacements = vec![(self.line_start(start)..self.line_end(end), String::new())];
        if items.len() == 1 {
            let colon = self.colon(found.key?)?;
            replacements.push((colon..colon, " []".to_owned()));
        }
        Some(replacements)
    }

    /// Whether the removal of an item of a flow list would remove a comment that is outside of the item, or would put the
    /// comment after the item behind another one.
    fn is_beside_comment(&self, list: &FieldPath, index: usize) -> bool {
        let Some((_, items)) = self.items(list) else { return false };
        let (Some(item), Some(removed)) = (items.get(index), flow_range(items, index)) else { return false };
        if self.is_json || !matches!(self.style(item), Some(Style::Flow)) {
            return false;
        }
        let own = range(item.span);
        let rest = &self.text[own.end..self.line_end(own.end)];
        // Between two items are only commas, spaces and comments.
        let outside = [&self.text[removed.start..own.start], &self.text[own.end..removed.end]];
        outside.iter().any(|it| it.contains('#')) || rest.trim_start_matches([' ', '\t', ',']).starts_with('#')
    }

    fn replace(&self, list: &FieldPath, index: usize, items: &[Tree]) -> Option<Vec<Replacement>> {
        let (_, old) = self.items(list)?;
        let item = old.get(index)?;
        let new = match self.style(item)? {
            Style::Flow => items.iter().map(|it| self.line(it)).collect::<Vec<_>>().join(", "),
            Style::Block { dash, column } => {
                let (first, rest) = items.split_first()?;
                let rest = rest.iter().map(|it| format!("{:dash$}- {}", "", it.block(dash + 2)));
                let text: String = std::iter::once(first.block(column)).chain(rest).collect();
                text.trim_end().to_owned()
            }
        };
        Some(vec![(range(item.span), new)])
    }

    /// The style of an item; `None` if something other than a dash is before it on its line.
    fn style(&self, item: &SyntaxNode<'_>) -> Option<Style> {
        let start = item.span.start as usize;
        let before = &self.text[self.line_start(start)..start];
        if self.is_json || before.trim_end().ends_with(['[', ',']) || before.trim().is_empty() {
            return Some(Style::Flow);
        }
        (before.trim() == "-").then(|| Style::Block { dash: before.find('-').unwrap_or(0), column: before.len() })
    }

    /// A value on one line, in the language of the text.
    fn line(&self, tree: &Tree) -> String {
        if self.is_json { tree.json() } else { tree.flow() }
    }

    /// The column of a key in block style: it is the first on its line, perhaps after the dash of a list item.
    fn key_column(&self, key: Span) -> Option<usize> {
        let start = key.start as usize;
        let before = &self.text[self.line_start(start)..start];
        before.chars().all(|it| it == ' ' || it == '-').then_some(before.len())
    }

    /// The byte after the colon of a key.
    fn colon(&self, key: Span) -> Option<usize> {
        let end = key.end as usize;
        self.text[end..].find(':').map(|at| end + at + 1)
    }

    /// Lines after the line of a byte.
    fn lines_after(&self, byte: usize, lines: String) -> Replacement {
        let at = self.line_end(byte);
        let is_open = at == self.text.len() && !self.text.ends_with('\n');
        (at..at, if is_open { format!("\n{lines}") } else { lines })
    }

    fn line_start(&self, byte: usize) -> usize {
        self.text[..byte].rfind('\n').map_or(0, |at| at + 1)
    }

    /// The first byte of the next line.
    fn line_end(&self, byte: usize) -> usize {
        self.text[byte..].find('\n').map_or(self.text.len(), |at| byte + at + 1)
    }
}

/// The text that is removed with an item of a flow list: the item, and the comma before or after it.
fn flow_range(items: &[SyntaxNode<'_>], index: usize) -> Option<Range<usize>> {
    let item = items.get(index)?;
    let span = match (index, items) {
        (0, [_]) => item.span,
        (0, [_, next, ..]) => Span { end: next.span.start, ..item.span },
        _ => Span { start: items.get(index.checked_sub(1)?)?.span.end, ..item.span },
    };
    // The text of an alias stands elsewhere, where its anchor is.
    (span.start <= item.span.start && item.span.end <= span.end).then_some(range(span))
}

fn range(span: Span) -> Range<usize> {
    span.start as usize..span.end as usize
}

fn entry<'n, 't>(node: &'n SyntaxNode<'t>, name: &str) -> Option<&'n MappingEntry<'t>> {
    let SyntaxValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|it| it.key == name)
}
