//! A namespace that the API server refuses.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("invalid-namespace", include_str!("invalid_namespace.diff"))
    .what("`metadata.namespace` is not a valid namespace.")
    .why("The API server refuses the object, so the policy would not be in force.");

/// The namespace has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, namespace: &str, why: &str) -> Diagnostic {
    invalid(&CODE, origin, "namespace", namespace, why).help("write the name of a namespace, like `shop`")
}

/// The kind is cluster-scoped and has no namespace.
pub(crate) fn of_cluster_scoped(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "a CidrList belongs to the whole cluster, not to a namespace")
        .help("remove `namespace`; to limit the list to pods of one, use `spec.appliesTo.namespaceSelector`")
}
