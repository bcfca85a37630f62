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
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::known_interfaces::{InterfacesByNumber, KnownInterfaces};
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

/// The interfaces of a network namespace at one time. A copy costs nothing, and so does the comparison with one.
#[derive(Clone, Debug, Default)]
pub struct Interfaces(Arc<IndexedInterfaces>);

#[derive(Debug, Default)]
struct IndexedInterfaces {
    by_number: Vec<Arc<NamespaceInterface>>,
    by_name: Vec<Arc<NamespaceInterface>>,
}

impl Interfaces {
    fn new(mut by_number: Vec<Arc<NamespaceInterface>>) -> Self {
        by_number.sort_by_key(|it| it.ifindex);
        let mut by_name = by_number.clone();
        by_name.sort_by(|one, other| one.name.cmp(&other.name));
        Self(Arc::new(IndexedInterfaces { by_number, by_name }))
    }

    /// All interfaces, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &NamespaceInterface> {
        self.0.by_number.iter().map(|it| &**it)
    }

    /// The interface with this name.
    pub fn named(&self, name: &str) -> Option<&NamespaceInterface> {
        let all = &self.0.by_name;
        let at = all.binary_search_by_key(&name, |it| &it.name).ok()?;
        all.get(at).map(|it| &**it)
    }

    /// The interface with this number.
    pub fn numbered(&self, ifindex: u32) -> Option<&NamespaceInterface> {
        self.shared(ifindex).map(|it| &**it)
    }

    fn shared(&self, ifindex: u32) -> Option<&Arc<NamespaceInterface>> {
        let all = &self.0.by_number;
        all.binary_search_by_key(&ifindex, |it| it.ifindex).ok().and_then(|at| all.get(at))
    }
}

impl FromIterator<NamespaceInterface> for Interfaces {
    fn from_iter<I: IntoIterator<Item = NamespaceInterface>>(interfaces: I) -> Self {
        Self::new(interfaces.into_iter().map(Arc::new).collect())
    }
}

impl PartialEq for Interfaces {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.by_number == other.0.by_number
    }
}

impl Eq for Interfaces {}

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
    /// The list that was returned last, after the list of which it is a copy.
    last: Option<(InterfacesByNumber, Interfaces)>,
}

impl InterfaceList {
    /// A veth's other end can get another number without a message. A search that uses this number calls
    /// [`Self::read_again`].
    const MOST_AGE: Duration = Duration::from_secs(10);

    /// The present interfaces of the namespace in which this thread was at the first call. The number of a veth's other
    /// end may be out of date.
    pub fn read(&mut self) -> io::Result<Interfaces> {
        let OpenList { netlink, known, last } = self.open()?;
        Ok(shared(last, known.read(netlink)?))
    }

    /// The same, listed now.
    pub fn read_again(&mut self) -> io::Result<Interfaces> {
        let OpenList { netlink, known, last } = self.open()?;
        Ok(shared(last, known.read_again(netlink)?))
    }

    fn open(&mut self) -> io::Result<&mut OpenList> {
        Ok(match &mut self.0 {
            Some(list) => list,
            none => none.insert(OpenList {
                netlink: NetlinkSocket::open()?,
                known: KnownInterfaces::here(Self::MOST_AGE)?,
                last: None,
            }),
        })
    }
}

/// The plain list of these interfaces. It shares those with the last list that have not changed since then.
fn shared(last: &mut Option<(InterfacesByNumber, Interfaces)>, now: InterfacesByNumber) -> Interfaces {
    let known = last.take();
    let is_same = |it: &&(InterfacesByNumber, Interfaces)| Arc::ptr_eq(&it.0, &now);
    let interfaces = known.as_ref().filter(is_same).map(|(_, interfaces)| interfaces.clone());
    let interfaces = interfaces.unwrap_or_else(|| {
        let (from, plain) = known.unwrap_or_default();
        let share = |it: &Arc<HostInterface>| {
            let is_same = from.get(&it.ifindex).is_some_and(|known| Arc::ptr_eq(known, it));
            let shared = plain.shared(it.ifindex).filter(|_| is_same);
            shared.map_or_else(|| Arc::new(NamespaceInterface::from(HostInterface::clone(it))), Arc::clone)
        };
        Interfaces::new(now.values().map(share).collect())
    });
    *last = Some((now, interfaces.clone()));
    interfaces
}

impl From<HostInterface> for NamespaceInterface {
    fn from(it: HostInterface) -> Self {
        Self { ifindex: it.ifindex, name: it.name, kind: it.kind, peer: it.link }
    }
}

fn plain(interfaces: Vec<HostInterface>) -> Vec<NamespaceInterface> {
    interfaces.into_iter().map(NamespaceInterface::from).collect()
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
