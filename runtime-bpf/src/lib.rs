//! Weir's runtime: the kernel's side of what the compiler made.
//!
//! The only crate of the workspace with system calls and unsafe code, and [`sys`] is the only module with either.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod skip;
pub mod sys;
