//! Findings in one object beyond the number that is shown.

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code::error("too-many-findings", include_str!("too_many_findings.diff"))
    .what("An object has more findings than are shown.")
    .why("The first hundred are shown, and the others are counted. Nothing is compiled from the object.");

/// `beyond` is the number of findings that are not shown.
pub(crate) fn at(origin: FieldOrigin, beyond: usize, severity: Severity) -> Diagnostic {
    let mut found = Diagnostic::at(&CODE, origin, format!("{beyond} more findings in this object are not shown"))
        .help("fix the first ones and run again");
    found.severity = severity;
    found
}
