//! Facts that cannot be tested in the kernel: tests cannot advance its clock, and its test run accepts no packet
//! without an IP header.

use weir_artifact::layout::Outcome::*;
use weir_model::Direction;
use weir_objects::address::Family;

use crate::datapath::rig::{Arrival, FAMILIES, INTERFACE, Rig, client, friend, open, parts, server};
use crate::datapath::{Machines, vm};
use crate::packet::{ACK, FIN, Packet, SYN};

/// A flow whose first packet goes in the direction `begins` ends after 30 seconds, and after `open` seconds once it has
/// had an answer and another packet.
fn lives_longer_once_open(rig: &mut Rig, begins: Direction, [there, back]: [&Packet; 2], open: u64) {
    let send = |rig: &mut Rig, packet, direction| match direction {
        Direction::Egress => rig.from_pod(packet),
        Direction::Ingress => rig.to_pod(packet),
    };
    let answers = if begins == Direction::Egress { Direction::Ingress } else { Direction::Egress };
    send(rig, there, begins).is(Allowed);
    rig.advance(31);
    send(rig, back, answers).is(Denied);
    send(rig, there, begins).is(Allowed);
    send(rig, back, answers).is(Established);
    send(rig, there, begins).is(Established);
    rig.advance(open);
    send(rig, back, answers).is(Established);
    rig.advance(open + 1);
    send(rig, back, answers).is(Denied);
}

facts! {
    vm_only => vm_only_facts;

    a_flow_without_ports_lives_longer_once_it_is_open(rig, family) {
        let packet = |source, destination| Packet::new(source, destination, 47, vec![0; 8]);
        let there = packet(server(family), friend(family));
        let back = packet(friend(family), server(family));
        lives_longer_once_open(rig, Direction::Egress, [&there, &back], 120);
    }

    /// The number of drop records in a second is limited, for all drops together. Further drops are only counted.
    drops_beyond_so_many_a_second_are_counted_and_not_recorded(rig, family) {
        let denied = Packet::tcp((client(family), 40_000), (server(family), 81), SYN);
        let drop = |rig: &mut Rig, times: u32| (0..times).for_each(|_| rig.to_pod(&denied).is(Denied));
        drop(rig, 199);
        assert_eq!(rig.recorded(), (199, 0));
        drop(rig, 51);
        assert_eq!(rig.recorded(), (200, 50));
        rig.advance(1);
        drop(rig, 3);
        assert_eq!(rig.recorded(), (3, 50), "another second");
        rig.to_pod(&Packet::tcp((client(family), 40_000), (server(family), 80), SYN)).is(Allowed);
        assert_eq!(rig.recorded(), (3, 50), "what passes is no record");
    }

    a_fresh_flow_expires(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.advance(60);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Established);
        rig.advance(61);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Denied);
        assert!(rig.flows().is_empty());
    }

    an_open_connection_lives_for_two_hours_without_a_packet(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.connect(server, friend);
        for _ in 0..3 {
            rig.advance(7_200);
            rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Established);
        }
        rig.advance(7_201);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Denied);
    }

    a_closing_connection_does_not_last(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.connect(server, friend);
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), FIN | ACK)).is(Established);
        rig.advance(121);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), FIN | ACK)).is(Established);
        rig.advance(120);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Established);
        rig.advance(121);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Denied);
    }

    a_udp_flow_lives_longer_once_it_is_open(rig, family) {
        let (server, client) = (server(family), client(family));
        let (question, answer) = (Packet::udp((client, 4_000), (server, 53)), Packet::udp((server, 53), (client, 4_000)));
        lives_longer_once_open(rig, Direction::Ingress, [&question, &answer], 180);
    }

    an_error_about_an_expired_flow_is_judged(rig, family) {
        let packet = Packet::udp((server(family), 4_000), (friend(family), 53));
        rig.from_pod(&packet).is(Allowed);
        rig.to_pod(&Packet::unreachable(friend(family), &packet)).is(Related);
        rig.advance(31);
        rig.to_pod(&Packet::unreachable(friend(family), &packet)).is(Denied);
    }

    a_packet_without_its_ip_header_is_malformed(rig, family) {
        let whole = Packet::tcp((client(family), 40_000), (server(family), 80), SYN).bytes();
        for length in 14..14 + if family == Family::V4 { 20 } else { 40 } {
            rig.send(Direction::Ingress, &whole[..length], Arrival::through(INTERFACE)).is(Malformed);
        }
    }
}

/// The packet inside the tag belongs to another network than the policies.
fn a_packet_whose_tag_was_removed_is_unknown(_: &dyn Machines) {
    let parts = parts();
    let mut machine = vm::Machine::new(&parts);
    machine.vlan = Some(7);
    let mut rig = Rig::new(Box::new(machine), parts.pods);
    for family in FAMILIES {
        rig.to_pod(&Packet::tcp((client(family), 40_000), (server(family), 80), SYN)).is(Unknown);
        rig.from_pod(&Packet::tcp((server(family), 40_000), (friend(family), 443), SYN)).is(Unknown);
    }
    rig.plug("open");
    let open = open(Family::V4);
    rig.to_pod(&Packet::tcp((client(Family::V4), 40_000), (open, 80), SYN)).is(Unfiltered);
    // The kernel would remove a tag of network 0 and forward the packet, although its source was never checked.
    rig.from_pod(&Packet::tcp((open, 40_000), (client(Family::V4), 80), SYN)).is(Unknown);
}

/// A slot stores 24 bits of the epoch, the configuration 32. The fast path also compares the bits above the slot's 24.
fn an_epoch_beyond_a_slots_bits_is_the_same_on_both_paths(_: &dyn Machines) {
    let parts = parts();
    for family in FAMILIES {
        let mut rig = Rig::new(Box::new(vm::Machine::new(&parts)), parts.pods.clone());
        rig.set_epoch(0x0500_0001);
        let out = |flags| Packet::tcp((server(family), 40_000), (friend(family), 443), flags);
        rig.from_pod(&out(SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((friend(family), 443), (server(family), 40_000), SYN | ACK)).is(Established);
        rig.from_pod(&out(ACK)).is(Established);
        rig.end_flows();
        rig.from_pod(&out(ACK)).is(Cut);
        rig.to_pod(&Packet::tcp((friend(family), 443), (server(family), 40_000), ACK)).is(Cut);
        rig.from_pod(&out(SYN)).is(Allowed);
    }
}

/// A UDP flow that was ended: neither end can continue it, and packets do not keep it alive.
fn an_ended_udp_flow_passes_in_no_direction(_: &dyn Machines) {
    let parts = parts();
    for family in FAMILIES {
        let mut rig = Rig::new(Box::new(vm::Machine::new(&parts)), parts.pods.clone());
        let there = Packet::udp((server(family), 4_000), (friend(family), 53));
        let back = Packet::udp((friend(family), 53), (server(family), 4_000));
        rig.from_pod(&there).is(Allowed);
        rig.end_flows();
        for _ in 0..3 {
            rig.from_pod(&there).is(Cut);
            rig.advance(59);
        }
        rig.to_pod(&back).is(Cut);
        rig.advance(181);
        rig.from_pod(&there).is(Allowed);
    }
}

tests! {
    vm_only => vm_only_tests;
    a_packet_whose_tag_was_removed_is_unknown,
    an_epoch_beyond_a_slots_bits_is_the_same_on_both_paths,
    an_ended_udp_flow_passes_in_no_direction,
}
