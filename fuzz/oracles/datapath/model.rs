//! The rules over a plain list of flows.
//!
//! Read this together with [`super::rules`]: each `note` names the sentence that the lines around it implement.
//! [`words`] defines the terms, [`facts`] reads them from a packet. This file handles a packet up to the flow table:
//! headers, fragments, ICMP errors. [`flows`] handles packets of known flows, [`beginnings`] all others. The model's
//! tables are never full: the model does not say which flow is evicted from a full bucket, nor which fragments share a
//! slot. It shares no definitions with the emitter: the names of outcomes are written twice, so that a mistake in one
//! place shows.

mod beginnings;
mod facts;
mod flows;
mod words;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use weir_model::Direction;

use super::packet::{Body, Fault, Ip, Packet, Upper};
use super::rules::Rule;
use facts::{Facts, ends, facts, ports};
pub use flows::time_out;
pub use words::{Endpoint, Flow, Key, Origin, Outcome, Policy, Ports, State};

/// Ports of a first fragment that passed.
#[derive(Clone, Debug)]
struct FirstFragment {
    hook: Direction,
    identification: u16,
    protocol: u8,
    remote: IpAddr,
    local: IpAddr,
    ports: Ports,
}

/// The state of one endpoint.
#[derive(Clone, Debug)]
pub struct Model {
    /// The pod; `None` while the interface has none.
    pub endpoint: Option<Endpoint>,
    /// The generation in force.
    pub generation: u32,
    /// Seconds.
    pub now: u64,
    /// In any order, at most one for a key.
    pub flows: Vec<Flow>,
    /// Global unicast addresses that have solicited the endpoint, and when.
    pub(super) solicitors: Vec<(Ipv6Addr, u64)>,
    first_fragments: Vec<FirstFragment>,
    /// The rules that the last packet met.
    pub noted: Vec<Rule>,
}

impl Model {
    /// Without flows.
    pub fn new(endpoint: Option<Endpoint>) -> Self {
        let (flows, solicitors, first_fragments, noted) = Default::default();
        Self { endpoint, generation: 1, now: 0, flows, solicitors, first_fragments, noted }
    }

    /// Number of fragmented packets whose ports are stored.
    pub(super) fn fragmented_packets(&self) -> usize {
        let id =
            |it: &FirstFragment| (it.hook == Direction::Egress, it.identification, it.protocol, it.remote, it.local);
        self.first_fragments.iter().map(id).collect::<BTreeSet<_>>().len()
    }

    pub(super) fn note(&mut self, rule: Rule) {
        self.noted.push(rule);
    }

    /// The outcome of a packet.
    pub fn receive(&mut self, packet: &Packet, policy: &mut dyn Policy) -> Outcome {
        self.noted.clear();
        match &packet.body {
            Body::Vlan(_) if packet.hook == Direction::Egress => {
                self.note(Rule::TagFromPod);
                Outcome::Unknown
            }
            Body::UnknownFamily | Body::Vlan(_) => self.unjudged(Outcome::Unknown, packet.hook, None, policy),
            Body::Arp(arp) => self.arp(packet.hook, arp),
            Body::Ip(ip) => self.ip(packet, ip, policy),
        }
    }

    /// Packets whose headers cannot be judged: they are dropped if the endpoint filters this direction, else they pass
    /// as `unfiltered`.
    fn unjudged(&mut self, why: Outcome, hook: Direction, local: Option<IpAddr>, policy: &dyn Policy) -> Outcome {
        let Some(endpoint) = self.endpoint.clone() else {
            self.note(Rule::NoEndpoint);
            return Outcome::NoEndpoint;
        };
        if policy.filters(hook) {
            self.note(Rule::UnjudgedIsDropped);
            return why;
        }
        if let Some(local) = local.filter(|it| !endpoint.has(*it)) {
            if hook == Direction::Egress {
                self.note(Rule::UnjudgedSource);
                return Outcome::Source;
            }
            if !is_group(local) && !is_link_local(local) {
                self.note(Rule::UnjudgedStray);
                return Outcome::Stray;
            }
        }
        self.note(Rule::UnjudgedPasses);
        Outcome::Unfiltered
    }

