//! The object file against the tools and the kernel that must take it as it is.

mod cluster;
mod loads;
mod memory;
