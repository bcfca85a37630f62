//! rtnetlink: interfaces and addresses of this network namespace, and filters on clsact.
//!
//! Only the requests that Weir needs. [`message`] writes and reads the bytes; the structures and numbers are generated
//! from the kernel's headers.

mod message;

use std::io;
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use aya_obj::generated::{
    TC_H_CLSACT, TC_H_MAJ_MASK, TC_H_MIN_EGRESS, TC_H_MIN_INGRESS, TCA_BPF_FD, TCA_BPF_FLAG_ACT_DIRECT, TCA_BPF_FLAGS,
    TCA_BPF_ID, TCA_BPF_NAME, TCA_KIND, TCA_OPTIONS, ifinfomsg, tcmsg,
};
use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, ifaddrmsg};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::objects::Hook;
use super::{KernelProgram, beside, errno};
use message::{NetlinkAnswer, NetlinkRequest, attributes, complete, text, word};

pub(super) use message::{NetlinkError, TO_INTERFACE, interface_of, is_there};

/// Bytes of the longest datagram that is read. The kernel sends lists in datagrams of 32 KiB at most.
const DATAGRAM: usize = 1 << 16;
/// `ETH_P_ALL`, as on the wire.
const ALL_PROTOCOLS: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;
/// `RTEXT_FILTER_SKIP_STATS`
const SKIP_STATS: u32 = 1 << 3;
/// From `linux/if_addr.h`: the namespace to list, by the number that this namespace has for it.
const IFA_TARGET_NETNSID: u16 = 10;
const CLSACT_HANDLE: u32 = TC_H_CLSACT & TC_H_MAJ_MASK;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInterface {
    /// Its number, which a later interface can get too.
    pub ifindex: u32,
    /// Its name, which a later interface can get too.
    pub name: String,
    /// `veth`, `bridge`, `macvlan` …; empty for hardware and `lo`.
    pub kind: String,
    /// Its hardware address.
    pub address: Vec<u8>,
    /// For a veth, the number of the other end; for interfaces of some other kinds, of the lower device.
    pub link: Option<u32>,
    /// The namespace of `link`, by the number that this namespace has for it; `None` if it is this one.
    pub link_namespace: Option<u32>,
}

/// Whether the filter may be a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Creates the filter, or replaces the one with its priority and handle.
    New,
    /// Only creates the filter. `EEXIST` if there is one with its priority and handle.
    Only,
    /// Only replaces the filter with its priority and handle. `ENOENT` if no such filter exists, and `EINVAL` if there is no
    /// qdisc.
    Instead,
}

/// A filter of type bpf on clsact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Smaller runs first.
    pub priority: u16,
    /// Its number among those of the same priority.
    pub handle: u32,
    /// The name that its creator gave it.
    pub name: String,
    /// The program's number; 0 for a filter of another type.
    pub program: u32,
}

/// A connection to rtnetlink.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    /// The number of the last request: answers to an earlier request that was given up are skipped.
    sequence: AtomicU32,
    /// Room for a datagram, empty before the first one.
    room: Mutex<Vec<u8>>,
}

fn link(index: u32, flags: i32) -> NetlinkRequest {
    let mut request = NetlinkRequest::new::<ifinfomsg>(libc::RTM_GETLINK, flags);
    request.set(offset_of!(ifinfomsg, ifi_index), index);
    // The kernel would add up each interface's packet counters over all CPUs.
    request.attribute(libc::IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes());
    request
}

fn tc(kind: u16, flags: i32, ifindex: u32, handle: u32, parent: u32, info: u32) -> NetlinkRequest {
    let mut request = NetlinkRequest::new::<tcmsg>(kind, flags);
    request.set(offset_of!(tcmsg, tcm_ifindex), ifindex);
    request.set(offset_of!(tcmsg, tcm_handle), handle);
    request.set(offset_of!(tcmsg, tcm_parent), parent);
    request.set(offset_of!(tcmsg, tcm_info), info);
    request
}

fn parent(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => CLSACT_HANDLE | TC_H_MIN_INGRESS,
        Hook::Egress => CLSACT_HANDLE | TC_H_MIN_EGRESS,
    }
}

impl NetlinkSocket {
    /// Opens a connection in this thread's network namespace.
    pub fn open() -> io::Result<Self> {
        // Without a protocol, it is `NETLINK_ROUTE`.
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        super::explain_errors(&fd)?;
        Ok(Self { fd, sequence: AtomicU32::new(0), room: Mutex::default() })
    }

    /// Sends a request, and returns the payloads of the answer.
    fn ask(&self, mut request: NetlinkRequest) -> io::Result<Vec<Vec<u8>>> {
        complete(|| self.ask_once(&mut request))
    }

