//! An address whose numbers begin with zeros.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("cidr-leading-zeros", include_str!("cidr_leading_zeros.diff"))
    .what("An address or CIDR has numbers with leading zeros.")
    .why(
        "Kubernetes reads them as decimal; many other programs read them as octal, where `010` is 8. Later \
         releases of Kubernetes will refuse them.",
    );

/// `text` is the address or CIDR as written, `meant` its meaning.
pub(crate) fn at(origin: FieldOrigin, text: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is read as {meant}", quote(text)))
        .label("leading zeros: decimal here, octal elsewhere")
        .help(format!("write `{meant}`"))
        .fix(Fix::Write(meant.to_owned()))
}
