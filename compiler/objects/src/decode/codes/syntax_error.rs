//! Text that is neither YAML nor JSON.

use crate::diagnostic::{Code, Diagnostic};
use crate::source::{FileId, FileSpan};
use crate::syntax::SyntaxError;

/// Documentation of the finding.
pub static CODE: Code = Code::error("syntax-error", include_str!("syntax_error.diff"))
    .what("The text is not well-formed YAML or JSON.")
    .why("The text after the error cannot be read reliably, so a policy could be lost without a message.");

/// The reader's error, with the file it occurred in.
pub(crate) fn at(file: FileId, error: SyntaxError) -> Diagnostic {
    let found = Diagnostic::at_text(&CODE, FileSpan { file, span: error.span }, error.message);
    match error.help {
        Some(help) => found.help(help),
        None => found,
    }
}
