//! The programs inside the namespaces: a server that answers every packet, and a client.
//!
//! Both are the test's own binary, started again by `ip netns exec`.

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Answers on TCP and UDP ports of both families until its input ends.
pub(crate) fn serve(ports: impl Iterator<Item = u16>) -> io::Result<()> {
    for port in ports {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let (listener, socket) = (TcpListener::bind(everywhere)?, UdpSocket::bind(everywhere)?);
        thread::spawn(move || listener.incoming().for_each(drop));
        thread::spawn(move || echo(&socket));
    }
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn echo(socket: &UdpSocket) {
    let mut buffer = [0; 64];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        // The client may have gone.
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// Reads lines `PROTOCOL ADDRESS PORT MILLISECONDS`, tries all of them at once, and prints `1` or `0` for each, in
/// order.
pub(crate) fn probe() -> io::Result<()> {
    let mut tries = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        tries.push(thread::spawn(move || reaches(&line)));
    }
    for one in tries {
        let reached = one.join().unwrap_or(None).ok_or_else(|| io::Error::other("not a line for a probe"))?;
        println!("{}", u8::from(reached));
    }
    io::stdout().flush()
}

fn reaches(line: &str) -> Option<bool> {
    let mut words = line.split(' ');
    let (protocol, address) = (words.next()?, words.next()?.parse().ok()?);
    let (port, wait) = (words.next()?.parse().ok()?, Duration::from_millis(words.next()?.parse().ok()?));
    let to = SocketAddr::new(address, port);
    match protocol {
        "tcp" => Some(TcpStream::connect_timeout(&to, wait).is_ok()),
        "udp" => Some(udp(to, wait).is_ok()),
        "icmp" => Some(ping(address, wait)),
        _ => None,
    }
}

fn udp(to: SocketAddr, wait: Duration) -> io::Result<usize> {
    let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(wait))?;
    socket.connect(to)?;
    socket.send(b"?")?;
    socket.recv(&mut [0; 8])
}

fn ping(address: IpAddr, wait: Duration) -> bool {
    let mut command = Command::new("ping");
    command.args(["-n", "-q", "-c", "1", "-W", &wait.as_secs_f64().to_string(), &address.to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
