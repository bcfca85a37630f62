//! A policy type named twice.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("repeated-policy-type", include_str!("repeated_policy_type.diff"))
    .what("`policyTypes` names a type twice.")
    .why(
        "The API server accepts it. Usually one of the two was meant to be the other type, and the rules for that \
         type have no effect.",
    );

/// Points at the second occurrence.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    let other = if name == "Ingress" { "Egress" } else { "Ingress" };
    Diagnostic::at(&CODE, origin, format!("`{name}` occurs twice"))
        .help(format!("remove one, or write `{other}` if that was meant"))
}
