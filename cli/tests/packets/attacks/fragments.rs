//! IPv6 fragments that the node's connection tracking reassembles and splits again.
//!
//! `ip6_fragment` cannot reuse the pieces of a reassembled packet whose header became longer (destination options in
//! the first piece only), and copies everything into new ones, but for the interface that they came in through
//! (`ip6_copy_metadata` leaves `skb_iif` out). Packets from outside then looked as if this host had sent them.

use std::net::IpAddr;

use super::{Findings, IN_IPV6, NODE_PORT, ON_BRIDGES_IN_IPV6, attack_tracked, send, wire};
use crate::enforce::ask;
use crate::stage::{BRIDGE, ELSEWHERE, NODES, Stage};
use crate::topology::Layout;
use crate::wire::Wire;
use weir_testing::packet::Packet;

const DESTINATION_OPTIONS: u8 = 60;
const FRAGMENT: u8 = 44;
const PORT: u16 = 40_000;
/// Bytes in each piece.
const PIECES: [usize; 2] = [1_200, 800];

/// A datagram in two pieces, the first with destination options before the fragment header; full of the marker.
fn pieces(source: IpAddr, destination: IpAddr, port: u16, marker: &[u8; 8]) -> [Packet; 2] {
    let identification = u32::from_be_bytes([marker[4], marker[5], marker[6], marker[7]]);
    let header = |offset: usize, more: bool| {
        let field = (offset as u16 | u16::from(more)).to_be_bytes();
        [vec![0, field[0], field[1]], identification.to_be_bytes().to_vec()].concat()
    };
    // Longer than the headroom of the later piece, so that the kernel cannot put them before it.
    let options = [vec![7, 1, 60], vec![0; 60]].concat();
    let mut first = Packet::udp((source, PORT), (destination, port));
    first.payload[4..6].copy_from_slice(&(PIECES.iter().sum::<usize>() as u16).to_be_bytes());
    first.payload = [first.payload[..8].to_vec(), marker.repeat(PIECES[0] / 8 - 1)].concat();
    let later = Packet::new(source, destination, 17, marker.repeat(PIECES[1] / 8));
    [
        first.with_extension(DESTINATION_OPTIONS, &options).with_extension(FRAGMENT, &header(0, true)),
        later.with_extension(FRAGMENT, &header(PIECES[0], false)),
    ]
}

/// An unfragmented packet with the same ports.
fn whole(source: IpAddr, destination: IpAddr, marker: &[u8; 8]) -> Packet {
    let mut packet = Packet::udp((source, PORT), (destination, 9));
    packet.payload[8..16].copy_from_slice(marker);
    packet
}

#[test]
fn fragments_with_a_spoofed_source_do_not_count_as_the_nodes() {
    attack_tracked(IN_IPV6, |stage, findings| {
        let (outside, sealed, other) =
            (Wire::outside(&stage.net).unwrap(), wire(stage, "sealed"), wire(stage, "other"));
        let send = |packet: &Packet| outside.send(packet).unwrap();
        // Pods that no policy isolates get them: the path works.
        pieces(stage.either(ELSEWHERE), stage.address("other"), 9, b"way-open").iter().for_each(send);
        assert!(other.sees(b"way-open", true), "{}: fragments do not come through at all", stage.name());
        let sources = [(NODES[0], "the node"), (BRIDGE, "the bridge"), (["10.0.0.5", "fd00::5"], "the pod")];
        for (number, (source, name)) in sources.into_iter().enumerate() {
            if source == BRIDGE && stage.net.layout == Layout::Routed {
                continue;
            }
            let markers = [format!("spoofed{number}"), format!("singles{number}")];
            let [spoofed, single] = markers.each_ref().map(|it| it.as_bytes().first_chunk::<8>().unwrap());
            let (source, destination) = (stage.either(source), stage.address("sealed"));
            pieces(source, destination, 9, spoofed).iter().for_each(send);
            findings.expect(!sealed.sees(spoofed, false), format!("fragments as if from {name} arrive"));
            send(&whole(source, destination, single));
            findings.expect(!sealed.sees(single, false), format!("and then whole packets as if from {name}"));
        }
    });
}

#[test]
fn fragments_of_a_masqueraded_client_do_not_count_as_the_nodes() {
    attack_tracked(IN_IPV6, |stage, findings| {
        let (outside, server) = (Wire::outside(&stage.net).unwrap(), wire(stage, "server"));
        let node = stage.either(NODES[0]);
        let from = stage.either(ELSEWHERE);
        pieces(from, node, NODE_PORT, b"nodeport").iter().for_each(|it| outside.send(it).unwrap());
        findings.expect(!server.sees(b"nodeport", false), "fragments to a node port arrive");
        let mut whole = whole(from, node, b"wholenow");
        whole.payload[2..4].copy_from_slice(&NODE_PORT.to_be_bytes());
        outside.send(&whole).unwrap();
        findings.expect(!server.sees(b"wholenow", false), "and then whole packets to the node port");
    });
}

/// With `br_netfilter` the node does the same to packets between pods on a bridge (`br_ip6_fragment`).
#[test]
fn fragments_of_an_unenforced_neighbour_do_not_count_as_the_nodes() {
    attack_tracked(ON_BRIDGES_IN_IPV6, |stage, findings| {
        let node = &stage.net.nodes[0];
        if let Err(reason) = node.space.set("bridge/bridge-nf-call-ip6tables", "1") {
            weir_runtime::skip!("without br_netfilter: {reason}");
        }
        ask(node, &stage.place, &["detach", "--endpoint", "default/other"]).unwrap();
        let [other, sealed, client] = ["other", "sealed", "client"].map(|it| wire(stage, it));
        bridged(stage, &other, &client, stage.address("other"), "client", b"openway1");
        assert!(client.sees(b"openway1", true), "{}: fragments do not come through at all", stage.name());
        spoof_on_bridge(stage, findings, &other, &sealed);
    });
}

fn bridged(stage: &Stage, from: &Wire, to: &Wire, source: IpAddr, pod: &str, marker: &[u8; 8]) {
    pieces(source, stage.address(pod), 9, marker).iter().for_each(|it| send(stage, from, to, it));
}

fn spoof_on_bridge(stage: &Stage, findings: &mut Findings, other: &Wire, sealed: &Wire) {
    let sources = [
        (stage.either(NODES[0]), "the node", b"bridged1"),
        (stage.either(BRIDGE), "the bridge", b"bridged2"),
        (stage.address("sealed"), "the pod", b"bridged3"),
    ];
    for (source, name, marker) in sources {
        bridged(stage, other, sealed, source, "sealed", marker);
        findings
            .expect(!sealed.sees(marker, false), format!("a neighbour's fragments with the source of {name} arrive"));
        send(stage, other, sealed, &whole(source, stage.address("sealed"), b"bridged9"));
        findings.expect(
            !sealed.sees(b"bridged9", false),
            format!("and then its unfragmented packets with the source of {name}"),
        );
    }
}
