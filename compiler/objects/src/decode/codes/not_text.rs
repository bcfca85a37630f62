//! Bytes that are not UTF-8 text.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::source::{FileId, FileSpan};
use crate::syntax::Span;
use crate::syntax::TextError;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "not-text",
    severity: Severity::Error,
    lint: false,
    what: "The input is not UTF-8 text.",
    why: "Kubernetes objects are UTF-8. In another encoding, the file could be read as something that the author \
          did not write.",
    example: Example(
        "-kind: \0
+apiVersion: networking.k8s.io/v1
+kind: NetworkPolicy
+metadata: {name: web, namespace: shop}
+spec:
+  podSelector: {}
",
    ),
};

/// The whole file could not be read.
pub(crate) fn at(file: FileId, name: &str, error: &TextError) -> Diagnostic {
    let place = FileSpan { file, span: Span::default() };
    let found = Diagnostic::at_text(&CODE, place, format!("{}, in line {} of `{name}`", error.message, error.line));
    match &error.help {
        Some(help) => found.help(help.clone()),
        None => found,
    }
}
