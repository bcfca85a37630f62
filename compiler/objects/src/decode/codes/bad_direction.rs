//! A direction other than Ingress and Egress.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-direction", include_str!("bad_direction.diff"))
    .what("`spec.directions` of a CidrList has an unknown entry.")
    .why("Weir would not know for which direction to enforce the list. The directions are `Ingress` and `Egress`.");

/// The name is not one of the two directions.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a direction", quote(name)));
    write_one_of(found, name, &["Ingress", "Egress"], "write `Ingress` or `Egress`")
}
