//! Which cluster-wide policies an API server with the custom resource definitions takes, and which it refuses: a table
//! of cases in `compiler/corpus/cluster-policies`.
//!
//! Each case is an object whose first lines are comments. They name the case's subject, and how kube-apiserver 1.35
//! answers with the definitions of each channel (`experimental` contains everything that `standard` does):
//!
//! ```text
//! # experimental: accepts
//! # standard: refuses spec.egress[0].to[0].nodes
//! ```
//!
//! The answers are recorded, not written by hand. [`recorded`] compares Weir with the recorded answers, so it runs
//! everywhere. [`server`] compares the recorded answers with a real server, and with `WEIR_RECORD=1` records them.

mod cases;
mod recorded;
mod server;
