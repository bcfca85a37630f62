//! Fragments: only the first one has ports; deceptive ones are dropped.

use weir_artifact::layout::Outcome::*;
use weir_objects::address::Family;

use crate::datapath::Machines;
use crate::datapath::rig::{Rig, client, friend, open, server, stranger};
use crate::packet::{Packet, SYN};

/// A later fragment, with bytes from the middle of a packet.
fn later(family: Family, protocol: u8, identification: u16, offset: u16) -> Packet {
    let packet = Packet::new(client(family), server(family), protocol, vec![0xaa; 32]);
    packet.with_fragment(identification, offset, false)
}

fn first(family: Family, port: u16, identification: u16) -> Packet {
    Packet::udp((client(family), 40_000), (server(family), port)).with_fragment(identification, 0, true)
}

fn remembered(rig: &Rig) -> usize {
    rig.fragments()
}

facts! {
    fragments => fragments_facts;

    later_fragments_follow_the_first(rig, family) {
        rig.to_pod(&first(family, 53, 7)).is(Allowed);
        rig.to_pod(&later(family, 17, 7, 3)).is(Established);
        rig.to_pod(&later(family, 17, 7, 7)).is(Established);
        assert_eq!(rig.flows(), [format!("fresh ingress UdpFresh {}:40000 53", client(family))]);
        assert_eq!(remembered(rig), 1);
    }

    later_fragments_of_another_packet_do_not(rig, family) {
        rig.to_pod(&first(family, 53, 7)).is(Allowed);
        rig.to_pod(&later(family, 17, 8, 3)).is(Fragment);
        rig.to_pod(&later(family, 6, 7, 3)).is(Fragment);
        let mut other = later(family, 17, 7, 3);
        other.source = stranger(family);
        rig.to_pod(&other).is(Fragment);
    }

    a_fragment_before_the_first_is_dropped(rig, family) {
        rig.to_pod(&later(family, 17, 7, 3)).is(Fragment);
        rig.to_pod(&first(family, 53, 7)).is(Allowed);
        rig.to_pod(&later(family, 17, 7, 3)).is(Established);
    }

    a_denied_first_fragment_is_not_remembered(rig, family) {
        rig.to_pod(&first(family, 54, 7)).is(Denied);
        assert_eq!(remembered(rig), 0);
        rig.to_pod(&later(family, 17, 7, 3)).is(Fragment);
    }

    a_first_fragment_of_a_known_flow_is_remembered(rig, family) {
        rig.to_pod(&first(family, 53, 7)).is(Allowed);
        rig.to_pod(&first(family, 53, 8)).is(Established);
        rig.to_pod(&later(family, 17, 8, 3)).is(Established);
    }

    a_first_fragment_without_its_whole_header_deceives(rig, family) {
        let syn = Packet::tcp((client(family), 40_000), (server(family), 80), SYN).with_fragment(7, 0, true);
        rig.to_pod(&syn.clone().cut(16)).is(Fragment);
        rig.to_pod(&syn.clone().cut(8)).is(Fragment);
        rig.to_pod(&first(family, 53, 7).cut(4)).is(Fragment);
        rig.to_pod(&syn).is(Allowed);
    }

    /// The receiver drops the bytes beyond the header's length, and takes the ports from the second fragment.
    a_header_behind_the_counted_length_deceives(rig, family) {
        let whole = Packet::tcp((client(family), 40_000), (server(family), 80), SYN);
        let mut packet = whole.clone().cut(8).with_fragment(7, 0, true);
        packet.trailer = whole.payload[8..].to_vec();
        rig.to_pod(&packet).is(Fragment);
    }

    a_flood_of_first_fragments_is_bounded(rig, family) {
        for identification in 0..3_000 {
            rig.to_pod(&first(family, 53, identification));
        }
        assert_eq!(remembered(rig), 64, "the endpoint's own places");
    }

    /// Large echo requests are fragmented, so an echo flow must recognize its own later fragments.
    a_fragmented_echo_is_answered(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.from_pod(&Packet::ping(server, friend, 9).with_fragment(7, 0, true)).is(Allowed);
        let rest = |source, destination, protocol| Packet::new(source, destination, protocol, vec![0xaa; 32]);
        let protocol = if family == Family::V4 { 1 } else { 58 };
        rig.from_pod(&rest(server, friend, protocol).with_fragment(7, 2, false)).is(Established);
        rig.to_pod(&Packet::pong(friend, server, 9).with_fragment(8, 0, true)).is(Established);
        rig.to_pod(&rest(friend, server, protocol).with_fragment(8, 2, false)).is(Established);
    }

    an_open_pods_fragments_pass(rig, family) {
        rig.plug("open");
        let mut fragment = later(family, 17, 7, 3);
        fragment.destination = open(family);
        rig.to_pod(&fragment).is(Unfiltered);
    }
}

fn an_offset_into_the_tcp_header_deceives(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let syn = Packet::tcp((client(Family::V4), 40_000), (server(Family::V4), 80), SYN);
        rig.to_pod(&syn.with_fragment(7, 0, true)).is(Allowed);
        rig.to_pod(&later(Family::V4, 6, 7, 1)).is(Fragment);
        rig.to_pod(&later(Family::V4, 6, 7, 3)).is(Established);
    });
}

fn an_atomic_fragment_is_a_whole_packet(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let family = Family::V6;
        let packet = Packet::tcp((client(family), 40_000), (server(family), 80), SYN);
        rig.to_pod(&packet.clone().with_fragment(7, 0, false)).is(Allowed);
        rig.to_pod(&packet.with_fragment(7, 0, false).with_extension(60, &[0, 1, 4, 0, 0, 0, 0])).is(Established);
        assert_eq!(remembered(rig), 0);
    });
}

/// The last extension header could be in the second fragment, while this one has different bytes behind the counted
/// length.
fn a_chain_that_goes_on_behind_a_first_fragment_deceives(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let family = Family::V6;
        let packet = Packet::tcp((client(family), 40_000), (server(family), 80), SYN);
        let packet = packet.with_fragment(7, 0, true).with_extension(60, &[0, 1, 4, 0, 0, 0, 0]);
        rig.to_pod(&packet).is(Fragment);
        let mut hidden = packet.clone();
        hidden.trailer = std::mem::take(&mut hidden.payload);
        rig.to_pod(&hidden).is(Fragment);
    });
}

/// No extension header may follow the fragment header of a first fragment, not only destination options.
fn no_extension_header_goes_on_behind_a_first_fragment(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        let packet = Packet::tcp((client(Family::V6), 40_000), (server(Family::V6), 80), SYN);
        let first_fragment = packet.with_extension(44, &[0, 0, 1, 0, 0, 0, 7]);
        rig.to_pod(&first_fragment).is(Allowed);
        for number in [0, 43, 44, 60, 135] {
            rig.to_pod(&first_fragment.clone().with_extension(number, &[0; 7])).is(Fragment);
        }
        rig.to_pod(&first_fragment.with_extension(51, &[[4].as_slice(), &[0; 22]].concat())).is(Fragment);
    });
}

tests! {
    fragments => fragments_tests;
    an_offset_into_the_tcp_header_deceives,
    an_atomic_fragment_is_a_whole_packet,
    a_chain_that_goes_on_behind_a_first_fragment_deceives,
    no_extension_header_goes_on_behind_a_first_fragment,
}
