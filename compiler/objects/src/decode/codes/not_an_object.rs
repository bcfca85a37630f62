//! YAML that is not a Kubernetes object.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "not-an-object",
    severity: Severity::Warning,
    lint: false,
    what: "A document is no Kubernetes object and is passed over.",
    why: "Directories often hold other YAML (Helm values, CI settings). It is passed over, and said so, \
          because a policy without its first two lines looks the same.",
    example: Example(include_str!("not_an_object.diff")),
};

/// The document is a mapping with neither `apiVersion` nor `kind`.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "not a Kubernetes object, passed over")
        .note("it has neither `apiVersion` nor `kind`")
        .help("add both if it is meant to be read, or take the file out of the input")
}
