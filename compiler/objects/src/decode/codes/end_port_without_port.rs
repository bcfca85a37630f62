//! A range with an end and no beginning.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "end-port-without-port",
    severity: Severity::Error,
    lint: false,
    what: "`endPort` is used without `port`.",
    why: "The API server refuses it: a range needs its first port.",
    example: Example(include_str!("end_port_without_port.diff")),
};

/// Points at the end port.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "`endPort` needs a `port`").help("add `port`, or remove `endPort`")
}
