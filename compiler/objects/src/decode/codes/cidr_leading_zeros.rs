//! An address whose numbers begin with zeros.

use crate::decode::codes::quote;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "cidr-leading-zeros",
    severity: Severity::Warning,
    lint: false,
    what: "An address or CIDR has numbers with leading zeros.",
    why: "Kubernetes reads them as decimal; many other programs read them as octal, where `010` is 8. Later \
          releases of Kubernetes will refuse them.",
    example: Example(include_str!("cidr_leading_zeros.diff")),
};

/// `text` is the address or CIDR as written, `meant` its meaning.
pub(crate) fn at(origin: FieldOrigin, text: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is read as {meant}", quote(text)))
        .label("leading zeros: decimal here, octal elsewhere")
        .help(format!("write `{meant}`"))
}
