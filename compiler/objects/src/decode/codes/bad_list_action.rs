//! A CidrList that neither denies nor allows.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-list-action", include_str!("bad_list_action.diff"))
    .what("`spec.action` of a CidrList is missing or unknown.")
    .why(
        "A list must say whether it denies or allows its addresses. There is no default, because the wrong one \
         would open or close the network.",
    );

/// The action is not one of the two; it is empty if it is absent.
pub(crate) fn at(origin: FieldOrigin, action: &str) -> Diagnostic {
    let message = match action {
        "" => "the list has no `action`".to_owned(),
        _ => format!("{} is not a list action", quote(action)),
    };
    let found = Diagnostic::at(&CODE, origin, message);
    match nearest(action, ["Deny", "Allow"]) {
        Some(known) => found.help(format!("write `action: {known}`")),
        None => found.help("write `action: Deny` or `action: Allow`"),
    }
}
