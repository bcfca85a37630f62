//! Exists or DoesNotExist with values.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "operator-takes-no-values",
    severity: Severity::Error,
    lint: false,
    what: "`Exists` or `DoesNotExist` has values.",
    why: "The API server refuses it: these operators only check whether the label exists.",
    example: Example(include_str!("operator_takes_no_values.diff")),
};

/// `operator` is `Exists` or `DoesNotExist`.
pub(crate) fn at(origin: FieldOrigin, operator: &str) -> Diagnostic {
    let with_values = if operator == "Exists" { "In" } else { "NotIn" };
    Diagnostic::at(&CODE, origin, format!("`{operator}` takes no values"))
        .help(format!("remove `values`, or use `{with_values}`"))
}
