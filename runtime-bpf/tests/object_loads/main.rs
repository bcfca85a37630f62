//! Loads the object file unchanged with other tools and the kernel.

mod cluster;
mod loads;
mod memory;
