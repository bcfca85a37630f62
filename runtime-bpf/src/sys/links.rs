//! Lists interfaces and addresses of a network namespace: this thread's, or another one that a thread enters for this.
//!
//! Problem: CNI plug-ins have no common way to record which host interface leads to a pod. But a veth names its other
//! end: inside a pod, `IFLA_LINK` of `eth0` is the number of the host's interface. Strategy: two lists of
//! [`NetlinkSocket`], as plain data.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::netlink::NetlinkSocket;

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
    let interfaces = socket.interfaces()?.into_iter();
    let interfaces =
        interfaces.map(|it| NamespaceInterface { ifindex: it.ifindex, name: it.name, kind: it.kind, peer: it.link });
    Ok(NetworkNamespace { interfaces: interfaces.collect(), addresses: socket.addresses()? })
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
