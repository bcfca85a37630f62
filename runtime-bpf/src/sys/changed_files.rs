//! The names of a directory's files that have changed since the last question.
//!
//! Problem: the agent reads the results of all pods' CNI plug-ins after each change of the host. To ask for the state
//! of each file takes longer than to read the few that have changed. Strategy: an inotify watch on the directory. If a
//! file is changed through this directory, the kernel queues a message before the call that makes the change returns.
//! Invariants: the watch is there before the caller reads anything, and each question asks for it again: if the path
//! leads to another directory now, that one gets another watch, and any file may have changed. Lost messages mean the
//! same. Other changes send no message: through a mapping of the file, through another name of it in another directory,
//! of the file to which a symbolic link leads, by a mount over the file, and on another host that shares the directory.
//! So the caller also looks at all files at times.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Whatever can change a file's content, its times, or which file has the name.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);
/// Room for about a hundred messages; more are read in several steps.
const ROOM: usize = 1 << 13;
/// Number of changes after which a look at all files costs less.
const MOST_NAMES: usize = 256;

/// The files that may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChanges {
    /// Any of them.
    Any,
    /// Those with these names. A file with one of them may exist or not.
    These(BTreeSet<String>),
}

/// The watch, and the messages that wait.
#[derive(Debug)]
pub struct ChangedFiles {
    messages: OwnedFd,
    watch: Option<i32>,
}

/// For callers that wait: the descriptor is readable while messages are queued, and [`ChangedFiles::take`] takes all of
/// them.
impl AsFd for ChangedFiles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.messages.as_fd()
    }
}

impl ChangedFiles {
    /// Fails if this user has too many of them open.
    pub fn new() -> io::Result<Self> {
        Ok(Self { messages: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?, watch: None })
    }

    /// The files of this directory that may have changed since the last call: any of them at the first call, and while
    /// the directory does not exist.
    pub fn take(&mut self, directory: &Path) -> FileChanges {
        let watch = inotify::add_watch(&self.messages, directory, CHANGES).ok();
        let is_same = watch.is_some() && watch == self.watch;
        if let Some(before) = self.watch.filter(|_| !is_same) {
            // An error means that the directory is gone, and the watch with it.
            _ = inotify::remove_watch(&self.messages, before);
        }
        self.watch = watch;
        let messages = self.take_messages();
        if is_same { messages } else { FileChanges::Any }
    }

    fn take_messages(&mut self) -> FileChanges {
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut messages = Reader::new(&self.messages, &mut room);
        let mut names = BTreeSet::new();
        let mut is_known = true;
        loop {
            match messages.next() {
                Ok(message) if Some(message.wd()) == self.watch => {
                    let name = message.file_name().and_then(|it| it.to_str().ok());
                    match name.filter(|_| names.len() < MOST_NAMES) {
                        Some(name) => _ = names.insert(name.to_owned()),
                        // About the directory itself, or with a name that is not UTF-8.
                        None => is_known = false,
                    }
                    if message.events().contains(ReadFlags::IGNORED) {
                        self.watch = None;
                    }
                }
                Ok(message) => is_known &= !message.events().contains(ReadFlags::QUEUE_OVERFLOW),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if is_known => return FileChanges::These(names),
                Err(_) => return FileChanges::Any,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::path::PathBuf;

    use super::*;
    use weir_testing::files::Directory;

    /// A directory with the directory that is watched.
    fn with_results(test: &str) -> (Directory, PathBuf) {
        let directory = Directory::new(&format!("changed-{test}"));
        let results = directory.0.join("results");
        fs::create_dir(&results).expect("a directory");
        (directory, results)
    }

    /// A change, which gets a file that is open.
    type Change<'c> = &'c dyn Fn(&mut fs::File) -> io::Result<()>;

    fn these(names: &[&str]) -> FileChanges {
        FileChanges::These(names.iter().map(|it| (*it).to_owned()).collect())
    }

    #[test]
    fn each_change_of_a_file_is_named_once() {
        let (_directory, results) = with_results("each");
        let file = |name| results.join(name);
        fs::write(file("old"), "1").expect("a file");
        let mut open = fs::File::options().append(true).open(file("old")).expect("it is there");
        let mut changed = ChangedFiles::new().expect("no privilege is needed");
        assert_eq!(changed.take(&results), FileChanges::Any, "the first time");
        assert_eq!(changed.take(&results), these(&[]));
        let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        let changes: [(Change<'_>, &[&str]); 6] = [
            (&|open| open.write_all(b"2"), &["old"]),
            (&|open| open.set_times(times), &["old"]),
            (&|_| fs::write(file("new"), "1"), &["new"]),
            (&|_| fs::rename(file("new"), file("old")), &["new", "old"]),
            (&|_| fs::hard_link(file("old"), file("two")), &["old", "two"]),
            (&|_| fs::remove_file(file("two")), &["two"]),
        ];
        for (at, (change, names)) in changes.into_iter().enumerate() {
            change(&mut open).expect("it can be changed");
            let named = changed.take(&results);
            assert!(named == these(names) || (at == 4 && named == these(&["two"])), "{at}: {named:?}");
            assert_eq!(changed.take(&results), these(&[]), "{at}");
        }
    }

    #[test]
    fn any_file_may_have_changed_in_another_directory_and_after_lost_messages() {
        let (directory, results) = with_results("other");
        let mut changed = ChangedFiles::new().expect("no privilege is needed");
        let settles = |changed: &mut ChangedFiles| {
            assert_eq!(changed.take(&results), FileChanges::Any);
            assert_eq!(changed.take(&results), these(&[]));
            fs::write(results.join("a"), "1").expect("a file");
            assert_eq!(changed.take(&results), these(&["a"]));
        };
        settles(&mut changed);
        fs::rename(&results, directory.0.join("elsewhere")).expect("it is ours");
        assert_eq!(changed.take(&results), FileChanges::Any, "there is none");
        assert_eq!(changed.take(&results), FileChanges::Any, "there is still none");
        fs::create_dir(&results).expect("a directory");
        settles(&mut changed);
        fs::write(directory.0.join("elsewhere/b"), "1").expect("a file");
        assert_eq!(changed.take(&results), these(&[]), "a file of the earlier directory");
        fs::remove_dir_all(&results).expect("it is ours");
        fs::create_dir(&results).expect("a directory");
        settles(&mut changed);
        (0..=MOST_NAMES).for_each(|it| fs::write(results.join(it.to_string()), "1").expect("a file"));
        settles(&mut changed);
        let most: u32 = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        for at in 0..most {
            // The kernel combines equal messages that follow each other.
            fs::write(results.join((at % 2).to_string()), "1").expect("a file");
        }
        settles(&mut changed);
    }
}
