//! Lists interfaces and addresses of a network namespace: this thread's, or another one that a thread enters for this.
//!
//! Problem: CNI plug-ins have no common way to record which host interface leads to a pod. But a veth names its other
//! end: inside a pod, `IFLA_LINK` of `eth0` is the number of the host's interface. Strategy: two lists of
//! [`NetlinkSocket`], as plain data.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::netlink::NetlinkSocket;
use super::notify::subscribe;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceInterface {
    /// Its number.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// `veth`, `bridge`, `macvlan` …; empty for hardware and `lo`.
    pub kind: String,
    /// The number of the interface below this one. For a veth this is the other end, which may be in another namespace.
    pub peer: Option<u32>,
}

/// The interfaces and addresses of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkNamespace {
    /// Its interfaces.
    pub interfaces: Vec<NamespaceInterface>,
    /// Their addresses, by the interface's number.
    pub addresses: Vec<(u32, IpAddr)>,
}

/// This thread's namespace.
pub fn here() -> io::Result<NetworkNamespace> {
    let socket = NetlinkSocket::open()?;
    Ok(NetworkNamespace { interfaces: listed(&socket)?, addresses: socket.addresses()? })
}

/// The interfaces of this thread's namespace.
pub fn interfaces_here() -> io::Result<Vec<NamespaceInterface>> {
    listed(&NetlinkSocket::open()?)
}

/// The interfaces of a namespace, which are listed again only after a change.
///
/// Problem: each search for a pod's interface begins with this list. There are several searches for each pod that comes,
/// and the kernel needs about a millisecond for 100 interfaces. Strategy: a socket in the kernel's group for links. A
/// change puts its message there before the call that makes it returns. So while the socket is empty, the last list
/// is the present state.
/// Invariants: the socket is opened before the first list is read, and emptied before each one. A lost message counts as
/// a change. No list is older than [`MOST_AGE`], because a veth's other end can get another number without a message.
#[derive(Debug, Default)]
pub struct InterfaceList {
    changes: Option<OwnedFd>,
    last: Option<(Instant, Vec<NamespaceInterface>)>,
}

/// A list is read again after this time, also without a change.
const MOST_AGE: Duration = Duration::from_secs(1);

impl InterfaceList {
    /// The present interfaces of this thread's namespace, which must be the same in each call.
    pub fn read(&mut self) -> io::Result<Vec<NamespaceInterface>> {
        let has_changed = self.has_changed()?;
        match &self.last {
            Some((at, interfaces)) if !has_changed && at.elapsed() < MOST_AGE => Ok(interfaces.clone()),
            _ => self.list(),
        }
    }

    /// The same, listed now.
    pub fn read_again(&mut self) -> io::Result<Vec<NamespaceInterface>> {
        self.has_changed()?;
        self.list()
    }

    fn list(&mut self) -> io::Result<Vec<NamespaceInterface>> {
        self.last = None;
        let at = Instant::now();
        let interfaces = interfaces_here()?;
        self.last = Some((at, interfaces.clone()));
        Ok(interfaces)
    }

    /// Whether there was a change since the last call. Empties the socket.
    fn has_changed(&mut self) -> io::Result<bool> {
        let Some(changes) = &self.changes else {
            self.changes = Some(subscribe(libc::RTMGRP_LINK as u32)?);
            return Ok(true);
        };
        let mut has_changed = false;
        loop {
            match retry_on_intr(|| rustix::net::recv(changes, &mut [0_u8; 1], RecvFlags::empty())) {
                Ok(_) => has_changed = true,
                Err(Errno::WOULDBLOCK) => return Ok(has_changed),
                // Messages were lost.
                Err(Errno::NOBUFS) => has_changed = true,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn listed(socket: &NetlinkSocket) -> io::Result<Vec<NamespaceInterface>> {
    let interfaces = socket.interfaces()?.into_iter();
    let interfaces =
        interfaces.map(|it| NamespaceInterface { ifindex: it.ifindex, name: it.name, kind: it.kind, peer: it.link });
    Ok(interfaces.collect())
}

/// The addresses of the other end of this thread's veth with this name. Fails if there is no such veth.
pub fn behind(name: &str) -> io::Result<Vec<IpAddr>> {
    let socket = NetlinkSocket::open()?;
    let interface = socket.interface_named(name)?;
    socket.addresses_behind(&interface)
}

/// The namespace that is mounted at a path (`/run/netns/…`) or that `/proc/…/ns/net` names.
pub fn inside(path: &Path) -> io::Result<NetworkNamespace> {
    let namespace = File::open(path)?;
    let enter_and_ask = || {
        // Only this thread changes its namespace, and it ends after the question.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        here()
    };
    let answer = std::thread::scope(|scope| scope.spawn(enter_and_ask).join());
    answer.unwrap_or_else(|_| Err(io::Error::other("the thread that asked has panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_with_its_address() {
        let namespace = here().expect("interfaces can be listed without privilege");
        let lo = namespace.interfaces.iter().find(|it| it.name == "lo").expect("there is always lo");
        assert_eq!((lo.ifindex, lo.kind.as_str(), lo.peer), (1, "", None));
        assert!(namespace.addresses.contains(&(1, IpAddr::from([127, 0, 0, 1]))), "{:?}", namespace.addresses);
    }
}
