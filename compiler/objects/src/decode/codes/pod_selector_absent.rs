//! A policy without a `podSelector`.

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "pod-selector-absent",
    severity: Severity::Warning,
    lint: false,
    what: "`spec.podSelector` is absent or null.",
    why: "The API server takes it as `{}`: the policy selects every pod of its namespace.",
    example: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  ingress: []
",
    fixed: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  ingress: []
",
};

/// Points at the missing field.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "without a `podSelector` the policy selects every pod of its namespace")
        .help("write `podSelector: {}` if that is meant")
}
