//! A field that occurs twice.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "duplicate-field",
    severity: Severity::Error,
    lint: false,
    what: "A field is there twice.",
    why: "Only one of the two can count, and readers differ in which. In a policy this is an error, in objects \
          that we only read for context a warning.",
    example: Example(include_str!("duplicate_field.diff")),
};

/// Points at the second occurrence, with the first as a label.
pub(crate) fn at(origin: FieldOrigin, name: &str, severity: Severity) -> Diagnostic {
    let mut found = Diagnostic::at_name(&CODE, origin.clone(), format!("`{name}` is there twice"))
        .label("again here")
        .also_first(origin, "first here")
        .help("remove one of the two, or make them one");
    found.severity = severity;
    found
}
