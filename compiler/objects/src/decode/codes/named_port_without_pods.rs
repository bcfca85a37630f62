//! A port name in a rule whose peers have no port names.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("named-port-without-pods", include_str!("named_port_without_pods.diff"))
    .what("An egress rule of a cluster-wide policy has a port name, and networks, nodes or domain names as peers.")
    .why("Only pods have port names. The API server refuses the rule.");

/// Points at the rule.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "`networks`, `nodes` and `domainNames` have no port names")
        .help("write the number of the port, or move the peer to a rule of its own")
}
