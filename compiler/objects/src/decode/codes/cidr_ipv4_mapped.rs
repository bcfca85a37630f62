//! An IPv4 address written as an IPv6 address.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("cidr-ipv4-mapped", include_str!("cidr_ipv4_mapped.diff"))
    .what("An address or CIDR is an IPv4-mapped IPv6 address.")
    .why(
        "Packets never carry such addresses. Kubernetes reads them as the IPv4 address that they contain. Later \
         releases of Kubernetes will refuse them.",
    );

/// `text` is the address or CIDR as written, `meant` its meaning.
pub(crate) fn at(origin: FieldOrigin, text: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is IPv4: {meant}", quote(text)))
        .label("an IPv4-mapped address")
        .help(format!("write `{meant}`"))
        .fix(Fix::Write(meant.to_owned()))
}
