//! An ipBlock beside a selector in one peer.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "ip-block-with-selector",
    severity: Severity::Error,
    lint: false,
    what: "One peer has an ipBlock and a selector.",
    why: "The API server refuses it. If both are meant as alternatives, make them two list items.",
    example: Example(include_str!("ip_block_with_selector.diff")),
};

/// Points at the peer.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "a peer cannot have both `ipBlock` and a selector")
        .help("make two list items of it (a `- ` before each) if either may match")
}
