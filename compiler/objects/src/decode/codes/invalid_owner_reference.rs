//! An owner reference that the API server refuses.

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "invalid-owner-reference",
    severity: Severity::Error,
    lint: false,
    what: "An owner reference is incomplete or contradicts another.",
    why: "The API server refuses the object, so the policy would not be in force.",
    example: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: 
  name: web
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web}]
spec: {podSelector: {}}
",
    fixed: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: 
  name: web
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: 2f1c}]
spec: {podSelector: {}}
",
};

/// `what` describes the problem, as a sentence.
pub(crate) fn at(origin: FieldOrigin, what: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, what).help("leave owner references to the controller that sets them")
}
