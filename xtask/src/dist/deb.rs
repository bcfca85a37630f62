//! The Debian package: an `ar` file with two compressed tar files, for control data and for the contents.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::ReleaseFacts;
use super::archive::gzip;
use super::build::Platform;
use super::payload::Payload;
use crate::image::Tar;
use crate::process::filter;

/// The project has no address for mail yet; `.invalid` is reserved for addresses that cannot exist.
const MAINTAINER: &str = "Weir maintainers <maintainers@weir.invalid>";

const DESCRIPTION: &str = "\
network-policy compiler for Kubernetes, with eBPF enforcement
 Checks, queries, explains and compares Kubernetes NetworkPolicy objects and
 lists of addresses, and compiles them to verified eBPF programs. On nodes it
 enforces them on the interfaces of pods.";

/// What lintian reports and is intended.
const OVERRIDES: &str = "\
# One file for every distribution and for images without a libc.
weir: statically-linked-binary [usr/bin/weir]
";

/// A file of the package.
struct PackageFile {
    path: String,
    contents: Vec<u8>,
    mode: u32,
}

pub(super) fn name(facts: &ReleaseFacts, platform: &Platform) -> String {
    format!("weir_{}_{}.deb", version(facts), platform.architecture)
}

/// Debian sorts `1.0~rc.1` before `1.0`; a hyphen would separate the revision of the packaging.
fn version(facts: &ReleaseFacts) -> String {
    facts.version.replace('-', "~")
}

/// The package's bytes.
pub(super) fn package(
    facts: &ReleaseFacts,
    platform: &Platform,
    binary: &[u8],
    payload: &Payload,
    licences: &str,
) -> Result<Vec<u8>> {
    let files = contents(facts, binary, payload, licences)?;
    let size: usize = files.iter().map(|it| it.contents.len().div_ceil(1_024)).sum();
    let mut control = Tar::dated(facts.epoch);
    control.file("./control", control_file(facts, platform, size).as_bytes(), 0o644);
    control.file("./md5sums", md5sums(&files)?.as_bytes(), 0o644);
    let mut archive = b"!<arch>\n".to_vec();
    add(&mut archive, facts, "debian-binary", b"2.0\n");
    add(&mut archive, facts, "control.tar.gz", &gzip(&control.end())?);
    add(&mut archive, facts, "data.tar.gz", &gzip(&data(facts, &files))?);
    Ok(archive)
}

fn control_file(facts: &ReleaseFacts, platform: &Platform, kibibytes: usize) -> String {
    format!(
        "Package: weir\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kibibytes}\n\
         Section: net\nPriority: optional\nHomepage: {}\nDescription: {DESCRIPTION}\n",
        version(facts),
        platform.architecture,
        facts.repository,
    )
}

