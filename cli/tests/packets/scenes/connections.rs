//! Connections with sockets: data, replies, reused ports.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::probe;
use crate::probe::Protocol::{Icmp, Sctp, Tcp, Udp};
use crate::stage::{ELSEWHERE, OUTSIDE, Stage, everywhere};
use crate::sys::{self, Kind};

const PATIENCE: Duration = Duration::from_secs(5);
/// Waiting time for packets that should not arrive.
const WAIT: Duration = Duration::from_millis(150);

#[test]
fn allowed_connections_succeed_and_denied_ones_fail() {
    everywhere(|stage| {
        for client in ["client", "far"] {
            stage.between(client, "server", Tcp, 80, true);
            stage.between(client, "server", Tcp, 81, false);
            stage.between(client, "server", Udp, 53, true);
            stage.between(client, "server", Udp, 80, false);
            stage.between(client, "server", Sctp, 90, true);
            stage.between(client, "server", Sctp, 80, false);
            stage.between(client, "server", Icmp, 0, false);
        }
        stage.between("friend", "server", Icmp, 0, true);
        stage.between("friend", "server", Udp, 9, true);
        for other in ["other", "stranger", "sealed"] {
            stage.between(other, "server", Tcp, 80, false);
            stage.between("server", other, Tcp, 80, false);
        }
        stage.between("other", "client", Tcp, 7, true);
        stage.between("client", "stranger", Udp, 7, true);
        stage.between("client", "sealed", Icmp, 0, false);
        let (server, outside, elsewhere) = (stage.address("server"), stage.either(OUTSIDE), stage.either(ELSEWHERE));
        for protocol in [Tcp, Udp, Icmp] {
            assert!(stage.reaches(server, protocol, outside, 443, true), "{}: out, {protocol:?}", stage.name());
            assert!(
                !stage.reaches(server, protocol, elsewhere, 443, false),
                "{}: elsewhere, {protocol:?}",
                stage.name()
            );
            assert!(!stage.reaches(outside, protocol, server, 80, false), "{}: in, {protocol:?}", stage.name());
        }
    });
}

fn listen(stage: &Stage, pod: &str, port: u16) -> TcpListener {
    let at = SocketAddr::new(stage.address(pod), port);
    let socket = stage.pod(pod).enter(|| probe::listen(at));
    let listener = TcpListener::from(socket.unwrap().unwrap());
    listener.set_nonblocking(false).unwrap();
    listener
}

/// A connection from a chosen port.
fn connect(stage: &Stage, from: (&str, u16), to: (&str, u16), wait: Duration) -> io::Result<TcpStream> {
    let (own, to) = (SocketAddr::new(stage.address(from.0), from.1), SocketAddr::new(stage.address(to.0), to.1));
    let begin = || {
        let socket: OwnedFd = sys::socket(Kind::Tcp, own.is_ipv6())?;
        sys::bind(&socket, own)?;
        sys::connect(&socket, to).map(|()| TcpStream::from(socket))
    };
    let begun = std::time::Instant::now();
    let stream = loop {
        match stage.pod(from.0).enter(begin)? {
            // The earlier connection with this port ends only when the other side has noticed.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && begun.elapsed() < wait => {
                std::thread::sleep(Duration::from_millis(1));
            }
            begun => break begun?,
        }
    };
    while stream.peer_addr().is_err() {
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        if begun.elapsed() > wait {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[test]
fn connections_transfer_data_and_close() {
    everywhere(|stage| {
        let listener = listen(stage, "server", 80);
        for client in ["client", "far"] {
            let stream = connect(stage, (client, 0), ("server", 80), PATIENCE);
            let mut stream = stream.unwrap_or_else(|error| panic!("{}: {client}: {error}", stage.name()));
            let (mut served, _) = listener.accept().unwrap();
            served.set_read_timeout(Some(PATIENCE)).unwrap();
            served.set_write_timeout(Some(PATIENCE)).unwrap();
            let sent = vec![7; 300_000];
            let got = std::thread::scope(|scope| {
                scope.spawn(|| {
                    io::copy(&mut served.try_clone().unwrap(), &mut served).map(|_| served.shutdown(Shutdown::Write))
                });
                scope.spawn(|| (&stream).write_all(&sent).and_then(|()| stream.shutdown(Shutdown::Write)));
                let mut got = Vec::new();
                (&stream).read_to_end(&mut got).map(|_| got)
            });
            assert_eq!(got.unwrap().len(), sent.len(), "{}: {client}", stage.name());
            // Both sides have closed the connection.
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    });
}

#[test]
fn source_ports_can_be_reused() {
    everywhere(|stage| {
        let listener = listen(stage, "server", 80);
        for round in 0..6 {
            let mut stream = connect(stage, ("client", 40_000), ("server", 80), PATIENCE)
                .unwrap_or_else(|error| panic!("{}, round {round}: {error}", stage.name()));
            let (mut served, _) = listener.accept().unwrap();
            stream.write_all(b"?").unwrap();
            served.read_exact(&mut [0]).unwrap();
            if round % 2 == 0 {
                // Closed with a reset, which the server receives; else in the normal way, by the server first.
                let socket = OwnedFd::from(stream);
                sys::reset_on_close(&socket).unwrap();
                drop(socket);
                assert!(served.read(&mut [0]).is_err(), "{}: the reset arrives", stage.name());
            } else {
                drop(served);
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            }
        }
    });
}

#[test]
fn replies_reach_only_the_client() {
    everywhere(|stage| {
        let bind = |pod: &str, port| stage.bind_udp(pod, port, PATIENCE);
        let [server, wrong] = [53, 54].map(|port| bind("server", port));
        let [client, next] = [40_000, 40_001].map(|port| bind("client", port));
        let bystander = bind("other", 40_000);
        client.send_to(b"?", server.local_addr().unwrap()).unwrap();
        server.recv(&mut [0; 8]).unwrap_or_else(|error| panic!("{}: {error}", stage.name()));
        server.send_to(b"!", client.local_addr().unwrap()).unwrap();
        client.recv(&mut [0; 8]).unwrap();
        for (from, to) in [(&server, &next), (&wrong, &client), (&server, &bystander), (&wrong, &next)] {
            from.send_to(b"!", to.local_addr().unwrap()).unwrap();
            to.set_read_timeout(Some(WAIT)).unwrap();
            assert!(to.recv(&mut [0; 8]).is_err(), "{}: {from:?} to {to:?}", stage.name());
        }
        // A new connection from the port of the reply is not a reply.
        let _listener = listen(stage, "client", 50_000);
        assert!(connect(stage, ("server", 80), ("client", 50_000), WAIT).is_err(), "{}", stage.name());
    });
}
