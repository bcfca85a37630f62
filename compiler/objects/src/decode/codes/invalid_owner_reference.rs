//! An owner reference that the API server refuses.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("invalid-owner-reference", include_str!("invalid_owner_reference.diff"))
    .what("An owner reference is incomplete or contradicts another.")
    .why("The API server refuses the object, so the policy would not be in force.");

/// `what` describes the problem, as a sentence.
pub(crate) fn at(origin: FieldOrigin, what: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, what).help("leave owner references to the controller that sets them")
}
