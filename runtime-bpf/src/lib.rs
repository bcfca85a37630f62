//! Weir's runtime: loads the compiler's output into the kernel and keeps it there.
//!
//! ```text
//!  Artifact ──runtime──▶ maps, programs, points, pins          operations: attach, switch, repair, detach
//!                            │
//!                        system: the seam ── sys: system calls
//! ```
//!
//! The only crate of the workspace with system calls and unsafe code, and [`sys`] is the only module with either.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod closed;
pub mod connections;
mod error;
pub mod events;
mod generation;
mod generation_names;
pub mod names;
pub mod observe;
mod pins;
mod point;
mod record;
pub mod runtime;
pub mod skip;
pub mod sys;
pub mod system;
pub mod trial;

pub use error::{Error, Failure, StateAfterFailure};
pub use point::{HookKind, HookNeighbour, ProgramSide};
pub use record::{EnforcedEndpoint, EnforcedEndpoints, KernelGeneration, SinglePods, Uplink};
