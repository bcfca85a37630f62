//! More policy types than exist.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("too-many-policy-types", include_str!("too_many_policy_types.diff"))
    .what("`policyTypes` has more than two entries.")
    .why("The API server refuses it: there are only two types.");

/// Points at the list.
pub(crate) fn at(origin: FieldOrigin, count: usize) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{count} policy types, but only two exist"))
        .help("write `Ingress` and `Egress` at most once")
}
