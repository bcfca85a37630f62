//! Checks of the HTML report that need more than a browser: axe-core finds no accessibility problem, and the pictures in
//! docs/images are made again.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xtask::image::target;
use xtask::process::run;

use crate::ci;

/// The version of axe-core, a package of npm.
const VERSION: &str = "4.14.1";

/// The largest size of a picture in the repository.
const MOST_BYTES: u64 = 150_000;

pub(crate) fn check() -> Result<()> {
    let axe = install()?;
    ci::report_tests(&[("WEIR_AXE", axe.display().to_string())])?;
    shrink(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images"))
}

/// Reduces the colours of the pictures, so that they need little room in the repository.
fn shrink(images: &Path) -> Result<()> {
    for entry in fs::read_dir(images).with_context(|| format!("cannot read {}", images.display()))? {
        let picture = entry?.path();
        if picture.extension() != Some(OsStr::new("png")) {
            continue;
        }
        run(Command::new("pngquant")
            .args(["--force", "--strip", "--speed", "1", "--output"])
            .arg(&picture)
            .args(["64", "--"])
            .arg(&picture))?;
        let bytes = fs::metadata(&picture)?.len();
        ensure!(bytes < MOST_BYTES, "{} has {bytes} bytes", picture.display());
    }
    Ok(())
}

/// Unpacks axe-core below target, unless an earlier run has done it.
fn install() -> Result<PathBuf> {
    let directory = target().join("axe-core").join(VERSION);
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let directory = directory.canonicalize()?;
    let script = directory.join("package/axe.min.js");
    if !script.exists() {
        run(Command::new("npm").args(["pack", "--silent", &format!("axe-core@{VERSION}")]).current_dir(&directory))?;
        run(Command::new("tar").args(["-xzf", &format!("axe-core-{VERSION}.tgz")]).current_dir(&directory))?;
    }
    Ok(script)
}
