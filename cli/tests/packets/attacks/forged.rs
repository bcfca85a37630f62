//! Packets that claim to belong to a flow: forged ends, packets of another sender under the node's address and port,
//! associations that begin in the wrong direction.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::{EVERYWHERE, Findings, attack_tracked, flow, send, wire};
use crate::namespace::Namespace;
use crate::sctp;
use crate::stage::{NODES, OUTSIDE, Stage};
use crate::sys;
use crate::wire::Wire;
use weir_testing::packet::{ACK, FIN, Packet, RST};

const PATIENCE: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_millis(150);

/// A connection from `server` to the outside, over which both have spoken.
fn connection(stage: &Stage) -> (TcpStream, TcpStream) {
    let at = SocketAddr::new(stage.either(OUTSIDE), 443);
    let listener = stage.net.outside.enter(|| TcpListener::bind(at)).unwrap().unwrap();
    let near = stage.pod("server").enter(|| TcpStream::connect_timeout(&at, PATIENCE)).unwrap().unwrap();
    let (far, _) = listener.accept().unwrap();
    for it in [&near, &far] {
        it.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert!(carries(&near, &far) && carries(&far, &near), "{}", stage.name());
    (near, far)
}

fn carries(mut from: &TcpStream, mut to: &TcpStream) -> bool {
    from.write_all(b"?").is_ok() && to.read_exact(&mut [0]).is_ok()
}

/// The state of the flow of a connection of `server`, or `forgotten`.
fn state(stage: &Stage, [own, far]: [SocketAddr; 2]) -> String {
    flow(stage, "server", far, own.port()).map_or("forgotten".to_owned(), |it| it["state"].as_str().unwrap().to_owned())
}

fn ends(near: &TcpStream) -> [SocketAddr; 2] {
    [near.local_addr().unwrap(), near.peer_addr().unwrap()]
}

/// A closing flow is forgotten after two silent minutes. The programs see no sequence numbers, so one forged packet
/// used to cut every connection that is silent for longer.
#[test]
fn forged_fin_and_rst_close_no_flow_and_genuine_ones_do() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        forged_ends(stage, findings);
        fins_close(stage, findings);
        reset_closes(stage, findings);
    });
}

fn forged_ends(stage: &Stage, findings: &mut Findings) {
    let outside = Wire::outside(&stage.net).unwrap();
    let (near, far) = connection(stage);
    let ends = ends(&near);
    let [to, from] = ends.map(|it| (it.ip(), it.port()));
    // Without a checksum, so that the pod's kernel does not mind; the programs have nothing else to go by.
    for (flags, name) in [(RST, "RST"), (RST | ACK, "RST, ACK"), (FIN | ACK, "FIN"), (FIN | RST, "FIN, RST")] {
        outside.send(&Packet::tcp(from, to, flags)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let state = state(stage, ends);
        findings.expect(state == "open", format!("after a forged {name} the flow is {state}"));
    }
    findings.expect(carries(&near, &far) && carries(&far, &near), "the connection carries nothing more");
    findings.expect(state(stage, ends) == "open", "data do not keep the flow open");
}

/// Genuine FINs of both sides do close the flow, else it would stay for two hours.
fn fins_close(stage: &Stage, findings: &mut Findings) {
    let (near, far) = connection(stage);
    let ends = ends(&near);
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&near).read(&mut [0]).unwrap(), 0);
    findings.expect(carries(&near, &far), "a half-closed connection carries nothing");
    // A program that loses a race for the slot's word leaves the change to the next packet.
    let mut half_closed = state(stage, ends);
    for _ in 0..20 {
        if half_closed == "open" {
            break;
        }
        findings.expect(carries(&near, &far), "a half-closed connection carries no more");
        half_closed = state(stage, ends);
    }
    findings.expect(half_closed == "open", format!("a half-closed connection is {half_closed}"));
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&far).read(&mut [0]).unwrap(), 0);
    std::thread::sleep(Duration::from_millis(20));
    let state = state(stage, ends);
    findings.expect(state == "closing", format!("a connection that both have ended is {state}"));
}

