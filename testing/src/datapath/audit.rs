//! Policies in audit mode: `open` would be isolated in both directions, `server` would allow more in both.

use std::net::IpAddr;

use weir_artifact::layout::Outcome::*;
use weir_objects::address::Family;

use crate::datapath::Machines;
use crate::datapath::rig::{FAMILIES, Rig, audit, client, friend, open, server, stranger};
use crate::packet::{ACK, Packet, SYN};

fn each(machines: &dyn Machines, fact: impl Fn(&mut Rig, Family)) {
    for family in FAMILIES {
        machines.on_parts(&audit(), &mut |rig| fact(rig, family));
    }
}

fn syn(from: IpAddr, to: (IpAddr, u16)) -> Packet {
    Packet::tcp((from, 40_000), to, SYN)
}

fn audit_denial_passes_and_is_reported(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (before, _) = rig.recorded();
        let (open, client, stranger) = (open(family), client(family), stranger(family));
        rig.plug("open");
        rig.to_pod(&syn(client, (open, 80))).is(Allowed);
        rig.to_pod(&syn(client, (open, 81))).is(WouldDeny);
        rig.to_pod(&syn(stranger, (open, 80))).is(WouldDeny);
        rig.from_pod(&syn(open, (friend(family), 443))).is(Allowed);
        rig.from_pod(&syn(open, (stranger, 443))).is(WouldDeny);
        rig.from_pod(&Packet::ping(open, stranger, 7)).is(WouldDeny);
        assert_eq!(rig.recorded(), (before + 4, 0));
    });
}

/// Begins a flow of the pod `open` that audit would deny. Returns the number of records before it, and the two ends.
fn begin_denied(rig: &mut Rig, family: Family) -> (u32, IpAddr, IpAddr) {
    let (before, _) = rig.recorded();
    let (open, stranger) = (open(family), stranger(family));
    rig.plug("open");
    rig.from_pod(&syn(open, (stranger, 443))).is(WouldDeny);
    (before, open, stranger)
}

fn a_flow_that_audit_would_deny_is_reported_once_and_answered(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (before, open, stranger) = begin_denied(rig, family);
        rig.to_pod(&Packet::tcp((stranger, 443), (open, 40_000), SYN | ACK)).is(Established);
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("open egress TcpOpen {stranger}:443 40000")]);
        assert_eq!(rig.recorded(), (before + 1, 0));
    });
}

fn an_older_flow_that_audit_would_cut_is_reported_once(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (before, open, stranger) = begin_denied(rig, family);
        rig.next_epoch();
        rig.to_pod(&Packet::tcp((stranger, 443), (open, 40_000), SYN | ACK)).is(WouldDeny);
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), ACK)).is(Established);
        assert_eq!(rig.recorded(), (before + 2, 0));
    });
}

fn a_packet_that_audit_would_allow_is_dropped_and_reported(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (before, _) = rig.recorded();
        let (server, client, stranger) = (server(family), client(family), stranger(family));
        rig.to_pod(&syn(client, (server, 80))).is(Allowed);
        rig.to_pod(&syn(client, (server, 81))).is(WouldAllow);
        rig.to_pod(&syn(stranger, (server, 81))).is(Denied);
        rig.from_pod(&syn(server, (stranger, 443))).is(WouldAllow);
        rig.from_pod(&syn(server, (client, 443))).is(Denied);
        assert_eq!(rig.flows(), [format!("fresh ingress TcpFresh {client}:40000 80")]);
        assert_eq!(rig.recorded(), (before + 4, 0));
    });
}

fn unknown_packets_pass_where_only_audit_policies_isolate(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (open, stranger) = (open(family), stranger(family));
        let late = Packet::udp((stranger, 53), (open, 40_000)).with_fragment(9, 64, false);
        rig.plug("open");
        rig.to_pod(&late).is(WouldDeny);
        rig.from_pod(&Packet::udp((open, 53), (stranger, 40_000)).with_fragment(9, 64, false)).is(WouldDeny);
        rig.from_pod(&Packet::udp((client(family), 53), (stranger, 40_000)).with_fragment(9, 64, false)).is(Source);
        rig.plug("listener");
        rig.from_pod(&Packet::tcp((crate::datapath::rig::listener(family), 53), (stranger, 4), SYN)).is(Allowed);
    });
}

fn sources_are_checked_where_audit_policies_select(machines: &dyn Machines) {
    each(machines, |rig, family| {
        rig.plug("open");
        rig.from_pod(&syn(client(family), (friend(family), 443))).is(Source);
        assert!(rig.flows().is_empty());
    });
}

fn audit_policies_decide_if_configured(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (open, server, client, stranger) = (open(family), server(family), client(family), stranger(family));
        rig.to_pod(&syn(client, (server, 80))).is(Allowed);
        rig.decide_by_audit();
        rig.to_pod(&syn(client, (server, 81))).is(Allowed);
        rig.to_pod(&syn(stranger, (server, 81))).is(Denied);
        rig.plug("open");
        rig.to_pod(&Packet::tcp((client, 40_001), (open, 80), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((client, 40_001), (open, 81), SYN)).is(Denied);
    });
}

fn a_flow_is_cut_if_audit_policies_decide(machines: &dyn Machines) {
    each(machines, |rig, family| {
        let (open, stranger) = (open(family), stranger(family));
        rig.plug("open");
        rig.from_pod(&syn(open, (stranger, 443))).is(WouldDeny);
        rig.decide_by_audit();
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), ACK)).is(Cut);
    });
}

tests! {
    audit => audit_tests;
    audit_denial_passes_and_is_reported,
    a_flow_that_audit_would_deny_is_reported_once_and_answered,
    an_older_flow_that_audit_would_cut_is_reported_once,
    a_packet_that_audit_would_allow_is_dropped_and_reported,
    unknown_packets_pass_where_only_audit_policies_isolate,
    sources_are_checked_where_audit_policies_select,
    audit_policies_decide_if_configured,
    a_flow_is_cut_if_audit_policies_decide,
}
