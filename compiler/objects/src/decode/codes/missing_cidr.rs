//! An ipBlock without a CIDR.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("missing-cidr", include_str!("missing_cidr.diff"))
    .what("An ipBlock has no `cidr`.")
    .why("The API server refuses it.");

/// Points at the missing field.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "the ipBlock has no `cidr`")
        .help("add `cidr`; `0.0.0.0/0` is every IPv4 address, `::/0` every IPv6 address")
}
