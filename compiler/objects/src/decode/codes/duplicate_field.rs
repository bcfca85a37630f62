//! A field that occurs twice.

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("duplicate-field", include_str!("duplicate_field.diff")).what("A field occurs twice.").why(
        "Only one of the two can count, and parsers do not agree on which. This is an error in a policy, and a \
         warning in objects that Weir reads only for context.",
    );

/// Points at the second occurrence, with the first as a label.
pub(crate) fn at(origin: FieldOrigin, name: &str, severity: Severity) -> Diagnostic {
    let mut found = Diagnostic::at_name(&CODE, origin.clone(), format!("the field `{name}` occurs twice"))
        .label("again here")
        .also_first(origin, "first here")
        .help("remove one of the two, or merge them");
    found.severity = severity;
    found
}
