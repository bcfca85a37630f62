//! An IPv4 address written as an IPv6 address.

use crate::decode::codes::quote;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "cidr-ipv4-mapped",
    severity: Severity::Warning,
    lint: false,
    what: "An address or CIDR is an IPv4-mapped IPv6 address.",
    why: "Packets never carry such addresses. Kubernetes reads them as the IPv4 address that they contain. Later \
          releases of Kubernetes will refuse them.",
    example: Example(include_str!("cidr_ipv4_mapped.diff")),
};

/// `text` is the address or CIDR as written, `meant` its meaning.
pub(crate) fn at(origin: FieldOrigin, text: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is IPv4: {meant}", quote(text)))
        .label("an IPv4-mapped address")
        .help(format!("write `{meant}`"))
}
