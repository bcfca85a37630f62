//! A policy type other than Ingress and Egress.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-policy-type", include_str!("bad_policy_type.diff"))
    .what("`policyTypes` has an unknown entry.")
    .why("The API server refuses it. The names are case-sensitive: `ingress` is not `Ingress`.");

/// The name is not one of the two types.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a policy type", quote(name)));
    write_one_of(found, name, &["Ingress", "Egress"], "write `Ingress` or `Egress`")
}
