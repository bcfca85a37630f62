//! An exception that is not inside its block.

use super::*;
use crate::address::Prefix;

/// Documentation of the finding.
pub static CODE: Code = Code::error("except-not-inside", include_str!("except_not_inside.diff"))
    .what("An `except` is not strictly inside its `cidr`.")
    .why(
        "The API server refuses it: an `except` entry must be a smaller part of its own block, and of the same \
         address family.",
    );

/// Points at the exception.
pub(crate) fn at(origin: FieldOrigin, text: &str, block: FieldOrigin, cidr: Prefix, hole: Prefix) -> Diagnostic {
    let message = format!("{} is not a smaller part of {cidr}", quote(text));
    let found = Diagnostic::at(&CODE, origin, message).also(block, "of this block");
    match cidr.family() == hole.family() {
        false => {
            found.label("another address family").help("only IPv4 can be excepted from IPv4, and only IPv6 from IPv6")
        }
        true if cidr == hole => found.label("the whole block").help("remove the peer: nothing is left of the block"),
        true if hole.covers(cidr) => {
            found.label("larger than the block").help("remove the peer, or name a smaller part")
        }
        true => found.label("outside the block").help("remove it, or write a part of the block"),
    }
}
