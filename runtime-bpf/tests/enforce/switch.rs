//! Switching under load: nothing that both generations allow is lost, nothing that both deny gets through, and no packet is
//! let through by one generation at the one end and by another at the other.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_runtime::Way;

use crate::attach::{attach, each};
use crate::net::{Node, pod_address};
use crate::policy::{artifact, cluster, policy};
use crate::probe::PATIENCE;

/// Switches in a test: each takes about as long as the grace period of the one before.
const SWITCHES: usize = 12;

type Made = (weir_compiler::artifact::Artifact, Vec<u8>);

fn pair(first: &str, second: &str) -> [Made; 2] {
    [first, second].map(|policies| artifact(&cluster(2, policies)))
}

/// Switches to and fro while `load` runs until it is told to stop.
fn switch_under(node: &Node, way: Way, made: &[Made; 2], load: impl FnOnce(&AtomicBool) + Send) {
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

fn socket(node: &Node, pod: usize, port: u16) -> UdpSocket {
    let any = SocketAddr::new([0_u16; 8].into(), port);
    let socket = node.in_pod(pod, || UdpSocket::bind(any)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends from ever other ports, as fast as it goes; says how much came.
fn flood(node: &Node, stop: &AtomicBool) -> (u64, u64) {
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
                    // Unreachable is what a denied port of a closed socket says; it is not closed here.
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

#[test]
fn no_packet_is_let_through_by_a_mixture_of_generations() {
    let egress_only = policy(1, "Ingress", "ingress: []");
    let ingress_only = policy(0, "Egress", "egress: []");
    each(|node, way| {
        let made = pair(&egress_only, &ingress_only);
        switch_under(node, way, &made, |stop| {
            let (sent, received) = flood(node, stop);
            assert!(sent > 1_000, "there was a load: {sent}");
            assert_eq!(received, 0, "of {sent}, over {way:?}");
        });
    });
}

#[test]
fn what_both_generations_deny_does_not_get_through() {
    let one = policy(1, "Ingress", "ingress: [{ports: [{port: 80}]}]");
    let other = policy(1, "Ingress", "ingress: [{ports: [{port: 81}]}]");
    each(|node, way| {
        switch_under(node, way, &pair(&one, &other), |stop| {
            let (sent, received) = flood(node, stop);
            assert!(sent > 1_000, "there was a load: {sent}");
            assert_eq!(received, 0, "of {sent}, over {way:?}");
        });
    });
}

#[test]
fn what_both_generations_allow_loses_nothing() {
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

/// Questions and answers, one after the other; what is not answered is lost.
fn converse(node: &Node, stop: &AtomicBool) -> (u64, u64) {
    let (server, mut client) = (socket(node, 1, 7), socket(node, 0, 0));
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
            client.send_to(&answered.to_le_bytes(), (pod_address(1, true), 7)).unwrap();
            match client.recv(&mut [0; 8]) {
                Ok(_) => answered += 1,
                // The server may have been told to stop first.
                Err(_) if stop.load(Ordering::Relaxed) => {}
                Err(_) => lost += 1,
            }
        }
    });
    (answered, lost)
}
