//! Texts → documents → objects.
//!
//! A tree exists only while its object is decoded: one item at a time from a JSON list of 100 MB, one document at a
//! time from YAML. One bad document or one bad item does not hide the others.

use std::collections::HashMap;
use std::path::Path;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::k8s::{Body, ListAction, Meta, Object};
use crate::origin::{FieldOrigin, ObjectId};
use crate::source::{FileId, ObjectSource};
use crate::syntax::{self, Span, SyntaxError, SyntaxFormat, SyntaxNode, SyntaxValue, json, yaml};

use super::kinds::{self, KindLookup, ReadKind};
use super::needed::NeededPart;
use super::report::{LIMIT, ObjectFindings};
use super::trail::Trail;
use super::view::ValueView;
use super::{
    DecodeOptions, Decoded, ForeignPolicy, ForeignPolicyKind, Input, InputKind, cidr_list, codes, metadata, shape,
};

/// Findings in a list file beyond this number are only counted.
const LIST_FILE_LIMIT: usize = 20;

/// The key under which documents that are not Kubernetes objects are counted.
const NO_OBJECT: &str = "not a Kubernetes object";

/// Reads inputs, one after the other.
#[derive(Debug)]
pub(super) struct InputReader<'o> {
    options: &'o DecodeOptions,
    pub(super) decoded: Decoded,
    pub(super) diagnostics: Diagnostics,
    /// Kind, namespace and name of every object so far.
    names: HashMap<(&'static str, String, String), ObjectId>,
}

/// The position of an object: its document, and the path to it within that.
struct Stand {
    file: FileId,
    format: SyntaxFormat,
    span: Span,
    document: u32,
    items: Vec<u32>,
}

impl Stand {
    fn source(&self) -> ObjectSource {
        let Self { file, format, span, document, .. } = *self;
        ObjectSource { file, format, span, items: self.items.clone(), document }
    }
}

/// For a chart's template, replaces the reader's help with the advice to render it first.
fn rendered_first(text: &str, error: SyntaxError) -> SyntaxError {
    let help = "`{{ … }}` is a template: render it first (`helm template`), and check what comes out";
    match text.contains("{{") {
        true => SyntaxError { help: Some(help.to_owned()), ..error },
        false => error,
    }
}

/// The `apiVersion` and `kind` of a list's items, for items that do not name their own.
#[derive(Clone, Copy, Default)]
struct Implied<'k> {
    version: &'k str,
    kind: &'k str,
}

impl<'o> InputReader<'o> {
    pub(super) fn new(options: &'o DecodeOptions) -> Self {
        let (decoded, diagnostics) = (Decoded::default(), Diagnostics::new());
        Self { options, decoded, diagnostics, names: HashMap::new() }
    }

    /// Reads one input.
    pub(super) fn input(&mut self, input: Input) {
        // The trees borrow the text while it is read; the SourceMap gets it afterwards.
        let file = FileId(self.decoded.sources.files().len() as u32);
        let text = match syntax::text(input.bytes) {
            Ok(text) => text,
            Err(error) => {
                self.diagnostics.push(codes::not_text::at(file, &input.name, &error));
                String::new()
            }
        };
        match input.kind {
            InputKind::Manifest => match syntax::format(&text) {
                SyntaxFormat::Json => self.json(file, &text),
                _ => self.yaml(file, &text),
            },
            InputKind::Sent(kind) => self.sent(file, &text, kind),
            InputKind::DenyList => self.list_file(file, &input.name, &text, ListAction::Deny),
            InputKind::AllowList => self.list_file(file, &input.name, &text, ListAction::Allow),
        }
        self.decoded.sources.add_file(input.name, text);
    }

    fn yaml(&mut self, file: FileId, text: &str) {
        for document in yaml::documents(text) {
            match document {
                Ok(yaml::YamlDocument { span, number: document, root }) => {
                    let mut stand = Stand { file, format: SyntaxFormat::Yaml, span, document, items: Vec::new() };
                    self.node(&root, &mut stand, Implied::default());
                }
                Err(error) => self.syntax_error(file, rendered_first(text, error)),
            }
        }
    }

    fn json(&mut self, file: FileId, text: &str) {
        for (shallow, document) in json::documents(text).zip(1u32..) {
            match shallow {
                Ok(shallow) => self.json_document(file, text, shallow, document),
                Err(error) => self.syntax_error(file, error),
            }
        }
    }

