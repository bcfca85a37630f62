//! ARP, neighbour discovery, listener reports: a pod may announce its own addresses and ask for those of others, and
//! nothing else.

use std::net::IpAddr;

use weir_artifact::layout::Outcome::*;
use weir_artifact::layout::endpoint;
use weir_model::Direction;

use crate::datapath::Machines;
use crate::datapath::rig::{Arrival, INTERFACE, Rig, address, client, open, server};
use crate::packet::Packet;
use weir_objects::address::Family::{V4, V6};

/// The hardware address from which packets of the tests are sent.
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ANOTHER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const LINK: &str = "fe80::1";
const ALL_NODES: &str = "ff02::1";
const ALL_ROUTERS: &str = "ff02::2";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn advertisement(source: IpAddr, destination: IpAddr, target: IpAddr) -> Packet {
    Packet::neighbour(136, source, destination, target, 2)
}

fn solicitation(source: IpAddr, destination: IpAddr, target: IpAddr) -> Packet {
    Packet::neighbour(135, source, destination, target, 1)
}

fn on_v6(machines: &dyn Machines, mut fact: impl FnMut(&mut Rig, IpAddr, IpAddr)) {
    machines.on_machine(&mut |rig| fact(rig, server(V6), client(V6)));
}

fn a_pod_resolves_and_is_resolved(machines: &dyn Machines) {
    on_v6(machines, |rig, server, client| {
        let group = ip("ff02::1:ff00:2");
        rig.from_pod(&solicitation(server, group, client)).is(Neighbour);
        rig.to_pod(&advertisement(client, server, client)).is(Neighbour);
        rig.to_pod(&solicitation(client, ip("ff02::1:ff00:1"), server)).is(Neighbour);
        rig.from_pod(&advertisement(server, client, server)).is(Neighbour);
        // Whether the neighbour is still reachable.
        rig.from_pod(&solicitation(server, client, client)).is(Neighbour);
        rig.from_pod(&solicitation(ip(LINK), ip("fe80::2"), ip("fe80::2"))).is(Neighbour);
        rig.from_pod(&advertisement(ip(LINK), ip("fe80::2"), ip(LINK))).is(Neighbour);
    });
}

/// Other advertisements are judged by policy: otherwise they could carry data to an address behind a router.
fn answers_go_to_neighbours_that_asked(machines: &dyn Machines) {
    on_v6(machines, |rig, server, client| {
        rig.from_pod(&advertisement(server, client, server)).is(Denied);
        rig.from_pod(&solicitation(server, client, client)).is(Denied);
        rig.to_pod(&solicitation(client, server, server).with_hop_limit(254)).is(Denied);
        rig.from_pod(&advertisement(server, client, server)).is(Denied);
        rig.to_pod(&solicitation(client, server, server)).is(Neighbour);
        rig.from_pod(&advertisement(server, client, server)).is(Neighbour);
        rig.next_epoch();
        rig.from_pod(&advertisement(server, client, server)).is(Neighbour);
        rig.from_pod(&advertisement(server, ip("2001:db8::1"), server)).is(Denied);
    });
}

