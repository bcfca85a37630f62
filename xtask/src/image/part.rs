//! The part of an image for one architecture, and the layouts that contain such parts.

use serde_json::{Map, Value, json};

use super::{Tar, digest};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CREATED: &str = "org.opencontainers.image.created";

/// A name and its value.
pub type Label = (String, String);

/// The image for one architecture: a manifest, a configuration and one layer.
#[derive(Debug)]
pub struct ImagePart {
    /// The entry of the manifest in an index.
    pub(super) entry: Value,
    pub(super) blobs: Vec<Vec<u8>>,
}

impl ImagePart {
    pub(super) fn plain(architecture: &str, entrypoint: &[&str], layer: Vec<u8>) -> Self {
        let configuration = configuration(architecture, entrypoint, &layer, &[]);
        Self::new(&configuration, "application/vnd.oci.image.layer.v1.tar", layer, &[])
    }

    /// A layer, and the same layer as `gzip` compressed it.
    pub fn compressed(
        architecture: &str,
        entrypoint: &[&str],
        layer: &[u8],
        compressed: Vec<u8>,
        labels: &[Label],
    ) -> Self {
        let configuration = configuration(architecture, entrypoint, layer, labels);
        Self::new(&configuration, "application/vnd.oci.image.layer.v1.tar+gzip", compressed, labels)
    }

    fn new(configuration: &Value, kind: &str, layer: Vec<u8>, labels: &[Label]) -> Self {
        let platform = json!({"architecture": configuration["architecture"], "os": "linux"});
        let configuration = configuration.to_string().into_bytes();
        let mut manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": described("application/vnd.oci.image.config.v1+json", &configuration),
            "layers": [described(kind, &layer)],
        });
        if !labels.is_empty() {
            manifest["annotations"] = object(labels);
        }
        let manifest = manifest.to_string().into_bytes();
        let mut entry = described(MANIFEST, &manifest);
        entry["platform"] = platform;
        Self { entry, blobs: vec![layer, configuration, manifest] }
    }

    /// The bytes that a registry stores.
    pub fn bytes(&self) -> usize {
        self.blobs.iter().map(Vec::len).sum()
    }
}

fn configuration(architecture: &str, entrypoint: &[&str], layer: &[u8], labels: &[Label]) -> Value {
    let mut history = json!({"created_by": "cargo xtask image"});
    let mut configuration = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Entrypoint": entrypoint, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    });
    if !labels.is_empty() {
        configuration["config"]["Labels"] = object(labels);
    }
    if let Some((_, created)) = labels.iter().find(|(name, _)| name == CREATED) {
        configuration["created"] = created.as_str().into();
        history["created"] = created.as_str().into();
    }
    configuration["history"] = json!([history]);
    configuration
}

/// An image for several architectures, under its full name: the layout has one entry, which is the index of the parts.
pub fn packed_index(name: &str, parts: Vec<ImagePart>, labels: &[Label]) -> Vec<u8> {
    let (entries, blobs): (Vec<Value>, Vec<Vec<Vec<u8>>>) = parts.into_iter().map(|it| (it.entry, it.blobs)).unzip();
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX, "manifests": entries, "annotations": object(labels),
    });
    let index = index.to_string().into_bytes();
    let mut entry = described(INDEX, &index);
    entry["annotations"] = named(name);
    let mut blobs = blobs.concat();
    blobs.push(index);
    written(entry, &blobs)
}

/// The annotations that give an entry of a layout its name.
pub(super) fn named(name: &str) -> Value {
    json!({
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rsplit(':').next(),
    })
}

/// The layout with this entry, as a tar file.
pub(super) fn written(entry: Value, blobs: &[Vec<u8>]) -> Vec<u8> {
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    let mut image = Tar::new();
    image.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644);
    image.file("index.json", index.to_string().as_bytes(), 0o644);
    ["blobs", "blobs/sha256"].into_iter().for_each(|path| image.directory(path));
    for blob in blobs {
        image.file(&format!("blobs/{}", digest(blob).replace(':', "/")), blob, 0o644);
    }
    image.end()
}

fn object(labels: &[Label]) -> Value {
    Value::Object(labels.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect::<Map<_, _>>())
}

fn described(kind: &str, blob: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": digest(blob), "size": blob.len()})
}