    /// Reads an object whose kind is known. Only the fields that are needed are read, and only once: a server sends a
    /// hundred thousand objects.
    fn sent(&mut self, file: FileId, text: &str, kind: &str) {
        let span = Span::of(text);
        let stand = Stand { file, format: SyntaxFormat::Json, span, document: 1, items: Vec::new() };
        let Some(kind) = kinds::named(kind) else { return };
        match json::parse_needed(text, span, NeededPart::Object(kind.fields)) {
            // An item of a list does not name its kind.
            Ok(root) if ValueView::new(&root).get("kind").str().is_none_or(|it| it == kind.name) => {
                self.object(&root, kind, &stand);
            }
            Ok(_) => {}
            Err(error) => self.syntax_error(file, error),
        }
    }

    fn json_document(&mut self, file: FileId, text: &str, shallow: json::Shallow<'_>, document: u32) {
        let field = |name: &str| shallow.entries.iter().rev().find(|entry| entry.key == name);
        let string = |name: &str| field(name).and_then(|entry| json::parse(text, entry.value).ok());
        let [version, kind] = ["apiVersion", "kind"].map(string);
        let [version, kind] = [&version, &kind].map(|node| node.as_ref().and_then(|node| ValueView::new(node).str()));
        let (version, kind) = (version.unwrap_or_default(), kind.unwrap_or_default());
        let items = field("items").map(|entry| entry.value);
        let mut stand = Stand { file, format: SyntaxFormat::Json, span: shallow.span, document, items: Vec::new() };
        match (kinds::identify(version, kind, items.is_some()), items) {
            (KindLookup::List(item), Some(items)) if items.slice(text).starts_with('[') => {
                let implied = item.map_or(Implied::default(), |kind| Implied { version, kind });
                let broken = self.json_items(text, items, &mut stand, implied);
                let error = shallow.error.filter(|_| !broken);
                error.into_iter().for_each(|error| self.syntax_error(file, error));
            }
            _ => match json::parse(text, shallow.span) {
                Ok(root) => self.node(&root, &mut stand, Implied::default()),
                Err(error) => self.syntax_error(file, shallow.error.unwrap_or(error)),
            },
        }
    }

    /// Reads one item at a time. Returns whether a syntax error ended the list.
    fn json_items(&mut self, text: &str, items: Span, stand: &mut Stand, implied: Implied<'_>) -> bool {
        for item in json::elements(text, items) {
            match item {
                Ok(item) => {
                    stand.span = item.span;
                    self.node(&item, stand, implied);
                }
                Err(error) => {
                    self.syntax_error(stand.file, error);
                    return true;
                }
            }
        }
        false
    }

    fn syntax_error(&mut self, file: FileId, error: SyntaxError) {
        self.diagnostics.push(codes::syntax_error::at(file, error));
    }

    /// Reads an object, or a list of objects.
    fn node(&mut self, node: &SyntaxNode<'_>, stand: &mut Stand, implied: Implied<'_>) {
        let view = ValueView::new(node);
        let written = |name: &str| view.get(name).str().unwrap_or_default();
        let or_implied = |written: &'_ str, implied: &'_ str| {
            if written.is_empty() { implied.to_owned() } else { written.to_owned() }
        };
        let (version, kind) =
            (or_implied(written("apiVersion"), implied.version), or_implied(written("kind"), implied.kind));
        if version.is_empty() || kind.is_empty() {
            return self.nameless(node, &version, &kind, stand);
        }
        match kinds::identify(&version, &kind, view.get("items").is_there()) {
            KindLookup::Known(kind) => self.object(node, kind, stand),
            KindLookup::List(item) => {
                let implied = item.map_or(Implied::default(), |kind| Implied { version: &version, kind });
                self.items(node, stand, implied);
            }
            KindLookup::Other => {
                *self.decoded.skipped.entry(format!("{version} {kind}")).or_default() += 1;
                if let Some(kind) = ForeignPolicyKind::of(&version, &kind, view) {
                    self.foreign(kind, stand);
                }
            }
            KindLookup::UnknownKind(meant) => self.refuse(stand, |origin| {
                let origin = FieldOrigin::new(origin.object, origin.path.field("kind"));
                codes::unknown_kind::at(origin, &version, &kind, meant)
            }),
            KindLookup::Unserved(served) => self.refuse(stand, |origin| {
                let origin = FieldOrigin::new(origin.object, origin.path.field("apiVersion"));
                codes::unserved_version::at(origin, &kind, &version, served)
            }),
        }
    }

    fn items(&mut self, node: &SyntaxNode<'_>, stand: &mut Stand, implied: Implied<'_>) {
        let SyntaxValue::Map(entries) = &node.value else { return };
        let items = entries.iter().rev().find(|entry| entry.key == "items").map(|entry| &entry.value);
        match items.map(|items| (&items.value, items)) {
            Some((SyntaxValue::Seq(items), _)) => {
                for (item, index) in items.iter().zip(0u32..) {
                    stand.items.push(index);
                    self.node(item, stand, implied);
                    stand.items.pop();
                }
            }
            None | Some((SyntaxValue::Null, _)) => {}
            Some((other, _)) => self.refuse(stand, |origin| {
                let origin = FieldOrigin::new(origin.object, origin.path.field("items"));
                codes::wrong_type::list(origin, other)
            }),
        }
    }

