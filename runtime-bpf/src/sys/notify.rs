//! Notifications from the kernel about interfaces and tc in this network namespace, and about files in a directory.
//!
//! Strategy: a netlink socket for links, qdiscs and filters, and an inotify descriptor. A wait ends with the first
//! message of either. The content of the messages is dropped, because the caller checks everything anyway.
//! Invariant: lost messages end a wait too.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::call_socket;

/// `RTMGRP_LINK`, `RTMGRP_TC`
const GROUPS: u32 = 0x1 | 0x8;
/// Files that are made, removed or closed after writing; and the removal of the directory itself.
const CHANGES: u32 = libc::IN_CLOSE_WRITE
    | libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_TO
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF;

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
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let socket = call_socket(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let netlink = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: the structure has only numbers, so all bits zero is a valid value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = GROUPS;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: an address of this length, alive during the call.
        call_socket(unsafe { libc::bind(netlink.as_raw_fd(), (&raw const address).cast(), length) })?;
        // SAFETY: no pointers.
        let inotify = call_socket(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let inotify = unsafe { File::from_raw_fd(inotify) };
        let mut notifier = Self { netlink, inotify, directory: directory.to_owned(), watched: None };
        notifier.watch_directory();
        Ok(notifier)
    }

    /// Watches the directory or, if it does not exist, its closest ancestor. Returns whether the watch is new: earlier
    /// changes of that directory sent no notification.
    fn watch_directory(&mut self) -> bool {
        for directory in self.directory.ancestors() {
            let Ok(path) = std::ffi::CString::new(directory.as_os_str().as_bytes()) else { return false };
            // SAFETY: an open descriptor and a terminated path, both alive during the call.
            let watch = unsafe { libc::inotify_add_watch(self.inotify.as_raw_fd(), path.as_ptr(), CHANGES) };
            if watch >= 0 {
                let now = Some((directory.to_owned(), watch));
                return std::mem::replace(&mut self.watched, now.clone()) != now;
            }
        }
        false
    }

    /// Waits until something changes. Returns `false` if nothing changes within that time.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<bool> {
        if self.watch_directory() {
            return Ok(true);
        }
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [poll(self.netlink.as_raw_fd()), poll(self.inotify.as_raw_fd())];
        let milliseconds = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: two structures, alive during the call.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
        match ready {
            ..0 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
            0 => Ok(false),
            _ => {
                self.drain();
                Ok(true)
            }
        }
    }

    /// Reads and drops all messages. The read that returns an overrun (`ENOBUFS`) also clears it.
    fn drain(&mut self) {
        let mut room = [0_u8; 1 << 13];
        while self.inotify.read(&mut room).is_ok_and(|length| length > 0) {}
        loop {
            // SAFETY: a buffer of this length, alive during the call.
            let length = unsafe { libc::recv(self.netlink.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
            if length <= 0 {
                return;
            }
        }
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
            assert!(notifier.wait(Duration::from_secs(30)).expect("it can be waited for"), "{what}");
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
