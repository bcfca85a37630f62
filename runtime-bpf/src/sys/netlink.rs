//! rtnetlink: interfaces by name and number, and filters on clsact.
//!
//! A [`Message`] is a growing byte buffer, and the answer is a list of payloads ([`NetlinkSocket::ask`]). Only the
//! requests that the runtime needs.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use aya_obj::generated::{
    TC_H_CLSACT, TC_H_MAJ_MASK, TC_H_MIN_EGRESS, TC_H_MIN_INGRESS, TCA_BPF_FD, TCA_BPF_FLAG_ACT_DIRECT, TCA_BPF_FLAGS,
    TCA_BPF_ID, TCA_BPF_NAME, TCA_KIND, TCA_OPTIONS, ifinfomsg, tcmsg,
};
use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::KernelProgram;
use super::objects::Hook;

/// `ETH_P_ALL`, as on the wire.
const ALL_PROTOCOLS: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;
const CLSACT_HANDLE: u32 = TC_H_CLSACT & TC_H_MAJ_MASK;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// Its number, which a later interface can get too.
    pub ifindex: u32,
    /// Its name, which a later interface can get too.
    pub name: String,
    /// Its hardware address.
    pub address: Vec<u8>,
    /// For a veth: the number of the other end, and the namespace of that end, by the number that this namespace has
    /// for it.
    pub other_end: Option<(u32, Option<u32>)>,
}

/// Whether the filter may be a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Creates the filter, or replaces the one with its priority and handle.
    New,
    /// Only replaces the filter with its priority and handle. `ENOENT` if there is none, and `EINVAL` if there is no
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
}

struct Message(Vec<u8>);

