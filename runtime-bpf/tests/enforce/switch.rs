//! Switching under load: packets that both generations allow are not lost, packets that both deny do not get through,
//! and no packet gets through because one generation judges it at one end and another at the other end.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use weir_runtime::runtime::{PinAccess, Request, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, skip};

use crate::attach::{attach, each, request};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::PATIENCE;

/// Switches in a test: each takes about as long as the grace period of the one before.
const SWITCHES: usize = 12;

type Made = (weir_artifact::Artifact, Vec<u8>);

fn pair(first: &str, second: &str) -> [Made; 2] {
    [first, second].map(|policies| artifact(&cluster(2, policies)))
}

/// Switches back and forth between two generations while `load` runs; then sets the flag that stops `load`.
fn switch_under(node: &Node, way: HookKind, made: &[Made; 2], load: impl FnOnce(&AtomicBool) + Send) {
    attach(node, &made[1], &[0, 1], Some(way)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&stop));
        for turn in 0..SWITCHES {
            attach(node, &made[turn % 2], &[], None).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
}

/// Switches to `made`, but the process dies when it is about to place the program at hook number `point`, and no other
/// process continues the switch.
fn stop_before(node: &Node, made: &Made, way: HookKind, point: usize) -> Result<(), Error> {
    let place = if way == HookKind::Tcx { Operation::Replace } else { Operation::PutFilter };
    let met = AtomicUsize::new(0);
    let dead = move |operation| {
        let placed = met.load(Ordering::Relaxed);
        if operation == place && placed <= point {
            met.store(placed + 1, Ordering::Relaxed);
        }
        (met.load(Ordering::Relaxed) > point).then_some(libc::EPERM)
    };
    node.here(|| {
        let system = System::with_faults(Box::new(dead)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?.without_grace();
        runtime.attach(&Request { way: Some(way), ..request(made) }).map(drop)
    })
}

fn socket(node: &Node, pod: usize, port: u16) -> UdpSocket {
    let any = SocketAddr::new([0_u16; 8].into(), port);
    let socket = node.in_pod(pod, || UdpSocket::bind(any)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends from ever different ports, as fast as possible; returns how many packets were sent and received.
pub(crate) fn flood(node: &Node, stop: &AtomicBool) -> (u64, u64) {
    let receiver = socket(node, 1, 7);
    receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let received = AtomicU64::new(0);
    let mut sent = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                received.fetch_add(u64::from(receiver.recv(&mut [0; 8]).is_ok()), Ordering::Relaxed);
            }
        });
        while !stop.load(Ordering::Relaxed) {
            let sender = socket(node, 0, 0);
            for v6 in [false, true] {
                for _ in 0..64 {
                    // An ICMP "port unreachable" would mean that the socket is closed; the socket is open here.
                    let to = match pod_address(1, v6) {
                        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
                        v6 => v6,
                    };
                    sent += u64::from(sender.send_to(b"x", (to, 7)).is_ok());
                }
            }
        }
    });
    (sent, received.into_inner())
}

/// Switches between two policies while packets are sent that each of them denies.
fn flood_never_passes(one: &str, other: &str) {
    each(|node, way| {
        switch_under(node, way, &pair(one, other), |stop| {
            let (sent, received) = flood(node, stop);
            assert!(sent > 1_000, "there was a load: {sent}");
            assert_eq!(received, 0, "of {sent}, over {way:?}");
        });
    });
}

#[test]
fn no_packet_passes_because_two_generations_judge_it() {
    let egress_only = policy(1, "Ingress", "ingress: []");
    let ingress_only = policy(0, "Egress", "egress: []");
    flood_never_passes(&egress_only, &ingress_only);
}

