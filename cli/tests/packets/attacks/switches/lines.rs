//! Connections that send a byte at fixed intervals, many at a time. The bytes that arrive are counted at both ends.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use crate::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp,
    /// The client has sent all its data.
    HalfClosed,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Client,
    Server,
    Both,
}

/// A socket of either kind.
enum End {
    Stream(TcpStream),
    Packets(UdpSocket),
}

impl End {
    fn send(&self) -> bool {
        match self {
            Self::Stream(stream) => Write::write(&mut &*stream, b"!").is_ok(),
            Self::Packets(socket) => socket.send(b"!").is_ok(),
        }
    }

    /// Number of payload bytes that arrived.
    fn received(&self) -> u64 {
        let mut buffer = [0; 4_096];
        let read = |buffer: &mut [u8]| match self {
            Self::Stream(stream) => Read::read(&mut &*stream, buffer),
            Self::Packets(socket) => socket.recv(buffer),
        };
        let mut all = 0;
        while let Ok(count @ 1..) = read(&mut buffer) {
            all += count as u64;
        }
        all
    }

    fn set_nonblocking(&self) {
        match self {
            Self::Stream(stream) => stream.set_nonblocking(true).unwrap(),
            Self::Packets(socket) => socket.set_nonblocking(true).unwrap(),
        }
    }
}

/// A connection; the client's end is first.
pub(super) struct Line {
    pub(super) name: String,
    ends: [End; 2],
    speaks: [bool; 2],
    every: Duration,
    next: Instant,
    pub(super) sent: [u64; 2],
    pub(super) received: [u64; 2],
}

fn place<'s>(stage: &'s Stage, name: &str) -> (&'s Namespace, IpAddr) {
    match name.parse() {
        Ok(address) => (&stage.net.outside, address),
        Err(_) => (stage.pod(name), stage.address(name)),
    }
}

impl Line {
    /// Opens a connection on which both ends have sent, and then the client again.
    pub(super) fn open(
        stage: &Stage,
        name: String,
        (client, server): (&str, &str),
        port: u16,
        kind: Kind,
        speaks: Speaks,
        milliseconds: u64,
    ) -> Self {
        let (near, own) = place(stage, client);
        let (far, at) = place(stage, server);
        let ends = match kind {
            Kind::Udp => packets((near, SocketAddr::new(own, 0)), (far, SocketAddr::new(at, port))),
            Kind::Tcp | Kind::HalfClosed => streams(near, (far, SocketAddr::new(at, port))),
        };
        let ends = ends.unwrap_or_else(|error| panic!("{}: {name}: {error}", stage.name()));
        if let (Kind::HalfClosed, End::Stream(stream)) = (kind, &ends[0]) {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        ends.iter().for_each(End::set_nonblocking);
        let speaks = [speaks != Speaks::Server, speaks != Speaks::Client];
        let (every, next) = (Duration::from_millis(milliseconds), Instant::now());
        Self { name, ends, speaks, every, next, sent: [0; 2], received: [0; 2] }
    }

    /// Reads all bytes that have arrived, and sends a byte if one is due.
    fn step(&mut self) {
        let is_due = Instant::now() >= self.next;
        for (side, end) in self.ends.iter().enumerate() {
            self.received[side] += end.received();
            if is_due && self.speaks[side] {
                self.sent[side] += u64::from(end.send());
            }
        }
        if is_due {
            self.next = Instant::now() + self.every;
        }
    }

    /// Waits until the last packets have arrived, and discards them.
    pub(super) fn settle(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.ends.iter().for_each(|end| _ = end.received());
    }

    /// Starts counting from zero.
    pub(super) fn forget(&mut self) {
        (self.sent, self.received) = ([0; 2], [0; 2]);
    }

    /// Stops sending.
    pub(super) fn hush(&mut self) {
        self.speaks = [false; 2];
    }

    /// Whether bytes of each sending end arrived at the other end.
    pub(super) fn is_heard(&self) -> bool {
        (0..2).all(|side| !self.speaks[side] || self.received[1 - side] > 0)
    }

    /// Whether all bytes that were sent have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.received == [self.sent[1], self.sent[0]]
    }
}

/// Moves all lines for `length`.
pub(super) fn run(lines: &mut [Line], length: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < length {
        lines.iter_mut().for_each(Line::step);
        std::thread::sleep(PAUSE);
    }
}

/// Moves all lines until `holds` is true for each of them, but at most for `longest`.
pub(super) fn run_until(lines: &mut [Line], longest: Duration, holds: impl Fn(&Line) -> bool) {
    let begun = Instant::now();
    while lines.iter().any(|line| !holds(line)) && begun.elapsed() < longest {
        run(lines, Duration::from_millis(50));
    }
}

fn packets(client: (&Namespace, SocketAddr), server: (&Namespace, SocketAddr)) -> io::Result<[End; 2]> {
    let [near, far] = [client, server].map(|(space, at)| space.enter(|| UdpSocket::bind(at)));
    let (near, far) = (near??, far??);
    near.connect(server.1)?;
    far.connect(near.local_addr()?)?;
    let mut buffer = [0; 8];
    for (from, to) in [(&near, &far), (&far, &near), (&near, &far)] {
        to.set_read_timeout(Some(PATIENCE))?;
        from.send(b"?")?;
        to.recv(&mut buffer)?;
    }
    Ok([End::Packets(near), End::Packets(far)])
}

fn streams(near: &Namespace, (far, at): (&Namespace, SocketAddr)) -> io::Result<[End; 2]> {
    let listener = far.enter(|| TcpListener::bind(at))??;
    let near = near.enter(|| TcpStream::connect_timeout(&at, PATIENCE))??;
    let (far, _) = listener.accept()?;
    let mut buffer = [0; 8];
    for (mut from, mut to) in [(&near, &far), (&far, &near), (&near, &far)] {
        to.set_read_timeout(Some(PATIENCE))?;
        from.set_nodelay(true)?;
        from.write_all(b"?")?;
        to.read_exact(&mut buffer[..1])?;
    }
    Ok([End::Stream(near), End::Stream(far)])
}
