//! A list with too few or too many items.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("wrong-count", include_str!("wrong_count.diff"))
    .what("A list of a cluster-wide policy is empty, or has more items than the API allows.")
    .why("The API server refuses it. An empty list of peers would match nothing, and not everything.");

/// Points at the list.
pub(crate) fn at(origin: FieldOrigin, items: usize, most: usize) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("the list has {items} items; the API allows 1 to {most}"));
    match items {
        0 => found.help("write an item, or remove what the list belongs to"),
        _ => found.help("move some of them to another policy or rule"),
    }
}
