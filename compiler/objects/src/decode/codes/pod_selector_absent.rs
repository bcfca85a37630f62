//! A policy without a `podSelector`.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("pod-selector-absent", include_str!("pod_selector_absent.diff"))
    .what("`spec.podSelector` is absent or null.")
    .why("The API server reads it as `{}`: the policy selects every pod of its namespace.");

/// Points at the missing field.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "without a `podSelector` the policy selects every pod of its namespace")
        .help("write `podSelector: {}` if that is meant")
}
