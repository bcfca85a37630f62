//! Reads the files of a directory: `*.yaml`, `*.yml` and `*.json` in it, without its subdirectories.
//!
//! Hidden files are left out: editors and tools write their temporary files under such names. Links are followed, since
//! mounted ConfigMaps consist of them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use rustix::fs::OFlags;

use crate::watch::file_stamp::FileStamp;

const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The largest file that is read.
const LARGEST: u64 = 64 << 20;

/// A file's content, if it may differ from the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    Unchanged,
    Bytes(Vec<u8>),
    Unreadable(String),
}

/// The files of a directory by their names.
pub(super) type FileContents = BTreeMap<String, FileContent>;

/// The device and inode of a directory. Another one means that something was mounted over it, or unmounted.
pub(super) type DirectoryId = (u64, u64);

/// The result of one look at the directory.
#[derive(Clone, Debug)]
pub(super) struct DirectoryLook {
    pub(super) directory: DirectoryId,
    pub(super) files: FileContents,
}

/// Reads a directory again and again.
#[derive(Debug)]
pub(super) struct DirectoryReader {
    directory: PathBuf,
    stamps: BTreeMap<String, FileStamp>,
}

impl DirectoryReader {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, stamps: BTreeMap::new() }
    }

    /// The present files. An error is about the directory as a whole.
    pub(super) fn read(&mut self) -> Result<DirectoryLook, String> {
        let error = |error: io::Error| format!("{}: {error}", self.directory.display());
        let metadata = fs::metadata(&self.directory).map_err(error)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(error)? {
            let name = entry.map_err(error)?.file_name().to_string_lossy().into_owned();
            let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
            if !name.starts_with('.') && EXTENSIONS.contains(&extension) {
                names.push(name);
            }
        }
        self.stamps.retain(|name, _| names.contains(name));
        let contents = names.into_iter().map(|name| {
            let content = self.content(&name).unwrap_or_else(|error| {
                self.stamps.remove(&name);
                FileContent::Unreadable(error)
            });
            (name, content)
        });
        Ok(DirectoryLook { directory: (metadata.dev(), metadata.ino()), files: contents.collect() })
    }

    /// Reads a file again at the next look, also if it does not change.
    pub(super) fn read_again(&mut self, name: &str) {
        self.stamps.remove(name);
    }

    fn content(&mut self, name: &str) -> Result<FileContent, String> {
        let path = self.directory.join(name);
        let stamp = stamp_of_file(fs::metadata(&path))?;
        if self.stamps.get(name) == Some(&stamp) {
            return Ok(FileContent::Unchanged);
        }
        let file = open(&path)?;
        let stamp = stamp_of_file(file.metadata())?;
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > LARGEST {
            return Err(format!("it is larger than {} MiB", LARGEST >> 20));
        }
        if stamp.is_young(SystemTime::now()) {
            self.stamps.remove(name);
        } else {
            self.stamps.insert(name.to_owned(), stamp);
        }
        Ok(FileContent::Bytes(bytes))
    }
}

/// Opens a file for reading. The path may have become a pipe, which must not block the thread.
fn open(path: &Path) -> Result<File, String> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())
}

/// The stamp of a regular file.
fn stamp_of_file(metadata: io::Result<fs::Metadata>) -> Result<FileStamp, String> {
    let metadata = metadata.map_err(|error| error.to_string())?;
    if metadata.is_file() { Ok(FileStamp::of(&metadata)) } else { Err("it is not a file".to_owned()) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn pipe_is_unreadable_and_does_not_block() {
        let directory = std::env::temp_dir().join(format!("weir-directory-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let pipe = directory.join("a.yaml");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        let look = DirectoryReader::new(directory.clone()).read();
        // What the reader does if the pipe takes the file's place after the look at its metadata.
        let opened = open(&pipe).and_then(|file| stamp_of_file(file.metadata()));
        fs::remove_dir_all(&directory).expect("removed");
        let error = "it is not a file".to_owned();
        assert_eq!(look.expect("it is a directory").files["a.yaml"], FileContent::Unreadable(error.clone()));
        assert_eq!(opened, Err(error));
    }
}
