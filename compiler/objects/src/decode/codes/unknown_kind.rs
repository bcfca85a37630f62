//! A kind that its API group does not have.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("unknown-kind", include_str!("unknown_kind.diff"))
    .what("The object names a kind that its API group does not have.")
    .why(
        "An API server refuses such an object. If the name is close to a kind that Weir enforces, skipping the \
         object could hide a policy that is not in force.",
    );

/// `meant` is the nearest kind of the group.
pub(crate) fn at(origin: FieldOrigin, version: &str, kind: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("`{version}` has no kind `{kind}`"))
        .label("no such kind")
        .help(format!("write `kind: {meant}`"))
}
