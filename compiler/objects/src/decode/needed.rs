//! The fields that a kind's table names, for a reader that skips all others.
//!
//! Problem: most of a Pod or a Node that an API server sends is fields that policy does not need (`managedFields`,
//! volumes, environment variables, images). A large cluster sends hundreds of such objects a second to each agent.
//! Strategy: the table of fields ([`super::schema`]) says which fields are read. The others are skipped without a tree.
//! Invariant: where an unknown field is an error, or its reader judges it, nothing is skipped. So an object has the same
//! content and the same errors with and without skipping.

use super::schema::{Fields, Others, ValueType};
use crate::syntax::json::Needed;

/// A part of an object, of which some fields are needed.
#[derive(Clone, Copy, Debug)]
pub(super) enum NeededPart {
    /// All of it.
    Whole,
    /// An object: the fields that the table names, and its kind.
    Object(&'static Fields),
    /// The fields that the table names.
    Fields(&'static Fields),
    /// The items of a list, each of this type.
    Items(&'static ValueType),
}

impl From<&'static ValueType> for NeededPart {
    fn from(value: &'static ValueType) -> Self {
        match value {
            ValueType::Struct(fields) => Self::Fields(fields),
            ValueType::List(item) => Self::Items(item),
            _ => Self::Whole,
        }
    }
}

impl Needed for NeededPart {
    fn field(self, name: &str) -> Option<Self> {
        let fields = match self {
            Self::Object(_) if name == "kind" => return Some(Self::Whole),
            Self::Object(fields) | Self::Fields(fields) => fields,
            Self::Whole | Self::Items(_) => return Some(Self::Whole),
        };
        match fields.fields.iter().find(|(field, _)| *field == name) {
            Some((_, value)) => Some(value.into()),
            None => (fields.others != Others::Ignored).then_some(Self::Whole),
        }
    }

    fn item(self) -> Self {
        match self {
            Self::Items(item) => item.into(),
            Self::Whole | Self::Object(_) | Self::Fields(_) => Self::Whole,
        }
    }
}
