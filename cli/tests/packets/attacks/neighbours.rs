//! ARP and neighbour discovery as a tunnel, and as a way to take over another pod's traffic.
//!
//! Solicitations and advertisements with the hop limit 255 used to pass a pod's hook with any source, destination and
//! payload. So did ARP.

use std::net::{IpAddr, Ipv6Addr};

use super::{EVERYWHERE, Findings, IN_IPV6, ON_BRIDGES, ON_BRIDGES_IN_IPV6, attack_tracked, send, wire};
use crate::namespace::Namespace;
use crate::probe::Protocol::{Icmp, Tcp};
use crate::stage::{ELSEWHERE, Stage};
use crate::topology::Layout;
use crate::wire::{Wire, mac, text, with_checksum};
use weir_testing::packet::Packet;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;
const ALL_NODES: &str = "ff02::1";
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// Source and target link-layer address.
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;

fn parsed(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A message of neighbour discovery about a target, with a link-layer address option, and more.
fn message(kind: u8, ends: [IpAddr; 2], target: IpAddr, option: (u8, [u8; 6]), more: &[u8]) -> Packet {
    let IpAddr::V6(target) = target else { panic!("IPv6 alone") };
    let flags = if kind == ADVERTISEMENT { 0x20 } else { 0 };
    let mut bytes = [vec![kind, 0, 0, 0, flags, 0, 0, 0], target.octets().to_vec(), vec![option.0, 1]].concat();
    bytes.extend(option.1);
    bytes.extend(more);
    with_checksum(Packet::new(ends[0], ends[1], 58, bytes).with_hop_limit(255))
}

/// ARP: operation, sender and target.
fn arp(from: &Wire, operation: u8, sender: IpAddr, target: IpAddr, to: [u8; 6]) -> Vec<u8> {
    let octets = |address| if let IpAddr::V4(it) = address { it.octets() } else { panic!("IPv4 alone") };
    let mut frame = [to.to_vec(), from.own_mac().to_vec(), vec![8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend([&from.own_mac()[..], &octets(sender), &to, &octets(target)].concat());
    frame
}

/// The entries for an address in a neighbour table.
fn neighbour_entry(space: &Namespace, address: IpAddr) -> String {
    space.run("ip", &["neigh", "show", "to", &address.to_string()], "").unwrap()
}

/// The node's interface to a pod.
fn via(stage: &Stage, pod: &str) -> String {
    if stage.net.layout == Layout::Bridge {
        return "br0".to_owned();
    }
    stage.net.pod_named(&format!("default/{pod}")).interface.clone()
}

fn gateway_mac(stage: &Stage, pod: &str) -> [u8; 6] {
    mac(&stage.net.nodes[0].space, &via(stage, pod)).unwrap()
}

/// A router forwards such a message with all its payload; only the hop limit is then 254.
#[test]
fn neighbour_discovery_cannot_carry_data() {
    attack_tracked(IN_IPV6, |stage, findings| {
        let (outside, sealed) = (Wire::outside(&stage.net).unwrap(), wire(stage, "sealed"));
        let (own, to) = (stage.address("sealed"), stage.either(ELSEWHERE));
        for (kind, marker) in [(SOLICITATION, b"tunnel-ns"), (ADVERTISEMENT, b"tunnel-na"), (133, b"tunnel-rs")] {
            // A nonce option, by its number.
            let payload = [&[14, 2, 0, 0, 0][..], marker, &[0, 0]].concat();
            let option = if kind == ADVERTISEMENT { TARGET_OPTION } else { SOURCE_OPTION };
            sealed.send(&message(kind, [own, to], own, (option, sealed.own_mac()), &payload)).unwrap();
            findings.expect(!outside.sees(marker, false), format!("type {kind} of an isolated pod gets outside"));
        }
        if stage.net.layout == Layout::Bridge {
            payload_on_the_link(stage, findings, &sealed);
        }
    });
}

fn payload_on_the_link(stage: &Stage, findings: &mut Findings, sealed: &Wire) {
    let other = wire(stage, "other");
    let own = stage.address("sealed");
    let long = [vec![14, 100], b"payload!".to_vec(), vec![0; 790]].concat();
    for to in [stage.address("other"), parsed("fe80::77"), parsed(ALL_NODES)] {
        let message = message(SOLICITATION, [own, to], to, (SOURCE_OPTION, sealed.own_mac()), &long);
        send(stage, sealed, &other, &message);
        findings.expect(!other.sees(b"payload!", false), format!("800 bytes in a solicitation to {to} arrive"));
    }
    // The other pod has not solicited.
    let to = stage.address("other");
    let unasked = message(ADVERTISEMENT, [own, to], own, (TARGET_OPTION, sealed.own_mac()), &[14, 1, 7, 7, 7, 7, 7, 1]);
    send(stage, sealed, &other, &unasked);
    findings.expect(!other.sees(&[14, 1, 7, 7, 7, 7, 7, 1], false), "an advertisement that was not asked for arrives");
}

/// A pod claims another pod's address. The neighbour tables of the host and of a third pod must keep the victim's
/// hardware address.
#[test]
fn pods_cannot_take_over_another_pods_address() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        let sealed = wire(stage, "sealed");
        let (victim, friend) = (stage.address("client"), stage.pod("friend"));
        let node = &stage.net.nodes[0].space;
        // Otherwise the kernel ignores a change of an entry that is less than a second old.
        node.set(&format!("ipv4/neigh/{}/locktime", via(stage, "sealed")), "0").unwrap();
        friend.set("ipv4/neigh/eth0/locktime", "0").unwrap();
        stage.between("friend", "client", Tcp, 7, true);
        let to_node = gateway_mac(stage, "sealed");
        let to_friend = mac(friend, "eth0").unwrap();
        let targets = [(to_node, stage.address("sealed")), (to_friend, stage.address("friend")), ([0xff; 6], victim)];
        for (number, (to, target)) in targets.into_iter().enumerate() {
            send_forged_claims(stage, &sealed, to, target, victim);
            std::thread::sleep(std::time::Duration::from_millis(20));
            let forged_mac = text(sealed.own_mac());
            findings.expect(
                !neighbour_entry(node, victim).contains(&forged_mac),
                format!("forged message {number}: the host accepts it"),
            );
            findings.expect(
                !neighbour_entry(friend, victim).contains(&forged_mac),
                format!("forged message {number}: a third pod accepts it"),
            );
        }
        let reached = stage.reaches(stage.address("friend"), Tcp, victim, 7, true);
        findings.expect(reached, "a third pod no longer reaches the victim");
    });
}

