//! A pod phase that Kubernetes does not have.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-phase", include_str!("bad_phase.diff"))
    .what("A pod has an unknown `status.phase`.")
    .why("The phase decides whether policies apply to the pod: they do not apply to pods that have finished.");

/// The phase is not one of the five.
pub(crate) fn at(origin: FieldOrigin, phase: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a pod phase", quote(phase)));
    write_one_of(
        found,
        phase,
        &["Pending", "Running", "Succeeded", "Failed", "Unknown"],
        "write `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`",
    )
}
