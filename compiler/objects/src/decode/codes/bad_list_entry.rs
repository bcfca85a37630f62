//! An entry of an address list that cannot be read.

use super::*;
use crate::address::{parse_address, parse_cidr};

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-list-entry", include_str!("bad_list_entry.diff"))
    .what("An entry of an address list is not an address, CIDR or range, or a CidrList has no `cidrs`.")
    .why(
        "If the entry were skipped, a Deny list would not deny these addresses, and an Allow list would not \
         exempt them.",
    );

/// The entry cannot be read; `why` completes a sentence that begins with it.
pub(crate) fn at(origin: FieldOrigin, text: &str, why: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} {why}", quote(text))).help(help(text))
}

/// The list has no entries at all, not even an empty list of them.
pub(crate) fn none(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "the list has no `cidrs`").help("write the addresses, or `cidrs: []` for none")
}

/// Recognizes other formats that users keep lists of addresses in.
fn help(text: &str) -> &'static str {
    let mut words = text.split_ascii_whitespace();
    match (words.next(), words.next()) {
        (Some("add" | "create"), Some(_)) => {
            "this is the output of `ipset save`: keep only the addresses, and remove the `create` lines"
        }
        (Some(first), Some(_)) if parse_address(first).is_some() || parse_cidr(first).is_some() => {
            "write one entry per line, followed by nothing or a comment (`#`, `;`); host names cannot be listed"
        }
        _ => "write an address, a CIDR or a range: `192.0.2.7`, `192.0.2.0/24`, `192.0.2.1-192.0.2.9`",
    }
}
