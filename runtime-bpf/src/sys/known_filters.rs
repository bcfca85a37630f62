//! Filters of interfaces that are asked for again only after a message about their interface.
//!
//! Problem: an agent asks for the filters of every pod whose programs are on clsact at each change and several times a
//! second, and each list takes several system calls. Strategy: a socket in the kernel's groups for interfaces and tc.
//! The kernel sends a message after each change, before the call that makes the change returns. So a list that was read
//! while no message about its interface was waiting is right until such a message comes.
//! Invariants: the socket is opened before the first question, and emptied before each one. A message that names no
//! single interface, or a lost one, makes all lists out of date. No list is older than the limit that the caller gives:
//! before Linux 6.15 (commit 369609fc6272), the kernel sends no message about a filter that is longer than a page.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;

use super::netlink::{Filter, TO_INTERFACE, interface_of};
use super::notify::subscribe;
use super::objects::Hook;

/// The lists, by interface and hook.
#[derive(Debug)]
pub(crate) struct KnownFilters {
    changes: OwnedFd,
    most_age: Duration,
    lists: BTreeMap<(u32, Hook), (Instant, Vec<Filter>)>,
}

impl KnownFilters {
    /// For this thread's network namespace.
    pub(crate) fn here(most_age: Duration) -> io::Result<Self> {
        let changes = subscribe((libc::RTMGRP_LINK | libc::RTMGRP_TC) as u32)?;
        Ok(Self { changes, most_age, lists: BTreeMap::new() })
    }

    /// The last list if it is still right, otherwise a new one.
    pub(crate) fn read(
        &mut self,
        ifindex: u32,
        hook: Hook,
        ask: impl FnOnce() -> io::Result<Vec<Filter>>,
    ) -> io::Result<Vec<Filter>> {
        self.take_messages()?;
        if let Some((at, list)) = self.lists.get(&(ifindex, hook))
            && at.elapsed() < self.most_age
        {
            return Ok(list.clone());
        }
        self.lists.remove(&(ifindex, hook));
        let at = Instant::now();
        let list = ask()?;
        self.lists.insert((ifindex, hook), (at, list.clone()));
        Ok(list)
    }

    /// Forgets the lists that the waiting messages make out of date.
    fn take_messages(&mut self) -> io::Result<()> {
        loop {
            let mut start = [0; TO_INTERFACE];
            match retry_on_intr(|| rustix::net::recv(&self.changes, &mut start, RecvFlags::empty())) {
                Ok((length, _)) => self.forget(interface_of(&start[..length])),
                // Messages were lost.
                Err(Errno::NOBUFS) => self.forget(None),
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => {
                    // A message may be lost with it.
                    self.lists.clear();
                    return Err(error.into());
                }
            }
        }
    }

    /// Makes all lists out of date.
    pub(crate) fn clear(&mut self) {
        self.lists.clear();
    }

    fn forget(&mut self, interface: Option<u32>) {
        match interface {
            Some(interface) => {
                [Hook::Ingress, Hook::Egress].iter().for_each(|hook| _ = self.lists.remove(&(interface, *hook)))
            }
            None => self.lists.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_list_is_asked_for_again() {
        let mut filters = KnownFilters::here(Duration::from_secs(3600)).expect("no privilege is needed");
        // An interface that does not exist, so that no message names it.
        let asked = |filters: &mut KnownFilters| {
            let mut is_asked = false;
            let ask = || {
                is_asked = true;
                Ok(Vec::new())
            };
            filters.read(u32::MAX >> 1, Hook::Ingress, ask).expect("the socket can be read");
            is_asked
        };
        assert!(asked(&mut filters));
        filters.clear();
        assert!(asked(&mut filters));
    }
}
