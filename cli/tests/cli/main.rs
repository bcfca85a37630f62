//! The built binary, driven as its users drive it.

mod check;
mod explain;
mod query;
mod support;
mod tool;
