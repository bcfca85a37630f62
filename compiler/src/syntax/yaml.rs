//! YAML, as kubectl reads it → trees.
//!
//! The text is cut into documents at its `---` lines before anything is parsed, so one broken document does not hide
//! the others. Then one pass by recursive descent builds the tree: a YAML 1.1 grammar with libyaml's tolerance, because
//! that is what kubectl reads. (Readers of YAML 1.2 refuse tabs, low indentation and comments in places where people have them, and
//! take things that kubectl refuses.) It looks at every byte a bounded number of times and borrows most strings.
//!
//! Not as in libyaml: only CR and LF end lines; what follows a value at the root is an error, where kubectl ignores it.
//!
//! Bounds: [`MAX_DEPTH`](super::MAX_DEPTH) levels; [`MAX_ALIASED`] values that stand in the tree only through anchors
//! and aliases. Nothing is parsed beyond the first error of a document.

use super::{Node, Span, SyntaxError};
use build::Builder;
use split::Chunks;

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

/// How much of one document's tree may come from aliases: the number of values, where a long string counts as several.
pub const MAX_ALIASED: usize = 400_000;

/// One document that is not empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Document<'t> {
    /// All of it, with directives, `---` and comments. [`parse`] reads it again from there.
    pub span: Span,
    /// Its number in the text, from 1; empty documents are not counted.
    pub number: u32,
    /// What it holds. Values that came through an alias have the span of the alias.
    pub root: Node<'t>,
}

/// The documents of a text. Those that hold nothing (or `null`) are passed over, as kubectl does.
pub fn documents(text: &str) -> Documents<'_> {
    Documents { text, chunks: Chunks::new(text), number: 0 }
}

/// See [`documents`].
#[derive(Debug)]
pub struct Documents<'t> {
    text: &'t str,
    chunks: Chunks<'t>,
    number: u32,
}

impl<'t> Iterator for Documents<'t> {
    type Item = Result<Document<'t>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let span = self.chunks.next()?;
            let document = parse(self.text, span).transpose();
            if let Some(document) = document {
                self.number += 1;
                let number = self.number;
                return Some(document.map(|root| Document { span, number, root }));
            }
        }
    }
}

/// The one document that stands here; `None` if it holds nothing.
///
/// # Errors
/// What is not YAML, what JSON cannot carry, and what exceeds the bounds.
pub fn parse(text: &str, span: Span) -> Result<Option<Node<'_>>, SyntaxError> {
    Builder::new(text, span)?.document()
}

#[cfg(test)]
mod tests;
