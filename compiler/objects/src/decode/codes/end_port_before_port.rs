//! A range that ends before it begins.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("end-port-before-port", include_str!("end_port_before_port.diff"))
    .what("`endPort` is smaller than `port`.")
    .why("The API server refuses it: such a range is empty.");

/// Points at the end port.
pub(crate) fn at(origin: FieldOrigin, first: i64, last: i64) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("the range ends at {last}, before it begins at {first}"))
        .help(format!("write `port: {last}` and `endPort: {first}`, if that was meant"))
}
