//! Text → trees: YAML (as Kubernetes reads it) and JSON, both to one [`Node`] with a span on everything.
//!
//! The readers are bounded in depth, in alias expansion and in time, and never panic: [`SyntaxError`] says what and
//! where. What a scalar *means* is settled here too: YAML 1.1 rules, as in kubectl, so nothing to the right knows
//! which of the two languages an object was written in.

use std::borrow::Cow;

/// A stretch of one file's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node<'t> {
    /// Where.
    pub span: Span,
    /// What.
    pub value: Value<'t>,
}

/// A value of JSON's kinds; YAML is brought to these.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'t> {
    /// `null`, `~`, or nothing after a key.
    Null,
    /// A truth value (in YAML 1.1 also `yes`, `on`, `y` …).
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Str(Cow<'t, str>),
    /// A list.
    Seq(Vec<Node<'t>>),
    /// A mapping, in the order written; duplicate keys are kept, for `decode` to judge.
    Map(Vec<Entry<'t>>),
}

/// One entry of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<'t> {
    /// The key; what is no string is written as one, as kubectl does.
    pub key: Cow<'t, str>,
    /// Where the key stands.
    pub key_span: Span,
    /// The value.
    pub value: Node<'t>,
}

/// What the text is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML, possibly of many documents.
    Yaml,
    /// JSON.
    Json,
}

/// Text that is not well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Where it went wrong.
    pub span: Span,
    /// What is wrong: one line, lower case, no full stop.
    pub message: String,
    /// What to do about it, where that is clear.
    pub help: Option<String>,
}
