//! Sequences of packets at one pod. A few conversations between a few ends make flows collide, mixed with all other
//! kinds of packets that the rules mention.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_model::Direction;

use super::{Generated, Random};
use crate::oracles::datapath::compare::{Sequence, Step};
use crate::oracles::datapath::model::Endpoint;
use crate::oracles::datapath::packet::tcp::{ACK, FIN, RST, SYN};
use crate::oracles::datapath::packet::{
    Arp, Arrival, Body, FRAME_SOURCE, Fault, Fragment, INIT, Ip, Neighbour, Packet, Upper,
};
use crate::oracles::datapath::worlds::{PODS, endpoint};

/// The abilities of the machine that runs the sequence.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// Time can be moved.
    pub waits: bool,
    /// Sockets, stamps and VLAN tags can be chosen. Otherwise every packet has a socket, no stamp and no tag.
    pub context: bool,
}

/// Values just below and above every time-out, and the 30 seconds of a solicitation.
const WAITS: [u64; 16] = [1, 10, 29, 30, 31, 60, 61, 119, 120, 121, 180, 181, 1000, 7199, 7200, 7201];

/// A conversation.
#[derive(Clone, Debug)]
struct Talk {
    protocol: u8,
    remote: IpAddr,
    local: IpAddr,
    remote_port: u16,
    local_port: u16,
    arrival: Arrival,
}

struct Maker<'r> {
    random: &'r mut Random,
    abilities: Abilities,
    endpoint: Endpoint,
    talks: Vec<Talk>,
}

/// Sequences; the generations in them have numbers below `worlds`.
pub fn sequences(worlds: usize, abilities: Abilities) -> Generated<Sequence> {
    Generated::by(move |random| sequence(random, worlds, abilities))
}

/// A sequence; the generations in it have numbers below `worlds`.
fn sequence(random: &mut Random, worlds: usize, abilities: Abilities) -> Sequence {
    let pod = if random.once_in(4) { random.below(PODS.len()) } else { 0 };
    let endpoint = endpoint(pod);
    let mut maker = Maker { random, abilities, endpoint, talks: Vec::new() };
    let first = maker.talk();
    maker.talks.push(first);
    while let Some(part) = maker.random.begin_part(maker.talks.len() - 1, &(0..=3)) {
        let talk = maker.talk();
        maker.talks.push(talk);
        maker.random.end_part(part);
    }
    // A few generations, so that one comes back now and then.
    let some: Vec<usize> = (0..3).map(|_| maker.random.below(worlds)).collect();
    let (world, mut steps) = (maker.random.pick(&some), Vec::new());
    while let Some(part) = maker.random.begin_part(steps.len(), &(5..=34)) {
        steps.push(maker.step(&some));
        maker.random.end_part(part);
    }
    Sequence { pod, world, steps }
}

