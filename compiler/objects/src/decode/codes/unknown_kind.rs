//! A kind that its API group does not have.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "unknown-kind",
    severity: Severity::Error,
    lint: false,
    what: "The object names a kind that its API group does not have.",
    why: "An API server refuses such an object. If the name is close to a kind that Weir enforces, skipping the \
          object could hide a policy that is not in force.",
    example: Example(include_str!("unknown_kind.diff")),
};

/// `meant` is the nearest kind of the group.
pub(crate) fn at(origin: FieldOrigin, version: &str, kind: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("`{version}` has no kind `{kind}`"))
        .label("no such kind")
        .help(format!("write `kind: {meant}`"))
}
