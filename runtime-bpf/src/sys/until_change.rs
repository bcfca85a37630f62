//! Answers of rtnetlink that are asked for again only after a change.
//!
//! Problem: a switch needs the interfaces and addresses of this host, and the kernel takes about a millisecond for the
//! interfaces of 100 pods. Strategy: a socket in the kernel's groups for such changes. A change puts its message there
//! before the call that makes it returns. So while the socket is empty, the last answer is the present state.
//! Invariants: the socket is opened before the first question, and emptied before each one. A lost message counts as a
//! change. No answer is older than the limit that the caller gives.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;

use super::notify::subscribe;

/// An answer, and the socket that shows whether it is out of date.
#[derive(Debug)]
pub(crate) struct UntilChange<T> {
    groups: u32,
    most_age: Duration,
    changes: Option<OwnedFd>,
    last: Option<(Instant, T)>,
}

impl<T: Clone> UntilChange<T> {
    /// Messages of these groups make an answer out of date, and so does its age.
    pub(crate) fn new(groups: u32, most_age: Duration) -> Self {
        Self { groups, most_age, changes: None, last: None }
    }

    /// The same, for this thread's network namespace. Without this, it is that of the first question's thread.
    pub(crate) fn here(self) -> io::Result<Self> {
        Ok(Self { changes: Some(subscribe(self.groups)?), ..self })
    }

    /// The last answer if it is still right, otherwise a new one.
    pub(crate) fn read(&mut self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let has_changed = self.has_changed()?;
        match &self.last {
            Some((at, answer)) if !has_changed && at.elapsed() < self.most_age => Ok(answer.clone()),
            _ => self.ask(ask),
        }
    }

    /// A new answer.
    pub(crate) fn read_again(&mut self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.has_changed()?;
        self.ask(ask)
    }

    fn ask(&mut self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.last = None;
        let at = Instant::now();
        let answer = ask()?;
        self.last = Some((at, answer.clone()));
        Ok(answer)
    }

    /// Whether there was a change since the last call. Empties the socket.
    fn has_changed(&mut self) -> io::Result<bool> {
        let Some(changes) = &self.changes else {
            self.changes = Some(subscribe(self.groups)?);
            return Ok(true);
        };
        let mut has_changed = false;
        loop {
            match retry_on_intr(|| rustix::net::recv(changes, &mut [0_u8; 1], RecvFlags::empty())) {
                // `NOBUFS`: messages were lost.
                Ok(_) | Err(Errno::NOBUFS) => {
                    has_changed = true;
                    // At once: if the next call fails, this message is gone.
                    self.last = None;
                }
                Err(Errno::WOULDBLOCK) => return Ok(has_changed),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