fn nothing_else_is_in_a_message(machines: &dyn Machines) {
    on_v6(machines, |rig, server, _| {
        let group = ip(ALL_NODES);
        let mut long = advertisement(server, group, server);
        long.payload.extend([14, 1, 1, 2, 3, 4, 5, 6]);
        rig.from_pod(&long).is(Source);
        let mut unknown = solicitation(server, group, server);
        unknown.payload[24] = 200;
        rig.from_pod(&unknown).is(Source);
        let mut nonce = solicitation(ip("::"), group, server);
        nonce.payload[24] = 14;
        rig.from_pod(&nonce).is(Neighbour);
        rig.from_pod(&solicitation(ip("::"), group, server).cut(24)).is(Neighbour);
        let report = |bytes: usize| {
            let packet = Packet::new(ip(LINK), ip("ff02::16"), 58, [vec![143], vec![0; bytes - 1]].concat());
            packet.with_hop_limit(1).with_extension(0, &[0, 5, 2, 0, 0, 1, 0])
        };
        rig.from_pod(&report(28)).is(Neighbour);
        rig.from_pod(&report(169)).is(Source);
        rig.from_pod(&Packet { destination: ip("2001:db8::1"), ..report(28) }).is(Source);
        // The space around the message could carry data too.
        let padded = |packet: Packet| Packet { trailer: vec![0; 1_000], ..packet };
        let behind_options = |packet: Packet| packet.with_extension(60, &[1; 15]);
        rig.from_pod(&padded(advertisement(server, group, server))).is(Source);
        rig.from_pod(&behind_options(advertisement(server, group, server))).is(Source);
        let hidden =
            (0..7).fold(advertisement(server, group, server), |it, _| it.with_extension(60, &[0, 1, 4, 0, 0, 0, 0]));
        rig.from_pod(&hidden).is(Malformed);
        // The same holds if policy allows the pod everything.
        rig.plug("open");
        let lie = advertisement(open(V6), group, client(V6));
        rig.from_pod(&padded(lie.clone())).is(Source);
        rig.from_pod(&behind_options(lie.clone())).is(Source);
        let hidden = (0..7).fold(lie, |it, _| it.with_extension(60, &[0, 1, 4, 0, 0, 0, 0]));
        rig.from_pod(&hidden).is(Malformed);
        rig.plug("server");
        rig.from_pod(&padded(report(28))).is(Source);
        rig.to_pod(&padded(advertisement(ip(LINK), group, ip(LINK)))).is(Denied);
        rig.to_pod(&behind_options(solicitation(ip(LINK), group, server))).is(Denied);
        rig.to_pod(&padded(solicitation(ip(LINK), group, server))).is(Denied);
    });
}

fn a_pod_speaks_of_itself_alone(machines: &dyn Machines) {
    on_v6(machines, |rig, server, client| {
        let group = ip(ALL_NODES);
        rig.from_pod(&advertisement(server, group, server)).is(Neighbour);
        rig.from_pod(&advertisement(server, group, client)).is(Source);
        rig.from_pod(&advertisement(client, group, client)).is(Source);
        rig.from_pod(&solicitation(client, group, server)).is(Source);
        for (kind, option) in [(135, 1), (136, 2)] {
            let mut lie = Packet::neighbour(kind, server, group, server, option);
            lie.payload[26..32].copy_from_slice(&ANOTHER);
            rig.from_pod(&lie).is(Source);
        }
        // A pod is not a router, even if the policies allow everything.
        rig.plug("open");
        for kind in [134, 137] {
            rig.from_pod(&Packet::icmp(ip(LINK), group, kind, 0).with_hop_limit(255)).is(Source);
            rig.to_pod(&Packet::icmp(ip(LINK), group, kind, 0).with_hop_limit(255)).is(Neighbour);
        }
        rig.from_pod(&advertisement(open(V6), group, client)).is(Source);
    });
}

fn the_frame_has_the_pods_hardware_address_where_it_is_known(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let group = ip(ALL_NODES);
        let messages = [
            advertisement(server(V6), group, server(V6)).bytes(),
            solicitation(server(V6), group, client(V6)).bytes(),
            arp(1, OWN, server(V4), client(V4)),
        ];
        for (known, outcome) in [(OWN, Neighbour), (ANOTHER, Source)] {
            rig.change_endpoint(|value| value[endpoint::MAC as usize..][..6].copy_from_slice(&known));
            for message in &messages {
                rig.send(Direction::Egress, message, Arrival::through(INTERFACE)).is(outcome);
            }
        }
    });
}