    /// Reports a document without `apiVersion` or `kind`.
    fn nameless(&mut self, node: &SyntaxNode<'_>, version: &str, kind: &str, stand: &Stand) {
        let view = ValueView::new(node);
        let looks_like_one = ["metadata", "spec", "items", "data"].iter().any(|field| view.get(field).is_there());
        match &node.value {
            SyntaxValue::Map(_) if kind.is_empty() && (version.is_empty() || !looks_like_one) => {
                *self.decoded.skipped.entry(NO_OBJECT.to_owned()).or_default() += 1;
                self.refuse(stand, codes::not_an_object::at);
            }
            SyntaxValue::Map(_) => {
                let mut report = self.report(stand, LIMIT);
                kinds::report_missing(version, kind, &mut report);
                self.push_all(report);
            }
            other => self.refuse(stand, |origin| {
                codes::missing_kind::not_a_mapping(origin, &codes::wrong_type::describe(other))
            }),
        }
    }

    /// Reports an object that decides which packets pass, but is not read.
    fn foreign(&mut self, kind: &'static ForeignPolicyKind, stand: &Stand) {
        let object = self.decoded.sources.add_object(Some(stand.source()));
        self.decoded.foreign.push(ForeignPolicy { kind, object });
        self.diagnostics.push(codes::unread_policy::at(FieldOrigin::object(object), kind));
    }

    fn refuse(&mut self, stand: &Stand, build: impl FnOnce(FieldOrigin) -> Diagnostic) {
        let object = self.decoded.sources.add_object(Some(stand.source()));
        self.diagnostics.push(build(FieldOrigin::object(object)));
    }

    fn report(&mut self, stand: &Stand, limit: usize) -> ObjectFindings {
        ObjectFindings::new(self.decoded.sources.add_object(Some(stand.source())), limit, self.options.is_from_server)
    }

    fn push_all(&mut self, report: ObjectFindings) {
        report.finish().into_iter().for_each(|diagnostic| self.diagnostics.push(diagnostic));
    }

    fn object(&mut self, node: &SyntaxNode<'_>, kind: &'static ReadKind, stand: &Stand) {
        let mut report = self.report(stand, LIMIT);
        shape::check(node, kind.fields, &mut report);
        let view = ValueView::new(node);
        let meta = metadata::read(view, kind.namespaced, self.options);
        let body = (kind.read)(view, kind, &mut report);
        if kind.fields.others == super::schema::Others::Ignored {
            metadata::require_name(view, &mut report);
        }
        let named = view.get("metadata").get("name").str().is_some_and(|name| !name.is_empty());
        if named {
            self.check_unique(kind.name, &meta, &mut report);
        }
        self.keep(meta, body, report);
    }

    fn keep(&mut self, meta: Meta, body: Body, report: ObjectFindings) {
        if !report.has_errors() {
            self.decoded.objects.push(Object { id: report.object(), meta, body });
        }
        self.push_all(report);
    }

    fn check_unique(&mut self, kind: &'static str, meta: &Meta, report: &mut ObjectFindings) {
        let id = report.object();
        let first = *self.names.entry((kind, meta.namespace.to_string(), meta.name.clone())).or_insert(id);
        if first != id {
            let what = match &*meta.namespace {
                "" => format!("{kind} `{}`", meta.name),
                namespace => format!("{kind} `{namespace}/{}`", meta.name),
            };
            report.error(&Trail::ROOT, |origin| codes::duplicate_object::at(origin, FieldOrigin::object(first), &what));
        }
    }

    /// Reads a list file as a CidrList with the file's base name (or its whole path, if that name is taken).
    fn list_file(&mut self, file: FileId, path: &str, text: &str, action: ListAction) {
        let stand = Stand { file, format: SyntaxFormat::List, span: Span::of(text), document: 1, items: Vec::new() };
        let mut report = self.report(&stand, LIST_FILE_LIMIT);
        let list = cidr_list::read_file(text, action, &mut report);
        let base = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
        let taken = self.names.contains_key(&("CidrList", String::new(), base.clone().into_owned()));
        let name = if taken { path.to_owned() } else { base.into_owned() };
        let meta = Meta { name, ..Meta::default() };
        self.check_unique("CidrList", &meta, &mut report);
        self.keep(meta, Body::CidrList(list.into()), report);
    }
}
