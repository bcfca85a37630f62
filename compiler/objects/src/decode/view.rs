//! A lenient view of a tree whose shape has been checked: null values and values of another type read as absent.

use crate::k8s::Labels;
use crate::name::Name;
use crate::syntax::{SyntaxNode, SyntaxValue};

/// A value, or the absence of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueView<'n, 't>(Option<&'n SyntaxNode<'t>>);

impl<'n, 't> ValueView<'n, 't> {
    /// A view of a node.
    pub(super) fn new(node: &'n SyntaxNode<'t>) -> Self {
        Self(Some(node).filter(|node| !matches!(node.value, SyntaxValue::Null)))
    }

    /// Whether there is a non-null value.
    pub(super) fn is_there(self) -> bool {
        self.0.is_some()
    }

    /// A field. If it occurs several times, the last one is used, as in Go.
    pub(super) fn get(self, name: &str) -> Self {
        let found = match self.0.map(|node| &node.value) {
            Some(SyntaxValue::Map(entries)) => entries.iter().rev().find(|entry| entry.key == name),
            _ => None,
        };
        found.map_or(Self(None), |entry| Self::new(&entry.value))
    }

    /// The names of a structure's fields.
    pub(super) fn names(self) -> impl Iterator<Item = &'n str> + use<'n, 't> {
        let entries: &'n [_] = match self.0.map(|node| &node.value) {
            Some(SyntaxValue::Map(entries)) => entries,
            _ => &[],
        };
        entries.iter().map(|entry| &*entry.key)
    }

    /// A list field's items, nulls included (as absent values).
    pub(super) fn items(self) -> impl ExactSizeIterator<Item = Self> + use<'n, 't> {
        let items: &'n [SyntaxNode<'t>] = match self.0.map(|node| &node.value) {
            Some(SyntaxValue::Seq(items)) => items,
            _ => &[],
        };
        items.iter().map(Self::new)
    }

    /// The value as a string.
    pub(super) fn str(self) -> Option<&'n str> {
        match self.0.map(|node| &node.value) {
            Some(SyntaxValue::Str(text)) => Some(text),
            _ => None,
        }
    }

    /// The value as a boolean.
    pub(super) fn bool(self) -> Option<bool> {
        match self.0.map(|node| &node.value) {
            Some(SyntaxValue::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// The value as a whole number.
    pub(super) fn int(self) -> Option<i64> {
        whole_number(&self.0?.value)
    }

    /// The value as an owned string.
    pub(super) fn string(self) -> Option<String> {
        self.str().map(str::to_owned)
    }

    /// The value as a name, if it is a string that is not empty.
    pub(super) fn name(self) -> Option<Name> {
        self.str().filter(|text| !text.is_empty()).map(Name::from)
    }

    /// The entries of a map of strings, in the order written; null reads as `""`.
    pub(super) fn strings(self) -> impl Iterator<Item = (&'n str, &'n str)> + use<'n, 't> {
        let entries: &'n [_] = match self.0.map(|node| &node.value) {
            Some(SyntaxValue::Map(entries)) => entries,
            _ => &[],
        };
        entries.iter().map(|entry| (&*entry.key, Self::new(&entry.value).str().unwrap_or_default()))
    }

    /// The same entries as labels. Of entries with the same key, the last one counts.
    pub(super) fn labels(self) -> Labels {
        self.strings().collect()
    }
}

/// A number without a fraction, even if it is written with one (`80.0`), because YAML and kubectl convert it to an
/// integer.
pub(super) fn whole_number(value: &SyntaxValue<'_>) -> Option<i64> {
    match value {
        SyntaxValue::Int(value) => Some(*value),
        // Beyond 2^53 a float does not identify one integer; no field of our kinds is that large.
        SyntaxValue::Float(value) if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 => {
            Some(*value as i64)
        }
        _ => None,
    }
}
