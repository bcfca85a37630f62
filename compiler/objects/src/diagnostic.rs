//! Findings about the input, as data. The command line draws them.
//!
//! Every kind of finding has a [`Code`]: a constant in a file of its own (with what / why / example, and the function
//! that builds the finding), so that `weir explain-code` and the finding cannot drift apart. Codes about reading the
//! input are under [`crate::decode`] and `weir_model::resolve`, lints under `weir_lint`; `weir_lint::codes::all`
//! lists all of them.

use std::fmt;

use crate::origin::FieldOrigin;
use crate::source::FileSpan;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; never changes an exit code.
    Note,
    /// Valid, but probably a mistake of the author.
    Warning,
    /// Not valid, or not understood: the object is not compiled.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One kind of finding: a stable name and its documentation.
#[derive(Debug)]
pub struct Code {
    /// The name in kebab case, which never changes: `end-port-with-named-port`.
    pub name: &'static str,
    /// The severity unless the user sets another.
    pub severity: Severity,
    /// True for a lint, which may be switched off; false for a code about invalid input.
    pub lint: bool,
    /// One sentence with a full stop: the problem.
    pub what: &'static str,
    /// A short paragraph: why it matters, and what happens to packets.
    pub why: &'static str,
    /// An input with the problem, and how to fix it.
    pub example: Example,
}

impl Code {
    /// Input that is not valid, or not understood.
    pub const fn error(name: &'static str, example: &'static str) -> Self {
        Self::new(name, Severity::Error, false, example)
    }

    /// Valid input that the reader changes or drops.
    pub const fn warning(name: &'static str, example: &'static str) -> Self {
        Self::new(name, Severity::Warning, false, example)
    }

    /// A lint.
    pub const fn lint(name: &'static str, severity: Severity, example: &'static str) -> Self {
        Self::new(name, severity, true, example)
    }

    const fn new(name: &'static str, severity: Severity, lint: bool, example: &'static str) -> Self {
        Self { name, severity, lint, what: "", why: "", example: Example(example) }
    }

    /// Sets [`Code::what`].
    pub const fn what(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    /// Sets [`Code::why`].
    pub const fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }
}

/// A complete input with a problem, and the same input without it. Tests check that the first one produces the finding
/// and the second one does not.
///
/// Both are one text, so that they differ only in the problem. It has the form of a diff: lines of the problem begin
/// with `-`, lines of the fix with `+`, and lines of both with a space.
#[derive(Clone, Copy, Debug)]
pub struct Example(pub &'static str);

impl Example {
    /// The input with the problem.
    pub fn problem(&self) -> String {
        self.without('+')
    }

    /// The input with the problem fixed.
    pub fn fixed(&self) -> String {
        self.without('-')
    }

    fn without(&self, marker: char) -> String {
        let lines = self.0.lines().filter(|line| !line.starts_with(marker));
        lines.flat_map(|line| [line.get(1..).unwrap_or_default(), "\n"]).collect()
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Code {}

/// The place that a finding points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingPlace {
    /// A field of an object, with or without a file.
    Field(FieldOrigin),
    /// The *name* of a field (for unknown and duplicate fields). If several fields have the name, the last of them.
    FieldName(FieldOrigin),
    /// The name of a field; if several fields have the name, the first of them.
    FirstFieldName(FieldOrigin),
    /// A range of text that is not part of any object.
    Text(FileSpan),
}

/// A place and the text to show there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceLabel {
    /// The place.
    pub place: FindingPlace,
    /// The text; may be empty.
    pub text: String,
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The kind of finding.
    pub code: &'static Code,
    /// The severity, after configuration.
    pub severity: Severity,
    /// One line, lower case, no full stop.
    pub message: String,
    /// The place of the problem.
    pub primary: PlaceLabel,
    /// Other places that matter to it.
    pub secondary: Vec<PlaceLabel>,
    /// Facts that help to understand.
    pub notes: Vec<String>,
    /// One concrete next step.
    pub help: Option<String>,
    /// A mechanical change of the primary field that removes the finding and keeps every verdict.
    pub fix: Option<Fix>,
}

/// A mechanical change of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Remove the item of a list.
    Remove,
    /// Write another scalar.
    Write(String),
}

impl Diagnostic {
    /// A finding at a field of an object.
    pub fn at(code: &'static Code, origin: FieldOrigin, message: impl Into<String>) -> Self {
        Self::new(code, FindingPlace::Field(origin), message.into())
    }

    /// A finding at the name of a field.
    pub fn at_name(code: &'static Code, origin: FieldOrigin, message: impl Into<String>) -> Self {
        Self::new(code, FindingPlace::FieldName(origin), message.into())
    }

    /// A finding at a range of text.
    pub fn at_text(code: &'static Code, span: FileSpan, message: impl Into<String>) -> Self {
        Self::new(code, FindingPlace::Text(span), message.into())
    }

    fn new(code: &'static Code, place: FindingPlace, message: String) -> Self {
        Self {
            code,
            severity: code.severity,
            message,
            primary: PlaceLabel { place, text: String::new() },
            secondary: Vec::new(),
            notes: Vec::new(),
            help: None,
            fix: None,
        }
    }

    /// Sets the text at the primary place.
    #[must_use]
    pub fn label(mut self, text: impl Into<String>) -> Self {
        self.primary.text = text.into();
        self
    }

    /// Adds another field.
    #[must_use]
    pub fn also(mut self, origin: FieldOrigin, text: impl Into<String>) -> Self {
        self.secondary.push(PlaceLabel { place: FindingPlace::Field(origin), text: text.into() });
        self
    }

    /// Adds the first of several fields with one name.
    #[must_use]
    pub fn also_first(mut self, origin: FieldOrigin, text: impl Into<String>) -> Self {
        self.secondary.push(PlaceLabel { place: FindingPlace::FirstFieldName(origin), text: text.into() });
        self
    }

    /// Adds a note.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// Sets the mechanical fix.
    #[must_use]
    pub fn fix(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }

    /// Sets the next step.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

/// Findings in the order they were made.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.list.push(diagnostic);
    }

    /// Adds all findings of another list.
    pub fn extend(&mut self, other: Diagnostics) {
        self.list.extend(other.list);
    }

    /// The findings, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Whether anything makes the input unusable.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of findings.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Keeps the findings for which `keep` returns true; it may change their severities.
    pub fn retain_mut(&mut self, keep: impl FnMut(&mut Diagnostic) -> bool) {
        self.list.retain_mut(keep);
    }

    /// The findings as a vector.
    pub fn into_vec(self) -> Vec<Diagnostic> {
        self.list
    }
}
