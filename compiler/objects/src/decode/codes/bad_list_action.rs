//! A CidrList that neither denies nor allows.

use crate::decode::codes::quote;
use crate::decode::suggest::nearest;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "bad-list-action",
    severity: Severity::Error,
    lint: false,
    what: "`spec.action` of a CidrList is missing or unknown.",
    why: "A list must say whether it denies or allows its addresses. There is no default, because the wrong one \
          would open or close the network.",
    example: Example(include_str!("bad_list_action.diff")),
};

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
