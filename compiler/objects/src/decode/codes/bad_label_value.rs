//! A label value that no object can have.

use super::*;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("bad-label-value", include_str!("bad_label_value.diff")).what("A label value is not valid.").why(
        "The API server refuses it. No object can carry such a label, so a selector with it would match \
         nothing.",
    );

/// The value has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, value: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "label value", value, why).help("write the value that the objects carry, like `web`")
}
