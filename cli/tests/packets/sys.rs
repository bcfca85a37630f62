//! System calls that the standard library lacks: network namespaces, sockets of other families, mounts.
//!
//! The only module of these tests with `unsafe`. Every returned value owns its descriptor, so a namespace disappears
//! with the process, and everything in it.

#![expect(unsafe_code, reason = "system calls have no safe form")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType, eth, ipproto, sockopt};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Kinds of sockets that are made here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Tcp,
    /// Echo requests; the kernel fills in identifier and checksum.
    Ping,
    /// Packets of an IP protocol, without their header.
    Raw(u8),
}

/// Moves the calling thread into a new network namespace, and returns the namespace.
pub(crate) fn unshare_network() -> io::Result<File> {
    // SAFETY: only a separate table of descriptors could do harm.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Makes a command run in a network namespace; unlike `ip netns exec`, this keeps its mounts.
pub(crate) fn run_inside(command: &mut Command, namespace: BorrowedFd<'_>) {
    let namespace = namespace.try_clone_to_owned().expect("a descriptor is free");
    // SAFETY: between fork and exec there is one system call and no allocation.
    unsafe { command.pre_exec(move || enter(namespace.as_fd())) };
}

/// A socket of the calling thread's namespace that never blocks.
pub(crate) fn socket(kind: Kind, v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let (kind, protocol) = match kind {
        Kind::Tcp => (SocketType::STREAM, None),
        Kind::Ping => (SocketType::DGRAM, Some(if v6 { ipproto::ICMPV6 } else { ipproto::ICMP })),
        Kind::Raw(protocol) => (SocketType::RAW, RawProtocol::new(protocol.into()).map(Protocol::from_raw)),
    };
    open(family, kind, protocol)
}

fn open(family: AddressFamily, kind: SocketType, protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, protocol)?)
}

/// Frames of one interface, read and written as a file.
pub(crate) fn frames(interface: &str) -> io::Result<File> {
    let socket = open(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL))?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: interface_number(interface)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: an address of this length, alive during the call. rustix has no addresses of this family.
    match unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), size_of_val(&address) as u32) } {
        0 => Ok(File::from(socket)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of an interface in the calling thread's namespace.
pub(crate) fn interface_number(name: &str) -> io::Result<i32> {
    Ok(rustix::net::netdevice::name_to_index(socket(Kind::Tcp, false)?, name)? as i32)
}

/// Binds a socket, to an address that other sockets may have, too.
pub(crate) fn bind(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    Ok(rustix::net::bind(socket, &to)?)
}

/// Begins to connect a socket. It does not wait for the connection.
pub(crate) fn connect(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    match rustix::net::connect(socket, &to) {
        Err(Errno::INPROGRESS) => Ok(()),
        other => Ok(other?),
    }
}

/// Makes a socket accept connections.
pub(crate) fn listen(socket: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, 4096)?)
}

/// Ends a connection with a reset when it is closed.
pub(crate) fn reset_on_close(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

/// Mounts a new bpffs.
pub(crate) fn mount_bpffs(at: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount("bpf", at, "bpf", MountFlags::empty(), None::<&CStr>)?)
}

/// Detaches a mount at once; the kernel removes it when it is no longer in use.
pub(crate) fn unmount(at: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(at, UnmountFlags::DETACH)?)
}
