//! Tries new connections with real sockets, many at a time, to find the pairs that can connect.
//!
//! Servers and clients are sockets of this one process, each made in its namespace. None of them blocks; one loop moves
//! all of them. A packet that a busy machine delays may look dropped, but a dropped packet never looks delivered. So
//! connections that should have worked are tried again with more time.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::namespace::{Error, Namespace};
use crate::sctp;
use crate::sys::{self, Kind};

/// Waiting time for packets that should not arrive.
const WAIT: Duration = Duration::from_millis(150);
/// Waiting time for packets that should arrive.
const PATIENCE: Duration = Duration::from_millis(1_500);
const RETRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(1);

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
    Icmp,
}

/// A connection to try.
#[derive(Clone, Debug)]
pub(crate) struct Try<'n> {
    pub(crate) from: &'n Namespace,
    pub(crate) source: IpAddr,
    pub(crate) protocol: Protocol,
    pub(crate) to: SocketAddr,
    /// The endpoints that the connection may reach, with address translation or without. There may be none.
    pub(crate) served: Vec<(&'n Namespace, SocketAddr)>,
    pub(crate) expected: bool,
}

/// Tries all connections at once; returns which of them got through.
pub(crate) fn reach(tries: &[Try<'_>]) -> Result<Vec<bool>, Error> {
    let mut servers = Servers::default();
    for it in tries {
        for (space, at) in &it.served {
            servers.add(space, it.protocol, *at)?;
        }
    }
    let mut reached = vec![false; tries.len()];
    for round in 0..=RETRIES {
        let late = (0..tries.len()).filter(|index| !reached[*index] && (round == 0 || tries[*index].expected));
        let late: Vec<usize> = late.collect();
        if late.is_empty() {
            break;
        }
        let again: Vec<&Try<'_>> = late.iter().map(|index| &tries[*index]).collect();
        for (index, came) in late.into_iter().zip(once(&mut servers, &again)?) {
            reached[index] = came;
        }
    }
    Ok(reached)
}

fn once(servers: &mut Servers, tries: &[&Try<'_>]) -> Result<Vec<bool>, Error> {
    let mut clients = Vec::new();
    for it in tries {
        let client = it.from.enter(|| Client::begin(it.protocol, it.source, it.to));
        clients.push(client?.map_err(|error| format!("{it:?}: {error}"))?);
    }
    let begun = Instant::now();
    loop {
        servers.serve()?;
        for client in &mut clients {
            client.look();
        }
        let mut missing = clients.iter().zip(tries).filter(|(client, _)| !client.reached);
        let waited = begun.elapsed();
        if waited > PATIENCE || waited > WAIT && missing.all(|(_, it)| !it.expected) {
            return Ok(clients.into_iter().map(|client| client.reached).collect());
        }
        std::thread::sleep(PAUSE);
    }
}

/// The side that begins a connection.
struct Client {
    socket: Socket,
    reached: bool,
}

enum Socket {
    Stream(TcpStream),
    /// A socket for packets: UDP, or echo requests.
    Packets(UdpSocket),
    /// SCTP by hand: the socket, the local port and the remote address.
    Association(UdpSocket, u16, SocketAddr),
}

impl Client {
    fn begin(protocol: Protocol, source: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let socket = match protocol {
            Protocol::Tcp => Socket::Stream(bound(Kind::Tcp, source, to)?.into()),
            Protocol::Udp => Socket::Packets(udp(source, to)?),
            Protocol::Icmp => {
                let socket: UdpSocket = bound(Kind::Ping, source, SocketAddr::new(to.ip(), 0))?.into();
                socket.send(&echo_request(to.is_ipv6())).map(|_| Socket::Packets(socket))?
            }
            Protocol::Sctp => {
                let socket: UdpSocket = bound(Kind::Raw(sctp::PROTOCOL), source, SocketAddr::new(to.ip(), 0))?.into();
                // Raw sockets have no port of their own, so one is chosen here.
                let port = 30_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 20_000;
                socket.send(&sctp::init(port, to.port())).map(|_| Socket::Association(socket, port, to))?
            }
        };
        Ok(Self { socket, reached: false })
    }

    fn look(&mut self) {
        self.reached |= match &self.socket {
            Socket::Stream(stream) => stream.peer_addr().is_ok(),
            Socket::Packets(packets) => packets.recv(&mut [0; 256]).is_ok(),
            Socket::Association(packets, port, to) => {
                let mut buffer = [0; 256];
                let received = packets.recv(&mut buffer).unwrap_or(0);
                sctp::is_answer(&buffer[..received], to.is_ipv6(), *port, to.port())
            }
        };
    }
}

fn bound(kind: Kind, source: IpAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = sys::socket(kind, source.is_ipv6())?;
    sys::bind(&socket, SocketAddr::new(source, 0))?;
    sys::connect(&socket, to)?;
    Ok(socket)
}

fn udp(source: IpAddr, to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((source, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(to)?;
    socket.send(b"?").map(|_| socket)
}

/// The kernel writes checksum and identifier.
pub(crate) fn echo_request(v6: bool) -> [u8; 16] {
    let mut message = [0; 16];
    message[0] = if v6 { 128 } else { 8 };
    message
}

/// A listening TCP socket.
pub(crate) fn listen(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = sys::socket(Kind::Tcp, at.is_ipv6())?;
    sys::bind(&socket, at)?;
    sys::listen(&socket).map(|()| socket)
}

/// Opens a socket and retries if its address is in use: a child process that another thread starts holds all sockets
/// for a moment, even closed ones.
fn patiently<T: Send>(space: &Namespace, open: impl Fn() -> io::Result<T> + Sync) -> io::Result<io::Result<T>> {
    let begun = Instant::now();
    loop {
        match space.enter(&open)? {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE)
            }
            done => return Ok(done),
        }
    }
}

/// The sides that answer, by their addresses. The kernel answers echo requests.
#[derive(Default)]
struct Servers {
    listeners: BTreeMap<(String, SocketAddr), TcpListener>,
    sockets: BTreeMap<(String, SocketAddr), UdpSocket>,
    associations: BTreeMap<(String, SocketAddr), UdpSocket>,
}

impl Servers {
    fn add(&mut self, space: &Namespace, protocol: Protocol, at: SocketAddr) -> Result<(), Error> {
        let key = (space.path(), at);
        let named = |error: io::Error| format!("{protocol:?} {at}: {error}");
        match protocol {
            Protocol::Tcp if !self.listeners.contains_key(&key) => {
                self.listeners.insert(key, patiently(space, || listen(at))?.map_err(named)?.into());
            }
            Protocol::Udp if !self.sockets.contains_key(&key) => {
                let socket = patiently(space, || UdpSocket::bind(at))?.map_err(named)?;
                socket.set_nonblocking(true)?;
                self.sockets.insert(key, socket);
            }
            Protocol::Sctp if !self.associations.contains_key(&key) => {
                let socket = space.enter(|| {
                    let socket = sys::socket(Kind::Raw(sctp::PROTOCOL), at.is_ipv6())?;
                    sys::bind(&socket, SocketAddr::new(at.ip(), 0)).map(|()| socket)
                })?;
                self.associations.insert(key, socket.map_err(named)?.into());
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers the received packets.
    fn serve(&mut self) -> Result<(), Error> {
        // Connections stay in the backlog; the client does not need to be accepted.
        for socket in self.sockets.values() {
            let mut buffer = [0; 256];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                // Errors are ignored: the client notices a missing answer.
                let _ = socket.send_to(&buffer[..length], from);
            }
        }
        for ((_, at), socket) in &self.associations {
            let mut buffer = [0; 256];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = sctp::answer(&buffer[..length], at) {
                    let _ = socket.send_to(&answer, SocketAddr::new(from.ip(), 0));
                }
            }
        }
        Ok(())
    }
}
