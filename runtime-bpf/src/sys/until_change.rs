//! Answers of rtnetlink that are asked for again only after a change.
//!
//! Problem: an agent needs the addresses of this host at each switch, and they change rarely. Strategy: a socket in the
//! kernel's groups for such changes. A change puts its message there before the call that makes it returns. So while
//! the socket is empty, the last answer is the present state. The exception is a new IPv6 address: the kernel sends its
//! message from a work queue when the search for duplicates begins or, with `nodad`, would begin. An answer can lack
//! the address until then, which takes milliseconds.
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
    most_age: Duration,
    changes: OwnedFd,
    last: Option<(Instant, T)>,
}

impl<T: Clone> UntilChange<T> {
    /// For this thread's network namespace. Messages of these groups make an answer out of date, and so does its age.
    pub(crate) fn here(groups: u32, most_age: Duration) -> io::Result<Self> {
        Ok(Self { most_age, changes: subscribe(groups)?, last: None })
    }

    /// The last answer if it is still right, otherwise a new one.
    pub(crate) fn read(&mut self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.take_messages()?;
        if let Some((at, answer)) = &self.last
            && at.elapsed() < self.most_age
        {
            return Ok(answer.clone());
        }
        self.last = None;
        let at = Instant::now();
        let answer = ask()?;
        self.last = Some((at, answer.clone()));
        Ok(answer)
    }

    /// Empties the socket. Forgets the answer if there was a message.
    fn take_messages(&mut self) -> io::Result<()> {
        loop {
            match retry_on_intr(|| rustix::net::recv(&self.changes, &mut [0_u8; 1], RecvFlags::empty())) {
                // `NOBUFS`: messages were lost.
                Ok(_) | Err(Errno::NOBUFS) => self.last = None,
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => {
                    // A message may be lost with it.
                    self.last = None;
                    return Err(error.into());
                }
            }
        }
    }
}
