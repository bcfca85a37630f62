//! A finalizer that the API server refuses.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("invalid-finalizer", include_str!("invalid_finalizer.diff"))
    .what("A finalizer has an invalid name, or two finalizers contradict each other.")
    .why("The API server refuses the object, so the policy would not be in force.");

/// The name has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, name: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "finalizer", name, why).help("write a finalizer like `example.com/cleanup`")
}

/// The name has no prefix and is not one of Kubernetes' own.
pub(crate) fn unqualified(origin: FieldOrigin, name: &str) -> Diagnostic {
    Diagnostic::at(
        &CODE,
        origin,
        format!("the finalizer {} has no prefix, and Kubernetes has none with this name", quote(name)),
    )
    .help("write a finalizer like `example.com/cleanup`")
}

/// Both of Kubernetes' own finalizers are present.
pub(crate) fn conflict(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "the finalizers `orphan` and `foregroundDeletion` exclude each other")
        .help("remove one of the two")
}
