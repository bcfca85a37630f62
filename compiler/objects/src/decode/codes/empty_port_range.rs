//! A port range that does not begin before it ends.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("empty-port-range", include_str!("empty_port_range.diff"))
    .what("The `start` of a port range is not less than its `end`.")
    .why(
        "The API server refuses it; of the kinds of v1alpha1 it takes a reversed range, in which no port is. A single \
         port is written as a number.",
    );

/// Points at the range.
pub(crate) fn at(origin: FieldOrigin, start: u16, end: u16) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("the range from {start} to {end} has no two ports"));
    match start == end {
        true => found.help(format!("write the port {start} as a number")),
        false => found.help(format!("write `start: {end}` and `end: {start}`, if that was meant")),
    }
}
