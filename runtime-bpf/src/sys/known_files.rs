//! Lists of directories that are read again only after a message about the directory.
//!
//! Problem: an agent looks at the pins of all pods before and after each change, and several times a second without
//! one. To list the 220 links of a full node takes the kernel longer than any other part of a look. Strategy: an
//! inotify watch on each directory. The kernel queues a message after each change, before the call that makes the
//! change returns. So a list that was read while no message about its directory was waiting is right until such a
//! message comes.
//! Invariants: a directory is watched before it is listed, and messages are taken before a list counts. The watch is on
//! the directory itself, so before each use it is checked that the path still leads to it: another file system can be
//! mounted there. A lost message makes all lists out of date. No list is older than the limit that the caller gives.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::system::ListedFiles;

/// Files that come, leave, or get other names.
const CHANGES: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);
/// Room for some hundred messages.
const ROOM: usize = 1 << 13;

/// The lists, by the path of the directory.
#[derive(Debug)]
pub(crate) struct KnownFiles {
    messages: OwnedFd,
    most_age: Duration,
    lists: BTreeMap<PathBuf, KnownList>,
}

#[derive(Debug)]
struct KnownList {
    directory: DirectoryId,
    watch: i32,
    at: Instant,
    files: ListedFiles,
}

/// A directory's device and number.
type DirectoryId = (u64, u64);

fn id(directory: &Path) -> io::Result<DirectoryId> {
    std::fs::metadata(directory).map(|it| (it.dev(), it.ino()))
}

impl KnownFiles {
    pub(crate) fn new(most_age: Duration) -> io::Result<Self> {
        let messages = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { messages, most_age, lists: BTreeMap::new() })
    }

    /// The last list if it is still right, otherwise a new one.
    pub(crate) fn read(
        &mut self,
        directory: &Path,
        list: impl FnOnce() -> io::Result<ListedFiles>,
    ) -> io::Result<ListedFiles> {
        self.take_messages()?;
        if let Some(known) = self.lists.get(directory)
            && known.at.elapsed() < self.most_age
            && id(directory).is_ok_and(|it| it == known.directory)
        {
            return Ok(known.files.clone());
        }
        self.lists.remove(directory);
        let at = Instant::now();
        // If it cannot be watched or does not exist, it is listed each time.
        let Ok((before, watch)) = id(directory).and_then(|it| Ok((it, self.watch(directory)?))) else { return list() };
        let files = list()?;
        // The same directory before and after the watch: otherwise the watch may be on another one.
        if id(directory).is_ok_and(|it| it == before) {
            let known = KnownList { directory: before, watch, at, files: files.clone() };
            self.lists.insert(directory.to_owned(), known);
        }
        Ok(files)
    }

    fn watch(&self, directory: &Path) -> io::Result<i32> {
        Ok(inotify::add_watch(&self.messages, directory, CHANGES)?)
    }

    /// Forgets the lists that the waiting messages make out of date.
    fn take_messages(&mut self) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut messages = Reader::new(&self.messages, &mut room);
        loop {
            match messages.next() {
                // Messages were lost. They have no watch.
                Ok(message) if message.events().contains(ReadFlags::QUEUE_OVERFLOW) => self.lists.clear(),
                Ok(message) => {
                    let watch = message.wd();
                    self.lists.retain(|_, known| known.watch != watch);
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => {
                    // A message may be lost with it.
                    self.lists.clear();
                    return Err(error.into());
                }
            }
        }
    }
}
