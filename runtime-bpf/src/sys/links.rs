//! Lists interfaces and addresses of a network namespace: this thread's, or another one that a thread enters for this.
//!
//! Problem: CNI plug-ins have no common way to record which host interface leads to a pod. But a veth names its other
//! end: inside a pod, `IFLA_LINK` of `eth0` is the number of the host's interface. Strategy: two netlink dumps are
//! parsed into plain data. Malformed parts are skipped and never read beyond their end.

use std::fs::File;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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
    let mut namespace = NetworkNamespace::default();
    dump(RTM_GETLINK, &[0; 16], |message| namespace.interfaces.extend(interface(message)))?;
    namespace.addresses = addresses()?;
    Ok(namespace)
}

/// The addresses of this thread's namespace, with their interfaces' numbers.
pub fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let mut addresses = Vec::new();
    dump(RTM_GETADDR, &[0; 8], |message| addresses.extend(address(message)))?;
    Ok(addresses)
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

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// `NLM_F_REQUEST | NLM_F_DUMP`
const REQUEST_DUMP: u16 = 0x301;
/// Set if the objects changed during the dump.
const INTERRUPTED: u16 = 0x10;
/// Number of times a dump is repeated if the objects change during it.
const ATTEMPTS: usize = 8;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Sends a dump request and passes each message of the answer, without its header, to `each`.
fn dump(kind: u16, family: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        if let Some(messages) = dump_once(kind, family)? {
            messages.iter().for_each(|message| each(message));
            return Ok(());
        }
    }
    Err(io::Error::other("the interfaces change faster than they can be listed"))
}

/// `None` if the dump was interrupted.
fn dump_once(kind: u16, family: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
    let socket = open()?;
    let mut request = ((HEADER + family.len()) as u32).to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(family);
    socket.send(&request)?;
    let (mut room, mut messages) = (vec![0; 1 << 16], Vec::new());
    loop {
        let length = socket.recv(&mut room)?;
        let mut rest = room.get(..length).unwrap_or_default();
        while let Some(NetlinkPart { kind, flags, message, after }) = next_part(rest) {
            match kind {
                _ if flags & INTERRUPTED != 0 => return Ok(None),
                NLMSG_DONE => return Ok(Some(messages)),
                NLMSG_ERROR => return Err(io::Error::from_raw_os_error(-(number(message, 0).unwrap_or(0) as i32))),
                _ => messages.push(message.to_vec()),
            }
            rest = after;
        }
    }
}

/// A netlink socket. Sending and receiving on it is no different from any other datagram socket.
fn open() -> io::Result<UdpSocket> {
    let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    Ok(UdpSocket::from(fd))
}

/// A message of an answer, without its header.
struct NetlinkPart<'a> {
    kind: u16,
    flags: u16,
    message: &'a [u8],
    /// The bytes after the message.
    after: &'a [u8],
}

/// The first message of an answer.
fn next_part(bytes: &[u8]) -> Option<NetlinkPart<'_>> {
    let length = number(bytes, 0)? as usize;
    let message = bytes.get(HEADER..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some(NetlinkPart { kind: short(bytes, 4)?, flags: short(bytes, 6)?, message, after })
}

fn interface(message: &[u8]) -> Option<NamespaceInterface> {
    let mut found = NamespaceInterface { ifindex: number(message, 4)?, ..NamespaceInterface::default() };
    for (kind, value) in attributes(message.get(16..)?) {
        match kind {
            IFLA_IFNAME => found.name = text(value),
            IFLA_LINK => found.peer = number(value, 0),
            IFLA_LINKINFO => {
                let kinds = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                found.kind = kinds.map(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(found)
}

/// The interface's own address: of a point-to-point link, `IFA_ADDRESS` is the other end's.
fn address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let rest = message.get(8..)?;
    let find = |wanted| attributes(rest).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let bytes = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?;
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()?;
    Some((number(message, 4)?, address))
}

/// Type and value of each attribute.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(short(rest, 0)?);
        let found = (short(rest, 2)? & 0x3fff, rest.get(4..length)?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(found)
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
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

    #[test]
    fn cut_messages_are_left_out() {
        let whole = [&[0_u8; 4][..], &7_u32.to_ne_bytes(), &[0; 8], &[8, 0, 3, 0], b"eth0"].concat();
        let found = interface(&whole).expect("it is whole");
        assert_eq!((found.ifindex, found.name.as_str()), (7, "eth0"));
        for length in 0..whole.len() {
            let cut = interface(&whole[..length]);
            assert!(cut.is_none_or(|it| it.name.is_empty()), "{length} bytes");
        }
    }
}
