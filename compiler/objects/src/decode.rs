//! Texts → objects: strict where a mistake would weaken a policy, lenient with objects that are read only for context.
//!
//! ```text
//!  input ──documents──▶ tree ──kinds──▶ table and reader ──shape──▶ fields and types hold ──policy, pods, …──▶ Object
//! ```
//!
//! For NetworkPolicy, everything that the API server's strict decoding and validation refuse is an error here, with the
//! field path that the server prints, and everything that it accepts is accepted. An object with an error is left out
//! and makes the run fail, but hides nothing else in the input. Work is linear in the input, and the number of findings
//! per object is bounded.

mod cidr_list;
mod cluster_policy;
pub mod codes;
mod documents;
mod foreign_policies;
mod kinds;
mod list_entry;
mod metadata;
pub mod names;
mod needed;
mod pods;
mod policy;
mod ports;
mod quirks;
mod report;
mod schema;
mod selector;
mod services;
mod shape;
mod suggest;
mod trail;
mod view;

pub use foreign_policies::ForeignPolicyKind;
pub use suggest::nearest;

use std::collections::BTreeMap;

use crate::diagnostic::{Code, Diagnostics};
use crate::k8s::Object;
use crate::origin::ObjectId;
use crate::source::SourceMap;

/// The codes of this stage.
pub const CODES: &[&Code] = codes::ALL;

/// One input.
#[derive(Clone, Debug)]
pub struct Input {
    /// The input's name, as the user gave it: a path, or `-`.
    pub name: String,
    /// Its bytes, not yet known to be text.
    pub bytes: Vec<u8>,
    /// The kind of its content.
    pub kind: InputKind,
}

/// The kind of an input's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Kubernetes objects, in YAML or JSON (distinguished by the first character).
    Manifest,
    /// One object of the named kind, which an API server has sent as JSON. The text is known to be valid JSON. It need
    /// not contain `apiVersion` and `kind`. An object of another kind is left out.
    Sent(&'static str),
    /// A plain-text list of addresses to deny.
    DenyList,
    /// A plain-text list of addresses to exempt.
    AllowList,
}

/// Choices that reading depends on.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// The namespace of objects that name none.
    pub default_namespace: String,
    /// Whether an API server has sent the objects. Then peers of cluster-wide policies without a known field are those of
    /// a newer API; in a file they are mistakes.
    pub is_from_server: bool,
}

/// The result of reading.
#[derive(Debug, Default)]
pub struct Decoded {
    /// Valid objects, in the order read.
    pub objects: Vec<Object>,
    /// The positions of the objects in files.
    pub sources: SourceMap,
    /// The number of skipped objects of each other kind (`group/version Kind`).
    pub skipped: BTreeMap<String, usize>,
    /// Skipped objects that decide which packets pass.
    pub foreign: Vec<ForeignPolicy>,
}

/// A skipped object that decides which packets pass.
#[derive(Clone, Copy, Debug)]
pub struct ForeignPolicy {
    /// Its kind.
    pub kind: &'static ForeignPolicyKind,
    /// Its number, by which [`SourceMap`] knows its position.
    pub object: ObjectId,
}

/// Reads every object of every input, and reports all findings instead of stopping at the first error.
pub fn decode(inputs: Vec<Input>, options: &DecodeOptions) -> (Decoded, Diagnostics) {
    let mut reader = documents::InputReader::new(options);
    inputs.into_iter().for_each(|input| reader.input(input));
    (reader.decoded, reader.diagnostics)
}

#[cfg(test)]
mod tests;
