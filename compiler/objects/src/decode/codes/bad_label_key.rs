//! A label key that no object can have.

use crate::decode::codes::quote;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "bad-label-key",
    severity: Severity::Error,
    lint: false,
    what: "A label key is not valid.",
    why: "The API server refuses it. No object can carry such a label, so a selector with it would match \
          nothing.",
    example: Example(include_str!("bad_label_key.diff")),
};

/// The key has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, key: &str, why: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is not a valid label key: it {why}", quote(key)))
        .help("write a key like `app` or `example.com/app`")
}
