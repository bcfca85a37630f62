//! A lint that ran out of its budget.

use weir_model::{Cluster, PolicyId};
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

/// Policies that the lints about possible pods did not judge.
pub(super) fn unfinished(cluster: &Cluster, policies: &[PolicyId]) -> Option<Diagnostic> {
    let first = cluster.policy(*policies.first()?);
    let names: Vec<String> = policies.iter().map(|it| cluster.policy_name(*it)).collect();
    let message = match names.len() {
        1 => format!("policy {} was not compared with others for every possible pod", names[0]),
        number => format!("{number} policies were not compared with each other for every possible pod"),
    };
    Some(
        Diagnostic::at(&CODE, FieldOrigin::object(first.object), message)
            .label("the policies combine too many selectors, or there are too many of them")
            .note(format!("policy-duplicate, policy-redundant, rule-covered did not judge: {}", names.join(", ")))
            .help("use fewer label keys in the policies of one namespace, or check it alone"),
    )
}
