//! A directory for a test, with a bpffs of its own; both are removed on drop.
//!
//! Its name contains the process number, so that the next process can remove the directories of a killed one.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::namespace::Error;
use crate::sys;

const PREFIX: &str = "weir-packets-";

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEPT: Once = Once::new();

/// The directory.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
}

impl Place {
    /// Makes a directory with a bpffs in it.
    pub(crate) fn new() -> Result<Self, Error> {
        SWEPT.call_once(|| remove_stale(&std::env::temp_dir()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        let it = Self { path };
        std::fs::create_dir_all(it.bpffs())?;
        sys::mount_bpffs(&it.bpffs()).map_err(|error| format!("a bpffs cannot be mounted: {error}"))?;
        Ok(it)
    }

    /// The directory for pins.
    pub(crate) fn bpffs(&self) -> PathBuf {
        self.path.join("bpf")
    }

    /// The path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    // Unmounting removes the pins, and with them the objects that only they held.
    let _ = sys::unmount(&path.join("bpf"));
    let _ = std::fs::remove_dir_all(path);
}

/// Removes the directories of dead processes.
fn remove_stale(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|id| id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists()) {
            remove(&entry.path());
        }
    }
}

/// Leaves a directory behind as a crash would, and checks that it is removed.
#[test]
fn leftovers_of_a_killed_process_are_removed() {
    weir_runtime::skip!(unless crate::privilege());
    let here = Place::new().unwrap();
    // No process can have this number: it is above the kernel's limit.
    let left = here.file(&format!("{PREFIX}{}-0", u32::MAX));
    std::fs::create_dir_all(left.join("bpf")).unwrap();
    sys::mount_bpffs(&left.join("bpf")).unwrap();
    let living = here.file(&format!("{PREFIX}{}-0", std::process::id()));
    std::fs::create_dir_all(&living).unwrap();
    remove_stale(&here.path);
    assert!(!left.exists() && living.exists());
}
