//! Text that is neither YAML nor JSON.

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::source::{FileId, FileSpan};
use crate::syntax::SyntaxError;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "syntax-error",
    severity: Severity::Error,
    lint: false,
    what: "The text is not well-formed YAML or JSON.",
    why: "The text after the error cannot be read reliably, so a policy could be lost without a message.",
    example: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}
",
    fixed: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
",
};

/// The reader's error, with the file it occurred in.
pub(crate) fn at(file: FileId, error: SyntaxError) -> Diagnostic {
    let found = Diagnostic::at_text(&CODE, FileSpan { file, span: error.span }, error.message);
    match error.help {
        Some(help) => found.help(help),
        None => found,
    }
}
