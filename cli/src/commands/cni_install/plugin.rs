//! The binary `weir-cni` in the container runtime's plug-in directory: a copy of this program.
//!
//! Strategy: the contents are compared once. After that, the copy counts as unchanged while its inode, size and times
//! are the same, so a look at it costs one system call.

use std::fs::{self, File, Metadata};
use std::io::{self, BufRead as _, BufReader, Read, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::chain;
use crate::cni;

const MODE: u32 = 0o755;
const BUFFER: usize = 1 << 16;

pub(super) struct Plugin {
    /// This program. It stays open: the file may be replaced while the program runs.
    program: File,
    target: PathBuf,
    /// The copy that has the same contents.
    known: Option<FileIdentity>,
}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    fn of(it: &Metadata) -> Self {
        Self {
            inode: (it.dev(), it.ino()),
            size: it.size(),
            modified: (it.mtime(), it.mtime_nsec()),
            changed: (it.ctime(), it.ctime_nsec()),
        }
    }
}

impl Plugin {
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find this binary")?;
        let program = File::open(&this).with_context(|| format!("cannot read {}", this.display()))?;
        Ok(Self { program, target: directory.join(cni::NAME), known: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.target
    }

    /// The directory that has it.
    pub(super) fn directory(&self) -> &Path {
        self.target.parent().unwrap_or(Path::new("."))
    }

    /// Whether the copy is there, complete, and can be executed.
    pub(super) fn is_installed(&mut self) -> Result<bool> {
        let is_same = self.has_same_contents();
        is_same.with_context(|| format!("cannot compare {} with this program", self.target.display()))
    }

    fn has_same_contents(&mut self) -> io::Result<bool> {
        let found = match fs::symlink_metadata(&self.target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        let identity = FileIdentity::of(&found);
        if self.known == Some(identity) {
            return Ok(true);
        }
        self.known = None;
        if !found.is_file() || found.mode() & 0o7777 != MODE || found.size() != self.program.metadata()?.size() {
            return Ok(false);
        }
        self.program.rewind()?;
        if has_same_bytes(&self.program, &File::open(&self.target)?)? {
            self.known = Some(identity);
        }
        Ok(self.known.is_some())
    }

    pub(super) fn install(&mut self) -> Result<()> {
        self.program.rewind().context("cannot read this program")?;
        chain::write(&self.target, &self.program, MODE)
    }
}

fn has_same_bytes(one: impl Read, other: impl Read) -> io::Result<bool> {
    let (mut one, mut other) = (BufReader::with_capacity(BUFFER, one), BufReader::with_capacity(BUFFER, other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 || left[..length] != right[..length] {
            return Ok(left.is_empty() && right.is_empty());
        }
        one.consume(length);
        other.consume(length);
    }
}

/// Removes the plug-in, and a copy of it that was not finished.
pub(crate) fn remove(directory: &Path) -> Result<()> {
    for path in chain::files(directory)?.iter().filter(|path| chain::is_unfinished(path, cni::NAME)) {
        chain::remove_file(path)?;
    }
    chain::remove_file(&directory.join(cni::NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_compared_to_the_end() {
        let long = vec![7; BUFFER + 1];
        let mut other = long.clone();
        assert!(has_same_bytes(&long[..], &long[..]).expect("memory"));
        // The readers return parts of different lengths.
        assert!(has_same_bytes(long[..9].chain(&long[9..]), &long[..]).expect("memory"));
        assert!(!has_same_bytes(&long[..], &long[..BUFFER]).expect("memory"));
        assert!(!has_same_bytes(&long[..BUFFER], &long[..]).expect("memory"));
        other[BUFFER] = 8;
        assert!(!has_same_bytes(&long[..], &other[..]).expect("memory"));
    }
}
