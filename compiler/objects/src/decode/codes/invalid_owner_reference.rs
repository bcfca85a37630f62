//! An owner reference that the API server refuses.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "invalid-owner-reference",
    severity: Severity::Error,
    lint: false,
    what: "An owner reference is incomplete or contradicts another.",
    why: "The API server refuses the object, so the policy would not be in force.",
    example: Example(include_str!("invalid_owner_reference.diff")),
};

/// `what` describes the problem, as a sentence.
pub(crate) fn at(origin: FieldOrigin, what: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, what).help("leave owner references to the controller that sets them")
}
