//! Checks of the files that `cargo xtask dist` has made.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xtask::image::triple;

use super::Checks;

/// Checks every file whose kind has a checker.
pub(super) fn check(checks: &mut Checks, directory: &Path) -> Result<()> {
    checks.run(Command::new("env").arg("--chdir").arg(directory).args([
        "sha256sum",
        "--check",
        "--strict",
        "SHA256SUMS",
    ]));
    let mut names = fs::read_dir(directory)?.map(|it| Ok(it?.file_name().into_string())).collect::<Result<Vec<_>>>()?;
    names.sort();
    let mut checked = 0;
    for name in names {
        let name = name.ok().context("a name is not UTF-8")?;
        let file = directory.join(&name);
        checked += 1;
        match name.as_str() {
            it if it.ends_with(".deb") => {
                checks.run(Command::new("dpkg-deb").arg("--info").arg(&file));
                checks.run(Command::new("dpkg-deb").arg("--contents").arg(&file));
            }
            it if it.ends_with(".cdx.json") => checks.tool("cdx-ev", &[OsStr::new("validate"), file.as_os_str()]),
            it if it.ends_with("-image.tar") => image(checks, &file)?,
            it if it.ends_with(".krew.yaml") => krew(checks, &file)?,
            it if it.ends_with(&format!("-{}.tar.gz", triple())) => archive(checks, &file)?,
            _ => checked -= 1,
        }
    }
    ensure!(checked > 3, "{} has only {checked} files that can be checked", directory.display());
    Ok(())
}

/// Copies the image to another layout: oras follows every reference and compares all digests.
fn image(checks: &mut Checks, file: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let version = name.trim_start_matches("weir-").trim_end_matches("-image.tar");
    let copy = checks.tools.directory.join("image");
    _ = fs::remove_dir_all(&copy);
    let (from, to) = (format!("{}:{version}", file.display()), format!("{}:{version}", copy.display()));
    checks.tool("oras", &["cp", "--no-tty", "--from-oci-layout", &from, "--to-oci-layout", &to]);
    checks.tool("oras", &["manifest", "fetch", "--pretty", "--oci-layout", &to]);
    Ok(())
}

/// krew requires that the file has the plug-in's name. Without an installation, which would download the archive.
fn krew(checks: &mut Checks, file: &Path) -> Result<()> {
    let named = checks.tools.directory.join("weir.yaml");
    fs::copy(file, &named).with_context(|| format!("cannot copy {}", file.display()))?;
    checks.tool("validate-krew-manifest", &[OsStr::new("-skip-install"), OsStr::new("-manifest"), named.as_os_str()]);
    Ok(())
}

/// Unpacks the archive for this machine and runs the program.
fn archive(checks: &mut Checks, file: &Path) -> Result<()> {
    let directory = checks.tools.directory.join("archive");
    _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    checks.run(Command::new("tar").arg("-xzf").arg(file).arg("-C").arg(&directory).arg("--strip-components=1"));
    checks.run(Command::new(directory.join("weir")).args(["version", "-o", "json"]));
    checks.run(Command::new(directory.join("weir")).args(["check", "policies/examples"]));
    Ok(())
}
