//! A lint that ran out of its budget.

use weir_objects::diagnostic::{Code, Diagnostic, Example, Severity};
use weir_objects::origin::{FieldOrigin, ObjectId};

pub(super) static CODE: Code = Code {
    name: "lint-incomplete",
    severity: Severity::Note,
    lint: true,
    what: "A lint stopped before it had looked at everything.",
    why: "Some lints compare policies with each other, or every kind of pod with every policy. Each has a budget of steps, \
          so that no input makes a check take minutes. One that runs out of it says so: what it found is true, and what \
          comes after the place where it stopped was not looked at. Verdicts are not affected.",
    example: Example(include_str!("lint_incomplete.diff")),
};

pub(super) fn found(code: &'static Code, stopped_at: ObjectId, steps: u64) -> Diagnostic {
    let message = format!("the lint {} stopped here, after {steps} steps", code.name);
    Diagnostic::at(&CODE, FieldOrigin::object(stopped_at), message)
        .note("what it found is true; what follows was not looked at")
        .help(format!(
            "turn the lint off if that is not worth knowing, or check fewer objects at a time: {}",
            code.name
        ))
}
