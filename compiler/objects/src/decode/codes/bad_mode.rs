//! A `weir.dev/mode` that is not a mode, or on an object that has no mode.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-mode", include_str!("bad_mode.diff"))
    .what("The annotation `weir.dev/mode` has an unknown value, or is on an object that has no modes.")
    .why(
        "A policy is enforced (`enforce`, the default) or only reported (`audit`). A guess could enforce a policy \
         that was meant to be tried first, or leave one unenforced. Address lists are always enforced.",
    );

/// The mode is not one of the two.
pub(crate) fn at(origin: FieldOrigin, mode: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a mode", quote(mode)));
    write_one_of(found, mode, &["audit", "enforce"], "write `audit` or `enforce`")
}

/// The mode is on an address list.
pub(crate) fn list(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "an address list has no mode; it is enforced")
        .help("remove the annotation, or add the list only when it is to be enforced")
}
