//! Connections and datagrams between namespaces: did they get through?

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::net::Node;

/// Waiting time for packets that should not arrive.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// Echoes on a TCP port of a pod until the process ends.
pub(crate) fn serve(node: &Node, pod: usize, port: u16) {
    let any = SocketAddr::new([0_u16; 8].into(), port);
    let listener = node.in_pod(pod, || TcpListener::bind(any)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// A TCP connection from a pod.
pub(crate) fn connect(node: &Node, pod: usize, to: IpAddr, port: u16) -> Option<TcpStream> {
    node.in_pod(pod, || TcpStream::connect_timeout(&SocketAddr::new(to, port), PATIENCE)).ok()
}

/// Whether a connection still carries bytes there and back.
pub(crate) fn is_alive(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut bytes).is_ok() && &bytes == b"ping"
}

/// Whether a datagram from a pod arrives at a port of another.
pub(crate) fn datagram(node: &Node, from: usize, to: usize, address: IpAddr, port: u16) -> bool {
    let receiver = node.in_pod(to, || bind(SocketAddr::new(any(address), port)));
    let sender = node.in_pod(from, || UdpSocket::bind(SocketAddr::new(any(address), 0))).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    sender.send_to(b"ping", (address, port)).unwrap();
    match receiver.recv(&mut [0; 8]) {
        Ok(_) => true,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Binds a socket. A closed socket can keep the port for a moment: if another test starts a process, that process holds
/// a copy of every descriptor until it runs its program.
fn bind(address: SocketAddr) -> UdpSocket {
    let started = Instant::now();
    loop {
        match UdpSocket::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && started.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => return bound.unwrap(),
        }
    }
}

fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() }
}
