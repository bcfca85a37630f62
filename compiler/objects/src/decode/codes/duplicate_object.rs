//! Two documents of one kind, namespace and name.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("duplicate-object", include_str!("duplicate_object.diff"))
    .what("Two documents describe the same object.")
    .why("In a cluster the last one that is applied counts, so the result would depend on the order of the files.");

/// Points at the second document, with the first as a label.
pub(crate) fn at(origin: FieldOrigin, first: FieldOrigin, what: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{what} is defined twice"))
        .label("defined again here")
        .also(first, "first defined here")
        .help("remove one of them, or give it another name")
}
