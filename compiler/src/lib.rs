//! Weir's compiler: from Kubernetes objects to what packets meet.
//!
//! ```text
//!  text ──syntax──▶ trees ──decode──▶ k8s::Object ──resolve──▶ model::Cluster ──▶ lint: habits that hurt
//!                     │                    │                        │
//!                     └──── SourceMap ─────┘                        └─▶ model::eval: the reference oracle
//! ```
//!
//! What holds at each arrow:
//!
//! * `syntax`: one tree for YAML and JSON, a span on every value; bounded in depth, size and time.
//! * `decode`: every object is valid as the API server would have it, or is an error in the [`diagnostic`]s.
//! * `resolve`: every name is a number, everything is sorted by name; the order of the input no longer shows.
//!
//! The crate is pure: no file, socket, clock, thread or environment variable is touched here.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod address;
pub mod codes;
pub mod decode;
pub mod diagnostic;
pub mod ebpf;
pub mod k8s;
pub mod lint;
pub mod model;
pub mod origin;
pub mod resolve;
pub mod source;
pub mod syntax;
pub mod vm;