/// A bridge floods frames to every port if it does not know the right one.
fn a_message_about_another_address_is_stray(machines: &dyn Machines) {
    on_v6(machines, |rig, server, client| {
        rig.to_pod(&solicitation(ip(LINK), ip("ff02::1:ff00:2"), client)).is(Stray);
        rig.to_pod(&Packet::icmp(ip(LINK), ip("ff02::16"), 143, 0).with_hop_limit(1)).is(Stray);
        rig.to_pod(&Packet::icmp(ip(LINK), ip(ALL_ROUTERS), 133, 0).with_hop_limit(255)).is(Stray);
        rig.to_pod(&Packet::icmp(ip(LINK), ip(ALL_NODES), 130, 0).with_hop_limit(1)).is(Neighbour);
        rig.to_pod(&Packet::icmp(client, ip(ALL_NODES), 130, 0).with_hop_limit(1)).is(Denied);
        assert!(rig.flows().is_empty());
        // The solicitation comes from a global address: the flow table stores that it may be answered.
        rig.to_pod(&solicitation(client, server, server)).is(Neighbour);
        assert_eq!(rig.flows().len(), 1);
    });
}

/// An ARP packet about IPv4 on Ethernet.
fn arp(operation: u8, sender_hardware: [u8; 6], sender: IpAddr, target: IpAddr) -> Vec<u8> {
    let (IpAddr::V4(sender), IpAddr::V4(target)) = (sender, target) else { panic!("ARP is of IPv4") };
    let mut packet = [[0xff; 6], OWN].concat();
    packet.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    packet.extend(sender_hardware);
    packet.extend(sender.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    packet
}

fn a_pod_speaks_arp_of_itself_alone(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let (server, client, nothing) = (server(V4), client(V4), ip("0.0.0.0"));
        let mut from_pod = |packet: &[u8]| rig.send(Direction::Egress, packet, Arrival::through(INTERFACE));
        from_pod(&arp(1, OWN, server, client)).is(Neighbour);
        from_pod(&arp(2, OWN, server, client)).is(Neighbour);
        from_pod(&arp(1, OWN, nothing, server)).is(Neighbour);
        from_pod(&arp(2, OWN, nothing, server)).is(Source);
        from_pod(&arp(2, OWN, client, server)).is(Source);
        from_pod(&arp(2, ANOTHER, server, client)).is(Source);
        from_pod(&arp(3, OWN, server, client)).is(Source);
        let mut padded = arp(1, OWN, server, client);
        padded.resize(64, 0);
        from_pod(&padded).is(Neighbour);
        padded.push(0);
        from_pod(&padded).is(Source);
        let mut other = arp(1, OWN, server, client);
        other[18] = 8;
        from_pod(&other).is(Source);
        from_pod(&arp(1, OWN, server, client)[..41]).is(Malformed);
    });
}

fn a_pod_hears_arp_about_itself_and_what_others_announce(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let (server, client, other) = (server(V4), client(V4), address(V4, "10.0.0.9", "::"));
        let mut to_pod = |packet: &[u8]| rig.send(Direction::Ingress, packet, Arrival::through(INTERFACE));
        to_pod(&arp(1, OWN, client, server)).is(Neighbour);
        to_pod(&arp(2, OWN, client, server)).is(Neighbour);
        to_pod(&arp(1, OWN, client, client)).is(Neighbour);
        to_pod(&arp(1, OWN, client, other)).is(Stray);
        let mut padded = arp(1, OWN, client, server);
        padded.resize(65, 0);
        to_pod(&padded).is(Stray);
    });
}

tests! {
    neighbours => neighbours_tests;
    a_pod_resolves_and_is_resolved,
    answers_go_to_neighbours_that_asked,
    nothing_else_is_in_a_message,
    a_pod_speaks_of_itself_alone,
    the_frame_has_the_pods_hardware_address_where_it_is_known,
    a_message_about_another_address_is_stray,
    a_pod_speaks_arp_of_itself_alone,
    a_pod_hears_arp_about_itself_and_what_others_announce,
}
