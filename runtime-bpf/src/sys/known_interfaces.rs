//! Interfaces of a network namespace, of which those are asked for again that may have changed.
//!
//! Problem: a pod that comes or leaves causes several messages about its interface, and after each the agent looks at
//! the interfaces. The list of 100 pods' interfaces takes the kernel about a millisecond. Strategy: a socket in the
//! kernel's group for interfaces. The kernel sends a message after each change, before the call that makes the change
//! returns. The interfaces that messages name are asked for one by one. So are those whose other end a message names,
//! and the other ends of new ones: when a veth's other end comes from another namespace or leaves for one, the message
//! names that end alone. Of a message, only its type and its interface are used: the one about a new veth can lack its
//! other end.
//! Invariants: the socket is opened before the first question, and emptied before each one and after the last one. The
//! whole list is asked for again after a lost message, after an error, after a message about an interface that was
//! never in the list and does not exist any more, and after some time. The last of these limits how long a change can
//! go unnoticed: no message here says that a veth's other end moves from one other namespace to the next, or that the
//! lower device of another interface gets another number.
//!
//! All of this relies on the kernel's lock for interfaces: an answer is from before a change or from after it, and the
//! messages of a change are there once its lock is released. So an answer can be newer than the last message that was
//! read: an interface that ends sends several, and after the first one, the answer is that it is missing. The last one
//! then names an interface that was in the list just before, and no message has said that one with this number is
//! there again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;

use super::errno;
use super::netlink::{HostInterface, NetlinkSocket, TO_INTERFACE, interface_of, is_there};
use super::notify::subscribe;

/// Beyond this, a new list costs less than single questions.
const MOST_QUESTIONS: usize = 24;
/// Number of times that single interfaces are asked for while others change.
const ROUNDS: usize = 3;

/// The interfaces by their numbers. A copy costs nothing. Until a message comes or the list is too old, all reads
/// return copies of one list. After a change, the next list shares the interfaces that have not changed.
pub(crate) type InterfacesByNumber = Arc<BTreeMap<u32, Arc<HostInterface>>>;

/// The interfaces, and the socket on which the kernel reports their changes.
#[derive(Debug)]
pub(crate) struct KnownInterfaces {
    most_age: Duration,
    changes: OwnedFd,
    last: Option<KnownList>,
}

#[derive(Debug)]
struct KnownList {
    /// When the whole list was asked for.
    at: Instant,
    interfaces: InterfacesByNumber,
    /// Numbers that messages have named since the interfaces were asked for.
    changed: BTreeSet<u32>,
    /// Numbers of interfaces that have ended or left. The last message about them may still come.
    ended: BTreeSet<u32>,
}

impl KnownInterfaces {
    /// For this thread's network namespace.
    pub(crate) fn here(most_age: Duration) -> io::Result<Self> {
        Ok(Self { most_age, changes: subscribe(libc::RTMGRP_LINK as u32)?, last: None })
    }

    /// The present interfaces. The connection must be in the same namespace.
    pub(crate) fn read(&mut self, netlink: &NetlinkSocket) -> io::Result<InterfacesByNumber> {
        for round in 0..=ROUNDS {
            // Also after the questions: answers from before and after another change are no state of this host.
            self.take_messages()?;
            let Some(list) = self.last.take().filter(|list| list.at.elapsed() < self.most_age) else { break };
            if list.changed.is_empty() {
                let interfaces = Arc::clone(&list.interfaces);
                self.last = Some(list);
                return Ok(interfaces);
            }
            if round < ROUNDS {
                self.last = list.renewed(netlink)?;
            }
        }
        self.ask(netlink)
    }

    /// The same, asked for now.
    pub(crate) fn read_again(&mut self, netlink: &NetlinkSocket) -> io::Result<InterfacesByNumber> {
        self.take_messages()?;
        self.ask(netlink)
    }

    fn ask(&mut self, netlink: &NetlinkSocket) -> io::Result<InterfacesByNumber> {
        self.last = None;
        let at = Instant::now();
        let all = by_number(netlink.interfaces()?);
        let interfaces = Arc::clone(&all);
        self.last = Some(KnownList { at, interfaces, changed: BTreeSet::new(), ended: BTreeSet::new() });
        Ok(all)
    }

    /// Notes the interfaces that the waiting messages name.
    fn take_messages(&mut self) -> io::Result<()> {
        loop {
            let mut start = [0; TO_INTERFACE];
            let interface = match retry_on_intr(|| rustix::net::recv(&self.changes, &mut start, RecvFlags::empty())) {
                Ok((length, _)) => interface_of(&start[..length]),
                // Messages were lost.
                Err(Errno::NOBUFS) => None,
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => {
                    // A message may be lost with it.
                    self.last = None;
                    return Err(error.into());
                }
            };
            match (interface, &mut self.last) {
                (Some(interface), Some(list)) => {
                    if is_there(&start) {
                        list.ended.remove(&interface);
                    }
                    list.changed.insert(interface);
                }
                (_, last) => *last = None,
            }
        }
    }
}

pub(crate) fn by_number(interfaces: Vec<HostInterface>) -> InterfacesByNumber {
    Arc::new(interfaces.into_iter().map(|it| (it.ifindex, Arc::new(it))).collect())
}

impl KnownList {
    /// The list with the present state of the interfaces that have changed; `None` if they are too many, or if it is
    /// not known which ones have.
    fn renewed(mut self, netlink: &NetlinkSocket) -> io::Result<Option<Self>> {
        let changed = std::mem::take(&mut self.changed);
        let is_end = |it: &&Arc<HostInterface>| it.link.is_some_and(|end| changed.contains(&end));
        let others = self.interfaces.values().filter(is_end).map(|it| it.ifindex);
        let mut questions: BTreeSet<u32> = changed.iter().copied().chain(others).collect();
        let mut asked = BTreeSet::new();
        while let Some(ifindex) = questions.pop_first() {
            if asked.len() == MOST_QUESTIONS {
                return Ok(None);
            }
            asked.insert(ifindex);
            match netlink.interface_numbered(ifindex) {
                Ok(found) => {
                    // A number in another namespace may be one of an interface here. Then this asks in vain.
                    let is_new = self.interfaces.get(&ifindex).is_none_or(|known| **known != found);
                    let end = found.link.filter(|end| is_new && self.interfaces.contains_key(end));
                    questions.extend(end.filter(|end| !asked.contains(end)));
                    if is_new {
                        Arc::make_mut(&mut self.interfaces).insert(ifindex, Arc::new(found));
                    }
                }
                Err(error) if errno(&error) == Some(libc::ENODEV) => {
                    if self.interfaces.contains_key(&ifindex) {
                        Arc::make_mut(&mut self.interfaces).remove(&ifindex);
                        self.ended.insert(ifindex);
                    } else if !self.ended.contains(&ifindex) {
                        // It was the other end of one here for a moment, and may have got this number meanwhile.
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(self))
    }
}
