//! ARP and neighbour discovery of a pod that may neither send to nor receive from any peer.

use std::net::IpAddr;
use std::time::Duration;

use crate::stage::{NODES, Stage, everywhere};
use crate::topology::Layout;
use crate::wire::{Wire, with_checksum};
use weir_testing::packet::Packet;

const PATIENCE: Duration = Duration::from_secs(3);
const ARP: [u8; 2] = [8, 6];

#[test]
fn neighbour_discovery_works_where_all_other_traffic_is_denied() {
    everywhere(|stage| {
        let sealed = Wire::pod(&stage.net, "default/sealed").unwrap();
        if stage.v6 {
            solicit(stage, &sealed)
        } else {
            ask(stage, &sealed)
        }
        is_asked(stage, &sealed);
    });
}

/// Asks for the gateway's hardware address with ARP.
fn ask(stage: &Stage, sealed: &Wire) {
    let mut frame = [vec![0xff; 6], sealed.own_mac().to_vec(), ARP.to_vec(), vec![0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.extend(sealed.own_mac());
    frame.extend([10, 0, 0, 5, 0, 0, 0, 0, 0, 0, 169, 254, 1, 1]);
    sealed.send_frame(&frame).unwrap();
    let is_answer = |it: &[u8]| it.get(12..14) == Some(&ARP[..]) && it.get(20..22) == Some(&[0, 2][..]);
    assert!(sealed.find(PATIENCE, is_answer), "{}: no answer", stage.name());
}

/// The same with IPv6 neighbour discovery.
fn solicit(stage: &Stage, sealed: &Wire) {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
    message.extend(sealed.own_mac());
    let packet = Packet::new(stage.address("sealed"), address("fe80::1"), 58, message).with_hop_limit(255);
    sealed.send(&with_checksum(packet)).unwrap();
    assert!(sealed.find(PATIENCE, |it| it.get(54) == Some(&136)), "{}: no answer", stage.name());
}

/// The host removes its entry for the pod, and must ask before it can send to the pod.
fn is_asked(stage: &Stage, sealed: &Wire) {
    let (node, to) = (&stage.net.nodes[0], stage.address("sealed"));
    let via = if stage.net.layout == Layout::Bridge { "br0" } else { &stage.net.pod_named("default/sealed").interface };
    node.space.ip(&format!("neigh del {to} dev {via}\n")).unwrap();
    let from = if stage.net.layout == Layout::Bridge { crate::stage::BRIDGE } else { NODES[0] };
    assert!(
        !stage.reaches(stage.either(from), crate::probe::Protocol::Icmp, to, 0, false),
        "a pod without a network stack"
    );
    let asks = |it: &[u8]| match stage.v6 {
        false => it.get(12..14) == Some(&ARP[..]) && it.get(20..22) == Some(&[0, 1][..]),
        true => it.get(20) == Some(&58) && it.get(54) == Some(&135),
    };
    assert!(sealed.find(PATIENCE, asks), "{}: the host does not ask", stage.name());
}
