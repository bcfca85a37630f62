//! A structure that must have exactly one of its fields.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("exactly-one", include_str!("exactly_one.diff"))
    .what("A subject, peer, protocol or port of a cluster-wide policy must have exactly one of its fields.")
    .why("The API server refuses it. Several selectors in one peer are not combined; they are separate peers.");

/// None of the fields is there.
pub(crate) fn none(origin: FieldOrigin, fields: &[&str]) -> Diagnostic {
    let names: Vec<String> = fields.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("nothing is selected: exactly one of {} is required", names.join(", "));
    Diagnostic::at(&CODE, origin, message).help("write one of them; an empty selector `{}` selects everything")
}

/// Several of the fields are there.
pub(crate) fn several(origin: FieldOrigin, found: &[&str]) -> Diagnostic {
    let names: Vec<String> = found.iter().map(|name| format!("`{name}`")).collect();
    Diagnostic::at(&CODE, origin, format!("{} exclude each other", names.join(" and ")))
        .help("write each of them as an item of its own, or keep one")
}
