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
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::known_interfaces::KnownInterfaces;
use super::netlink::{HostInterface, NetlinkSocket};

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
    Ok(NetworkNamespace { interfaces: plain(socket.interfaces()?), addresses: socket.addresses()? })
}

/// The interfaces of this thread's namespace.
pub fn interfaces_here() -> io::Result<Vec<NamespaceInterface>> {
    Ok(plain(NetlinkSocket::open()?.interfaces()?))
}

/// The interfaces of a namespace, of which only those are asked for again that have changed. There are several searches
/// for the interface of each pod that comes, and each begins with this list.
#[derive(Debug, Default)]
pub struct InterfaceList(Option<OpenList>);

/// The list, and the connection to ask for it.
#[derive(Debug)]
struct OpenList {
    netlink: NetlinkSocket,
    known: KnownInterfaces,
}

impl InterfaceList {
    /// A veth's other end can get another number without a message. A search that uses this number calls
    /// [`Self::read_again`].
    const MOST_AGE: Duration = Duration::from_secs(10);

    /// The present interfaces of the namespace in which this thread was at the first call. The number of a veth's other
    /// end may be out of date.
    pub fn read(&mut self) -> io::Result<Vec<NamespaceInterface>> {
        let OpenList { netlink, known } = self.open()?;
        Ok(plain(known.read(netlink)?))
    }

    /// The same, listed now.
    pub fn read_again(&mut self) -> io::Result<Vec<NamespaceInterface>> {
        let OpenList { netlink, known } = self.open()?;
        Ok(plain(known.read_again(netlink)?))
    }

    fn open(&mut self) -> io::Result<&mut OpenList> {
        Ok(match &mut self.0 {
            Some(list) => list,
            none => {
                none.insert(OpenList { netlink: NetlinkSocket::open()?, known: KnownInterfaces::here(Self::MOST_AGE)? })
            }
        })
    }
}

fn plain(interfaces: Vec<HostInterface>) -> Vec<NamespaceInterface> {
    let plain =
        |it: HostInterface| NamespaceInterface { ifindex: it.ifindex, name: it.name, kind: it.kind, peer: it.link };
    interfaces.into_iter().map(plain).collect()
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
