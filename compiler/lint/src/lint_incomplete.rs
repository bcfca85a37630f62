//! A lint that ran out of its budget.

use weir_objects::diagnostic::{Code, Diagnostic, Severity};
use weir_objects::origin::{FieldOrigin, ObjectId};

pub(super) static CODE: Code = Code::lint("lint-incomplete", Severity::Note, include_str!("lint_incomplete.diff"))
    .what("A lint stopped before it had checked everything.")
    .why(
        "Some lints compare policies with each other, or every kind of pod with every policy. Each has a limited \
         number of steps, so that no input makes the check take minutes. The findings up to that point are right, \
         and the rest of the input was not checked by this lint. Verdicts are not affected.",
    );

pub(super) fn found(code: &'static Code, stopped_at: ObjectId, steps: u64) -> Diagnostic {
    let message = format!("the lint {} stopped here, after {steps} steps", code.name);
    Diagnostic::at(&CODE, FieldOrigin::object(stopped_at), message)
        .note("its findings are right; what follows was not checked")
        .help(format!("turn the lint off, or check fewer objects at a time: {}", code.name))
}
