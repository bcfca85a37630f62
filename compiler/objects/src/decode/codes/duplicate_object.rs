//! Two documents of one kind, namespace and name.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "duplicate-object",
    severity: Severity::Error,
    lint: false,
    what: "Two documents describe the same object.",
    why: "In a cluster the last one that is applied counts, so the result would depend on the order of the files.",
    example: Example(include_str!("duplicate_object.diff")),
};

/// Points at the second document, with the first as a label.
pub(crate) fn at(origin: FieldOrigin, first: FieldOrigin, what: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{what} is defined twice"))
        .label("defined again here")
        .also(first, "first defined here")
        .help("remove one of them, or give it another name")
}
