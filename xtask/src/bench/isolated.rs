//! Runs benchmarks in a mount namespace of their own. Their bpf file systems and names of network namespaces disappear
//! with it, even after a crash.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use xtask::process::run;

/// Runs this program again, with other arguments, in a mount namespace of its own.
pub(super) fn isolated(arguments: &[&str]) -> Result<()> {
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe()?);
    run(inside.args(arguments))
}

/// The directory of the release build.
pub(super) fn release() -> Result<PathBuf> {
    xtask::image::target().join("release").canonicalize().context("cannot find the release build")
}

/// A directory for files, with a bpf file system in `bpf`, and network namespaces whose names are visible only in this
/// mount namespace. The contents disappear with the mount namespace; dropping it removes the empty directory.
pub(super) struct BenchDirectory {
    path: PathBuf,
}

impl BenchDirectory {
    pub(super) fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        let it = Self { path };
        let mount = |kind: &str, at: &Path| {
            std::fs::create_dir_all(at)?;
            run(Command::new("mount").args(["-t", kind, "weir"]).arg(at))
        };
        mount("tmpfs", &it.path)?;
        mount("bpf", &it.path.join("bpf"))?;
        mount("tmpfs", Path::new("/run/netns"))?;
        Ok(it)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BenchDirectory {
    fn drop(&mut self) {
        // Unmounting removes the contents.
        _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.path).status();
        _ = std::fs::remove_dir(&self.path);
    }
}
