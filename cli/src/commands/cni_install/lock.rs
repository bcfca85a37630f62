//! The lock on the directory of CNI configurations.
//!
//! Problem: `cni-install --keep` adds the entry of `weir-cni` again after it was removed. An uninstall removes it, and
//! a process that still runs in an agent's pod must not add it after that: then no new pod would start. Two processes
//! with different settings must not replace each other's entry either.
//! Strategy: an exclusive lock on the directory itself, by the same system call as the lock on the agent's pins
//! (`runtime-bpf/src/sys/place.rs`). `--keep` holds it while it runs; an uninstall, and a single install or removal,
//! take it for their duration. The kernel releases it when the process ends, also by a crash. Containers that mount the
//! directory see the same lock, and it leaves no file on the node.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::FlockOperation;

use crate::failure::caused;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    directory: File,
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
    let file = match File::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("cannot open {}", directory.display()))?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(DirectoryLock { directory: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let hint = "end that process first: it would undo the change; in a cluster, delete or change the agents";
            let what = format!("weir-cni cannot be added or removed in {}", directory.display());
            Err(caused(DirectoryIsLocked.into(), what, hint))
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", directory.display())),
    }
}

impl DirectoryLock {
    /// Whether the path still leads to the directory that is locked.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        let same =
            |locked: std::fs::Metadata, now: std::fs::Metadata| (locked.dev(), locked.ino()) == (now.dev(), now.ino());
        self.directory.metadata().is_ok_and(|locked| std::fs::metadata(path).is_ok_and(|now| same(locked, now)))
    }
}
