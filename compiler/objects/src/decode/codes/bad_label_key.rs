//! A label key that no object can have.

use super::*;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("bad-label-key", include_str!("bad_label_key.diff")).what("A label key is not valid.").why(
        "The API server refuses it. No object can carry such a label, so a selector with it would match \
         nothing.",
    );

/// The key has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, key: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "label key", key, why).help("write a key like `app` or `example.com/app`")
}
