//! Packets that are too large: fragments made by a kernel, and hops that report their MTU.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::stage::{OUTSIDE, everywhere};

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn fragmented_datagrams_arrive() {
    everywhere(|stage| {
        let bind = |pod: &str, port| stage.bind_udp(pod, port, PATIENCE);
        let server = bind("server", 53);
        let mut buffer = [0; 8_000];
        for pod in ["client", "far"] {
            let client = bind(pod, 0);
            client.send_to(&[1; 7_000], server.local_addr().unwrap()).unwrap();
            let (length, from) =
                server.recv_from(&mut buffer).unwrap_or_else(|it| panic!("{}: {pod}: {it}", stage.name()));
            assert_eq!(length, 7_000);
            server.send_to(&[2; 7_500], from).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 7_500, "{}: {pod}", stage.name());
        }
        server.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
        bind("other", 0).send_to(&[1; 7_000], server.local_addr().unwrap()).unwrap();
        assert!(server.recv(&mut buffer).is_err(), "{}", stage.name());
    });
}

/// A hop in the middle has a smaller MTU than both ends, and they learn it only from its errors.
#[test]
fn path_mtu_errors_reach_the_sender() {
    everywhere(|stage| {
        stage.net.fabric.ip("link set ext mtu 1300\n").unwrap();
        let at = SocketAddr::new(stage.either(OUTSIDE), 443);
        let listener = stage.net.outside.enter(|| TcpListener::bind(at)).unwrap().unwrap();
        let stream = stage.pod("server").enter(|| TcpStream::connect_timeout(&at, PATIENCE)).unwrap().unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent = vec![7; 200_000];
        let mut got = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(&sent).and_then(|()| stream.shutdown(std::net::Shutdown::Write)));
            let read = served.read_to_end(&mut got);
            read.unwrap_or_else(|error| panic!("{}: after {} bytes: {error}", stage.name(), got.len()));
        });
        assert_eq!(got.len(), sent.len(), "{}", stage.name());
    });
}
