//! A BaselineAdminNetworkPolicy that is not named `default`.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("baseline-name", include_str!("baseline_name.diff"))
    .what("A BaselineAdminNetworkPolicy has another name than `default`.")
    .why("A cluster has only one, with this name. The API server refuses all others.");

/// Points at the object.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("a BaselineAdminNetworkPolicy cannot have the name {}", quote(name)))
        .help("write `name: default`, and put all rules into this one object")
}
