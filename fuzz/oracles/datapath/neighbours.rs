//! Link-local protocols: ARP, neighbour discovery, listener reports.

use std::net::{IpAddr, Ipv6Addr};

use weir_model::Direction;

use super::bytes;
use super::model::{Endpoint, Model, Outcome, is_group, is_link_local};
use super::packet::{Arp, FRAME_SOURCE, Ip, Neighbour, Upper};
use super::rules::Rule;

/// The largest ARP frame that the pod may send, in bytes.
const MOST_ARP: usize = 64;
/// ICMPv6 bytes of neighbour discovery from the pod, and of listener reports.
const MOST_NEIGHBOUR: usize = 40;
const MOST_REPORT: usize = 168;
/// A solicitation or an advertisement to the pod, with two options.
const MOST_ANSWER: usize = 40;
/// Seconds for which a solicitation lets the pod answer a global unicast address.
const SOLICITED: u64 = 30;

const QUERY: u8 = 130;
const REPORTS: [u8; 3] = [131, 132, 143];
const ROUTER_SOLICITATION: u8 = 133;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;

impl Model {
    pub(super) fn arp(&mut self, hook: Direction, arp: &Arp) -> Outcome {
        let Some(endpoint) = self.endpoint.clone() else {
            self.note(Rule::NoEndpoint);
            return Outcome::NoEndpoint;
        };
        let (rule, outcome) = match hook {
            Direction::Egress => arp_from_pod(arp, &endpoint),
            Direction::Ingress => arp_to_pod(arp, &endpoint),
        };
        self.note(rule);
        outcome
    }

    /// What becomes of neighbour discovery and listener reports; `None` if the packet is judged like others.
    pub(super) fn neighbours(&mut self, hook: Direction, ip: &Ip) -> Option<Outcome> {
        let kind = match &ip.upper {
            Upper::Icmp(kind, _) => *kind,
            Upper::Neighbour(neighbour) => neighbour.kind,
            _ => return None,
        };
        if ip.source.is_ipv4() || !(QUERY..=ADVERTISEMENT).chain([REDIRECT, REPORTS[2]]).any(|it| it == kind) {
            return None;
        }
        let found = match (hook, &ip.upper) {
            (Direction::Egress, _) if matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) => {
                Some((Rule::RouterFromPod, Some(Outcome::Source)))
            }
            (Direction::Egress, _) if REPORTS.contains(&kind) => Some(report_from_pod(ip)),
            (Direction::Egress, Upper::Neighbour(neighbour)) if ip.hop_limit == 255 => {
                Some(self.neighbour_from_pod(ip, neighbour))
            }
            (Direction::Ingress, _)
                if (REPORTS.contains(&kind) || kind == ROUTER_SOLICITATION) && is_group(ip.destination) =>
            {
                Some((Rule::ForRouters, Some(Outcome::Stray)))
            }
            (Direction::Ingress, _) if kind == QUERY && ip.hop_limit == 1 && is_link_local(ip.source) => {
                Some((Rule::ListenerQuery, Some(Outcome::Neighbour)))
            }
            (Direction::Ingress, Upper::Neighbour(neighbour)) if ip.hop_limit == 255 => {
                self.neighbour_to_pod(ip, neighbour)
            }
            _ => None,
        };
        let (rule, outcome) = found?;
        self.note(rule);
        outcome
    }

    fn neighbour_from_pod(&self, ip: &Ip, neighbour: &Neighbour) -> (Rule, Option<Outcome>) {
        let kind = neighbour.kind;
        let options = (neighbour.link_layer.is_some(), neighbour.nonces);
        let is_plain = matches!(options, (_, 0)) || (kind == SOLICITATION && options == (false, 1));
        if !is_plain || bytes::upper_length(ip) > MOST_NEIGHBOUR {
            return (Rule::NeighbourShape, Some(Outcome::Source));
        }
        let Some(endpoint) = &self.endpoint else {
            // The link-layer address in the option must equal the frame's source, even here.
            let is_forged = neighbour.link_layer.is_some_and(|it| it != FRAME_SOURCE);
            return match is_forged {
                true => (Rule::NeighbourSpoofed, Some(Outcome::Source)),
                false => (Rule::NoEndpoint, Some(Outcome::NoEndpoint)),
            };
        };
        let may_be_unspecified = matches!(kind, SOLICITATION | ROUTER_SOLICITATION);
        let is_own_source = endpoint.has(ip.source)
            || is_link_local(ip.source)
            || (may_be_unspecified && ip.source == IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let target = IpAddr::V6(neighbour.target);
        let is_own_target = kind != ADVERTISEMENT || endpoint.has(target) || is_link_local(target);
        let is_own_link_layer = neighbour.link_layer.is_none_or(|it| is_own_hardware(it, endpoint));
        if !is_own_source || !is_own_target || !is_own_link_layer {
            return (Rule::NeighbourSpoofed, Some(Outcome::Source));
        }
        if is_group(ip.destination) || is_link_local(ip.destination) {
            return (Rule::NeighbourFromPod, Some(Outcome::Neighbour));
        }
        let has_solicited =
            |(who, when): &(Ipv6Addr, u64)| IpAddr::V6(*who) == ip.destination && self.now - when <= SOLICITED;
        if kind != ROUTER_SOLICITATION && self.solicitors.iter().any(has_solicited) {
            return (Rule::NeighbourSolicited, Some(Outcome::Neighbour));
        }
        (Rule::NeighbourElsewhere, None)
    }

    fn neighbour_to_pod(&mut self, ip: &Ip, neighbour: &Neighbour) -> Option<(Rule, Option<Outcome>)> {
        match neighbour.kind {
            SOLICITATION | ADVERTISEMENT if bytes::upper_length(ip) > MOST_ANSWER => None,
            SOLICITATION => Some(self.solicitation_to_pod(ip, neighbour.target)),
            ADVERTISEMENT | ROUTER_ADVERTISEMENT | REDIRECT => Some((Rule::NeighbourToPod, Some(Outcome::Neighbour))),
            _ => None,
        }
    }

    /// A global address that solicits the pod may be answered for a while.
    fn solicitation_to_pod(&mut self, ip: &Ip, target: Ipv6Addr) -> (Rule, Option<Outcome>) {
        let Some(endpoint) = &self.endpoint else { return (Rule::NoEndpoint, Some(Outcome::NoEndpoint)) };
        if !endpoint.has(target.into()) && !target.is_unicast_link_local() {
            return (Rule::SolicitsOther, Some(Outcome::Stray));
        }
        if let IpAddr::V6(source) = ip.source
            && !source.is_unicast_link_local()
            && !source.is_unspecified()
        {
            self.solicitors.push((source, self.now));
        }
        (Rule::NeighbourToPod, Some(Outcome::Neighbour))
    }
}

