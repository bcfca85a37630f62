//! Errors of the operator: a missing file, an invalid flag.
//!
//! They are printed as `error: … / caused by: … / hint: …`. Errors in YAML are diagnostics instead ([`crate::render`]),
//! and bugs of Weir print a page of their own ([`crate::panic_report`]).

use std::fmt;
use std::io;

use anyhow::Error;

use crate::page::OutputPage;

/// An error with the next step.
#[derive(Debug)]
struct ErrorWithHint {
    message: String,
    hint: String,
}

impl fmt::Display for ErrorWithHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ErrorWithHint {}

/// An error that says what to do next.
pub(crate) fn with_hint(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorWithHint { message: message.into(), hint: hint.into() })
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text.push_str(&format!(": {message}"));
        }
        cause = error.source();
    }
    text
}

/// An error with its cause that says what to do next.
pub(crate) fn caused(cause: Error, message: impl Into<String>, hint: impl Into<String>) -> Error {
    cause.context(ErrorWithHint { message: message.into(), hint: hint.into() })
}

/// Whether the error is a closed pipe: the reader of our output is gone, which is not an error.
pub(crate) fn is_closed_pipe(error: &Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe))
}

/// Prints an error for the operator.
pub(crate) fn print(error: &Error) {
    page(error).print_to_stderr();
}

/// An error as it is printed.
pub(crate) fn page(error: &Error) -> OutputPage {
    let mut page = OutputPage::new();
    page.line(format_args!("error: {error}"));
    for cause in error.chain().skip(1) {
        page.line(format_args!("  caused by: {cause}"));
    }
    if let Some(hint) = hint(error) {
        page.line(format_args!("  hint: {hint}"));
    }
    page
}

/// Whether an error says what to do next.
#[cfg(feature = "enforce")]
pub(crate) fn has_hint(error: &Error) -> bool {
    hint(error).is_some()
}

fn hint(error: &Error) -> Option<String> {
    if let Some(hinted) = error.downcast_ref::<ErrorWithHint>() {
        return Some(hinted.hint.clone());
    }
    #[cfg(feature = "enforce")]
    if let Some(hint) = error.downcast_ref::<weir_runtime::Error>().and_then(weir_runtime::Error::hint) {
        return Some(hint);
    }
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>())?;
    let hint = match io.kind() {
        io::ErrorKind::NotFound => "check the spelling; paths are relative to the current directory",
        io::ErrorKind::PermissionDenied => "this user lacks the permission",
        _ => return None,
    };
    Some(hint.to_owned())
}
