//! A CIDR that cannot be read.

use super::*;
use crate::address::{Family, parse_address, parse_cidr};

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-cidr", include_str!("bad_cidr.diff"))
    .what("A CIDR is not valid.")
    .why("The API server refuses it. A single address needs a length: `/32` for IPv4, `/128` for IPv6.");

/// The text is not `address/length`.
pub(crate) fn at(origin: FieldOrigin, text: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a CIDR", quote(text)));
    if let Some(address) = parse_address(text) {
        let bits = Family::of(address.value).bits();
        return found.label("an address without a length").help(format!("write `{}/{bits}`", address.value));
    }
    if text.trim() != text && parse_cidr(text.trim()).is_some() {
        return found.label("blanks around it").help(format!("write `{}`", text.trim()));
    }
    found.help("write it as address and length, like `10.9.8.0/24` or `2001:db8::/64`")
}