fn contents(facts: &ReleaseFacts, binary: &[u8], payload: &Payload, licences: &str) -> Result<Vec<PackageFile>> {
    let file = |path: &str, contents: &[u8]| PackageFile { path: path.into(), contents: contents.into(), mode: 0o644 };
    let document = |name: &str| {
        let found = payload.documents.iter().find(|(it, _)| *it == name);
        found.map(|it| it.1.as_slice()).with_context(|| format!("there is no {name}"))
    };
    let mut files = vec![
        PackageFile { mode: 0o755, ..file("usr/bin/weir", binary) },
        file("usr/lib/systemd/system/weir.service", &payload.unit),
        file("usr/share/bash-completion/completions/weir", payload.completion("weir.bash")?),
        file("usr/share/doc/weir/changelog.gz", &gzip(changelog(facts).as_bytes())?),
        file("usr/share/doc/weir/NEWS.gz", &gzip(document("CHANGELOG.md")?)?),
        file("usr/share/doc/weir/README.md", document("README.md")?),
        file("usr/share/doc/weir/copyright", copyright(facts, licences).as_bytes()),
        file("usr/share/fish/vendor_completions.d/weir.fish", payload.completion("weir.fish")?),
        file("usr/share/lintian/overrides/weir", OVERRIDES.as_bytes()),
        file("usr/share/zsh/vendor-completions/_weir", payload.completion("_weir")?),
    ];
    for (name, text) in &payload.man {
        files.push(file(&format!("usr/share/man/man1/{name}.gz"), &gzip(text)?));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn changelog(facts: &ReleaseFacts) -> String {
    format!(
        "weir ({}) unstable; urgency=medium\n\n  * Release {}; its changes are in NEWS.gz.\n\n -- {MAINTAINER}  {}\n",
        version(facts),
        facts.version,
        facts.mail_time(),
    )
}

fn copyright(facts: &ReleaseFacts, licences: &str) -> String {
    format!(
        "Weir is licensed under the Apache License, Version 2.0; on Debian systems its text is in\n\
         /usr/share/common-licenses/Apache-2.0. The sources: {}\n\nCopyright: the authors of Weir\n\n{licences}",
        facts.repository
    )
}

fn md5sums(files: &[PackageFile]) -> Result<String> {
    let mut text = String::new();
    for file in files {
        let printed = filter(&mut Command::new("md5sum"), &file.contents)?;
        let printed = String::from_utf8(printed).context("the output of md5sum")?;
        let sum = printed.split_whitespace().next().context("md5sum printed nothing")?;
        text += &format!("{sum}  {}\n", file.path);
    }
    Ok(text)
}

fn data(facts: &ReleaseFacts, files: &[PackageFile]) -> Vec<u8> {
    let mut tar = Tar::dated(facts.epoch);
    let mut known = BTreeSet::new();
    tar.directory(".");
    for file in files {
        for (end, _) in file.path.match_indices('/') {
            let directory = &file.path[..end];
            if known.insert(directory) {
                tar.directory(&format!("./{directory}"));
            }
        }
        tar.file(&format!("./{}", file.path), &file.contents, file.mode);
        if file.path == "usr/bin/weir" {
            tar.link("./usr/bin/kubectl-weir", "weir");
        }
    }
    tar.end()
}

/// Adds a member to an `ar` file: a header of 60 bytes, and the contents, padded to an even length.
fn add(archive: &mut Vec<u8>, facts: &ReleaseFacts, name: &str, contents: &[u8]) {
    let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", facts.epoch, 0, 0, "100644", contents.len());
    archive.extend(header.as_bytes());
    archive.extend(contents);
    archive.resize(archive.len().next_multiple_of(2), b'\n');
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::super::payload::tests::payload;
    use super::*;

    const PLATFORM: Platform = Platform { triple: "x", architecture: "amd64" };

    fn packed() -> Vec<u8> {
        package(&facts(), &PLATFORM, b"program", &payload(), "their licences").expect("packed")
    }

    /// What `ar` and `tar` read, which are not our writers.
    fn listed(member: &str, list: &[&str]) -> String {
        let directory = std::env::temp_dir().join(format!("weir-deb-{}-{member}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("temporary directories can be made");
        std::fs::write(directory.join("it.deb"), packed()).expect("the directory is ours");
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).current_dir(&directory).output().expect("it starts");
            assert!(output.status.success(), "{program}: {output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        run("ar", &["x", "it.deb"]);
        assert_eq!(run("cat", &["debian-binary"]), "2.0\n");
        let printed = run("tar", &[list, &["--file", member]].concat());
        std::fs::remove_dir_all(&directory).expect("the directory is ours");
        printed
    }

    #[test]
    fn package_contains_the_program_and_its_files() {
        let files = listed("data.tar.gz", &["--list", "--verbose", "--gzip", "--utc"]);
        let line = |name: &str| files.lines().find(|it| it.contains(name)).unwrap_or_else(|| panic!("{name}: {files}"));
        let program = line("./usr/bin/weir");
        assert!(program.starts_with("-rwxr-xr-x") && program.contains("2000-02-29"), "{program}");
        assert!(line("kubectl-weir").ends_with("./usr/bin/kubectl-weir -> weir"));
        for name in
            ["systemd/system/weir.service", "man1/weir-check.1.gz", "vendor-completions/_weir", "doc/weir/copyright"]
        {
            assert!(line(name).starts_with("-rw-r--r--"), "{name}");
        }
    }

    #[test]
    fn control_file_has_the_fields_that_dpkg_requires() {
        let control = listed("control.tar.gz", &["--extract", "--to-stdout", "--gzip"]);
        for field in ["Package: weir\n", "Version: 1.2.3\n", "Architecture: amd64\n", "Maintainer: ", "Description: "] {
            assert!(control.contains(field), "{field}: {control}");
        }
        // The sum of "program", from md5sum.
        assert!(control.contains("a9c449d4fa44e9e5a41c574ae55ce4d9  usr/bin/weir\n"), "{control}");
    }

    #[test]
    fn a_candidate_sorts_before_its_release() {
        let candidate = ReleaseFacts { version: "1.2.3-rc.1".into(), ..facts() };
        assert_eq!(name(&candidate, &PLATFORM), "weir_1.2.3~rc.1_amd64.deb");
    }

    #[test]
    fn the_same_files_give_the_same_package() {
        assert_eq!(packed(), packed());
    }
}
