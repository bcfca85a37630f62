//! A range that begins with a name.

use crate::decode::codes::quote;
use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "end-port-with-named-port",
    severity: Severity::Error,
    lint: false,
    what: "`endPort` is there with a named `port`.",
    why: "The API server refuses it: a name may stand for another number on each pod, so it cannot begin a \
          range.",
    example: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  ingress:
  - ports:
    - {port: http, endPort: 8090}
",
    fixed: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  ingress:
  - ports:
    - {port: 8080, endPort: 8090}
",
};

/// Points at the end port.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("`endPort` cannot go with the named port {}", quote(name)))
        .help("write the number of the first port, or remove `endPort`")
}
