//! System calls that the standard library lacks: network namespaces, sockets of other families, mounts.
//!
//! The only module of these tests with `unsafe`. Every returned value owns its descriptor, so a namespace disappears
//! with the process, and everything in it.

#![expect(unsafe_code, reason = "system calls have no safe form")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::{mem, ptr};

/// Kinds of sockets that are made here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Tcp,
    /// Echo requests; the kernel fills in identifier and checksum.
    Ping,
    /// Packets of an IP protocol, without their header.
    Raw(u8),
}

fn done(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread into a new network namespace, and returns the namespace.
pub(crate) fn unshare_network() -> io::Result<File> {
    // SAFETY: no pointers; only the calling thread changes.
    done(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers; the descriptor is open.
    done(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes a command run in a network namespace; unlike `ip netns exec`, this keeps its mounts.
pub(crate) fn run_inside(command: &mut Command, namespace: BorrowedFd<'_>) {
    let descriptor = namespace.as_raw_fd();
    // SAFETY: between fork and exec there is one system call and no allocation.
    unsafe { command.pre_exec(move || done(libc::setns(descriptor, libc::CLONE_NEWNET)).map(drop)) };
}

/// A socket of the calling thread's namespace that never blocks.
pub(crate) fn socket(kind: Kind, v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let (kind, protocol) = match kind {
        Kind::Tcp => (libc::SOCK_STREAM, 0),
        Kind::Ping => (libc::SOCK_DGRAM, if v6 { libc::IPPROTO_ICMPV6 } else { libc::IPPROTO_ICMP }),
        Kind::Raw(protocol) => (libc::SOCK_RAW, i32::from(protocol)),
    };
    open(family, kind, protocol)
}

fn open(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let descriptor = done(unsafe { libc::socket(family, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the descriptor was just opened, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Frames of one interface, read and written as a file.
pub(crate) fn frames(interface: &str) -> io::Result<File> {
    let every = (libc::ETH_P_ALL as u16).to_be();
    let socket = open(libc::AF_PACKET, libc::SOCK_RAW, i32::from(every))?;
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    (address.sll_family, address.sll_protocol) = (libc::AF_PACKET as u16, every);
    address.sll_ifindex = interface_number(interface)?;
    bind_to(&socket, ptr::from_ref(&address).cast(), mem::size_of_val(&address))?;
    Ok(File::from(socket))
}

/// The number of an interface in the calling thread's namespace.
pub(crate) fn interface_number(name: &str) -> io::Result<i32> {
    let name = CString::new(name)?;
    // SAFETY: a string that ends with a zero and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        number => Ok(number as i32),
    }
}

/// Binds a socket, to an address that other sockets may have, too.
pub(crate) fn bind(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    with_address(to, |address, length| bind_to(socket, address, length))
}

fn bind_to(socket: &OwnedFd, address: *const libc::sockaddr, length: usize) -> io::Result<()> {
    // SAFETY: the callers' addresses are valid for their length.
    done(unsafe { libc::bind(socket.as_raw_fd(), address, length as u32) }).map(drop)
}

/// Begins to connect a socket. It does not wait for the connection.
pub(crate) fn connect(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    // SAFETY: the address is valid for its length.
    let connect = |address, length| done(unsafe { libc::connect(socket.as_raw_fd(), address, length as u32) });
    match with_address(to, connect) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

/// Makes a socket accept connections.
pub(crate) fn listen(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers.
    done(unsafe { libc::listen(socket.as_raw_fd(), 4096) }).map(drop)
}

/// Sets a socket option to a number.
pub(crate) fn set(socket: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = mem::size_of_val(&value) as u32;
    // SAFETY: a number that outlives the call, and its size.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(&value).cast(), size) }).map(drop)
}

/// Ends a connection with a reset when it is closed.
pub(crate) fn reset_on_close(socket: &OwnedFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (address, size) = (ptr::from_ref(&linger).cast(), mem::size_of_val(&linger) as u32);
    // SAFETY: a linger that outlives the call, and its size.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, address, size) }).map(drop)
}

fn with_address<T>(to: SocketAddr, use_it: impl FnOnce(*const libc::sockaddr, usize) -> T) -> T {
    match to {
        SocketAddr::V4(v4) => {
            // SAFETY: all zeros is a valid sockaddr_in.
            let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
            (address.sin_family, address.sin_port) = (libc::AF_INET as u16, v4.port().to_be());
            address.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            use_it(ptr::from_ref(&address).cast(), mem::size_of_val(&address))
        }
        SocketAddr::V6(v6) => {
            // SAFETY: all zeros is a valid sockaddr_in6.
            let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            (address.sin6_family, address.sin6_port) = (libc::AF_INET6 as u16, v6.port().to_be());
            address.sin6_addr.s6_addr = v6.ip().octets();
            use_it(ptr::from_ref(&address).cast(), mem::size_of_val(&address))
        }
    }
}

/// Mounts a new bpffs.
pub(crate) fn mount_bpffs(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: strings that end with a zero and outlive the call; no data.
    done(unsafe { libc::mount(c"bpf".as_ptr(), at.as_ptr(), c"bpf".as_ptr(), 0, ptr::null()) }).map(drop)
}

/// Detaches a mount at once; the kernel removes it when it is no longer in use.
pub(crate) fn unmount(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: a string that ends with a zero and outlives the call.
    done(unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// Raises the limit of descriptors to the most that the system allows.
pub(crate) fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: an rlimit that outlives the call.
    done(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a valid rlimit that outlives the call.
    done(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
}
