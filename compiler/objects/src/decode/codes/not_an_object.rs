//! YAML that is not a Kubernetes object.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::warning("not-an-object", include_str!("not_an_object.diff"))
    .what("A document is not a Kubernetes object and is skipped.")
    .why(
        "Directories often contain other YAML, such as Helm values or CI settings. Weir reports it, because a \
         policy without `apiVersion` and `kind` looks the same.",
    );

/// The document is a mapping with neither `apiVersion` nor `kind`.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "not a Kubernetes object; skipped")
        .note("it has neither `apiVersion` nor `kind`")
        .help("add both if Weir should read it, or remove the file from the input")
}
