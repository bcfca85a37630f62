//! An item that a set has twice.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("repeated-item", include_str!("repeated_item.diff"))
    .what("A list of networks or domain names has an item twice.")
    .why("The list is a set: the API server refuses a repeated item.");

/// Points at the second of the two.
pub(crate) fn at(origin: FieldOrigin, text: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is in the list twice", quote(text))).help("remove it")
}
