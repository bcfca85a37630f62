//! Files of tests.

use std::fs;
use std::path::Path;

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