/// The same without chance: the switch stops after each number of replaced programs, and either generation may be the
/// first one. One generation denies at p0 and the other at p1, for packets to p1 and from p1.
#[test]
fn an_interrupted_switch_passes_no_packet_that_both_generations_deny() {
    let only_p0 = policy(0, "Ingress, Egress", "ingress: [], egress: []");
    let only_p1 = policy(1, "Ingress, Egress", "ingress: [], egress: []");
    let made = pair(&only_p0, &only_p1);
    let without = artifact(&cluster(2, ""));
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = Node::new(Layout::Routed, 2);
        attach(&node, &without, &[0, 1], Some(way)).unwrap();
        assert_eq!(arrived(&node), 4, "nothing is denied yet");
        for (from, to) in [(0, 1), (1, 0)] {
            for point in 0..5 {
                attach(&node, &made[from], &[], None).unwrap();
                let ended = stop_before(&node, &made[to], way, point);
                assert_eq!(ended.is_err(), point < 4, "four points: {ended:?}");
                assert_eq!(arrived(&node), 0, "{way:?}, stopped before point {point}");
            }
        }
        // A marked packet is passed to the other generation's program; the mark alone does not decide. So without
        // policies all packets pass again.
        attach(&node, &without, &[], None).unwrap();
        assert_eq!(arrived(&node), 4, "{way:?}");
    }
}

/// Number of datagrams that arrive, one in each direction and family. Each has a port of its own, because a child
/// process of another thread may hold a socket for a moment.
fn arrived(node: &Node) -> usize {
    static PORT: AtomicU16 = AtomicU16::new(10_000);
    let mut sockets = Vec::new();
    for (from, to, v6) in [(0, 1, false), (1, 0, false), (0, 1, true), (1, 0, true)] {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let socket = |pod, port| node.in_pod(pod, || UdpSocket::bind((pod_address(pod, v6), port))).unwrap();
        let receiver = socket(to, port);
        socket(from, 0).send_to(b"!", (pod_address(to, v6), port)).unwrap();
        sockets.push(receiver);
    }
    std::thread::sleep(PATIENCE);
    let came = |socket: &UdpSocket| socket.set_nonblocking(true).is_ok_and(|()| socket.recv(&mut [0]).is_ok());
    sockets.iter().filter(|socket| came(socket)).count()
}

#[test]
fn no_packet_that_both_generations_deny_passes() {
    let one = policy(1, "Ingress", "ingress: [{ports: [{port: 80}]}]");
    let other = policy(1, "Ingress", "ingress: [{ports: [{port: 81}]}]");
    flood_never_passes(&one, &other);
}

#[test]
fn no_packet_that_both_generations_allow_is_lost() {
    let one = policy(1, "Ingress", "ingress: [{ports: [{port: 7, protocol: UDP}, {port: 80}]}]");
    let other = policy(1, "Ingress, Egress", "ingress: [{ports: [{port: 7, protocol: UDP}]}], egress: []");
    each(|node, way| {
        switch_under(node, way, &pair(&one, &other), |stop| {
            let (answered, lost) = converse(node, stop);
            assert!(answered > 1_000, "there was a load: {answered}");
            assert_eq!(lost, 0, "of {answered}, over {way:?}");
        });
    });
}

/// Sends requests and waits for each answer; a request without an answer counts as lost.
pub(crate) fn converse(node: &Node, stop: &AtomicBool) -> (u64, u64) {
    converse_with(node, 1, stop)
}

/// The same with another pod.
pub(crate) fn converse_with(node: &Node, pod: usize, stop: &AtomicBool) -> (u64, u64) {
    let (server, mut client) = (socket(node, pod, 7), socket(node, 0, 0));
    let (mut answered, mut lost) = (0_u64, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 8];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = server.recv_from(&mut bytes) {
                    _ = server.send_to(&bytes[..length], from);
                }
            }
        });
        while !stop.load(Ordering::Relaxed) {
            if answered % 64 == 63 {
                client = socket(node, 0, 0);
            }
            client.send_to(&answered.to_le_bytes(), (pod_address(pod, true), 7)).unwrap();
            // A lost answer never arrives. An answer that a busy machine delays does arrive, and must not be taken for
            // the answer to the next request.
            match answer(&client, answered) {
                true => answered += 1,
                // The server may have stopped first.
                false if stop.load(Ordering::Relaxed) => {}
                false => lost += 1,
            }
        }
    });
    (answered, lost)
}

/// Waits for one answer.
fn answer(client: &UdpSocket, question: u64) -> bool {
    const NEVER: Duration = Duration::from_secs(10);
    client.set_read_timeout(Some(NEVER)).unwrap();
    let mut bytes = [0; 8];
    loop {
        match client.recv(&mut bytes) {
            Ok(_) if u64::from_le_bytes(bytes) == question => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
