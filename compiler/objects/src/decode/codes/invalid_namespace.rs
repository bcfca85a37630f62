//! A namespace that the API server refuses.

use super::*;
use crate::diagnostic::Severity;

/// Documentation of the finding.
pub static CODE: Code = Code::error("invalid-namespace", include_str!("invalid_namespace.diff"))
    .what("`metadata.namespace` is not a valid namespace.")
    .why("The API server refuses the object, so the policy would not be in force.");

/// The namespace has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, namespace: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "namespace", namespace, why).help("write the name of a namespace, like `shop`")
}

/// A cluster-wide policy has no namespace.
pub(crate) fn of_cluster_policy(origin: FieldOrigin) -> Diagnostic {
    let text = "a cluster-wide policy has no namespace: the API server ignores this one";
    let mut found = Diagnostic::at(&CODE, origin, text).help("remove `namespace`; `spec.subject` limits the policy");
    found.severity = Severity::Warning;
    found
}

/// A list has no namespace.
pub(crate) fn of_list(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "a CidrList belongs to the whole cluster, not to a namespace")
        .help("remove `namespace`; to limit the list to pods of one, use `spec.appliesTo.namespaceSelector`")
}
