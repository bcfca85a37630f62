//! Parsing of packets: the headers that are understood, and those that are refused.

use weir_artifact::layout::Outcome::*;
use weir_model::Direction;

use crate::datapath::Machines;
use crate::datapath::rig::{Arrival, INTERFACE, UPLINK, client, friend, open, server, stranger};
use crate::packet::{Packet, SYN};

/// The smallest extension header: eight bytes, all padding.
const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

facts! {
    parse => parse_facts;

    options_before_the_ports_are_stepped_over(rig, family) {
        for padding in [4, 8, 20, 36, 40] {
            let packet = Packet::tcp((client(family), 40_000 + padding as u16), (server(family), 80), SYN);
            let packet = match family {
                weir_objects::address::Family::V4 => packet.with_options(&vec![1; padding]),
                weir_objects::address::Family::V6 => (0..padding / 10).fold(packet, |it, _| it.with_extension(60, &PADDING)),
            };
            rig.to_pod(&packet).is(Allowed);
        }
        assert!(rig.flows().iter().all(|flow| flow.ends_with(" 80")), "{:?}", rig.flows());
    }

    short_transport_headers_are_malformed(rig, family) {
        let (server, client) = (server(family), client(family));
        rig.to_pod(&Packet::tcp((client, 40_000), (server, 80), SYN).cut(19)).is(Malformed);
        rig.to_pod(&Packet::udp((client, 40_000), (server, 53)).cut(7)).is(Malformed);
        rig.to_pod(&Packet::sctp((client, 40_000), (server, 90)).cut(11)).is(Malformed);
        rig.from_pod(&Packet::ping(server, friend(family), 1).cut(7)).is(Malformed);
        assert!(rig.flows().is_empty());
    }

    every_cut_of_a_packet_is_refused(rig, family) {
        let whole = Packet::tcp((client(family), 40_000), (server(family), 80), SYN).bytes();
        let headers = 14 + if family == weir_objects::address::Family::V4 { 20 } else { 40 };
        for length in headers..whole.len() {
            let seen = rig.send(Direction::Ingress, &whole[..length], Arrival::through(INTERFACE));
            assert_eq!((seen.verdict(), seen.counted()), (2, &[Malformed][..]), "{length} bytes");
        }
    }

    a_wrong_version_is_malformed(rig, family) {
        let mut packet = Packet::tcp((client(family), 40_000), (server(family), 80), SYN).bytes();
        packet[14] = packet[14] & 0x0f | 0x50;
        rig.send(Direction::Ingress, &packet, Arrival::through(INTERFACE)).is(Malformed);
    }

    other_families_and_tags_are_unknown(rig, family) {
        let mut packet = Packet::tcp((client(family), 40_000), (server(family), 80), SYN).bytes();
        for ether_type in [0x8100_u16, 0x88a8, 0x8847, 0x0004] {
            packet[12..14].copy_from_slice(&ether_type.to_be_bytes());
            rig.send(Direction::Ingress, &packet, Arrival::through(INTERFACE)).is(Unknown);
            rig.send(Direction::Egress, &packet, Arrival::through(INTERFACE)).is(Unknown);
        }
    }

    what_cannot_be_parsed_passes_an_open_pod(rig, family) {
        rig.plug("open");
        let packet = Packet::tcp((client(family), 40_000), (open(family), 80), SYN);
        rig.to_pod(&packet.clone().cut(4)).is(Unfiltered);
        let mut tagged = packet.bytes();
        tagged[12] = 0x81;
        rig.send(Direction::Ingress, &tagged, Arrival::through(INTERFACE)).is(Unfiltered);
    }

    what_cannot_be_parsed_is_dropped_only_in_the_direction_that_is_filtered(rig, family) {
        rig.plug("listener");
        let listener = crate::datapath::rig::address(family, "10.0.0.3", "fd00::3");
        rig.to_pod(&Packet::tcp((client(family), 40_000), (listener, 80), SYN).cut(4)).is(Malformed);
        rig.from_pod(&Packet::tcp((listener, 40_000), (client(family), 80), SYN).cut(4)).is(Unfiltered);
    }

    bytes_behind_the_packet_change_nothing(rig, family) {
        let mut packet = Packet::tcp((stranger(family), 40_000), (server(family), 80), SYN);
        packet.trailer = vec![0xff; 64];
        rig.to_pod(&packet).is(Denied);
    }
}

