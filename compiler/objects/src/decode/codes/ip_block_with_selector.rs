//! An ipBlock beside a selector in one peer.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("ip-block-with-selector", include_str!("ip_block_with_selector.diff"))
    .what("One peer has an ipBlock and a selector.")
    .why("The API server refuses it. If both are meant as alternatives, make them two list items.");

/// Points at the peer.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "a peer cannot have both `ipBlock` and a selector")
        .help("make two list items of it (a `- ` before each) if either may match")
}
