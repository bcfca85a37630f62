//! An object without `apiVersion` or `kind`.

use super::*;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("missing-kind", include_str!("missing_kind.diff")).what("An object lacks `apiVersion` or `kind`.").why(
        "Without both, the kind of the object is unknown. If it was meant to be a policy, it would not be in \
         force.",
    );

/// `missing` is the name of the missing field.
pub(crate) fn at(origin: FieldOrigin, missing: &str, known: Option<(&str, &str)>) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("the object has no `{missing}`"));
    match known {
        Some((value, of)) => found.help(format!("add `{missing}: {value}`, as `{of}` needs")),
        None => found.help(format!("add `{missing}`, or remove this file from the input")),
    }
}

/// The document is not a mapping.
pub(crate) fn not_a_mapping(origin: FieldOrigin, found: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("expected a Kubernetes object, found {found}"))
        .help("begin with `apiVersion:` and `kind:`, or remove this file from the input")
}
