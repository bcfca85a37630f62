//! Our readers of YAML, JSON, addresses and selectors against well-known ones: the same texts are accepted, with the
//! same values.
//!
//! A difference is an error, unless [`known`] gives a reason for it.

use std::collections::BTreeMap;
use std::fmt;

use weir_objects::syntax::{Span, SyntaxError, SyntaxNode, SyntaxValue, json, yaml};

pub mod judge;
pub mod known;
pub mod libyaml;
pub mod serde;

/// A value as a reader understands it.
#[derive(Clone, PartialEq)]
pub enum Tree {
    /// No value.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Str(String),
    /// A list.
    Seq(Vec<Tree>),
    /// All values of each key, because readers differ in which one they keep.
    Map(BTreeMap<Key, Vec<Tree>>),
}

/// A key, which is a text. Keys that are numbers differ in their spelling only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// A key that is a text.
    pub fn text(text: &str) -> Self {
        match text.parse::<f64>() {
            Ok(number) if text.contains(|it: char| it.is_ascii_digit()) => Self::number(number),
            _ => Self(text.to_owned()),
        }
    }

    /// A key that is a number. kubectl prints it as a number of 32 bits.
    pub fn number(number: f64) -> Self {
        let number = number as f32;
        match number.is_finite() {
            true => Self(format!("{number:e}")),
            false => Self(format!(".{number}").to_lowercase().replace(".-", "-.")),
        }
    }
}

/// Which answers occurred, so that a test can show that all of them did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Texts that both readers accept, with the same value.
    pub accepted: usize,
    /// Texts that both refuse.
    pub refused: usize,
    /// Texts with a known difference.
    pub known: usize,
}

/// The answer of a reader.
pub type Reading = Result<Tree, String>;

impl Tally {
    /// Compares two answers and counts them.
    ///
    /// # Errors
    /// Fails if they differ and the difference has no `reason`.
    pub fn compare(
        &mut self,
        text: &str,
        ours: &Reading,
        theirs: &Reading,
        reason: Option<&'static str>,
    ) -> Result<(), String> {
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) if agrees(ours, theirs) => self.accepted += 1,
            (Err(_), Err(_)) => self.refused += 1,
            _ if reason.is_some() => self.known += 1,
            _ => return Err(format!("{text:?}\n  ours:   {}\n  theirs: {}", shown(ours), shown(theirs))),
        }
        Ok(())
    }

    /// The number of texts.
    pub fn texts(&self) -> usize {
        self.accepted + self.refused + self.known
    }
}

fn shown(reading: &Reading) -> String {
    match reading {
        Ok(tree) => format!("{tree:?}"),
        Err(error) => format!("refused: {error}"),
    }
}

/// Whether two values are the same. Of a key that was written twice, one reader may keep all values and the other one.
fn agrees(a: &Tree, b: &Tree) -> bool {
    match (a, b) {
        (Tree::Seq(a), Tree::Seq(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agrees(a, b)),
        (Tree::Map(a), Tree::Map(b)) => {
            a.keys().eq(b.keys())
                && a.values().zip(b.values()).all(|(a, b)| a.iter().any(|a| b.iter().any(|b| agrees(a, b))))
        }
        (Tree::Int(_) | Tree::Float(_), Tree::Int(_) | Tree::Float(_)) => close(number(a), number(b)),
        (a, b) => a == b,
    }
}

fn number(tree: &Tree) -> f64 {
    match tree {
        Tree::Int(number) => *number as f64,
        Tree::Float(number) => *number,
        _ => f64::NAN,
    }
}

/// `serde_json` may miss the nearest number by a few.
fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 4.0 * f64::EPSILON * a.abs()
}

impl From<&SyntaxNode<'_>> for Tree {
    fn from(node: &SyntaxNode<'_>) -> Self {
        match &node.value {
            SyntaxValue::Null => Self::Null,
            SyntaxValue::Bool(value) => Self::Bool(*value),
            SyntaxValue::Int(number) => Self::Int(i128::from(*number)),
            SyntaxValue::Float(number) => Self::Float(*number),
            SyntaxValue::Str(text) => Self::Str(text.to_string()),
            SyntaxValue::Seq(items) => Self::Seq(items.iter().map(Self::from).collect()),
            SyntaxValue::Map(entries) => {
                Self::map(entries.iter().map(|entry| (Key::text(&entry.key), Self::from(&entry.value))))
            }
        }
    }
}

impl Tree {
    /// A mapping with all of its entries.
    pub fn map(entries: impl IntoIterator<Item = (Key, Self)>) -> Self {
        let mut map: BTreeMap<Key, Vec<Self>> = BTreeMap::new();
        entries.into_iter().for_each(|(key, value)| map.entry(key).or_default().push(value));
        Self::Map(map)
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Str(text) => write!(f, "{text:?}"),
            Self::Seq(items) => f.debug_list().entries(items).finish(),
            Self::Map(map) => f.debug_map().entries(map.iter().map(|(key, values)| (&key.0, values))).finish(),
        }
    }
}

fn reading(read: Result<SyntaxNode<'_>, SyntaxError>) -> Reading {
    read.map(|node| Tree::from(&node)).map_err(|error| error.message)
}

/// The documents of a text until the first that is refused, as our reader reads them.
pub fn our_yaml(text: &str) -> Vec<Reading> {
    let mut readings = Vec::new();
    for document in yaml::documents(text) {
        readings.push(reading(document.map(|document| document.root)));
        if readings.last().is_some_and(Result::is_err) {
            break;
        }
    }
    readings
}

/// A text as our reader of JSON reads it.
pub fn our_json(text: &str) -> Reading {
    reading(json::parse(text, Span::of(text)))
}
