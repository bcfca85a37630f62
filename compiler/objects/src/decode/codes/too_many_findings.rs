//! Findings in one object beyond the number that is shown.

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "too-many-findings",
    severity: Severity::Error,
    lint: false,
    what: "An object has more findings than are shown.",
    why: "The first hundred are shown, the rest is counted. Nothing is compiled from the object.",
    example: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  ingress:
  - from:
    - ipBlock:
        cidr: 10.0.0.0/8
        except:
          [
            x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
            x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
            x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
            x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
            x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
            x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
          ]
",
    fixed: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  ingress:
  - from:
    - ipBlock:
        cidr: 10.0.0.0/8
        except: [10.1.0.0/16]
",
};

/// `beyond` is the number of findings that are not shown.
pub(crate) fn at(origin: FieldOrigin, beyond: usize, severity: Severity) -> Diagnostic {
    let mut found = Diagnostic::at(&CODE, origin, format!("{beyond} more findings in this object are not shown"))
        .help("fix the first ones and run again");
    found.severity = severity;
    found
}
