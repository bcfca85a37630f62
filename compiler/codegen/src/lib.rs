//! From classes to an artifact: the decision for a new flow, the structures of its tables, and the programs around it.
//!
//! ```text
//!  Classes ──lower──▶ decision ──passes──▶ decision ──emit──▶ programs ──┐
//!     └─────────── structures ──map_images──▶ maps and entries ──────────┴─▶ Artifact
//! ```
//!
//! The guarantees at each arrow:
//!
//! * `lower`, `passes`: a decision without loops, narrowed to the input; verified after each pass.
//! * `structures`, `map_images`: every structure answers as the class tables do; map sizes follow the input.
//! * `emit`: instructions whose number does not depend on how many policies, pods or prefixes there are.
//!
//! [`compile`] is the whole pipeline behind one call; [`packet_engines`] answers single flows with the results, for
//! tests and `weir query`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod compile;
pub mod describe;
pub mod emit;
pub mod ir;
pub mod last;
pub mod lower;
pub mod map_images;
pub mod packet_engines;
pub mod passes;
pub mod structures;
