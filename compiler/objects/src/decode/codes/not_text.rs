//! Bytes that are not UTF-8 text.

use crate::diagnostic::{Code, Diagnostic};
use crate::source::{FileId, FileSpan};
use crate::syntax::Span;
use crate::syntax::TextError;

/// Documentation of the finding.
pub static CODE: Code = Code::error(
    "not-text",
    "-kind: \0
+apiVersion: networking.k8s.io/v1
+kind: NetworkPolicy
+metadata: {name: web, namespace: shop}
+spec:
+  podSelector: {}
",
)
.what("The input is not UTF-8 text.")
.why(
    "Kubernetes objects are UTF-8. In another encoding, the file could be read as something that the author \
      did not write.",
);

/// The whole file could not be read.
pub(crate) fn at(file: FileId, name: &str, error: &TextError) -> Diagnostic {
    let place = FileSpan { file, span: Span::default() };
    let found = Diagnostic::at_text(&CODE, place, format!("{}, in line {} of `{name}`", error.message, error.line));
    match &error.help {
        Some(help) => found.help(help.clone()),
        None => found,
    }
}