fn reset_closes(stage: &Stage, findings: &mut Findings) {
    let (near, far) = connection(stage);
    let ends = ends(&near);
    let socket = OwnedFd::from(near);
    sys::reset_on_close(&socket).unwrap();
    drop(socket);
    assert!((&far).read(&mut [0]).is_err(), "{}: the reset arrives", stage.name());
    let state = state(stage, ends);
    findings.expect(state == "closing", format!("a connection that the pod reset is {state}"));
}

fn udp(space: &Namespace, at: SocketAddr) -> UdpSocket {
    let socket = space.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// `iptables` of a family.
fn rule(stage: &Stage, words: &str) {
    let program = if stage.v6 { "ip6tables" } else { "iptables" };
    let words: Vec<&str> = ["-w", "10"].into_iter().chain(words.split(' ')).collect();
    stage.net.nodes[0].space.run(program, &words, "").unwrap();
}

/// Only addresses and ports used to be compared once a flow had begun as the node's own. A packet that SNAT gives the
/// same address and port continued it.
#[test]
fn masqueraded_packets_do_not_continue_the_nodes_flow() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        let (node, pod) = (stage.either(NODES[0]), stage.address("sealed"));
        let at = SocketAddr::new(node, 5_353);
        let to = SocketAddr::new(pod, 53);
        // Connection tracking has no entry for the host's flow, as after its time-out: so the address and port are
        // free.
        rule(stage, &format!("-t raw -A OUTPUT -p udp -d {pod} --dport 53 -j CT --notrack"));
        rule(stage, &format!("-t raw -A PREROUTING -p udp -s {pod} --sport 53 -j CT --notrack"));
        let outside = stage.either(OUTSIDE);
        let target = if stage.v6 { format!("[{node}]:5353") } else { at.to_string() };
        rule(stage, &format!("-t nat -A POSTROUTING -s {outside} -p udp -d {pod} -j SNAT --to-source {target}"));
        let (host, server) = (udp(&stage.net.nodes[0].space, at), udp(stage.pod("sealed"), to));
        let stranger = udp(&stage.net.outside, SocketAddr::new(outside, 1_053));
        for _ in 0..2 {
            host.send_to(b"probe", to).unwrap();
            let got = server.recv_from(&mut [0; 16]);
            let Ok((_, from)) = got else {
                return findings.expect(false, format!("the node does not reach its pod: {got:?}"));
            };
            server.send_to(b"fine", from).unwrap();
            findings.expect(host.recv(&mut [0; 16]).is_ok(), "the pod's answer does not reach the node");
        }
        stranger.send_to(b"attack", to).unwrap();
        let mut buffer = [0; 16];
        server.set_read_timeout(Some(WAIT)).unwrap();
        let got = server.recv_from(&mut buffer);
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        findings.expect(got.is_err(), format!("a masqueraded packet continues the node's flow: {got:?}"));
        host.send_to(b"probe", to).unwrap();
        findings.expect(server.recv(&mut buffer).is_ok(), "the node's flow is broken");
    });
}

/// An INIT begins a new association in its own direction. Against the direction of a flow it used to pass as an answer.
#[test]
fn sctp_associations_begin_only_in_the_allowed_direction() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        let (client, server) = (wire(stage, "client"), wire(stage, "server"));
        let ends: [(IpAddr, u16); 2] = [(stage.address("client"), 40_000), (stage.address("server"), 90)];
        let init = |from: usize| {
            let (source, destination) = (ends[from], ends[1 - from]);
            Packet::new(source.0, destination.0, sctp::PROTOCOL, sctp::init(source.1, destination.1))
        };
        let answer = || {
            let to = SocketAddr::new(ends[1].0, ends[1].1);
            let received = [vec![0x45; usize::from(!stage.v6) * 20], sctp::init(ends[0].1, ends[1].1)].concat();
            Packet::new(ends[1].0, ends[0].0, sctp::PROTOCOL, sctp::answer(&received, &to).unwrap())
        };
        send(stage, &client, &server, &init(0));
        assert!(server.gets(&init(0)), "{}", stage.name());
        send(stage, &server, &client, &init(1));
        findings.expect(client.misses(&init(1)), "an INIT against the flow's direction passes");
        send(stage, &server, &client, &answer());
        findings.expect(client.gets(&answer()), "the answer does not pass");
        send(stage, &server, &client, &init(1));
        findings.expect(client.misses(&init(1)), "an INIT against an answered flow's direction passes");
    });
}
