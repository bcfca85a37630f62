//! More policy types than exist.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "too-many-policy-types",
    severity: Severity::Error,
    lint: false,
    what: "`policyTypes` has more than two entries.",
    why: "The API server refuses it: there are only two types.",
    example: Example(include_str!("too_many_policy_types.diff")),
};

/// Points at the list.
pub(crate) fn at(origin: FieldOrigin, count: usize) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{count} policy types, but only two exist"))
        .help("write `Ingress` and `Egress` at most once")
}
