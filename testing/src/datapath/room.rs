//! Which flows a full bucket keeps. All flows here are in one bucket.

use weir_artifact::layout::Outcome::*;
use weir_objects::address::Family;

use crate::datapath::Machines;
use crate::datapath::rig::{FAMILIES, Rig, address, one_bucket, server};
use crate::packet::{ACK, FIN, Packet, SYN};

/// The number of slots in the bucket.
const SLOTS: usize = 8;

fn friend(family: Family) -> std::net::IpAddr {
    address(family, "10.8.0.1", "fd08::1")
}

fn out(family: Family, port: u16, flags: u8) -> Packet {
    Packet::tcp((server(family), port), (friend(family), 443), flags)
}

fn back(family: Family, port: u16, flags: u8) -> Packet {
    Packet::tcp((friend(family), 443), (server(family), port), flags)
}

/// Confirms a flow: both ends send, and then the first one again.
fn confirm(rig: &mut Rig, family: Family, port: u16) {
    rig.from_pod(&out(family, port, SYN)).is(Allowed);
    rig.to_pod(&back(family, port, SYN | ACK)).is(Established);
    rig.from_pod(&out(family, port, ACK)).is(Established);
}

fn count(rig: &Rig, what: &str) -> usize {
    rig.flows().iter().filter(|it| it.starts_with(what)).count()
}

fn each_family(machines: &dyn Machines, fact: impl Fn(&mut Rig, Family)) {
    for family in FAMILIES {
        machines.on_parts(&one_bucket(), &mut |rig| fact(rig, family));
    }
}

fn a_flood_of_first_packets_evicts_no_confirmed_flow(machines: &dyn Machines) {
    each_family(machines, |rig, family| {
        let confirmed = 0..SLOTS as u16 - 1;
        confirmed.clone().for_each(|port| confirm(rig, family, port));
        for port in 1_000..1_200 {
            rig.from_pod(&out(family, port, SYN)).is(Allowed);
            // Some are answered, some are not.
            if port % 2 == 0 {
                rig.to_pod(&back(family, port, SYN | ACK)).is(Established);
            }
        }
        for port in confirmed {
            rig.to_pod(&back(family, port, ACK)).is(Established);
        }
        assert_eq!((count(rig, "open"), count(rig, "fresh")), (SLOTS - 1, 1));
    });
}

fn a_bucket_full_of_confirmed_flows_has_room_for_one_that_begins(machines: &dyn Machines) {
    each_family(machines, |rig, family| {
        for port in 0..3 * SLOTS as u16 {
            confirm(rig, family, port);
            assert!(count(rig, "open") < SLOTS, "{:?}", rig.flows());
        }
        assert_eq!(count(rig, "open"), SLOTS - 1);
    });
}

/// A client that opens and closes connections without an answer holds no slot.
fn a_flow_that_is_closed_before_it_was_confirmed_gives_way(machines: &dyn Machines) {
    each_family(machines, |rig, family| {
        for port in 0..2 * SLOTS as u16 {
            rig.from_pod(&out(family, port, SYN)).is(Allowed);
            rig.from_pod(&out(family, port, FIN)).is(Established);
        }
        confirm(rig, family, 500);
        rig.to_pod(&back(family, 500, ACK)).is(Established);
    });
}

/// Every slot is used, and each flow is found in any of them.
fn a_bucket_holds_as_many_flows_as_it_has_slots(machines: &dyn Machines) {
    each_family(machines, |rig, family| {
        (0..SLOTS as u16).for_each(|port| rig.from_pod(&out(family, port, SYN)).is(Allowed));
        (0..SLOTS as u16).for_each(|port| rig.to_pod(&back(family, port, SYN | ACK)).is(Established));
        assert_eq!(count(rig, "fresh"), SLOTS);
    });
}

tests! {
    room => room_tests;
    a_flood_of_first_packets_evicts_no_confirmed_flow,
    a_bucket_full_of_confirmed_flows_has_room_for_one_that_begins,
    a_flow_that_is_closed_before_it_was_confirmed_gives_way,
    a_bucket_holds_as_many_flows_as_it_has_slots,
}
