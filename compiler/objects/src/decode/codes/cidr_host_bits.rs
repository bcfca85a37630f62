//! A CIDR that names one address and means many.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("cidr-host-bits", include_str!("cidr_host_bits.diff"))
    .what("A CIDR has bits set beyond its length.")
    .why(
        "The API server accepts it and clears those bits: `203.0.113.77/24` is all 256 addresses of \
         203.0.113.0/24, not a single address.",
    );

/// `text` is the CIDR as written, `meant` its meaning.
pub(crate) fn at(origin: FieldOrigin, text: &str, meant: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} means {meant}", quote(text)))
        .label("bits are set beyond the length")
        .help(format!("write `{meant}`, or a longer length if fewer addresses were meant"))
        .fix(Fix::Write(meant.to_owned()))
}
