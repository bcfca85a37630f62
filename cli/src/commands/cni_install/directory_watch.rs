//! Waits for changes of a directory's files.
//!
//! Strategy: a thread waits for messages of inotify and wakes the task. The task also looks at intervals, so an error
//! of inotify, or a file system without it, only makes it slower.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use tokio::sync::Notify;
use tokio::time::timeout;
use weir_runtime::sys::{ChangedFiles, FileChanges, wait_readable};

pub(super) struct DirectoryWatch {
    changed: Arc<Notify>,
}

impl DirectoryWatch {
    /// Never reports a change. Waits end with the time alone.
    pub(super) fn without_inotify() -> Self {
        Self { changed: Arc::default() }
    }

    /// From here on, each change ends a wait, at the latest after `longest` if the directory was replaced. The thread
    /// takes messages at most once every `rest`.
    pub(super) fn start(directory: PathBuf, longest: Duration, rest: Duration) -> io::Result<Self> {
        let watch = Self::without_inotify();
        let changed = Arc::clone(&watch.changed);
        let mut files = ChangedFiles::new()?;
        files.take(&directory);
        let follow = move || {
            // An error of the system call would come again at once.
            while wait_readable([files.as_fd()], longest).is_ok() {
                // The messages are taken first: a later one is left for the next wait.
                match files.take(&directory) {
                    FileChanges::These(names) if names.is_empty() => {}
                    FileChanges::These(_) | FileChanges::Any => changed.notify_one(),
                }
                thread::sleep(rest);
            }
        };
        thread::Builder::new().name("cni-changes".to_owned()).spawn(follow)?;
        Ok(watch)
    }

    /// Returns after a change since the last wait, or when the time is over.
    pub(super) async fn wait(&self, longest: Duration) {
        _ = timeout(longest, self.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use weir_testing::files::Directory;

    use super::*;

    /// For a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn change_ends_the_wait() {
        let directory = Directory::new("directory-watch");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let watch = DirectoryWatch::start(directory.0.clone(), LONG, Duration::ZERO).expect("no privilege is needed");
        for name in ["one", "two"] {
            std::fs::write(directory.0.join(name), "").expect("the directory is ours");
            let started = Instant::now();
            runtime.block_on(watch.wait(LONG));
            assert!(started.elapsed() < LONG, "the change of {name} is not reported");
        }
    }
}
