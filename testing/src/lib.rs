//! Shared parts of tests. Other crates name this crate only under `[dev-dependencies]`.
//!
//! Unit tests in `src` of a crate below this one cannot use it: they are compiled with a second copy of their crate,
//! whose types differ. Integration tests can.

#![expect(clippy::crate_in_macro_def, reason = "each test binary has its `MACHINES` at its root")]

pub mod address_maps;
pub mod case;
pub mod datapath;
pub mod files;
pub mod large_cluster;
pub mod packet;
pub mod schema;
pub mod shape;
pub mod yaml;

pub use weir_fuzz::generators::Random;
