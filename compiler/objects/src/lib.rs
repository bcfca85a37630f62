//! Kubernetes objects from text: YAML or JSON to trees, trees to objects, with a position and a message for every
//! mistake.
//!
//! ```text
//!  text ──syntax──▶ trees with spans ──decode──▶ k8s::Object
//!                          │                          │
//!                          └─────── SourceMap ────────┘ positions for every diagnostic
//! ```
//!
//! `syntax` makes one tree for YAML and JSON, bounded in depth, size and time. `decode` makes valid objects according
//! to the API server's rules, or reports errors as [`diagnostic`]s.
//!
//! Pure: no file, socket, clock, thread or environment variable.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod address;
pub mod decode;
pub mod diagnostic;
pub mod escape;
pub mod k8s;
mod labels;
pub mod name;
pub mod origin;
pub mod source;
pub mod syntax;
