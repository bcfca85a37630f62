//! Whether a file has changed since it was read.
//!
//! Invariant: a file that was written shortly before it was read is read again at the next comparison. Until the clock
//! of the file system advances, another write may leave the same times.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

/// Clocks of file systems advance at least this often.
pub(super) const CLOCK_STEP: Duration = Duration::from_secs(2);

/// Each change of a file changes this, because nothing but the kernel sets the last of the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether the file was changed so recently that another change could leave the same stamp.
    pub(super) fn is_young(&self, now: SystemTime) -> bool {
        let last = self.changed.0.max(self.modified.0);
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_secs().saturating_sub(CLOCK_STEP.as_secs()) <= u64::try_from(last).unwrap_or(0)
    }
}
