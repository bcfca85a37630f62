//! A range that ends before it begins.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "end-port-before-port",
    severity: Severity::Error,
    lint: false,
    what: "`endPort` is smaller than `port`.",
    why: "The API server refuses it: such a range is empty.",
    example: Example(include_str!("end_port_before_port.diff")),
};

/// Points at the end port.
pub(crate) fn at(origin: FieldOrigin, first: i64, last: i64) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("the range ends at {last}, before it begins at {first}"))
        .help(format!("write `port: {last}` and `endPort: {first}`, if that was meant"))
}
