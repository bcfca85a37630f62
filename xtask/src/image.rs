//! An image of the agent, made without a container engine: one static binary in an OCI layout, as a tar that
//! `ctr --namespace k8s.io images import` takes.
//!
//! Invariant: the same binary gives the same bytes. The image contains no times, no users and nothing else of this
//! machine.

mod part;
mod tar;

use std::env::consts::ARCH;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::process::{cargo, run};
pub use part::{ImagePart, Label, packed_index};
use part::{named, written};
pub use tar::Tar;

/// The image's name, as in the chart.
const NAME: &str = "weir";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `cargo xtask image [FILE]`
pub fn task(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let path = arguments.next().map_or_else(|| target().join("weir-image.tar"), PathBuf::from);
    let image = of_agent(&name(), &binary(BuildProfile::Release)?)?;
    fs::write(&path, &image).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: {NAME}:{VERSION}, {} bytes", path.display(), image.len());
    Ok(())
}

/// The directory of cargo's build output.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// The full name of the agent's image.
pub fn name() -> String {
    format!("docker.io/library/{NAME}:{VERSION}")
}

/// How the agent's binary is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildProfile {
    /// As it is released.
    Release,
    /// Linked in the same way, with the tests' optimizations: `cargo xtask ci` has built this binary for its tests.
    Ci,
    /// As `Ci`, without building most of the tests.
    Dev,
}

/// Builds the agent: one statically linked file.
pub fn binary(profile: BuildProfile) -> Result<Vec<u8>> {
    match profile {
        BuildProfile::Release => {
            let mut build = cargo(&["build", "--release", "--locked", "-p", "weir", "--target", &triple()]);
            run(build.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=debuginfo"))?;
        }
        BuildProfile::Ci => run(&mut static_cargo(&TEST_BUILD))?,
        BuildProfile::Dev => {
            // Cargo builds the binary for the tests that run it.
            run(&mut static_cargo(&["test", "--locked", "-p", "weir", "--test", "sinks", "--no-run"]))?;
        }
    }
    let path = path(profile);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Where [`binary`] finds the program that it has built.
pub fn path(profile: BuildProfile) -> PathBuf {
    let directory = if profile == BuildProfile::Release { "release" } else { "debug" };
    target().join(triple()).join(directory).join("weir")
}

/// The arguments with which cargo builds all tests and the programs that they run.
pub const TEST_BUILD: [&str; 4] = ["test", "--workspace", "--locked", "--no-run"];

/// The target that static binaries are built for. It must be named even if it is the host: the flags of
/// [`static_cargo`] must not apply to procedural macros, which the compiler loads as shared libraries.
pub fn triple() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// A cargo command that links statically, as the released binary is linked, and leaves out debug information.
///
/// All of `cargo xtask ci` is built so: one build then serves the tests and the image on the test cluster.
pub fn static_cargo(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.env("CARGO_BUILD_TARGET", triple()).env("RUSTFLAGS", "-C target-feature=+crt-static");
    // Without the state for later builds of single crates: from nothing, which is how CI runs, it costs time.
    command.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_INCREMENTAL", "0");
    command
}

fn architecture(rust: &str) -> Result<&'static str> {
    Ok(match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no image platform is known for the architecture {other}"),
    })
}

/// The agent's image, under this name.
pub fn of_agent(name: &str, binary: &[u8]) -> Result<Vec<u8>> {
    Ok(of(name, binary, architecture(ARCH)?))
}

fn of(name: &str, binary: &[u8], architecture: &str) -> Vec<u8> {
    let mut layer = Tar::new();
    layer.file("weir", binary, 0o755);
    layout(name, &["/weir"], layer, architecture)
}

/// An image for this machine, of one layer, under its full name.
pub fn packed(name: &str, entrypoint: &[&str], layer: Tar) -> Result<Vec<u8>> {
    Ok(layout(name, entrypoint, layer, architecture(ARCH)?))
}

/// The tar of an image for one architecture.
fn layout(name: &str, entrypoint: &[&str], layer: Tar, architecture: &str) -> Vec<u8> {
    let layer = layer.end();
    let ImagePart { mut entry, blobs } = ImagePart::plain(architecture, entrypoint, layer);
    entry["annotations"] = named(name);
    written(entry, &blobs)
}

/// `sha256:…`
pub(crate) fn digest(blob: &[u8]) -> String {
    let hex: String = Sha256::digest(blob).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    /// The files that `tar` finds in the image.
    pub(crate) fn unpacked(tar: &[u8], name: &str) -> BTreeMap<String, Vec<u8>> {
        let directory = std::env::temp_dir().join(format!("weir-image-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).expect("temporary directories can be made");
        fs::write(directory.join("it.tar"), tar).expect("the directory is ours");
        let ran = Command::new("tar").args(["-xf", "it.tar"]).current_dir(&directory).status();
        assert!(ran.expect("tar starts").success());
        let mut files = BTreeMap::new();
        let mut directories = vec![directory.clone()];
        while let Some(at) = directories.pop() {
            for entry in fs::read_dir(&at).expect("it is there").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.file_name().is_some_and(|it| it != "it.tar") {
                    let short = path.strip_prefix(&directory).expect("it is inside").display().to_string();
                    files.insert(short, fs::read(&path).expect("it is there"));
                }
            }
        }
        fs::remove_dir_all(&directory).expect("the directory is ours");
        files
    }

    /// The blob that a descriptor names; checks the descriptor's size and digest.
    pub(crate) fn blob<'f>(files: &'f BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'f [u8] {
        let name = descriptor["digest"].as_str().expect("a digest");
        let blob = &files[&format!("blobs/{}", name.replace(':', "/"))];
        assert_eq!((descriptor["size"].as_u64(), name), (Some(blob.len() as u64), digest(blob).as_str()));
        blob
    }

    #[test]
    fn the_image_index_leads_to_the_binary() {
        let binary = vec![7; 1_234];
        let files = unpacked(&of(&name(), &binary, "amd64"), "layout");
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        assert_eq!(json(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
        let index = json(&files["index.json"]);
        let entry = &index["manifests"][0];
        let values =
            fs::read_to_string(crate::deploy::directory().join("chart/values.yaml")).expect("it is in the tree");
        assert!(values.contains(&format!("repository: {NAME}\n  tag: {VERSION}\n")), "the chart names this image");
        assert_eq!(entry["annotations"]["io.containerd.image.name"], format!("docker.io/library/{NAME}:{VERSION}"));
        let manifest = json(blob(&files, entry));
        let configuration = json(blob(&files, &manifest["config"]));
        let layer = blob(&files, &manifest["layers"][0]);
        assert_eq!(configuration["rootfs"]["diff_ids"][0], digest(layer));
        assert_eq!(configuration["config"]["Entrypoint"][0], "/weir");
        assert_eq!(unpacked(layer, "layer"), [("weir".to_owned(), binary)].into());
    }

    #[test]
    fn the_same_binary_gives_the_same_bytes() {
        assert_eq!(of("w:1", b"weir", "amd64"), of("w:1", b"weir", "amd64"));
        assert_ne!(of("w:1", b"weir", "amd64"), of("w:1", b"weir", "arm64"));
    }
}
