//! A policy of another project's kind.

use crate::decode::ForeignPolicyKind;
use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "unread-policy",
    severity: Severity::Warning,
    lint: false,
    what: "The object decides which packets pass, but Weir does not read its kind.",
    why: "Another project enforces the object beside NetworkPolicy. It can deny connections that Weir says are \
          allowed, and some projects let it allow connections that Weir says are denied. So the commands that answer \
          or compile refuse the input, unless `--ignore-kind GROUP/KIND` (or `ignore-kinds` in weir.toml) names the \
          kind. Their answers then name the kinds that they leave out.",
    example: Example(include_str!("unread_policy.diff")),
};

/// The object at `origin` has this kind.
pub(crate) fn at(origin: FieldOrigin, kind: &ForeignPolicyKind) -> Diagnostic {
    let origin = FieldOrigin::new(origin.object, origin.path.field("kind"));
    Diagnostic::at(&CODE, origin, format!("weir does not read `{}` of {}", kind.kind, kind.group))
        .label(format!("{} enforces this policy", kind.project))
        .note("commands that answer or compile refuse input with such policies, because their answers could be wrong")
        .help(format!("to leave this kind out of answers, add `--ignore-kind {}`", kind.name()))
}
