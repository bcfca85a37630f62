//! An entry of an address list that cannot be read.

use crate::address::{parse_address, parse_cidr};
use crate::decode::codes::quote;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "bad-list-entry",
    severity: Severity::Error,
    lint: false,
    what: "An entry of an address list is no address, CIDR or range.",
    why: "Leaving it out would let through what the list was meant to stop, or stop what it was meant to let \
          through.",
    example: Example(include_str!("bad_list_entry.diff")),
};

/// The entry cannot be read; `why` completes a sentence that begins with it.
pub(crate) fn at(origin: FieldOrigin, text: &str, why: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} {why}", quote(text))).help(help(text))
}

/// Recognizes other formats that users keep lists of addresses in.
fn help(text: &str) -> &'static str {
    let mut words = text.split_ascii_whitespace();
    match (words.next(), words.next()) {
        (Some("add" | "create"), Some(_)) => {
            "this is what `ipset save` prints: leave all of a line but the address, and `create` lines altogether"
        }
        (Some(first), Some(_)) if parse_address(first).is_some() || parse_cidr(first).is_some() => {
            "one entry a line, and behind it nothing but a comment (`#`, `;`); names of hosts cannot be listed"
        }
        _ => "write an address, a CIDR or a range: `192.0.2.7`, `192.0.2.0/24`, `192.0.2.1-192.0.2.9`",
    }
}
