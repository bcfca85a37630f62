//! A peer that Weir cannot enforce.

use super::*;
use crate::k8s::RuleAction;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("unsupported-peer", include_str!("unsupported_peer.diff"))
    .what("A rule of a cluster-wide policy has a peer that Weir cannot enforce: domain names, or a peer of a newer API.")
    .why(
        "The rule fails closed, as the API text demands: an Accept rule matches nothing, and a Deny or Pass rule denies \
         all traffic of its subject in this direction.",
    );

/// `what` says why the peer cannot be enforced.
pub(crate) fn at(origin: FieldOrigin, what: &str, action: RuleAction) -> Diagnostic {
    let effect = match action {
        RuleAction::Accept => "the rule matches nothing",
        RuleAction::Deny | RuleAction::Pass => "the rule denies all traffic of its subject in this direction",
    };
    Diagnostic::at(&CODE, origin, format!("{what}: {effect}")).help("write the addresses as `networks`")
}
