//! YAML, as kubectl reads it → trees.
//!
//! The text is cut into documents at its `---` lines before anything is parsed, so one broken document does not hide
//! the others. Then one pass by recursive descent builds the tree: a YAML 1.1 grammar with libyaml's tolerance, because
//! that is what kubectl reads. (Readers of YAML 1.2 refuse tabs, low indentation and comments in places where people
//! use them, and accept things that kubectl refuses.) It looks at every byte a bounded number of times and borrows most
//! strings.
//!
//! Differences from libyaml: only CR and LF end lines; text after the root value is an error, while kubectl ignores it.
//!
//! Bounds: [`MAX_DEPTH`](super::MAX_DEPTH) levels; [`MAX_ALIASED`] values that are copied for anchors and aliases.
//! Parsing of a document stops at its first error.

use super::{Span, SyntaxError, SyntaxNode};
use build::DocumentBuilder;
use split::DocumentSpans;

mod binary;
mod block;
mod build;
mod cursor;
mod escape;
mod flow;
mod merge;
mod properties;
mod scalars;
mod split;

/// The number of values in one document that may come from aliases. A long string counts as several values.
pub const MAX_ALIASED: usize = 400_000;

/// One document that is not empty.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlDocument<'t> {
    /// The whole document, with directives, `---` and comments. [`parse`] can read it again from this span.
    pub span: Span,
    /// Its number in the text, from 1; empty documents are not counted.
    pub number: u32,
    /// The root value. Values that came through an alias have the span of the alias.
    pub root: SyntaxNode<'t>,
}

/// The documents of a text. Empty documents and those of `null` are skipped, as in kubectl.
pub fn documents(text: &str) -> YamlDocuments<'_> {
    YamlDocuments { text, chunks: DocumentSpans::new(text), number: 0 }
}

/// The iterator of [`documents`].
#[derive(Debug)]
pub struct YamlDocuments<'t> {
    text: &'t str,
    chunks: DocumentSpans<'t>,
    number: u32,
}

impl<'t> Iterator for YamlDocuments<'t> {
    type Item = Result<YamlDocument<'t>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let span = self.chunks.next()?;
            let document = parse(self.text, span).transpose();
            if let Some(document) = document {
                self.number += 1;
                let number = self.number;
                return Some(document.map(|root| YamlDocument { span, number, root }));
            }
        }
    }
}

/// The only document in `span`; `None` if it is empty.
///
/// # Errors
/// Fails if the text is not YAML, has values that JSON cannot carry, or exceeds the bounds.
pub fn parse(text: &str, span: Span) -> Result<Option<SyntaxNode<'_>>, SyntaxError> {
    DocumentBuilder::new(text, span)?.document()
}

#[cfg(test)]
mod tests;
