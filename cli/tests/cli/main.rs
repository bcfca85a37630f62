//! The built binary, driven as its users drive it.

mod check;
mod compile;
mod diff;
mod explain;
mod query;
mod support;
mod tool;
