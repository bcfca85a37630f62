//! Exists or DoesNotExist with values.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("operator-takes-no-values", include_str!("operator_takes_no_values.diff"))
    .what("`Exists` or `DoesNotExist` has values.")
    .why("The API server refuses it: these operators only check whether the label exists.");

/// `operator` is `Exists` or `DoesNotExist`.
pub(crate) fn at(origin: FieldOrigin, operator: &str) -> Diagnostic {
    let with_values = if operator == "Exists" { "In" } else { "NotIn" };
    Diagnostic::at(&CODE, origin, format!("`{operator}` takes no values"))
        .help(format!("remove `values`, or use `{with_values}`"))
}
