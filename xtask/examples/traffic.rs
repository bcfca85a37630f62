//! Sends small packets in countable units, for `cargo xtask bench packets`: kinds of traffic that iperf3 does not send,
//! or sends without waiting for answers.
//!
//! `traffic serve ADDRESS:PORT` answers over TCP and UDP until its standard input ends. `traffic drive ADDRESS:PORT`
//! reads lines `LOAD MILLISECONDS`, sends that load for this time, and prints the number of units. Loads:
//!
//! * `rr`: one byte in each direction on one connection (netperf's TCP_RR);
//! * `crr`: the same on a new connection each time (TCP_CRR); the server closes it first, so that the client's ports
//!   stay free;
//! * `udp`: packets of [`SMALL`] bytes in bursts of [`BURST`], each burst answered once. No packet is lost, so every
//!   packet takes the whole path. A unit is one of these packets.
//!
//! Each end is one thread that does nothing but system calls, so its CPU time is the kernel's time for the packets.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const SMALL: usize = 64;
const BURST: u64 = 32;
/// The first byte of a burst's last packet.
const LAST: u8 = 1;
/// The client's request: answer and keep the connection, or answer and close it.
const STAY: u8 = b's';
const CLOSE: u8 = b'c';
/// Number of units between two checks of the clock.
const UNITS_BETWEEN_CLOCK_CHECKS: u64 = 64;
/// The longest time for an answer; after that the run fails.
const PATIENCE: Duration = Duration::from_secs(3);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let at = |text: &str| text.parse::<SocketAddr>().map_err(io::Error::other);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(at(address)?),
        ["drive", address] => drive(at(address)?),
        _ => Err(io::Error::other("traffic serve|drive ADDRESS:PORT")),
    }
}

/// TCP runs in the first thread, whose CPU time is counted. UDP is served by another process, on its own port.
fn serve(at: SocketAddr) -> io::Result<()> {
    std::thread::spawn(|| {
        _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    if at.port() % 2 == 1 { serve_udp(&UdpSocket::bind(at)?) } else { serve_tcp(&TcpListener::bind(at)?) }
}

fn serve_tcp(listener: &TcpListener) -> io::Result<()> {
    loop {
        // The client reports errors of its connection.
        _ = listener.accept().and_then(|(connection, _)| answer(connection));
    }
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut byte = [0];
    while connection.read(&mut byte)? == 1 {
        connection.write_all(&byte)?;
        if byte[0] == CLOSE {
            return Ok(());
        }
    }
    Ok(())
}

fn serve_udp(socket: &UdpSocket) -> io::Result<()> {
    let mut packet = [0; SMALL];
    loop {
        let (_, from) = socket.recv_from(&mut packet)?;
        if packet[0] == LAST {
            socket.send_to(&packet, from)?;
        }
    }
}

fn drive(to: SocketAddr) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (load, milliseconds) = line.split_once(' ').ok_or_else(|| io::Error::other("LOAD MILLISECONDS"))?;
        let end = Instant::now() + Duration::from_millis(milliseconds.parse().map_err(io::Error::other)?);
        let units = match load {
            "rr" => round_trips(to, end)?,
            "crr" => connections(to, end)?,
            "udp" => bursts(SocketAddr::new(to.ip(), to.port() + 1), end)?,
            other => return Err(io::Error::other(format!("there is no load {other}"))),
        };
        println!("{units}");
    }
    Ok(())
}

/// Repeats a unit until the end time; returns the number of units.
fn until(end: Instant, mut unit: impl FnMut() -> io::Result<()>) -> io::Result<u64> {
    let mut units = 0;
    while Instant::now() < end {
        (0..UNITS_BETWEEN_CLOCK_CHECKS).try_for_each(|_| unit())?;
        units += UNITS_BETWEEN_CLOCK_CHECKS;
    }
    Ok(units)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&to, PATIENCE)?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

fn ask(connection: &mut TcpStream, what: u8) -> io::Result<()> {
    connection.write_all(&[what])?;
    connection.read_exact(&mut [0])
}

fn round_trips(to: SocketAddr, end: Instant) -> io::Result<u64> {
    let mut connection = connect(to)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    until(end, || ask(&mut connection, STAY))
}

fn connections(to: SocketAddr, end: Instant) -> io::Result<u64> {
    until(end, || {
        let mut connection = TcpStream::connect(to)?;
        ask(&mut connection, CLOSE)?;
        // Wait until the server has closed the connection.
        connection.read(&mut [0]).map(drop)
    })
}

fn bursts(to: SocketAddr, end: Instant) -> io::Result<u64> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (mut packet, mut answer) = ([0; SMALL], [0; SMALL]);
    let bursts = until(end, || {
        for index in 1..=BURST {
            packet[0] = if index == BURST { LAST } else { 0 };
            socket.send(&packet)?;
        }
        socket.recv(&mut answer).map(drop)
    })?;
    Ok(bursts * BURST)
}
