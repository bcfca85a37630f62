//! Makes the files of a release: static binaries in tar files and Debian packages, an image for several architectures,
//! lists of the crates inside, and checksums.
//!
//! Problem: a user cannot check a binary that cannot be built again. Strategy: no file depends on the directory, the
//! user, the clock or the order of a directory listing. Times are those of the last commit (`SOURCE_DATE_EPOCH`).
//! Invariant: the same commit gives the same bytes with the same Rust, C compiler and libc. `--again` builds everything
//! a second time, from a copy of the commit in another directory, and compares the checksums.

mod archive;
mod build;
mod deb;
mod facts;
mod krew;
mod notices;
mod oci;
mod payload;
mod sbom;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::image::{digest, target};
use crate::process::{capture, run};
use build::{Platform, Tree};
pub use facts::ReleaseFacts;
pub use krew::{TEMPLATE as KREW_TEMPLATE, render as render_krew};
use payload::Payload;
pub use payload::examples;

/// The most bytes of a binary, and of an image for one architecture as a registry stores it.
const LARGEST_BINARY: usize = 20_000_000;
const LARGEST_IMAGE: usize = 25_000_000;

/// The options of `cargo xtask dist`.
#[derive(Debug, Default)]
struct Options {
    /// The triples to build for; every one whose toolchain is there if it is empty.
    triples: Vec<String>,
    again: bool,
    tag: Option<String>,
}

/// The files of a release by their names.
type Files = BTreeMap<String, Vec<u8>>;

/// The directory of the release's files. `target/dist` is cargo's, for the profile of this name.
pub fn directory() -> PathBuf {
    target().join("release-files")
}

/// `cargo xtask dist`
pub fn task(arguments: impl Iterator<Item = String>) -> Result<()> {
    let options = options(arguments)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let facts = ReleaseFacts::read(&root)?;
    if let Some(tag) = &options.tag {
        facts.check_tag(&root, tag)?;
    }
    let platforms = build::platforms(&options.triples)?;
    let tree = Tree { root: root.clone(), target: target() };
    let files = release(&tree, &facts, &platforms)?;
    write(&directory(), &files)?;
    if options.again {
        again(&root, &facts, &platforms, &files)?;
    }
    Ok(())
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--target" => options.triples.push(value()?),
            "--tag" => options.tag = Some(value()?),
            "--again" => options.again = true,
            other => bail!("unknown option {other}: there are --target TRIPLE, --again and --tag TAG"),
        }
    }
    Ok(options)
}

/// Builds the binaries and packs everything.
fn release(tree: &Tree, facts: &ReleaseFacts, platforms: &[Platform]) -> Result<Files> {
    let mut binaries = Vec::new();
    for platform in platforms {
        let binary = build::binary(tree, facts, platform)?;
        ensure!(binary.len() < LARGEST_BINARY, "the binary for {} has {} bytes", platform.triple, binary.len());
        binaries.push((platform, binary));
    }
    let own = build::native_binary(tree);
    let payload = Payload::read(tree, &own)?;
    let (mut files, mut parts) = (Files::new(), Vec::new());
    for (platform, binary) in &binaries {
        let graph = sbom::Graph::read(&tree.root, platform.triple)?;
        let licences = notices::text(&graph)?;
        let base = format!("weir-{}-{}", facts.version, platform.triple);
        files.insert(format!("{base}.tar.gz"), archive::tarball(facts, &base, binary, &payload, &licences)?);
        files.insert(format!("{base}.cdx.json"), sbom::document(facts, platform.triple, binary, &graph)?);
        files.insert(deb::name(facts, platform), deb::package(facts, platform, binary, &payload, &licences)?);
        parts.push(oci::part(facts, platform, binary, &licences)?);
    }
    files.insert(format!("weir-{}-image.tar", facts.version), oci::image(facts, parts)?);
    files.insert(format!("weir-{}.buildinfo", facts.version), build::information(facts, platforms)?.into_bytes());
    match krew::manifest(&tree.root, facts, &files)? {
        Some(manifest) => _ = files.insert("weir.krew.yaml".into(), manifest.into_bytes()),
        None => eprintln!("note: no manifest for krew, because it needs every architecture"),
    }
    files.insert("SHA256SUMS".into(), sums(&files).into_bytes());
    Ok(files)
}

/// The checksums as `sha256sum --check` reads them.
fn sums(files: &Files) -> String {
    files.iter().map(|(name, bytes)| format!("{}  {name}\n", sha256(bytes))).collect()
}

/// The digest in hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    digest(bytes).trim_start_matches("sha256:").to_owned()
}

fn write(directory: &Path, files: &Files) -> Result<()> {
    // Files of an earlier version must not be published with these.
    _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for (name, bytes) in files {
        fs::write(directory.join(name), bytes).with_context(|| format!("cannot write {name}"))?;
        println!("{:>9}  {name}", bytes.len());
    }
    Ok(())
}

/// Builds the commit again in another directory, and compares the files.
fn again(root: &Path, facts: &ReleaseFacts, platforms: &[Platform], first: &Files) -> Result<()> {
    let changed = capture(Command::new("git").current_dir(root).args(["status", "--porcelain"]))?;
    ensure!(changed.is_empty(), "commit your changes first: the second build is made from the commit\n{changed}");
    let elsewhere = target().join("dist-again");
    _ = fs::remove_dir_all(&elsewhere);
    let tree = Tree { root: elsewhere.join("another/place"), target: elsewhere.join("build") };
    fs::create_dir_all(&tree.root)?;
    let copy = elsewhere.join("commit.tar");
    run(Command::new("git").current_dir(root).args(["archive", "--output"]).arg(&copy).arg("HEAD"))?;
    run(Command::new("tar").arg("-xf").arg(&copy).arg("-C").arg(&tree.root))?;
    let second = release(&tree, facts, platforms)?;
    write(&elsewhere.join("dist"), &second)?;
    let differing: Vec<&String> =
        first.iter().filter(|(name, it)| second.get(*name) != Some(it)).map(|it| it.0).collect();
    ensure!(differing.is_empty() && first.len() == second.len(), "the second build differs: {differing:?}");
    println!("built twice, the same bytes: sha256 of SHA256SUMS is {}", sha256(&first["SHA256SUMS"]));
    fs::remove_dir_all(&elsewhere).context("cannot remove the second build")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_are_errors() {
        let read = |text: &str| options(text.split_whitespace().map(str::to_owned));
        let found = read("--target a --again --target b --tag v1").expect("options");
        assert_eq!((found.triples, found.again, found.tag), (vec!["a".into(), "b".into()], true, Some("v1".into())));
        assert!(read("--agian").is_err());
        assert!(read("--target").is_err());
    }

    #[test]
    fn sums_are_those_of_sha256sum() {
        let files = Files::from([("b".to_owned(), b"abc".to_vec()), ("a".to_owned(), Vec::new())]);
        assert_eq!(
            sums(&files),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n\
             ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n"
        );
    }
}