/// `sealed` claims the victim's address, in every message that can carry such a claim.
fn send_forged_claims(stage: &Stage, sealed: &Wire, to: [u8; 6], target: IpAddr, victim: IpAddr) {
    if !stage.v6 {
        let gateway = parsed("169.254.1.1");
        for (operation, target) in [(1, target), (2, target), (1, gateway), (2, gateway), (1, victim), (2, victim)] {
            sealed.send_frame(&arp(sealed, operation, victim, target, to)).unwrap();
        }
        return;
    }
    let own = sealed.own_mac();
    let to = if to == [0xff; 6] { ALL_NODES_MAC } else { to };
    let gateway = parsed("fe80::1");
    for destination in [parsed(ALL_NODES), gateway, target] {
        for source in [victim, stage.address("sealed"), parsed("fe80::5")] {
            let advertised = message(ADVERTISEMENT, [source, destination], victim, (TARGET_OPTION, own), &[]);
            sealed.send_at(to, &advertised).unwrap();
        }
    }
    // A solicitation carries its sender's hardware address.
    for target in [gateway, target] {
        let solicited = message(SOLICITATION, [victim, target], target, (SOURCE_OPTION, own), &[]);
        sealed.send_at(to, &solicited).unwrap();
    }
}

/// A pod is no router, whether policies select it or not.
#[test]
fn router_advertisements_of_pods_are_dropped() {
    // In the routed layout only the host receives it, and hosts that forward ignore router advertisements.
    attack_tracked(ON_BRIDGES_IN_IPV6, |stage, findings| {
        let [other, sealed, client] = ["other", "sealed", "client"].map(|it| wire(stage, it));
        for (from, name) in [(&other, "other"), (&sealed, "sealed")] {
            for (kind, source) in [ROUTER_ADVERTISEMENT, REDIRECT].into_iter().flat_map(|kind| {
                [parsed("fe80::5"), parsed("fe80::1"), stage.address(name)].map(|source| (kind, source))
            }) {
                let bytes = [vec![kind, 0, 0, 0, 64, 0, 7, 8], vec![0; 32], b"i-route!".to_vec()].concat();
                let packet = Packet::new(source, parsed(ALL_NODES), 58, bytes).with_hop_limit(255);
                from.send_at(ALL_NODES_MAC, &with_checksum(packet)).unwrap();
                findings.expect(!client.sees(b"i-route!", false), format!("{name} sends type {kind} from {source}"));
            }
        }
    });
}

