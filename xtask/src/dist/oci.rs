//! The image: one index with a manifest for each architecture, as an OCI layout in a tar file.

use anyhow::{Result, ensure};

use super::archive::{NOTICES, gzip};
use super::build::Platform;
use super::{LARGEST_IMAGE, ReleaseFacts};
use crate::image::{ImagePart, Label, Tar, name, packed_index};

/// The image's labels, which are also the annotations of the index.
fn labels(facts: &ReleaseFacts) -> Vec<Label> {
    let label = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
    vec![
        label("created", &facts.time()),
        label("description", &facts.description),
        label("licenses", "Apache-2.0"),
        label("revision", &facts.revision),
        label("source", &facts.repository),
        label("title", "weir"),
        label("version", &facts.version),
    ]
}

/// The part of one architecture.
pub(super) fn part(facts: &ReleaseFacts, platform: &Platform, binary: &[u8], licences: &str) -> Result<ImagePart> {
    let mut layer = Tar::dated(facts.epoch);
    layer.file(NOTICES, licences.as_bytes(), 0o644);
    layer.file("weir", binary, 0o755);
    let layer = layer.end();
    let part = ImagePart::compressed(platform.architecture, &["/weir"], &layer, gzip(&layer)?, &labels(facts));
    ensure!(part.bytes() < LARGEST_IMAGE, "the image for {} has {} bytes", platform.architecture, part.bytes());
    Ok(part)
}

/// The tar file with the image.
pub(super) fn image(facts: &ReleaseFacts, parts: Vec<ImagePart>) -> Result<Vec<u8>> {
    Ok(packed_index(&name(), parts, &labels(facts)))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::build::PLATFORMS;
    use super::super::facts::tests::facts;
    use super::*;
    use crate::image::tests::{blob, unpacked};

    fn built() -> Vec<u8> {
        let part = |platform| part(&facts(), platform, b"program", "their licences").expect("small");
        image(&facts(), PLATFORMS.iter().map(part).collect()).expect("an image")
    }

    #[test]
    fn one_name_leads_to_every_architecture() {
        let files = unpacked(&built(), "index");
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        let top = json(&files["index.json"]);
        assert_eq!(top["manifests"].as_array().map(Vec::len), Some(1), "a tag names one thing");
        let index = json(blob(&files, &top["manifests"][0]));
        assert_eq!(index["annotations"]["org.opencontainers.image.revision"], "c0ffee");
        let manifests = index["manifests"].as_array().expect("a list");
        let found: Vec<&Value> = manifests.iter().map(|it| &it["platform"]["architecture"]).collect();
        assert_eq!(found, ["amd64", "arm64"]);
        for entry in manifests {
            let manifest = json(blob(&files, entry));
            let configuration = json(blob(&files, &manifest["config"]));
            assert_eq!(configuration["architecture"], entry["platform"]["architecture"]);
            assert_eq!(configuration["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3");
            assert_eq!(configuration["created"], "2000-02-29T00:00:00Z");
            let layer = unpacked(blob(&files, &manifest["layers"][0]), "index-layer");
            assert_eq!(layer["weir"], b"program");
        }
    }

    #[test]
    fn the_same_binaries_give_the_same_image() {
        assert_eq!(built(), built());
    }
}