impl Message {
    fn new<T>(kind: u16, flags: i32) -> Self {
        let mut bytes = vec![0; size_of::<libc::nlmsghdr>() + size_of::<T>()];
        put(&mut bytes, offset_of!(libc::nlmsghdr, nlmsg_type), kind.to_ne_bytes());
        put(&mut bytes, offset_of!(libc::nlmsghdr, nlmsg_flags), ((NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        Self(bytes)
    }

    fn link(index: u32, flags: i32) -> Self {
        let mut message = Self::new::<ifinfomsg>(libc::RTM_GETLINK, flags);
        message.set(offset_of!(ifinfomsg, ifi_index), index);
        message
    }

    fn tc(kind: u16, flags: i32, ifindex: u32, handle: u32, parent: u32, info: u32) -> Self {
        let mut message = Self::new::<tcmsg>(kind, flags);
        message.set(offset_of!(tcmsg, tcm_ifindex), ifindex);
        message.set(offset_of!(tcmsg, tcm_handle), handle);
        message.set(offset_of!(tcmsg, tcm_parent), parent);
        message.set(offset_of!(tcmsg, tcm_info), info);
        message
    }

    /// Sets a member of the structure after the header.
    fn set(&mut self, at: usize, word: u32) {
        put(&mut self.0, size_of::<libc::nlmsghdr>() + at, word.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.0.extend((payload.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Adds an attribute that contains attributes.
    fn nested(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let mut inner = Self(Vec::new());
        inside(&mut inner);
        self.attribute(kind, &inner.0);
    }

    fn text(&mut self, kind: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }
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
        Ok(Self { fd, sequence: AtomicU32::new(0) })
    }

    /// Sends a message, and returns the payloads of the answer up to its end.
    fn ask(&self, mut message: Message) -> io::Result<Vec<Vec<u8>>> {
        let length = (message.0.len() as u32).to_ne_bytes();
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        put(&mut message.0, offset_of!(libc::nlmsghdr, nlmsg_len), length);
        put(&mut message.0, offset_of!(libc::nlmsghdr, nlmsg_seq), sequence.to_ne_bytes());
        let bytes = &message.0;
        rustix::net::send(&self.fd, bytes, SendFlags::empty())?;
        let flags = half(bytes, offset_of!(libc::nlmsghdr, nlmsg_flags)).map_or(0, i32::from);
        let (dump, acknowledged) = (flags & NLM_F_DUMP == NLM_F_DUMP, flags & NLM_F_ACK != 0);
        let mut payloads = Vec::new();
        loop {
            // The kernel answers dumps in pieces of 32 KiB at most.
            let mut room = [0_u8; 1 << 15];
            let (length, _) = rustix::net::recv(&self.fd, &mut room, RecvFlags::empty())?;
            let room = room.get(..length).unwrap_or_default();
            if take(room, sequence, &mut payloads)? || !(dump || acknowledged || payloads.is_empty()) {
                return Ok(payloads);
            }
        }
    }

    /// The interface with this name.
    pub fn interface_named(&self, name: &str) -> io::Result<HostInterface> {
        let mut message = Message::link(0, 0);
        message.text(libc::IFLA_IFNAME, name);
        self.interface(message)
    }

    /// The interface with this number.
    pub fn interface_numbered(&self, ifindex: u32) -> io::Result<HostInterface> {
        self.interface(Message::link(ifindex, 0))
    }

    /// The other end of a veth, in its own network namespace. Fails if the interface is no veth.
    pub fn other_end(&self, interface: &HostInterface) -> io::Result<HostInterface> {
        let Some((index, namespace)) = interface.other_end else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let mut message = Message::link(index, 0);
        if let Some(namespace) = namespace {
            message.attribute(libc::IFLA_TARGET_NETNSID, &namespace.to_ne_bytes());
        }
        self.interface(message)
    }

    /// All interfaces.
    pub fn interfaces(&self) -> io::Result<Vec<HostInterface>> {
        Ok(self.ask(Message::link(0, NLM_F_DUMP))?.iter().filter_map(|payload| read_interface(payload)).collect())
    }

    fn interface(&self, message: Message) -> io::Result<HostInterface> {
        let payloads = self.ask(message)?;
        let found = payloads.first().and_then(|payload| read_interface(payload));
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// Makes an interface's clsact; it may exist already. Fails if an `ingress` qdisc is in its place: that has one
    /// list of filters, and would put the filters of the egress side into it.
    pub fn add_clsact(&self, ifindex: u32) -> io::Result<()> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let mut message = Message::tc(libc::RTM_NEWQDISC, flags, ifindex, CLSACT_HANDLE, TC_H_CLSACT, 0);
        message.text(TCA_KIND as u16, "clsact");
        match self.ask(message) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => match self.has_clsact(ifindex)? {
                true => Ok(()),
                false => Err(io::Error::other(
                    "the interface has an ingress qdisc where clsact should be; remove it with `tc qdisc del dev … ingress`",
                )),
            },
            other => other.map(|_| ()),
        }
    }

    fn has_clsact(&self, ifindex: u32) -> io::Result<bool> {
        let payloads = self.ask(Message::tc(libc::RTM_GETQDISC, NLM_F_DUMP, ifindex, 0, 0, 0))?;
        // Older kernels report the qdiscs of all interfaces.
        let is_here = |payload: &&Vec<u8>| {
            word(payload, offset_of!(tcmsg, tcm_ifindex)) == Some(ifindex)
                && word(payload, offset_of!(tcmsg, tcm_parent)) == Some(TC_H_CLSACT)
        };
        let kind = |payload: &Vec<u8>| {
            let rest = payload.get(size_of::<tcmsg>()..).unwrap_or_default();
            attributes(rest).into_iter().find(|(kind, _)| u32::from(*kind) == TCA_KIND).map(|(_, value)| text(value))
        };
        Ok(payloads.iter().filter(is_here).filter_map(kind).any(|kind| kind == "clsact"))
    }

    /// Removes an interface's clsact with everything on it.
    pub fn delete_clsact(&self, ifindex: u32) -> io::Result<()> {
        self.ask(Message::tc(libc::RTM_DELQDISC, NLM_F_ACK, ifindex, CLSACT_HANDLE, TC_H_CLSACT, 0)).map(|_| ())
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
        let create = if put == Put::New { NLM_F_CREATE } else { 0 };
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

    fn filter(kind: u16, flags: i32, ifindex: u32, hook: Hook, filter: &Filter) -> Message {
        let info = u32::from(filter.priority) << 16 | ALL_PROTOCOLS;
        Message::tc(kind, flags, ifindex, filter.handle, parent(hook), info)
    }

    /// The filters on clsact, in the order in which they run.
    pub fn filters(&self, ifindex: u32, hook: Hook) -> io::Result<Vec<Filter>> {
        let payloads = self.ask(Message::tc(libc::RTM_GETTFILTER, NLM_F_DUMP, ifindex, 0, parent(hook), 0));
        match payloads {
            // No clsact, no filters.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
            other => Ok(other?.iter().filter_map(|payload| read_filter(payload)).collect()),
        }
    }
}

/// Collects the payloads of an answer. Returns `true` at its end.
fn take(mut bytes: &[u8], sequence: u32, payloads: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    const HEADER: usize = size_of::<libc::nlmsghdr>();
    while let Some(length) = word(bytes, 0).map(|it| it as usize).filter(|it| (HEADER..=bytes.len()).contains(it)) {
        let kind = half(bytes, offset_of!(libc::nlmsghdr, nlmsg_type)).map_or(0, i32::from);
        let payload = &bytes[HEADER..length];
        match kind {
            _ if word(bytes, offset_of!(libc::nlmsghdr, nlmsg_seq)) != Some(sequence) => {}
            // A dump that failed midway ends with the reason.
            libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                return match word(payload, 0).map_or(0, |it| it as i32) {
                    number @ ..0 => Err(io::Error::from_raw_os_error(-number)),
                    _ => Ok(true),
                };
            }
            _ => payloads.push(payload.to_vec()),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes.iter_mut().skip(at).zip(value).for_each(|(to, from)| *to = from);
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|it| u16::from_ne_bytes(*it))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_ne_bytes(*it))
}

/// The kind and payload of each attribute.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some(length) = half(bytes, 0).map(usize::from).filter(|it| (4..=bytes.len()).contains(it)) {
        found.extend(half(bytes, 2).map(|kind| (kind & 0x3fff, &bytes[4..length])));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

fn read_interface(payload: &[u8]) -> Option<HostInterface> {
    let mut interface = HostInterface {
        ifindex: word(payload, offset_of!(ifinfomsg, ifi_index))?,
        name: String::new(),
        address: Vec::new(),
        other_end: None,
    };
    let (mut link, mut namespace, mut is_veth) = (None, None, false);
    for (kind, value) in attributes(payload.get(size_of::<ifinfomsg>()..)?) {
        match kind {
            libc::IFLA_ADDRESS => interface.address = value.to_vec(),
            libc::IFLA_IFNAME => interface.name = text(value),
            libc::IFLA_LINK => link = word(value, 0),
            libc::IFLA_LINKINFO => {
                let is_kind = |(kind, name): &(u16, &[u8])| *kind == libc::IFLA_INFO_KIND && text(name) == "veth";
                is_veth = attributes(value).iter().any(is_kind);
            }
            libc::IFLA_LINK_NETNSID => namespace = word(value, 0),
            _ => {}
        }
    }
    // For interfaces of other kinds, the link is the lower device.
    interface.other_end = link.filter(|_| is_veth).map(|link| (link, namespace));
    Some(interface)
}

fn read_filter(payload: &[u8]) -> Option<Filter> {
    let handle = word(payload, offset_of!(tcmsg, tcm_handle))?;
    let priority = (word(payload, offset_of!(tcmsg, tcm_info))? >> 16) as u16;
    let mut filter = Filter { priority, handle, name: String::new(), program: 0 };
    let outer = attributes(payload.get(size_of::<tcmsg>()..)?);
    let find = |wanted| outer.iter().find(|(kind, _)| u32::from(*kind) == wanted).map(|(_, value)| *value);
    filter.name = find(TCA_KIND).map(text).unwrap_or_default();
    if filter.name == "bpf" {
        for (kind, value) in find(TCA_OPTIONS).map(attributes).unwrap_or_default() {
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