/// A frame with the pod's hardware address and a packet for another address in it. A pod that forwards would send it
/// on.
#[test]
fn packets_for_another_address_do_not_reach_a_bridged_pod() {
    attack_tracked(ON_BRIDGES, |stage, findings| {
        let [friend, server, other] = ["friend", "server", "other"].map(|it| wire(stage, it));
        for (to, name) in [(&server, "an isolated pod"), (&other, "a free pod")] {
            for destination in [stage.address("client"), stage.either(ELSEWHERE)] {
                let stray = Packet::udp((stage.address("friend"), 40_000), (destination, 53));
                friend.send_to(to, &stray).unwrap();
                findings.expect(to.misses(&stray), format!("{name} gets a packet for {destination}"));
            }
        }
        let genuine = Packet::udp((stage.address("friend"), 40_000), (stage.address("server"), 53));
        friend.send_to(&server, &genuine).unwrap();
        findings.expect(server.gets(&genuine), "a packet for its own address does not arrive");
    });
}

/// All neighbour tables are flushed; resolution must work again.
#[test]
fn neighbour_discovery_works_after_the_caches_are_flushed() {
    attack_tracked(EVERYWHERE, |stage, _| {
        for pod in ["friend", "server", "client", "other"] {
            stage.pod(pod).ip("neigh flush all\n").unwrap();
        }
        stage.net.nodes[0].space.ip("neigh flush all\n").unwrap();
        stage.between("friend", "server", Icmp, 0, true);
        stage.between("other", "client", Icmp, 0, true);
        stage.between("far", "server", Tcp, 80, true);
        let node = stage.either(if stage.net.layout == Layout::Bridge {
            crate::stage::BRIDGE
        } else {
            crate::stage::NODES[0]
        });
        for pod in ["sealed", "other"] {
            assert!(stage.reaches(node, Icmp, stage.address(pod), 0, true), "{}: the host to {pod}", stage.name());
        }
    });
}

/// A pod's own addresses include the link-local address that its IPv6 interface derives from its hardware address.
#[test]
fn link_local_addresses_are_resolved() {
    attack_tracked(ON_BRIDGES_IN_IPV6, |stage, findings| {
        let link_local = |pod: &str| -> Ipv6Addr {
            let [a, b, c, d, e, f] = mac(stage.pod(pod), "eth0").unwrap();
            let half = |first, second| u16::from_be_bytes([first, second]);
            Ipv6Addr::new(0xfe80, 0, 0, 0, half(a ^ 2, b), half(c, 0xff), half(0xfe, d), half(e, f))
        };
        let to = link_local("other");
        let client = stage.pod("client");
        let asked = client.run("ip", &["-6", "route", "get", &to.to_string(), "dev", "eth0"], "");
        assert!(asked.is_ok(), "{asked:?}");
        let socket = client.enter(|| std::net::UdpSocket::bind("[::]:0")).unwrap().unwrap();
        let number = client.enter(|| crate::sys::interface_number("eth0")).unwrap().unwrap() as u32;
        socket.send_to(b"?", std::net::SocketAddrV6::new(to, 7, 0, number)).unwrap();
        let begun = std::time::Instant::now();
        let found = || neighbour_entry(client, to.into()).contains("lladdr");
        while !found() && begun.elapsed() < std::time::Duration::from_secs(3) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        findings.expect(found(), "a neighbour's link-local address is not found");
    });
}
