//! A range with an end and no beginning.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("end-port-without-port", include_str!("end_port_without_port.diff"))
    .what("`endPort` is used without `port`.")
    .why("The API server refuses it: a range needs its first port.");

/// Points at the end port.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "`endPort` needs a `port`").help("add `port`, or remove `endPort`")
}
