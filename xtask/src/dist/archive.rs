//! The tar file with the binary, completions, man pages, the quick start with its examples, and the licences.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::ReleaseFacts;
use super::payload::Payload;
use crate::image::Tar;
use crate::process::filter;

/// The name of the file with the licences of the crates inside.
pub(super) const NOTICES: &str = "THIRD-PARTY-LICENSES.txt";

/// The tar file; everything is below one directory.
pub(super) fn tarball(
    facts: &ReleaseFacts,
    directory: &str,
    binary: &[u8],
    payload: &Payload,
    licences: &str,
) -> Result<Vec<u8>> {
    let mut tar = Tar::dated(facts.epoch);
    let path = |name: &str| format!("{directory}/{name}");
    tar.directory(directory);
    for (name, text) in &payload.documents {
        tar.file(&path(name), text, 0o644);
    }
    tar.file(&path(NOTICES), licences.as_bytes(), 0o644);
    let inside: BTreeSet<&Path> =
        payload.examples.iter().flat_map(|(name, _)| Path::new(name).ancestors().skip(1)).collect();
    for directory in inside.into_iter().filter(|it| !it.as_os_str().is_empty()) {
        tar.directory(&path(&directory.to_string_lossy()));
    }
    for (name, text) in &payload.examples {
        tar.file(&path(name), text, 0o644);
    }
    tar.directory(&path("completions"));
    for (name, text) in &payload.completions {
        tar.file(&path(&format!("completions/{name}")), text, 0o644);
    }
    tar.directory(&path("man"));
    for (name, text) in &payload.man {
        tar.file(&path(&format!("man/{name}")), text, 0o644);
    }
    tar.file(&path("weir"), binary, 0o755);
    gzip(&tar.end())
}

/// Compresses without a name and a time.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    filter(Command::new("gzip").args(["--no-name", "--best", "--stdout"]).env_remove("GZIP"), bytes)
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::super::payload::tests::payload;
    use super::*;
    use crate::image::tests::unpacked;

    #[test]
    fn tar_contains_everything_below_one_directory() {
        let packed = tarball(&facts(), "weir-1.2.3-x", b"program", &payload(), "their licences").expect("packed");
        let files = unpacked(&packed, "tarball");
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        let expected = ["CHANGELOG.md", "LICENSE", "README.md", NOTICES, "completions/_weir", "completions/_weir.ps1"];
        let expected: Vec<String> = expected.iter().map(|it| format!("weir-1.2.3-x/{it}")).collect();
        assert_eq!(names[..6], expected);
        assert!(names.contains(&"weir-1.2.3-x/man/weir-check.1"));
        assert!(names.contains(&"weir-1.2.3-x/docs/quickstart.md"));
        assert!(names.contains(&"weir-1.2.3-x/policies/examples/01-default-deny.yaml"));
        assert_eq!(files["weir-1.2.3-x/weir"], b"program");
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let packed = || tarball(&facts(), "w", b"program", &payload(), "").expect("packed");
        let first = packed();
        // A file name or a time would be in the header; the time is in bytes 4 to 7.
        assert_eq!(first[..8], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
        assert_eq!(first, packed());
    }
}