    fn ask_once(&self, request: &mut NetlinkRequest) -> io::Result<NetlinkAnswer> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let (bytes, mut answer) = request.numbered(sequence);
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.resize(DATAGRAM, 0);
        beside::count();
        rustix::net::send(&self.fd, bytes, SendFlags::empty())?;
        loop {
            let (_, length) = retry_on_intr(|| rustix::net::recv(&self.fd, &mut room[..], RecvFlags::TRUNC))?;
            let datagram = room.get(..length);
            let datagram = datagram.ok_or_else(|| io::Error::other("the kernel's netlink datagram is too long"))?;
            if answer.take(datagram)? {
                return Ok(answer);
            }
        }
    }

    /// The interface with this name.
    pub fn interface_named(&self, name: &str) -> io::Result<HostInterface> {
        let mut message = link(0, 0);
        message.text(libc::IFLA_IFNAME, name);
        self.interface(message)
    }

    /// The interface with this number.
    pub fn interface_numbered(&self, ifindex: u32) -> io::Result<HostInterface> {
        self.interface(link(ifindex, 0))
    }

    /// The other end of a veth, in its own network namespace. Fails if the interface is no veth.
    pub fn other_end(&self, interface: &HostInterface) -> io::Result<HostInterface> {
        let Some(index) = interface.link.filter(|_| interface.kind == "veth") else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let mut message = link(index, 0);
        if let Some(namespace) = interface.link_namespace {
            message.attribute(libc::IFLA_TARGET_NETNSID, &namespace.to_ne_bytes());
        }
        self.interface(message)
    }

    /// All interfaces, by number.
    pub fn interfaces(&self) -> io::Result<Vec<HostInterface>> {
        let payloads = self.ask(link(0, NLM_F_DUMP))?;
        let mut interfaces: Vec<_> = payloads.iter().filter_map(|payload| read_interface(payload)).collect();
        interfaces.sort_by_key(|it| it.ifindex);
        Ok(interfaces)
    }

    /// All addresses, with their interfaces' numbers.
    pub fn addresses(&self) -> io::Result<Vec<(u32, IpAddr)>> {
        let payloads = self.ask(NetlinkRequest::new::<ifaddrmsg>(libc::RTM_GETADDR, NLM_F_DUMP))?;
        Ok(payloads.iter().filter_map(|payload| read_address(payload)).collect())
    }

    /// The addresses of a veth's other end, in its own network namespace. Fails if the interface is no veth. No other
    /// request may follow on this connection, because its requests are checked strictly from now on.
    pub fn addresses_behind(&self, interface: &HostInterface) -> io::Result<Vec<IpAddr>> {
        let end = self.other_end(interface)?;
        // Otherwise the kernel ignores the attribute, and lists the addresses of this namespace.
        super::check_strictly(&self.fd)?;
        let mut request = NetlinkRequest::new::<ifaddrmsg>(libc::RTM_GETADDR, NLM_F_DUMP);
        if let Some(namespace) = interface.link_namespace {
            request.attribute(IFA_TARGET_NETNSID, &namespace.to_ne_bytes());
        }
        let all = self.ask(request)?;
        let all = all.iter().filter_map(|payload| read_address(payload));
        Ok(all.filter(|(at, _)| *at == end.ifindex).map(|(_, address)| address).collect())
    }

    fn interface(&self, message: NetlinkRequest) -> io::Result<HostInterface> {
        let payloads = self.ask(message)?;
        let found = payloads.first().and_then(|payload| read_interface(payload));
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// Makes an interface's clsact; it may exist already. Fails if an `ingress` qdisc is in its place: that has one
    /// list of filters, and would put the filters of the egress side into it.
    pub fn add_clsact(&self, ifindex: u32) -> io::Result<()> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let mut message = tc(libc::RTM_NEWQDISC, flags, ifindex, CLSACT_HANDLE, TC_H_CLSACT, 0);
        message.text(TCA_KIND as u16, "clsact");
        match self.ask(message) {
            Err(error) if errno(&error) == Some(libc::EEXIST) => match self.has_clsact(ifindex)? {
                true => Ok(()),
                false => Err(io::Error::other(
                    "the interface has an ingress qdisc where clsact should be; remove it with `tc qdisc del dev … ingress`",
                )),
            },
            other => other.map(|_| ()),
        }
    }

    fn has_clsact(&self, ifindex: u32) -> io::Result<bool> {
        let payloads = self.ask(tc(libc::RTM_GETQDISC, NLM_F_DUMP, ifindex, 0, 0, 0))?;
        // Older kernels report the qdiscs of all interfaces.
        let is_here = |payload: &&Vec<u8>| {
            word(payload, offset_of!(tcmsg, tcm_ifindex)) == Some(ifindex)
                && word(payload, offset_of!(tcmsg, tcm_parent)) == Some(TC_H_CLSACT)
        };
        let kind = |payload: &Vec<u8>| find(payload.get(size_of::<tcmsg>()..)?, TCA_KIND as u16).map(text);
        Ok(payloads.iter().filter(is_here).filter_map(kind).any(|kind| kind == "clsact"))
    }

    /// Removes an interface's clsact with everything on it.
    pub fn delete_clsact(&self, ifindex: u32) -> io::Result<()> {
        self.ask(tc(libc::RTM_DELQDISC, NLM_F_ACK, ifindex, CLSACT_HANDLE, TC_H_CLSACT, 0)).map(|_| ())
    }

    /// Puts a program on clsact. If it replaces a filter, every packet is seen by the old or the new one.
    pub fn put_filter(
        &self,
        ifindex: u32,
        hook: Hook,
        filter: &Filter,
        program: &KernelProgram,
        put: Put,
    ) -> io::Result<()> {
        let create = match put {
            Put::New => NLM_F_CREATE,
            Put::Only => NLM_F_CREATE | NLM_F_EXCL,
            Put::Instead => 0,
        };
        let mut message = Self::filter(libc::RTM_NEWTFILTER, NLM_F_ACK | create, ifindex, hook, filter);
        message.text(TCA_KIND as u16, "bpf");
        message.nested(TCA_OPTIONS as u16, |options| {
            options.attribute(TCA_BPF_FD as u16, &program.as_fd().as_raw_fd().to_ne_bytes());
            options.text(TCA_BPF_NAME as u16, &filter.name);
            options.attribute(TCA_BPF_FLAGS as u16, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        });
        self.ask(message).map(|_| ())
    }

    /// Removes a filter from clsact.
    pub fn delete_filter(&self, ifindex: u32, hook: Hook, filter: &Filter) -> io::Result<()> {
        let mut message = Self::filter(libc::RTM_DELTFILTER, NLM_F_ACK, ifindex, hook, filter);
        message.text(TCA_KIND as u16, "bpf");
        self.ask(message).map(|_| ())
    }

    fn filter(kind: u16, flags: i32, ifindex: u32, hook: Hook, filter: &Filter) -> NetlinkRequest {
        let info = u32::from(filter.priority) << 16 | ALL_PROTOCOLS;
        tc(kind, flags, ifindex, filter.handle, parent(hook), info)
    }

    /// The filters on clsact, in the order in which they run.
    pub fn filters(&self, ifindex: u32, hook: Hook) -> io::Result<Vec<Filter>> {
        let payloads = self.ask(tc(libc::RTM_GETTFILTER, NLM_F_DUMP, ifindex, 0, parent(hook), 0));
        match payloads {
            // No clsact, no filters.
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
            other => Ok(other?.iter().filter_map(|payload| read_filter(payload)).collect()),
        }
    }
}

