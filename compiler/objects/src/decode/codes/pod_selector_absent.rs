//! A policy without a `podSelector`.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "pod-selector-absent",
    severity: Severity::Warning,
    lint: false,
    what: "`spec.podSelector` is absent or null.",
    why: "The API server reads it as `{}`: the policy selects every pod of its namespace.",
    example: Example(include_str!("pod_selector_absent.diff")),
};

/// Points at the missing field.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "without a `podSelector` the policy selects every pod of its namespace")
        .help("write `podSelector: {}` if that is meant")
}
