//! What we have to say about the input, as data. The command line draws it.
//!
//! Every kind of finding has a [`Code`]: a constant in a file of its own (with what / why / example, and the
//! function that builds the finding), so that `weir explain-code` and the finding can never drift apart. Codes of
//! reading live under [`crate::decode`] and [`crate::resolve`], codes of habit under [`crate::lint`];
//! [`crate::codes::all`] lists them.

use std::fmt;

use crate::origin::Origin;
use crate::source::FileSpan;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; never changes an exit code.
    Note,
    /// Valid, and probably not what was meant.
    Warning,
    /// Not valid, or not understood: nothing is compiled from it.
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
    /// Kebab-case, stable for ever: `end-port-with-named-port`.
    pub name: &'static str,
    /// The severity unless the user sets another.
    pub severity: Severity,
    /// True for habits (`lint`), which may be switched off; false for what makes the input invalid.
    pub lint: bool,
    /// One sentence with a full stop: what is wrong.
    pub what: &'static str,
    /// A short paragraph: why it matters, what happens to packets.
    pub why: &'static str,
    /// A complete input that shows it. A test checks that it does.
    pub example: &'static str,
    /// The same input, mended. A test checks that the finding is gone.
    pub fixed: &'static str,
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Code {}

/// Where a finding points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A field of an object, wherever the object came from.
    Field(Origin),
    /// The *name* of a field (for unknown and duplicate fields). Of several with one name, the last.
    FieldName(Origin),
    /// The name of the first of several fields with one name.
    FirstFieldName(Origin),
    /// A stretch of text that never became an object.
    Text(FileSpan),
}

/// A place and what to say there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Where.
    pub place: Place,
    /// What; may be empty.
    pub text: String,
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Which kind.
    pub code: &'static Code,
    /// How bad, after configuration.
    pub severity: Severity,
    /// One line, lower case, no full stop.
    pub message: String,
    /// The place it is about.
    pub primary: Label,
    /// Other places that matter.
    pub secondary: Vec<Label>,
    /// Facts that help to understand.
    pub notes: Vec<String>,
    /// One concrete next step.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A finding at a field of an object.
    pub fn at(code: &'static Code, origin: Origin, message: impl Into<String>) -> Self {
        Self::new(code, Place::Field(origin), message.into())
    }

    /// A finding at the name of a field.
    pub fn at_name(code: &'static Code, origin: Origin, message: impl Into<String>) -> Self {
        Self::new(code, Place::FieldName(origin), message.into())
    }

    /// A finding at a stretch of text.
    pub fn at_text(code: &'static Code, span: FileSpan, message: impl Into<String>) -> Self {
        Self::new(code, Place::Text(span), message.into())
    }

    fn new(code: &'static Code, place: Place, message: String) -> Self {
        Self {
            code,
            severity: code.severity,
            message,
            primary: Label { place, text: String::new() },
            secondary: Vec::new(),
            notes: Vec::new(),
            help: None,
        }
    }

    /// With a text under the primary place.
    #[must_use]
    pub fn label(mut self, text: impl Into<String>) -> Self {
        self.primary.text = text.into();
        self
    }

    /// With another field that matters.
    #[must_use]
    pub fn also(mut self, origin: Origin, text: impl Into<String>) -> Self {
        self.secondary.push(Label { place: Place::Field(origin), text: text.into() });
        self
    }

    /// With the first of several fields of one name.
    #[must_use]
    pub fn also_first(mut self, origin: Origin, text: impl Into<String>) -> Self {
        self.secondary.push(Label { place: Place::FirstFieldName(origin), text: text.into() });
        self
    }

    /// With a fact.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// With the next step.
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
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.list.push(diagnostic);
    }

    /// All of another list.
    pub fn extend(&mut self, other: Diagnostics) {
        self.list.extend(other.list);
    }

    /// In order.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Whether anything makes the input unusable.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Keeps what the function keeps; it may change severities.
    pub fn retain_mut(&mut self, keep: impl FnMut(&mut Diagnostic) -> bool) {
        self.list.retain_mut(keep);
    }

    /// The list itself.
    pub fn into_vec(self) -> Vec<Diagnostic> {
        self.list
    }
}
