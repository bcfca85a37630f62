//! In or NotIn without values.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("operator-needs-values", include_str!("operator_needs_values.diff"))
    .what("`In` or `NotIn` has no values.")
    .why(
        "The API server refuses it: `In` without values would match nothing, and `NotIn` without values would \
         match everything.",
    );

/// `operator` is `In` or `NotIn`.
pub(crate) fn at(origin: FieldOrigin, operator: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("`{operator}` needs at least one value"))
        .help("add `values`, or use `Exists` or `DoesNotExist`")
}