impl Maker<'_> {
    fn own(&self, is_v4: bool) -> IpAddr {
        let own = if is_v4 { self.endpoint.v4 } else { self.endpoint.v6 };
        own.unwrap_or_else(|| address(if is_v4 { "10.0.0.1" } else { "fd00::1" }))
    }

    fn is_v4(&mut self) -> bool {
        match (self.endpoint.v4, self.endpoint.v6) {
            (Some(_), None) => !self.random.once_in(8),
            (None, Some(_)) => self.random.once_in(8),
            _ => self.random.once_in(2),
        }
    }

    fn remote(&mut self, is_v4: bool) -> (IpAddr, Arrival) {
        let own = self.own(is_v4);
        let (texts, groups): ([&str; 4], [&str; 3]) = match is_v4 {
            true => (
                ["10.8.0.1", "10.0.0.2", "203.0.113.7", "192.168.0.1"],
                ["224.0.0.251", "255.255.255.255", "239.1.2.3"],
            ),
            false => (["fd08::1", "fd00::2", "2001:db8::7", "fd00:c0::1"], ["ff02::fb", "ff05::1", "fe80::9"]),
        };
        match self.random.below(16) {
            0 => (own, self.random.pick(&[Arrival::Own, Arrival::None, Arrival::Other])),
            1 => (address(self.random.pick(&groups)), Arrival::Other),
            2..=4 => (address(texts[3]), self.random.pick(&[Arrival::None, Arrival::None, Arrival::Own])),
            5..=7 => (address(texts[1]), Arrival::Other),
            8..=9 => (address(texts[2]), self.random.pick(&[Arrival::None, Arrival::Other])),
            _ => (address(texts[0]), Arrival::Other),
        }
    }

    fn talk(&mut self) -> Talk {
        // Often a copy of another conversation with one part changed, so that only this part distinguishes the two.
        if !self.talks.is_empty() && self.random.once_in(2) {
            let mut talk = self.random.pick(&self.talks);
            match self.random.below(3) {
                0 => talk.protocol = self.protocol(),
                1 => talk.remote_port = self.port(),
                _ => talk.local_port = self.port(),
            }
            return talk;
        }
        let is_v4 = self.is_v4();
        let (remote, arrival) = self.remote(is_v4);
        let (protocol, local) = (self.protocol(), self.own(is_v4));
        Talk { protocol, remote, local, remote_port: self.port(), local_port: self.port(), arrival }
    }

    fn protocol(&mut self) -> u8 {
        self.random.pick(&[6, 6, 6, 6, 17, 17, 132, 47, 1, 1])
    }

    fn port(&mut self) -> u16 {
        self.random.pick(&[443, 443, 80, 53, 90, 9])
    }

    fn step(&mut self, worlds: &[usize]) -> Step {
        // The packets of conversations are the plainest steps.
        match 99 - self.random.below(100) {
            0..=6 if self.abilities.waits => Step::Wait(self.random.pick(&WAITS)),
            0..=13 => Step::Switch(self.random.pick(worlds)),
            14 if self.random.once_in(2) => Step::Unplug,
            14..=18 => Step::Plug,
            19..=24 => self.packet(Self::error),
            25..=28 => self.packet(Self::arp),
            29..=33 => self.packet(Self::neighbour),
            34 => self.packet(Self::odd),
            _ => self.packet(Self::of_talk),
        }
    }

    fn packet(&mut self, make: fn(&mut Self, Direction) -> (Body, Arrival)) -> Step {
        let hook = self.random.pick(&Direction::ALL);
        let (body, mut arrival) = make(self, hook);
        if hook == Direction::Egress {
            arrival = Arrival::Own;
        } else if self.random.once_in(10) {
            arrival = self.random.pick(&[Arrival::None, Arrival::Own, Arrival::Other]);
        }
        let has_socket = !self.abilities.context || (arrival == Arrival::None && !self.random.once_in(8));
        let stamp = match self.abilities.context && hook == Direction::Ingress && self.random.once_in(10) {
            true => 1 + self.random.below(3) as u32,
            false => 0,
        };
        Step::Packet(Packet { hook, arrival, has_socket, stamp, body })
    }

    /// A packet of one of the conversations, in either direction.
    fn of_talk(&mut self, hook: Direction) -> (Body, Arrival) {
        let number = self.random.below(self.talks.len());
        let talk = self.talks[number].clone();
        let mut ip = self.plain(&talk, hook);
        if self.random.once_in(8) {
            self.fragment(&mut ip, number == 0);
            return (Body::Ip(ip), talk.arrival);
        } else if self.random.once_in(60) {
            ip.fault = Some(self.random.pick(&[Fault::Short, Fault::SourceRoute]));
        }
        if self.random.once_in(20) {
            let local = self.other_local(ip.source.is_ipv4());
            match hook {
                Direction::Egress => ip.source = local,
                Direction::Ingress => ip.destination = local,
            }
        }
        (Body::Ip(ip), talk.arrival)
    }

    fn other_local(&mut self, is_v4: bool) -> IpAddr {
        address(match is_v4 {
            true => self.random.pick(&["10.0.0.99", "224.0.0.251", "255.255.255.255", "0.0.0.0"]),
            false => self.random.pick(&["fd00::99", "ff02::fb", "fe80::1", "::"]),
        })
    }

    fn plain(&mut self, talk: &Talk, hook: Direction) -> Ip {
        let (source, destination, source_port, destination_port) = match hook {
            Direction::Egress => (talk.local, talk.remote, talk.local_port, talk.remote_port),
            Direction::Ingress => (talk.remote, talk.local, talk.remote_port, talk.local_port),
        };
        let upper = match talk.protocol {
            6 => Upper::Tcp(source_port, destination_port, self.flags()),
            17 => Upper::Udp(source_port, destination_port),
            132 => Upper::Sctp(source_port, destination_port, self.random.pick(&[INIT, INIT, 2, 0, 3])),
            1 => Upper::Icmp(self.icmp(source.is_ipv4()), talk.local_port),
            other => Upper::Other(other),
        };
        Ip::new(source, destination, upper)
    }

    fn flags(&mut self) -> u8 {
        let usual = [SYN, SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, FIN | ACK, RST, RST | ACK];
        if self.random.once_in(30) { self.random.below(64) as u8 } else { self.random.pick(&usual) }
    }

    fn icmp(&mut self, is_v4: bool) -> u8 {
        match is_v4 {
            true => self.random.pick(&[8, 8, 8, 0, 0, 13, 14, 9]),
            false => self.random.pick(&[128, 128, 128, 129, 129, 144]),
        }
    }

    /// Only one packet of a sequence has a first fragment that others follow: the ports of two such packets could get
    /// the same slot in the endpoint's share.
    fn fragment(&mut self, ip: &mut Ip, is_first_of_all: bool) {
        let (offset, more) = match is_first_of_all {
            true => self.random.pick(&[(0, true), (0, true), (3, false), (3, true), (1, false), (0, false)]),
            false => self.random.pick(&[(3, false), (3, true), (1, false), (0, false)]),
        };
        let identification = if offset == 0 { 1 } else { self.random.pick(&[1, 1, 1, 2]) };
        ip.fragment = Some(Fragment { identification, offset, more });
    }

    /// An ICMP error that quotes a packet of one of the conversations, with or without mistakes.
    fn error(&mut self, hook: Direction) -> (Body, Arrival) {
        let talk = self.random.pick(&self.talks);
        let quoted_hook = if hook == Direction::Egress { Direction::Ingress } else { Direction::Egress };
        let is_wrong_way = self.random.once_in(12);
        let mut quoted = self.plain(&talk, if is_wrong_way { hook } else { quoted_hook });
        let is_v4 = talk.remote.is_ipv4();
        if self.random.once_in(12) {
            self.fragment(&mut quoted, true);
        }
        if self.random.once_in(12) {
            let local = self.other_local(is_v4);
            let end = if hook == Direction::Egress { &mut quoted.destination } else { &mut quoted.source };
            *end = local;
        }
        let other = if self.random.once_in(3) { self.remote(is_v4).0 } else { talk.remote };
        let mut local = talk.local;
        if self.random.once_in(12) {
            local = self.other_local(is_v4);
        }
        let (source, destination) = if hook == Direction::Egress { (local, other) } else { (other, local) };
        let kind = self.random.pick(if is_v4 { &[3, 4, 11, 12] } else { &[1, 2, 3, 4] });
        let mut error = Ip::new(source, destination, Upper::Error(kind, Box::new(quoted)));
        if self.random.once_in(4) {
            self.pad_error(&mut error);
        }
        (Body::Ip(error), talk.arrival)
    }

    /// A length equal to the limit for errors, or one byte more.
    fn pad_error(&mut self, error: &mut Ip) {
        let most = if error.source.is_ipv4() { 576 } else { 1280 };
        let bytes = crate::oracles::datapath::bytes::length(error);
        error.padding = most - bytes + usize::from(self.random.once_in(2));
    }

    fn arp(&mut self, hook: Direction) -> (Body, Arrival) {
        let own = match self.endpoint.v4 {
            Some(IpAddr::V4(own)) => own,
            _ => Ipv4Addr::new(10, 0, 0, 1),
        };
        let all = [own, own, own, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(169, 254, 1, 1)];
        let is_odd = self.random.once_in(5);
        let arp = Arp {
            is_request: self.random.once_in(2),
            is_ethernet: !(is_odd && self.random.once_in(3)) || hook == Direction::Ingress,
            sender_hardware: if is_odd && self.random.once_in(2) { [2, 0, 0, 0, 0, 9] } else { FRAME_SOURCE },
            sender: self.random.pick(&all),
            target: self.random.pick(&all),
            padding: self.random.pick(&[0, 0, 18, 22, 23]),
        };
        (Body::Arp(arp), Arrival::Other)
    }

    fn neighbour(&mut self, hook: Direction) -> (Body, Arrival) {
        let own = match self.own(false) {
            IpAddr::V6(own) => own,
            IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
        };
        let link = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let kind = self.random.pick(&[133, 135, 135, 135, 136, 136, 134, 137, 130, 131, 132, 143, 143]);
        let local = self.random.pick(&[own, own, own, link, link, Ipv6Addr::UNSPECIFIED, other]);
        let remote = self.random.pick(&[link, group, group, other, other, own]);
        if self.random.once_in(3) {
            return self.exchange(hook, own, other);
        }
        let (source, destination) = match hook {
            Direction::Egress => (local, remote),
            Direction::Ingress => {
                (if remote == group { link } else { remote }, if local == other { group } else { local })
            }
        };
        let is_listener = matches!(kind, 130..=132 | 143);
        let upper = match is_listener {
            true => Upper::Icmp(kind, 0),
            false => Upper::Neighbour(Neighbour {
                kind,
                target: self.random.pick(&[own, own, own, link, other]),
                link_layer: self.random.pick(&[None, Some(FRAME_SOURCE), Some(FRAME_SOURCE), Some([2, 0, 0, 0, 0, 9])]),
                nonces: self.random.pick(&[0, 0, 0, 1, 2]),
            }),
        };
        let mut ip = Ip::new(source.into(), destination.into(), upper);
        ip.hop_limit = match (is_listener, self.random.once_in(8)) {
            (_, true) => 64,
            (true, false) => 1,
            (false, false) => 255,
        };
        if is_listener && self.random.once_in(4) {
            ip.padding = self.random.pick(&[160, 161]);
        }
        (Body::Ip(ip), Arrival::Other)
    }

    /// A global unicast address solicits the pod, or the pod answers it.
    fn exchange(&mut self, hook: Direction, own: Ipv6Addr, other: Ipv6Addr) -> (Body, Arrival) {
        let (source, destination, kind) = match hook {
            Direction::Egress => (own, other, self.random.pick(&[135, 136, 136])),
            Direction::Ingress => (other, own, 135),
        };
        let neighbour = Neighbour { kind, target: own, link_layer: Some(FRAME_SOURCE), nonces: 0 };
        let mut ip = Ip::new(source.into(), destination.into(), Upper::Neighbour(neighbour));
        ip.hop_limit = 255;
        (Body::Ip(ip), Arrival::Other)
    }

    fn odd(&mut self, hook: Direction) -> (Body, Arrival) {
        let (body, arrival) = self.of_talk(hook);
        match (body, self.random.once_in(2) && self.abilities.context) {
            (Body::Ip(ip), true) => (Body::Vlan(ip), arrival),
            _ => (Body::UnknownFamily, arrival),
        }
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}
