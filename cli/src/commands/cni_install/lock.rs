//! The lock on the directory of CNI configurations.
//!
//! Problem: `cni-install --keep` adds the entry of `weir-cni` again after it was removed. An uninstall removes it, and
//! a process that still runs in an agent's pod must not add it after that: then no new pod would start. Two processes
//! with different settings must not replace each other's entry either.
//! Strategy: an exclusive lock on a file in the directory, by the same system call as the lock on the agent's pins
//! (`runtime-bpf/src/sys/place.rs`). `--keep` holds it while it runs; an uninstall, and a single install or removal,
//! take it for their duration. The kernel releases it when the process ends, also by a crash. Containers that mount the
//! directory see the same lock. Only root can open the file: the directory itself can be opened, and thus locked, by
//! every process of the host. A removal also removes the file.
//! Invariant: the lock counts only while the path leads to the locked file. A process that waited for a file that was
//! removed meanwhile opens the new one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::FlockOperation;

use super::chain::remove_file;
use crate::failure::caused;

/// The file's name. Container runtimes do not read files with this name.
const NAME: &str = ".weir-cni.lock";
/// How often the file is opened again if another process removes it at the same time.
const MOST_TRIES: usize = 10;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
    path: PathBuf,
}

/// Another process holds the lock.
#[derive(Debug)]
pub(crate) struct DirectoryIsLocked;

impl fmt::Display for DirectoryIsLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another process, such as `weir cni-install --keep`, holds the lock on this directory")
    }
}

impl std::error::Error for DirectoryIsLocked {}

/// Takes the lock; `None` if there is no such directory. Fails with [`DirectoryIsLocked`] instead of waiting.
pub(crate) fn lock(directory: &Path) -> Result<Option<DirectoryLock>> {
    let path = directory.join(NAME);
    for _ in 0..MOST_TRIES {
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("cannot open {}", path.display()))?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let hint =
                    "end that process first: it would undo the change; in a cluster, delete or change the agents";
                let what = format!("weir-cni cannot be added or removed in {}", directory.display());
                return Err(caused(DirectoryIsLocked.into(), what, hint));
            }
            Err(error) => return Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
        let lock = DirectoryLock { file, path: path.clone() };
        if lock.is_of(directory) {
            return Ok(Some(lock));
        }
    }
    anyhow::bail!("cannot lock {}: another process removes it again and again", path.display())
}

/// The same for a removal, which needs no lock where nothing can be written: then there is nothing to remove, or removing
/// it fails with an error of its own.
pub(crate) fn lock_for_removal(directory: &Path) -> Result<Option<DirectoryLock>> {
    let is_read_only = |error: &io::Error| error.kind() == io::ErrorKind::ReadOnlyFilesystem;
    match lock(directory) {
        Err(error) if error.downcast_ref().is_some_and(is_read_only) => Ok(None),
        other => other,
    }
}

/// Opens or creates the file. A symbolic link in its place is an error.
fn open(path: &Path) -> io::Result<File> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(no_follow).open(path)
}

impl DirectoryLock {
    /// Whether the path still leads to the file that is locked.
    pub(super) fn is_of(&self, directory: &Path) -> bool {
        let inode = |it: std::fs::Metadata| (it.dev(), it.ino());
        let now = std::fs::symlink_metadata(directory.join(NAME)).map(inode).ok();
        now.is_some() && self.file.metadata().map(inode).ok() == now
    }

    /// Removes the file and releases the lock.
    pub(super) fn remove(self) -> Result<()> {
        remove_file(&self.path)
    }
}

/// Releases a lock after work, and returns the work's result. An error of the work comes first.
pub(crate) fn release<T>(held: Option<DirectoryLock>, done: Result<T>) -> Result<T> {
    let removed = held.map_or(Ok(()), DirectoryLock::remove);
    done.and_then(|value| removed.map(|()| value))
}

#[cfg(test)]
mod tests {
    use weir_testing::files::Directory;

    use super::*;

    #[test]
    fn lock_is_private_and_exclusive_and_leaves_no_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = Directory::new("cni-lock");
        let held = lock(&directory.0).expect("it is ours").expect("the directory exists");
        let mode = std::fs::metadata(directory.0.join(NAME)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(lock(&directory.0).expect_err("it is held").is::<DirectoryIsLocked>());
        // A file that replaces the locked one has a lock of its own.
        std::fs::remove_file(directory.0.join(NAME)).expect("it is there");
        assert!(!held.is_of(&directory.0));
        let next = lock(&directory.0).expect("it is ours").expect("the directory exists");
        next.remove().expect("it is ours");
        assert_eq!(std::fs::read_dir(&directory.0).expect("it is there").count(), 0);
        assert!(lock(&directory.0.join("none")).expect("it is no error").is_none());
    }

    #[test]
    fn planted_link_is_not_followed() {
        let directory = Directory::new("cni-lock-link");
        let target = directory.0.join("target");
        std::os::unix::fs::symlink(&target, directory.0.join(NAME)).expect("the directory is ours");
        assert!(lock(&directory.0).is_err());
        assert!(!target.exists());
    }
}