fn read_interface(payload: &[u8]) -> Option<HostInterface> {
    let ifindex = word(payload, offset_of!(ifinfomsg, ifi_index))?;
    let mut interface = HostInterface { ifindex, ..HostInterface::default() };
    for (kind, value) in attributes(payload.get(size_of::<ifinfomsg>()..)?) {
        match kind {
            libc::IFLA_ADDRESS => interface.address = value.to_vec(),
            libc::IFLA_IFNAME => interface.name = text(value),
            libc::IFLA_LINK => interface.link = word(value, 0),
            libc::IFLA_LINKINFO => interface.kind = find(value, libc::IFLA_INFO_KIND).map(text).unwrap_or_default(),
            libc::IFLA_LINK_NETNSID => interface.link_namespace = word(value, 0),
            _ => {}
        }
    }
    Some(interface)
}

/// The interface's own address: of a point-to-point link, `IFA_ADDRESS` is the other end's.
fn read_address(payload: &[u8]) -> Option<(u32, IpAddr)> {
    let rest = payload.get(size_of::<ifaddrmsg>()..)?;
    let bytes = find(rest, libc::IFA_LOCAL).or_else(|| find(rest, libc::IFA_ADDRESS))?;
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()?;
    Some((word(payload, offset_of!(ifaddrmsg, ifa_index))?, address))
}

fn read_filter(payload: &[u8]) -> Option<Filter> {
    let handle = word(payload, offset_of!(tcmsg, tcm_handle))?;
    let priority = (word(payload, offset_of!(tcmsg, tcm_info))? >> 16) as u16;
    let mut filter = Filter { priority, handle, name: String::new(), program: 0 };
    let rest = payload.get(size_of::<tcmsg>()..)?;
    filter.name = find(rest, TCA_KIND as u16).map(text).unwrap_or_default();
    if filter.name == "bpf" {
        for (kind, value) in find(rest, TCA_OPTIONS as u16).into_iter().flat_map(attributes) {
            match u32::from(kind) {
                TCA_BPF_NAME => filter.name = text(value),
                TCA_BPF_ID => filter.program = word(value, 0)?,
                _ => {}
            }
        }
    }
    // The kernel also reports the head of each priority's list, as a filter without a handle.
    (handle != 0).then_some(filter)
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_off_gives_no_wrong_name() {
        let whole = [&[0_u8; 4][..], &7_u32.to_ne_bytes(), &[0; 8], &[8, 0, 3, 0], b"eth0"].concat();
        let found = read_interface(&whole).expect("it is whole");
        assert_eq!((found.ifindex, found.name.as_str()), (7, "eth0"));
        for length in 0..whole.len() {
            let cut = read_interface(&whole[..length]);
            assert!(cut.is_none_or(|it| it.name.is_empty()), "{length} bytes");
        }
    }

    #[test]
    fn the_kernels_explanation_reaches_the_caller() {
        let socket = NetlinkSocket::open().expect("no privilege is needed");
        let error = socket.interface_named("no such name, too long for any interface").unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("Numerical result out of range (os error 34): "), "{error}");
    }
}
