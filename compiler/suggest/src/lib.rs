//! Changes of NetworkPolicies: the one that gives a flow the wanted verdict ([`change`]), written into the source text
//! ([`rewrite`]); and new policies that allow recorded flows ([`learn`]).
//!
//! ```text
//!  objects, flows ──change──▶ edits ──rewrite──▶ new texts ──decode──▶ objects ──oracle, diff──▶ proof
//! ```
//!
//! Problem: a denied flow needs a rule, and the rule that comes to mind first often opens more than that flow.
//! Strategy: make every edit of one rule that gives the verdict ([`allow`], [`deny`]), measure with a comparison of both
//! clusters what else each of them changes ([`cost`]), and choose the one that changes least.
//! Invariants: the reference oracle has judged every proposal; a proposal never touches an object that is not a
//! NetworkPolicy; an edit changes only the lines of its item. The tests that hold them are in `compiler/suggest/tests`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod allow;
pub mod change;
mod cost;
mod count;
mod deny;
pub mod edit;
mod labels;
pub mod learn;
pub mod note;
pub mod rewrite;
pub mod tree;
