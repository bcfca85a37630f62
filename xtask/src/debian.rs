//! Unpacks Debian's packages into a directory: nothing is installed, and no service starts.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::process::run;

/// Downloads packages and unpacks them into a directory, unless they are there already.
pub fn unpack(directory: &Path, packages: &[&str]) -> Result<()> {
    let stamp = directory.join("stamp");
    if fs::read_to_string(&stamp).is_ok_and(|it| it == packages.join(" ")) {
        return Ok(());
    }
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    let files = directory.join("packages");
    fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
    let download = || run(Command::new("apt-get").current_dir(&files).args(["download", "-qq"]).args(packages));
    if download().is_err() {
        // The package lists may be missing, or older than the packages on the servers.
        run(Command::new("apt-get").args(["update", "-qq"]))?;
        download().with_context(|| format!("cannot download Debian's packages {}", packages.join(" ")))?;
    }
    let found = fs::read_dir(&files)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    ensure!(found.len() == packages.len(), "{} does not contain exactly the requested packages", files.display());
    for file in found {
        run(Command::new("dpkg").arg("-x").arg(file).arg(directory))?;
    }
    Ok(fs::write(stamp, packages.join(" "))?)
}
