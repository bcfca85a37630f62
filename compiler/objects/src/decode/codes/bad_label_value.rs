//! A label value that no object can have.

use crate::decode::codes::quote;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "bad-label-value",
    severity: Severity::Error,
    lint: false,
    what: "A label value is not valid.",
    why: "The API server refuses it. No object can carry such a label, so a selector with it would match \
          nothing.",
    example: Example(include_str!("bad_label_value.diff")),
};

/// The value has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, value: &str, why: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is not a valid label value: it {why}", quote(value)))
        .help("write the value that the objects carry, like `web`")
}
