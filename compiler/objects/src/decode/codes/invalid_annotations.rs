//! Annotations that the API server refuses.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("invalid-annotations", include_str!("invalid_annotations.diff"))
    .what("An annotation key is not valid, or all annotations together are too large.")
    .why("The API server refuses the object, so the policy would not be in force.");

/// The key has the wrong syntax.
pub(crate) fn key(origin: FieldOrigin, key: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "annotation key", key, why).help("write a key like `example.com/owner`")
}

/// All annotations together are too large.
pub(crate) fn size(origin: FieldOrigin, bytes: usize, limit: usize) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("the annotations have {bytes} bytes; the API server accepts {limit}"))
        .help("keep large texts in a ConfigMap")
}
