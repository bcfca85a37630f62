//! From a [`FindingPlace`] to file, line and column.
//!
//! The compiler does not keep its trees. To draw a message, we parse the object's part of the file again and walk to
//! the field. The last tree is kept, so findings in one document cost one parse if they are asked for in order.
//! For an absent field, the result is the nearest existing field around it.

use std::collections::HashMap;

use weir_artifact as artifact;
use weir_objects::diagnostic::FindingPlace;
use weir_objects::origin::{FieldOrigin, FieldPath, ObjectId, PathStep};
use weir_objects::source::{FileId, ObjectSource, SourceMap};
use weir_objects::syntax::{Span, SyntaxFormat, SyntaxNode, SyntaxValue, json, yaml};

/// A place in a file, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file that contains the place.
    pub file: FileId,
    /// The bytes of the place in the file.
    pub span: Span,
    /// The document's number in the file, from 1; `None` for text that never became an object.
    pub document: Option<u32>,
}

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineColumn {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

/// The kind and name of an object, as far as its text contains them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// As in the text; empty if it has none.
    pub kind: String,
    /// As in the text.
    pub namespace: Option<String>,
    /// As in the text; empty if it has none.
    pub name: String,
}

/// The part of a field to locate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldPart {
    Value,
    Name,
    /// The name of the first of several fields with the same name.
    FirstName,
}

/// Distance between two stored character counts.
const STRIDE: usize = 1 << 12;

/// A document that was parsed again.
struct ParsedDocument<'s> {
    file: FileId,
    span: Span,
    /// `None` if the text is not valid.
    root: Option<SyntaxNode<'s>>,
}

/// Finds the locations of places. It keeps the last tree and the line tables for the next search.
pub struct Locator<'s> {
    sources: &'s SourceMap,
    /// The document that was parsed last.
    document: Option<ParsedDocument<'s>>,
    /// Where lines begin, of the files that were asked for.
    lines: HashMap<FileId, Vec<usize>>,
    /// Characters before each multiple of [`STRIDE`], of files with long lines.
    counts: HashMap<FileId, Vec<usize>>,
}

impl<'s> Locator<'s> {
    /// A locator for the places of these sources.
    pub fn new(sources: &'s SourceMap) -> Self {
        Self { sources, document: None, lines: HashMap::new(), counts: HashMap::new() }
    }

    /// The sources that it searches.
    pub fn sources(&self) -> &'s SourceMap {
        self.sources
    }

    /// The location of a place; `None` for an object without text.
    pub fn locate(&mut self, place: &FindingPlace) -> Option<Location> {
        let (origin, part) = match place {
            FindingPlace::Text(at) => return Some(Location { file: at.file, span: at.span, document: None }),
            FindingPlace::Field(origin) => (origin, FieldPart::Value),
            FindingPlace::FieldName(origin) => (origin, FieldPart::Name),
            FindingPlace::FirstFieldName(origin) => (origin, FieldPart::FirstName),
        };
        let source = self.sources.object(origin.object)?;
        let span = match source.format {
            SyntaxFormat::List => self.list_line(source.file, &origin.path),
            _ => self.object_node(source).map(|node| walk(node, &origin.path, part)),
        };
        Some(Location { file: source.file, span: span.unwrap_or(source.span), document: Some(source.document) })
    }

    /// The line of a field, as in the line table of programs.
    pub fn line(&mut self, origin: &FieldOrigin) -> Option<artifact::SourceLine> {
        let location = self.locate(&FindingPlace::Field(origin.clone()))?;
        let number = self.position(location.file, location.span.start).line;
        let (start, end) = (self.line_start(location.file, number), self.line_start(location.file, number + 1));
        let file = self.sources.file(location.file);
        Some(artifact::SourceLine::new(&file.name, file.text.get(start..end).unwrap_or_default(), number as u32))
    }

    /// The kind and name of an object.
    pub fn identity(&mut self, object: ObjectId) -> Option<ObjectIdentity> {
        let source = self.sources.object(object)?;
        if source.format == SyntaxFormat::List {
            let name = self.sources.file(source.file).name.clone();
            return Some(ObjectIdentity { kind: "CidrList".to_owned(), namespace: None, name });
        }
        let node = self.object_node(source)?;
        let metadata = child(node, "metadata");
        let text = |node: Option<&SyntaxNode<'_>>| match node.map(|node| &node.value) {
            Some(SyntaxValue::Str(text)) => Some(text.to_string()),
            _ => None,
        };
        Some(ObjectIdentity {
            kind: text(child(node, "kind")).unwrap_or_default(),
            namespace: text(metadata.and_then(|it| child(it, "namespace"))),
            name: text(metadata.and_then(|it| child(it, "name"))).unwrap_or_default(),
        })
    }

    /// The text of an object, parsed again; `None` for an object without text and for a list file.
    pub fn tree(&mut self, object: ObjectId) -> Option<&SyntaxNode<'s>> {
        let source = self.sources.object(object)?;
        if source.format == SyntaxFormat::List { None } else { self.object_node(source) }
    }

    fn object_node(&mut self, source: &ObjectSource) -> Option<&SyntaxNode<'s>> {
        let (file, span) = (source.file, source.span);
        if self.document.as_ref().is_none_or(|it| (it.file, it.span) != (file, span)) {
            let text = &self.sources.file(source.file).text;
            let root = match source.format {
                SyntaxFormat::Json => json::parse(text, source.span).ok(),
                _ => yaml::parse(text, source.span).ok().flatten(),
            };
            self.document = Some(ParsedDocument { file, span, root });
        }
        let mut node = self.document.as_ref()?.root.as_ref()?;
        for index in &source.items {
            node = item(child(node, "items")?, *index)?;
        }
        Some(node)
    }

    /// Line and column of a byte.
    pub fn position(&mut self, file: FileId, byte: u32) -> LineColumn {
        let text = &self.sources.file(file).text;
        let byte = (byte as usize).min(text.len());
        let lines = self.lines(file);
        let line = lines.partition_point(|start| *start <= byte);
        let start = lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = 1 + self.characters(file, start, byte);
        LineColumn { line: line.max(1), column }
    }

    /// Counts the characters of a part of a file. A whole cluster may be one line, so the stored counts are used for
    /// long parts.
    fn characters(&mut self, file: FileId, start: usize, end: usize) -> usize {
        let text = self.sources.file(file).text.as_bytes();
        if end - start <= STRIDE {
            return beginnings(&text[start..end]);
        }
        let counts = self.counts.entry(file).or_insert_with(|| {
            let sums = text.chunks(STRIDE).scan(0, |sum, chunk| {
                *sum += beginnings(chunk);
                Some(*sum)
            });
            std::iter::once(0).chain(sums).collect()
        });
        let before = |byte: usize| counts[byte / STRIDE] + beginnings(&text[byte / STRIDE * STRIDE..byte]);
        before(end) - before(start)
    }

    /// In a list file, `spec.cidrs[7]` is line 7.
    fn list_line(&mut self, file: FileId, path: &FieldPath) -> Option<Span> {
        let Some(PathStep::Index(line)) = path.steps().last() else { return Some(Span::new(0, 0)) };
        let line = *line as usize;
        let (start, end) = (self.line_start(file, line), self.line_start(file, line + 1));
        let text = self.sources.file(file).text.get(start..end)?;
        (line > 0 && start < end).then(|| Span::new(start, start + text.trim_end().len()))
    }

    /// The byte at which a line (from 1) begins; the text's end behind the last.
    pub fn line_start(&mut self, file: FileId, line: usize) -> usize {
        let end = self.sources.file(file).text.len();
        self.lines(file).get(line.saturating_sub(1)).copied().unwrap_or(end)
    }

    fn lines(&mut self, file: FileId) -> &[usize] {
        let text = &self.sources.file(file).text;
        self.lines
            .entry(file)
            .or_insert_with(|| std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }
}

