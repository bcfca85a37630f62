//! Files of tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Removes a file, or a directory of a bpf file system and everything in it. Ignores
/// errors: the agent may remove the same files.
pub fn remove_all(path: &Path) {
    if let Ok(entries) = fs::read_dir(path) {
        entries.flatten().for_each(|entry| remove_all(&entry.path()));
        _ = fs::remove_dir(path);
    } else {
        _ = fs::remove_file(path);
    }
}

/// A directory for files of a test. Dropping it removes it.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    /// A new directory for the test with this name.
    pub fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory for a test");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
