//! A required field that is absent.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("missing-field", include_str!("missing_field.diff"))
    .what("A required field of a cluster-wide policy is absent.")
    .why("The API server refuses the policy. There is no default that could be meant.");

/// Points at the absent field.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    let path = origin.path.clone();
    Diagnostic::at(&CODE, origin, format!("`{path}` is required")).help(format!("write `{name}`"))
}
