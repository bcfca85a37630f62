//! A list item without content.

use super::*;

/// Documentation of the finding.
pub static CODE: Code =
    Code::warning("null-rule", include_str!("null_rule.diff")).what("A list item of rules or ports is null.").why(
        "A `-` with nothing after it is an empty rule, and an empty rule allows everything. It is usually left \
         over from editing.",
    );

/// The item is a rule.
pub(crate) fn rule(origin: FieldOrigin, peers: &str) -> Diagnostic {
    let whom = if peers == "from" { "from every source" } else { "to every destination" };
    Diagnostic::at(&CODE, origin, format!("an empty list item is a rule that allows everything {whom}"))
        .help("remove the `-`, or write `- {}` if that was meant")
}

/// The item is an entry of `ports`.
pub(crate) fn port(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "an empty list item means every TCP port")
        .help("remove the `-`, or write `- {}` if that was meant")
}