/// Facts about one family only.
pub mod v6_only {
    use super::*;
    use weir_objects::address::Family::V6;

    fn syn() -> Packet {
        Packet::tcp((client(V6), 40_000), (server(V6), 80), SYN)
    }

    fn every_kind_of_extension_header_is_stepped_over(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            for number in [0, 43, 60, 135] {
                let mut rest = PADDING;
                rest[2] = 0;
                let packet = syn().with_extension(number, &rest);
                let seen = rig.to_pod(&packet);
                assert_eq!(seen.verdict(), -1, "{number}: {seen:?}");
            }
            // The length of an authentication header is counted in units of four bytes.
            let packet = syn().with_extension(51, &[[4].as_slice(), &[0; 22]].concat());
            assert_eq!(rig.to_pod(&packet).verdict(), -1);
            assert_eq!(rig.flows().len(), 1);
        });
    }

    fn a_long_extension_header_is_stepped_over(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let rest = [[31].as_slice(), &[0; 254]].concat();
            rig.to_pod(&syn().with_extension(60, &rest)).is(Allowed);
        });
    }

    fn too_many_extension_headers_are_malformed(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let chain = |count| (0..count).fold(syn(), |packet, _| packet.with_extension(60, &PADDING));
            rig.to_pod(&chain(5)).is(Allowed);
            rig.to_pod(&chain(7)).is(Malformed);
        });
    }

    fn headers_too_far_from_the_start_are_malformed(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let rest = [[127].as_slice(), &[0; 1022]].concat();
            rig.to_pod(&syn().with_extension(60, &rest)).is(Malformed);
        });
    }

    /// The destination in the header is then not the packet's final destination.
    fn segments_left_are_a_source_route(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            rig.to_pod(&syn().with_extension(43, &[0, 4, 1, 0, 0, 0, 0])).is(SourceRoute);
            rig.to_pod(&syn().with_extension(43, &[0, 4, 0, 0, 0, 0, 0])).is(Allowed);
        });
    }

    fn a_protocol_without_ports_has_none(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            rig.from_pod(&Packet::new(server(V6), friend(V6), 59, Vec::new())).is(Allowed);
            assert_eq!(rig.flows(), ["fresh egress OtherFresh fd08::1:0 0"]);
        });
    }

    tests! {
        parse::v6_only => parse_v6_tests;
        every_kind_of_extension_header_is_stepped_over,
        a_long_extension_header_is_stepped_over,
        too_many_extension_headers_are_malformed,
        headers_too_far_from_the_start_are_malformed,
        segments_left_are_a_source_route,
        a_protocol_without_ports_has_none,
    }
}

pub mod v4_only {
    use super::*;
    use crate::packet::ACK;
    use weir_objects::address::Family::V4;

    /// Loose and strict, with and without a remaining stop, first or after padding or another option.
    const SOURCE_ROUTES: [&[u8]; 6] = [
        &[131, 7, 4, 10, 0, 9, 9, 0],
        &[137, 7, 4, 10, 0, 9, 9, 0],
        &[131, 7, 8, 10, 0, 9, 9, 0],
        &[1, 131, 7, 4, 10, 0, 9, 9],
        &[148, 4, 0, 0, 137, 7, 4, 10, 0, 9, 9, 0],
        &[1, 1, 1, 1, 1, 148, 4, 0, 0, 131, 3, 4],
    ];