    fn ip(&mut self, packet: &Packet, ip: &Ip, policy: &mut dyn Policy) -> Outcome {
        let unjudged = match ip.fault {
            Some(Fault::SourceRoute) => Some(Outcome::SourceRoute),
            // A first fragment without a complete transport header is an attempt to evade filters.
            Some(Fault::Short) if ip.is_first_fragment() => Some(Outcome::Fragment),
            Some(Fault::Short) if !ip.is_later_fragment() && ip.has_header() => Some(Outcome::Malformed),
            _ => None,
        };
        if let Some(why) = unjudged {
            return self.unjudged(why, packet.hook, Some(ends(packet.hook, ip).1), policy);
        }
        let ports = match ip.is_later_fragment() {
            false => ports(packet.hook, ip),
            // Each endpoint has slots of its own for the ports of first fragments.
            true if self.endpoint.is_none() => {
                self.note(Rule::NoEndpoint);
                return Outcome::NoEndpoint;
            }
            true => match self.ports_of_later_fragment(packet.hook, ip) {
                Some(ports) => ports,
                None => return self.unjudged(Outcome::Fragment, packet.hook, Some(ends(packet.hook, ip).1), policy),
            },
        };
        let facts = facts(packet, ip, ports);
        if !ip.is_later_fragment() {
            if let Some(outcome) = self.neighbours(packet.hook, ip) {
                return outcome;
            }
            if let Upper::Error(_, quoted) = &ip.upper
                && self.is_related(&facts, ip, quoted, policy)
            {
                return Outcome::Related;
            }
        }
        let outcome = self.of_flow(&facts, policy);
        self.keep_first_fragment(&facts, outcome);
        outcome
    }

    /// Later fragments take their ports from the first one that passed.
    fn ports_of_later_fragment(&mut self, hook: Direction, ip: &Ip) -> Option<Ports> {
        let fragment = ip.fragment?;
        if ip.source.is_ipv4() && ip.protocol() == 6 && fragment.offset == 1 {
            self.note(Rule::TinyFragment);
            return None;
        }
        let (remote, local) = ends(hook, ip);
        let found = self.first_fragments.iter().rev().find(|it| {
            (it.hook, it.identification, it.protocol, it.remote, it.local)
                == (hook, fragment.identification, ip.protocol(), remote, local)
        });
        let ports = found.map(|it| it.ports);
        self.note(if ports.is_some() { Rule::LaterFragment } else { Rule::LostFragment });
        ports
    }

    fn keep_first_fragment(&mut self, facts: &Facts, outcome: Outcome) {
        if !facts.is_first_fragment || !outcome.passes() || self.endpoint.is_none() {
            return;
        }
        self.note(Rule::FirstFragmentIsKept);
        let Facts { hook, identification, local, key, .. } = *facts;
        let Key { protocol, remote, ports } = key;
        self.first_fragments.push(FirstFragment { hook, identification, protocol, remote, local, ports });
    }

    /// Whether an ICMP error is about a flow that is in force.
    fn is_related(&mut self, facts: &Facts, error: &Ip, quoted: &Ip, policy: &dyn Policy) -> bool {
        if quoted.is_later_fragment() || matches!(quoted.upper, Upper::Error(..) | Upper::Neighbour(_)) {
            self.note(Rule::ErrorAboutNoFlow);
            return false;
        }
        // An ICMP error to the pod quotes a packet that left the pod, and the other way round.
        let sent = if facts.hook == Direction::Ingress { Direction::Egress } else { Direction::Ingress };
        let (remote, local) = ends(sent, quoted);
        let ports = ports(sent, quoted);
        let is_question = matches!(ports, Ports::Question(..));
        let about_icmp = quoted.protocol() == quoted.icmp_number() && !is_question;
        if local != facts.local || about_icmp {
            self.note(Rule::ErrorAboutNoFlow);
            return false;
        }
        let rule = match self.find(Key { protocol: quoted.protocol(), remote, ports }).map(|at| &self.flows[at]) {
            None => Rule::ErrorAboutNoFlow,
            Some(flow) if flow.local != facts.local => Rule::ErrorOtherLocal,
            Some(flow) if flow.is_cut => Rule::ErrorAboutCut,
            Some(flow) if flow.generation != self.generation && !policy.keeps_established() => Rule::ErrorAboutOlder,
            Some(_) if facts.hook == Direction::Egress && error.destination != remote => Rule::ErrorToOther,
            Some(_) if is_too_long(error) => Rule::ErrorTooLong,
            Some(_) => Rule::Related,
        };
        self.note(rule);
        rule == Rule::Related
    }
}

/// Multicast, and IPv4's broadcast.
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

/// IPv6's link-local unicast addresses.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Errors that quote more than this are too long.
fn is_too_long(error: &Ip) -> bool {
    super::bytes::length(error) > if error.source.is_ipv4() { 576 } else { 1280 }
}