/// ARP from the pod must be for Ethernet and IPv4, short, and sent with the pod's own addresses.
fn arp_from_pod(arp: &Arp, endpoint: &Endpoint) -> (Rule, Outcome) {
    let is_own = endpoint.v4 == Some(IpAddr::V4(arp.sender));
    let asks_first = arp.is_request && arp.sender.is_unspecified();
    let is_sound =
        arp.is_ethernet && bytes::arp(arp).len() <= MOST_ARP && is_own_hardware(arp.sender_hardware, endpoint);
    match (is_sound, is_own, asks_first) {
        (true, true, _) => (Rule::ArpFromPod, Outcome::Neighbour),
        (true, false, true) => (Rule::ArpProbe, Outcome::Neighbour),
        _ => (Rule::ArpSpoofed, Outcome::Source),
    }
}

/// ARP to the pod passes if it asks for the pod's address, if it is an announcement, or if the pod has no IPv4 address
/// (and ignores it).
fn arp_to_pod(arp: &Arp, endpoint: &Endpoint) -> (Rule, Outcome) {
    if bytes::arp(arp).len() > MOST_ARP {
        (Rule::ArpStray, Outcome::Stray)
    } else if endpoint.v4.is_none() {
        (Rule::ArpNoAddress, Outcome::Neighbour)
    } else if endpoint.v4 == Some(IpAddr::V4(arp.target)) {
        (Rule::ArpToPod, Outcome::Neighbour)
    } else if arp.sender == arp.target {
        (Rule::ArpGratuitous, Outcome::Neighbour)
    } else {
        (Rule::ArpStray, Outcome::Stray)
    }
}

/// The frame's source address and, if it is known, the endpoint's.
fn is_own_hardware(address: [u8; 6], endpoint: &Endpoint) -> bool {
    address == FRAME_SOURCE && endpoint.hardware.is_none_or(|it| it == address)
}

/// Listener reports must be link-local: to a group, from a link-local address or none, and short.
fn report_from_pod(ip: &Ip) -> (Rule, Option<Outcome>) {
    let is_of_link = is_link_local(ip.source) || ip.source == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let is_short = bytes::upper_length(ip) <= MOST_REPORT;
    match ip.hop_limit == 1 && is_group(ip.destination) && is_of_link && is_short {
        true => (Rule::ListenerFromPod, Some(Outcome::Neighbour)),
        false => (Rule::ListenerJudged, None),
    }
}
