//! Policies in audit mode: `open` would be isolated in both directions, `server` would allow more in both.

use weir_artifact::layout::Outcome::*;
use weir_objects::address::Family;

use crate::packet::{ACK, Packet, SYN};
use crate::rig::{FAMILIES, Rig, audit, client, friend, open, server, stranger};

fn each(fact: impl Fn(&mut Rig, Family)) {
    for family in FAMILIES {
        crate::on_parts(&audit(), |rig| fact(rig, family));
    }
}

fn syn(from: std::net::IpAddr, to: (std::net::IpAddr, u16)) -> Packet {
    Packet::tcp((from, 40_000), to, SYN)
}

#[test]
fn packets_that_audit_would_deny_pass_and_are_reported() {
    each(|rig, family| {
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

#[test]
fn a_flow_that_audit_would_deny_is_reported_once_and_answered() {
    each(|rig, family| {
        let (before, _) = rig.recorded();
        let (open, stranger) = (open(family), stranger(family));
        rig.plug("open");
        rig.from_pod(&syn(open, (stranger, 443))).is(WouldDeny);
        rig.to_pod(&Packet::tcp((stranger, 443), (open, 40_000), SYN | ACK)).is(Established);
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("open egress TcpOpen {stranger}:443 40000")]);
        assert_eq!(rig.recorded(), (before + 1, 0));
    });
}

#[test]
fn a_flow_of_an_older_generation_that_audit_would_cut_is_reported_once() {
    each(|rig, family| {
        let (before, _) = rig.recorded();
        let (open, stranger) = (open(family), stranger(family));
        rig.plug("open");
        rig.from_pod(&syn(open, (stranger, 443))).is(WouldDeny);
        rig.next_epoch();
        rig.to_pod(&Packet::tcp((stranger, 443), (open, 40_000), SYN | ACK)).is(WouldDeny);
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), ACK)).is(Established);
        assert_eq!(rig.recorded(), (before + 2, 0));
    });
}

#[test]
fn packets_that_audit_would_allow_are_dropped_and_reported() {
    each(|rig, family| {
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

#[test]
fn packets_without_verdict_pass_where_only_audit_policies_isolate() {
    each(|rig, family| {
        let (open, stranger) = (open(family), stranger(family));
        let late = Packet::udp((stranger, 53), (open, 40_000)).with_fragment(9, 64, false);
        rig.plug("open");
        rig.to_pod(&late).is(WouldDeny);
        rig.from_pod(&Packet::udp((open, 53), (stranger, 40_000)).with_fragment(9, 64, false)).is(WouldDeny);
        rig.from_pod(&Packet::udp((client(family), 53), (stranger, 40_000)).with_fragment(9, 64, false)).is(Source);
        rig.plug("listener");
        rig.from_pod(&Packet::tcp((crate::rig::listener(family), 53), (stranger, 4), SYN)).is(Allowed);
    });
}

#[test]
fn sources_are_checked_under_audit_policies() {
    each(|rig, family| {
        rig.plug("open");
        rig.from_pod(&syn(client(family), (friend(family), 443))).is(Source);
        assert!(rig.flows().is_empty());
    });
}

#[test]
fn audit_policies_decide_if_the_config_says_so() {
    each(|rig, family| {
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

#[test]
fn a_flow_is_cut_if_audit_policies_decide() {
    each(|rig, family| {
        let (open, stranger) = (open(family), stranger(family));
        rig.plug("open");
        rig.from_pod(&syn(open, (stranger, 443))).is(WouldDeny);
        rig.decide_by_audit();
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), ACK)).is(Cut);
    });
}
