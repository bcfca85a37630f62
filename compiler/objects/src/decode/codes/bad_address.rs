//! An address that cannot be read.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-address", include_str!("bad_address.diff"))
    .what("An object that is read for context has an invalid address.")
    .why("Without a valid address, the packets of this object cannot be recognized.");

/// The text is not an address.
pub(crate) fn at(origin: FieldOrigin, text: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is not an IP address", quote(text)))
        .help("write an address like `10.9.8.7` or `2001:db8::7`, or remove it")
}
