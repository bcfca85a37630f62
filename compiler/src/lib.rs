//! Weir's compiler: from Kubernetes objects to the verdicts on packets.
//!
//! ```text
//!  text ──syntax──▶ trees ──decode──▶ k8s::Object ──resolve──▶ model::Cluster ──▶ lint: habits that hurt
//!                     │                    │                      │       ├─▶ model::eval: the reference oracle
//!                     └──── SourceMap ─────┘                  classify    └─▶ iptables: rules, and a walk through them
//!                                                                 ▼
//!  vm: userspace machine ◀── ebpf ◀──emit── ir::Program ◀──passes,lower── Classes ──image──▶ maps and their entries
//!                            └──────────────────────────▶ artifact ◀───────────────────────────┘
//! ```
//!
//! The guarantees at each arrow:
//!
//! * `syntax`: one tree for YAML and JSON, a span on every value; bounded in depth, size and time.
//! * `decode`: every object is valid according to the API server's rules, or is an error in the [`diagnostic`]s.
//! * `resolve`: every name is a number, everything is sorted by name; the order of the input has no effect.
//! * `classify`: addresses, endpoints and ports that no rule distinguishes are one class; verdicts are a table.
//! * `lower`, `passes`: a decision without loops, narrowed to the input; verified after each pass.
//! * `emit`: instructions whose number does not depend on how many policies, pods or prefixes there are.
//! * `artifact`: one file that tools load unchanged; the same input gives the same bytes, a changed byte is detected.
//!
//! The crate is pure: it uses no file, socket, clock, thread or environment variable.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod address;
pub mod artifact;
pub mod classify;
pub mod codes;
pub mod compile;
pub mod decode;
pub mod departed;
pub mod describe;
pub mod diagnostic;
pub mod diff;
pub mod ebpf;
pub mod edge;
pub mod emit;
pub mod engine;
pub mod escape;
pub mod fit;
pub mod image;
pub mod index;
pub mod iptables;
pub mod ir;
pub mod k8s;
pub mod layout;
pub mod lint;
pub mod lower;
pub mod machine;
pub mod model;
pub mod origin;
pub mod passes;
pub mod reach;
pub mod resolve;
pub mod source;
pub mod structures;
pub mod syntax;
pub mod verify;
pub mod vm;
