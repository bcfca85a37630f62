//! A name that the API server refuses.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("invalid-name", include_str!("invalid_name.diff"))
    .what("`metadata.name` is missing or not a valid name.")
    .why("The API server refuses the object, so the policy would not be in force.");

/// The name has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, name: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "name", name, why).help("choose a name like `allow-web`")
}

/// The object has neither a name nor a prefix for one.
pub(crate) fn missing(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "the object has no name").help("add `metadata.name`")
}
