//! Text → trees: YAML (as Kubernetes reads it) and JSON, both to one [`SyntaxNode`] with a span on everything.
//!
//! The readers are bounded in depth, in alias expansion and in time, and never panic: a [`SyntaxError`] describes the
//! problem and its place. The *meaning* of a scalar is decided here too, by YAML 1.1 rules, as in kubectl. So later
//! stages do not know in which of the two languages an object was written.
//!
//! ```text
//!  bytes ──text──▶ String ──format──▶ json::documents ──▶ Shallow ──▶ json::elements / json::parse ──▶ Node
//!                                └──▶ yaml::documents ─────────────────────────────────────────────▶ Node
//! ```

use std::borrow::Cow;

pub mod json;
mod scalar;
mod text;
pub mod yaml;

pub use text::{MAX_TEXT, TextError, format, text};

/// How deep values may be nested, in either language.
pub const MAX_DEPTH: usize = 256;

/// A range of one file's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span from `start` to `end`. Texts are at most [`MAX_TEXT`] long, so both numbers fit.
    pub fn new(start: usize, end: usize) -> Self {
        let fit = |byte| u32::try_from(byte).unwrap_or(u32::MAX);
        Self { start: fit(start), end: fit(end) }
    }

    /// All of a text.
    pub fn of(text: &str) -> Self {
        Self::new(0, text.len())
    }

    /// The text in the span; empty if the span is not inside this text.
    pub fn slice(self, text: &str) -> &str {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntaxNode<'t> {
    /// The position of the value.
    pub span: Span,
    /// The value.
    pub value: SyntaxValue<'t>,
}

/// A value of one of JSON's kinds; values of YAML are converted to these.
#[derive(Clone, Debug, PartialEq)]
pub enum SyntaxValue<'t> {
    /// `null`, `~`, or nothing after a key.
    Null,
    /// A boolean (in YAML 1.1 also `yes`, `on`, `y` …).
    Bool(bool),
    /// An integer that fits into 64 bits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Str(Cow<'t, str>),
    /// A list.
    Seq(Vec<SyntaxNode<'t>>),
    /// A mapping, in the order written; duplicate keys are kept, because `decode` reports them.
    Map(Vec<MappingEntry<'t>>),
}

impl SyntaxValue<'_> {
    /// A number, as an integer if it is one: kubectl writes `80.0` as `80`.
    fn number(number: f64) -> Self {
        // 2^63 itself does not fit, and every float below it does.
        const END: f64 = 9_223_372_036_854_775_808.0;
        if number.fract() == 0.0 && (-END..END).contains(&number) {
            return Self::Int(number as i64);
        }
        Self::Float(number)
    }
}

/// One entry of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingEntry<'t> {
    /// The key. A key that is not a string is converted to one, as in kubectl.
    pub key: Cow<'t, str>,
    /// The position of the key.
    pub key_span: Span,
    /// The value.
    pub value: SyntaxNode<'t>,
}

/// The language of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxFormat {
    /// YAML, possibly of many documents.
    Yaml,
    /// JSON.
    Json,
    /// A plain list of addresses, one a line.
    List,
}

/// Text that is not well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The position of the error.
    pub span: Span,
    /// The problem: one line, lower case, no full stop.
    pub message: String,
    /// The next step, if it is clear.
    pub help: Option<String>,
}

impl SyntaxError {
    fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn too_deep(span: Span) -> Self {
        Self::new(span, format!("nested more than {MAX_DEPTH} levels deep"))
            .help("no Kubernetes object is nested like this; is this the right file?")
    }
}