    /// The destination in the header is then not the final destination, or answers take another path.
    fn source_routes_are_dropped(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            for options in SOURCE_ROUTES {
                let (there, back) = ((client(V4), 40_000), (server(V4), 80));
                rig.to_pod(&Packet::tcp(there, back, SYN).with_options(options)).is(SourceRoute);
                rig.from_pod(&Packet::tcp((server(V4), 40_000), (friend(V4), 443), SYN).with_options(options))
                    .is(SourceRoute);
            }
            assert!(rig.flows().is_empty());
            // They are dropped in established flows as well.
            rig.to_pod(&Packet::tcp((client(V4), 40_000), (server(V4), 80), SYN)).is(Allowed);
            let answer = Packet::tcp((server(V4), 80), (client(V4), 40_000), SYN | ACK);
            rig.from_pod(&answer.clone().with_options(SOURCE_ROUTES[0])).is(SourceRoute);
            rig.from_pod(&answer).is(Established);
        });
    }

    fn source_routes_pass_an_open_pod(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            rig.plug("open");
            let packet = Packet::tcp((client(V4), 40_000), (open(V4), 80), SYN);
            rig.to_pod(&packet.with_options(SOURCE_ROUTES[0])).is(Unfiltered);
        });
    }

    fn bytes_of_a_source_route_inside_another_option_are_no_source_route(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let packet = |port| Packet::tcp((client(V4), port), (server(V4), 80), SYN);
            // A record-route option with the address 131.137.131.137, and bytes after the end of the options.
            rig.to_pod(&packet(1).with_options(&[7, 7, 8, 131, 137, 131, 137, 0])).is(Allowed);
            rig.to_pod(&packet(2).with_options(&[0, 131, 7, 4, 10, 0, 9, 9])).is(Allowed);
            // The ports of the transport header are not options: 0x8307 = 33543.
            rig.to_pod(&packet(33_543).with_options(&[1, 1, 1, 1])).is(Allowed);
            rig.to_pod(&packet(0x0101).with_options(&[148, 4, 0, 0, 1, 1, 1, 1])).is(Allowed);
        });
    }

    fn options_that_make_no_sense_are_malformed(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let packet =
                |options: &[u8]| Packet::tcp((client(V4), 40_000), (server(V4), 80), SYN).with_options(options);
            // Options shorter than their own head, or longer than the header.
            rig.to_pod(&packet(&[148, 1, 0, 0])).is(Malformed);
            rig.to_pod(&packet(&[148, 0, 0, 0])).is(Malformed);
            rig.to_pod(&packet(&[148, 5, 0, 0])).is(Malformed);
            rig.to_pod(&packet(&[1, 1, 1, 148])).is(Malformed);
            // More options than the program follows.
            rig.to_pod(&packet(&[1, 7, 3, 4].repeat(10))).is(Malformed);
        });
    }

    fn a_header_length_below_five_is_malformed(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let mut packet = Packet::tcp((client(V4), 40_000), (server(V4), 80), SYN).bytes();
            for length in 0..5 {
                packet[14] = 0x40 + length;
                rig.send(Direction::Ingress, &packet, Arrival::through(INTERFACE)).is(Malformed);
            }
        });
    }

    /// Large segments have a length field of 0.
    fn a_total_length_of_zero_is_no_fault(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let mut packet = Packet::tcp((client(V4), 40_000), (server(V4), 80), SYN).bytes();
            packet[16..18].fill(0);
            rig.send(Direction::Ingress, &packet, Arrival::through(UPLINK)).is(Allowed);
        });
    }

    tests! {
        parse::v4_only => parse_v4_tests;
        source_routes_are_dropped,
        source_routes_pass_an_open_pod,
        bytes_of_a_source_route_inside_another_option_are_no_source_route,
        options_that_make_no_sense_are_malformed,
        a_header_length_below_five_is_malformed,
        a_total_length_of_zero_is_no_fault,
    }
}
