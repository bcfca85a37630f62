//! Objects and clusters from YAML. A diagnostic with the severity of an error fails the test.

use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::decode::{DecodeOptions, Decoded, Input, InputKind, decode};
use weir_objects::k8s::Object;

/// Decodes a manifest, as a file named `input.yaml`.
#[track_caller]
pub fn decoded(yaml: &str) -> Decoded {
    let input = Input { name: "input.yaml".to_owned(), bytes: yaml.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, found) = decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned() });
    assert!(!found.has_errors(), "{:#?}\n{yaml}", found.into_vec());
    decoded
}

/// The objects of a manifest.
#[track_caller]
pub fn objects(yaml: &str) -> Vec<Object> {
    decoded(yaml).objects
}

/// The cluster of a manifest, with the default assumptions. Diagnostics of `resolve` are ignored.
#[track_caller]
pub fn cluster(yaml: &str) -> Cluster {
    resolve(&objects(yaml), Assumptions::default()).0
}
