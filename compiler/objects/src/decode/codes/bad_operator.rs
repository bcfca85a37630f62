//! An operator that selectors do not have.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-operator", include_str!("bad_operator.diff"))
    .what("A selector has an unknown operator.")
    .why("The API server refuses it. Operators are case-sensitive: `in` is not `In`.");

/// The operator is not one of the four.
pub(crate) fn at(origin: FieldOrigin, operator: &str) -> Diagnostic {
    const KNOWN: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];
    let message = match operator {
        "" => "a selector requirement has no operator".to_owned(),
        _ => format!("{} is not a selector operator", quote(operator)),
    };
    let found = Diagnostic::at(&CODE, origin, message);
    write_one_of(found, operator, &KNOWN, "write `In`, `NotIn`, `Exists` or `DoesNotExist`")
}
