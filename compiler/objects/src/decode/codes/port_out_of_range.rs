//! A port number that does not exist.

use crate::diagnostic::{Code, Diagnostic};
use crate::origin::{FieldOrigin, PathStep};

/// Documentation of the finding.
pub static CODE: Code = Code::error("port-out-of-range", include_str!("port_out_of_range.diff"))
    .what("A port is not between 1 and 65535.")
    .why("The API server refuses it: no packet has such a port.");

/// The number is not a port.
pub(crate) fn at(origin: FieldOrigin, number: i64) -> Diagnostic {
    let in_rule = origin.path.steps().get(1).is_some_and(is_rules);
    let found = Diagnostic::at(&CODE, origin, format!("{number} is not a port: ports go from 1 to 65535"));
    match number {
        0 if in_rule => found.help("leave `port` out to allow every port of the protocol"),
        _ => found.help("write a port between 1 and 65535"),
    }
}

/// Whether a step of a path leads into the rules of a policy.
fn is_rules(step: &PathStep) -> bool {
    matches!(step, PathStep::Field(name) if name == "ingress" || name == "egress")
}
