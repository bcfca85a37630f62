//! A pod may only use its own source addresses.

use weir_artifact::layout::Outcome::*;
use weir_objects::address::Family;

use crate::datapath::Machines;
use crate::datapath::rig::{address, client, friend, server, stranger};
use crate::packet::{ACK, Packet, SYN};

facts! {
    source => source_facts;

    another_source_is_dropped(rig, family) {
        rig.from_pod(&Packet::tcp((client(family), 40_000), (friend(family), 443), SYN)).is(Source);
        rig.from_pod(&Packet::ping(stranger(family), friend(family), 1)).is(Source);
        assert!(rig.flows().is_empty());
    }

    another_source_on_a_live_flow_is_dropped(rig, family) {
        rig.from_pod(&Packet::tcp((server(family), 40_000), (friend(family), 443), SYN)).is(Allowed);
        rig.from_pod(&Packet::tcp((client(family), 40_000), (friend(family), 443), ACK)).is(Source);
        rig.from_pod(&Packet::tcp((server(family), 40_000), (friend(family), 443), ACK)).is(Established);
    }

    an_open_pod_is_checked_too(rig, family) {
        rig.plug("open");
        rig.from_pod(&Packet::udp((server(family), 1), (friend(family), 2))).is(Source);
    }

    /// The source is checked even if the packet cannot be judged.
    an_open_pods_fragments_and_broken_headers_are_checked_too(rig, family) {
        rig.plug("open");
        let spoofed = Packet::udp((server(family), 1), (friend(family), 2));
        rig.from_pod(&spoofed.clone().with_fragment(7, 3, false)).is(Source);
        rig.from_pod(&spoofed.clone().cut(4)).is(Source);
        let own = Packet { source: crate::datapath::rig::open(family), ..spoofed };
        rig.from_pod(&own.clone().with_fragment(7, 3, false)).is(Unfiltered);
        rig.from_pod(&own.cut(4)).is(Unfiltered);
    }

    the_source_of_what_comes_in_is_not_checked(rig, family) {
        rig.plug("open");
        rig.to_pod(&Packet::udp((server(family), 1), (crate::datapath::rig::open(family), 2))).is(Unfiltered);
    }

    /// A bridge floods frames to every port if it does not know the right one.
    packets_for_another_address_do_not_come_in(rig, family) {
        rig.to_pod(&Packet::udp((client(family), 40_000), (friend(family), 53))).is(Stray);
        rig.plug("open");
        rig.to_pod(&Packet::udp((client(family), 40_000), (friend(family), 53))).is(Stray);
        rig.to_pod(&Packet::udp((client(family), 40_000), (friend(family), 53)).cut(4)).is(Stray);
        rig.to_pod(&Packet::udp((client(family), 40_000), (crate::datapath::rig::open(family), 53))).is(Unfiltered);
        rig.to_pod(&Packet::udp((client(family), 40_000), (friend(family), 53))).is(Stray);
        if family == Family::V4 {
            rig.to_pod(&Packet::udp((client(family), 68), ("255.255.255.255".parse().unwrap(), 67))).is(Unfiltered);
        }
    }

    /// The answer to a multicast packet has the pod's own address as its source.
    the_answer_to_a_group_has_the_pods_own_source(rig, family) {
        rig.plug("listener");
        let group = address(family, "224.0.0.251", "ff02::fb");
        let listener = address(family, "10.0.0.3", "fd00::3");
        rig.to_pod(&Packet::udp((friend(family), 5353), (group, 5353))).is(Allowed);
        assert!(rig.flows().is_empty(), "a group answers nothing");
        rig.from_pod(&Packet::udp((listener, 5353), (friend(family), 5353))).is(Allowed);
        rig.from_pod(&Packet::udp((group, 5353), (friend(family), 5353))).is(Source);
    }

    an_unspecified_source_is_dropped(rig, family) {
        let nothing = address(family, "0.0.0.0", "::");
        rig.from_pod(&Packet::udp((nothing, 1), (friend(family), 2))).is(Source);
        rig.to_pod(&Packet::udp((nothing, 1), (server(family), 2))).is(Denied);
    }
}

/// Zeros in the entry mean that the pod has no address of the family.
fn a_pod_of_one_family_says_nothing_in_the_other(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        rig.plug("one-family");
        let nothing = "::".parse().unwrap();
        rig.from_pod(&Packet::udp((nothing, 1), (friend(Family::V6), 2))).is(Source);
        rig.from_pod(&Packet::udp((server(Family::V6), 1), (friend(Family::V6), 2))).is(Source);
        rig.to_pod(&Packet::udp((nothing, 1), ("fd00::5".parse().unwrap(), 2))).is(Stray);
    });
}

/// Link-local source addresses are only valid in the link's own protocols.
fn a_link_local_source_is_not_the_pods(machines: &dyn Machines) {
    machines.on_machine(&mut |rig| {
        rig.from_pod(&Packet::udp(("fe80::1".parse().unwrap(), 1), (friend(Family::V6), 2))).is(Source);
    });
}

tests! {
    source => source_tests;
    a_pod_of_one_family_says_nothing_in_the_other,
    a_link_local_source_is_not_the_pods,
}