/// Number of characters that begin in these bytes of UTF-8.
fn beginnings(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte as i8 >= -0x40).count()
}

/// Follows the path as far as it exists.
fn walk(root: &SyntaxNode<'_>, path: &FieldPath, part: FieldPart) -> Span {
    let mut node = root;
    let mut span = whole(root);
    for step in path.steps() {
        let find = if part == FieldPart::FirstName { first_entry } else { entry };
        let (name, next) = match step {
            PathStep::Field(name) | PathStep::Key(name) => match find(node, name) {
                Some((name_span, value)) => (Some(name_span), value),
                None => return span,
            },
            PathStep::Index(index) => match item(node, *index) {
                Some(value) => (None, value),
                None => return span,
            },
        };
        node = next;
        // An absent value has no text in the file, so its name is marked instead.
        let empty = node.span.start == node.span.end || node.value == SyntaxValue::Null;
        span = name.filter(|_| part != FieldPart::Value || empty).unwrap_or(node.span);
    }
    span
}

/// An object as a whole is shown at the line of its name.
fn whole(root: &SyntaxNode<'_>) -> Span {
    let named = child(root, "metadata").and_then(|metadata| child(metadata, "name"));
    named.or_else(|| child(root, "kind")).map_or(root.span, |node| node.span)
}

fn entry<'n, 't>(node: &'n SyntaxNode<'t>, name: &str) -> Option<(Span, &'n SyntaxNode<'t>)> {
    let SyntaxValue::Map(entries) = &node.value else { return None };
    // If several entries have the same name, the last one counts, in findings about duplicates too.
    entries.iter().rev().find(|entry| entry.key == name).map(|entry| (entry.key_span, &entry.value))
}

/// The first of two entries with the same name. Findings never refer to fields inside of it.
fn first_entry<'n, 't>(node: &'n SyntaxNode<'t>, name: &str) -> Option<(Span, &'n SyntaxNode<'t>)> {
    let SyntaxValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key == name).map(|entry| (entry.key_span, &entry.value))
}

fn child<'n, 't>(node: &'n SyntaxNode<'t>, name: &str) -> Option<&'n SyntaxNode<'t>> {
    entry(node, name).map(|(_, value)| value)
}

fn item<'n, 't>(node: &'n SyntaxNode<'t>, index: u32) -> Option<&'n SyntaxNode<'t>> {
    let SyntaxValue::Seq(items) = &node.value else { return None };
    items.get(index as usize)
}
