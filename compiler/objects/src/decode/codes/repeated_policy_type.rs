//! A policy type named twice.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "repeated-policy-type",
    severity: Severity::Warning,
    lint: false,
    what: "`policyTypes` names a type twice.",
    why: "The API server accepts it. Usually one of the two was meant to be the other type, and the rules for that \
          type have no effect.",
    example: Example(include_str!("repeated_policy_type.diff")),
};

/// Points at the second occurrence.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    let other = if name == "Ingress" { "Egress" } else { "Ingress" };
    Diagnostic::at(&CODE, origin, format!("`{name}` occurs twice"))
        .help(format!("remove one, or write `{other}` if that was meant"))
}
