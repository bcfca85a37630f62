//! Notifications from the kernel about interfaces and tc in this network namespace, and about files in a directory.
//!
//! Strategy: a netlink socket for links, qdiscs and filters, and an inotify descriptor. A wait ends with the first
//! message of either. Of the messages, only the interfaces that they name are read.
//! Invariant: lost messages end a wait too, and then all interfaces count as changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::netlink::{TO_INTERFACE, interface_of};
use super::wait_readable;

/// Number of messages that one wait reads at most.
const MOST_MESSAGES: usize = 4_096;
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_TC) as u32;
/// Files that are made, removed or closed after writing; and the removal of the directory itself.
const CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// Opens a socket in this thread's network namespace that gets rtnetlink's messages of these groups.
pub(super) fn subscribe(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let netlink = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&netlink, &SocketAddrNetlink::new(0, groups))?;
    Ok(netlink)
}

/// The interfaces that have changed, or whose tc qdiscs or filters have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedInterfaces {
    /// Any of them may have changed: messages were lost, or one names no interface.
    Any,
    /// The numbers of those that messages name.
    These(BTreeSet<u32>),
}

impl ChangedInterfaces {
    /// No interface has changed.
    pub const NONE: Self = Self::These(BTreeSet::new());

    /// Adds changes.
    pub fn add(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::These(known), Self::These(more)) => known.extend(more),
            (known, _) => *known = Self::Any,
        }
    }
}

/// Waits for changes.
#[derive(Debug)]
pub struct Notifier {
    netlink: OwnedFd,
    inotify: File,
    directory: PathBuf,
    /// The directory that is watched, and the number of that watch.
    watched: Option<(PathBuf, i32)>,
}

impl Notifier {
    /// Opens the notifier in this thread's network namespace. The directory may be created later.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let netlink = subscribe(GROUPS)?;
        let inotify = File::from(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        let mut notifier = Self { netlink, inotify, directory: directory.to_owned(), watched: None };
        notifier.watch_directory();
        Ok(notifier)
    }

    /// Watches the directory or, if it does not exist, its closest ancestor. Returns whether the watch is new: earlier
    /// changes of that directory sent no notification.
    fn watch_directory(&mut self) -> bool {
        for directory in self.directory.ancestors() {
            if let Ok(watch) = inotify::add_watch(&self.inotify, directory, CHANGES) {
                let now = Some((directory.to_owned(), watch));
                return std::mem::replace(&mut self.watched, now.clone()) != now;
            }
        }
        false
    }

    /// Waits until something changes: interfaces, or files alone. Returns `None` if nothing changes within that time.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<Option<ChangedInterfaces>> {
        if self.watch_directory() {
            return Ok(Some(ChangedInterfaces::NONE));
        }
        let changed = wait_readable([self.netlink.as_fd(), self.inotify.as_fd()], at_most)?;
        Ok(changed.then(|| self.drain()))
    }

    /// Reads the messages, but not endlessly: the next wait reads the rest. The read that returns an overrun
    /// (`ENOBUFS`) also clears it.
    fn drain(&mut self) -> ChangedInterfaces {
        let mut room = [0_u8; 1 << 13];
        while self.inotify.read(&mut room).is_ok_and(|length| length > 0) {}
        let mut changed = ChangedInterfaces::NONE;
        for _ in 0..MOST_MESSAGES {
            let mut start = [0; TO_INTERFACE];
            let interface = match retry_on_intr(|| rustix::net::recv(&self.netlink, &mut start, RecvFlags::empty())) {
                Ok((length, _)) => interface_of(&start[..length]),
                Err(Errno::WOULDBLOCK) => return changed,
                Err(Errno::NOBUFS) => None,
                // The next wait returns this error again, or more messages.
                Err(_) => return ChangedInterfaces::Any,
            };
            changed.add(interface.map_or(ChangedInterfaces::Any, |it| ChangedInterfaces::These([it].into())));
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_created_later_is_watched() {
        let root = std::env::temp_dir().join(format!("weir-notify-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).expect("a directory");
        let directory = root.join("cni/results");
        let mut notifier = Notifier::open(&directory).expect("no privilege is needed");
        let mut heard = |what: &str| {
            // Interfaces of this host may change at the same time, which is no error.
            assert_ne!(notifier.wait(Duration::from_secs(30)).expect("it can be waited for"), None, "{what}");
        };
        std::fs::create_dir(root.join("cni")).expect("a directory");
        heard("its parent");
        std::fs::create_dir(&directory).expect("a directory");
        heard("the directory");
        std::fs::write(directory.join("a"), "{}").expect("a file");
        heard("a file");
        std::fs::remove_dir_all(&root).expect("it is ours");
        heard("its end");
    }
}
