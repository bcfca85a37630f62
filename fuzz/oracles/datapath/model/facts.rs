//! The facts about a packet that the rules depend on.

use std::net::IpAddr;

use weir_model::Direction;

use super::super::packet::{Arrival, INIT, Ip, Packet, Upper, tcp};
use super::{Key, Ports};

/// The facts about a packet that the rules use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) hook: Direction,
    pub(super) arrival: Arrival,
    pub(super) has_socket: bool,
    pub(super) is_stamped: bool,
    /// IPv6 with a fragment header, even of a whole packet.
    pub(super) has_fragment_header: bool,
    pub(super) is_first_fragment: bool,
    pub(super) identification: u16,
    pub(super) local: IpAddr,
    pub(super) key: Key,
    /// TCP's flags; none of a later fragment.
    pub(super) flags: u8,
    /// TCP with SYN and without ACK, SCTP whose first chunk is INIT.
    pub(super) begins: bool,
    pub(super) is_icmp: bool,
}

impl Facts {
    /// TCP and SCTP packets show where a connection begins.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self.key.protocol, 6 | 132)
    }

    /// An ICMP question, in the direction in which it is asked.
    pub(super) fn asks(&self) -> bool {
        matches!(self.key.ports, Ports::Question(_, asked, _) if asked == self.hook)
    }

    /// The port that policy rules name, for a direction.
    pub(super) fn port(&self, direction: Direction) -> u16 {
        match (self.key.ports, direction) {
            (Ports::Pair(remote, _), Direction::Egress) => remote,
            (Ports::Pair(_, local), Direction::Ingress) => local,
            _ => 0,
        }
    }
}

pub(super) fn facts(packet: &Packet, ip: &Ip, ports: Ports) -> Facts {
    let (remote, local) = ends(packet.hook, ip);
    let (flags, begins) = match ip.upper {
        _ if ip.is_later_fragment() => (0, false),
        Upper::Tcp(_, _, flags) => (flags, flags & (tcp::SYN | tcp::ACK) == tcp::SYN),
        Upper::Sctp(_, _, chunk) => (0, chunk == INIT),
        _ => (0, false),
    };
    Facts {
        hook: packet.hook,
        arrival: packet.arrival,
        has_socket: packet.has_socket,
        is_stamped: packet.stamp & 3 != 0,
        has_fragment_header: ip.source.is_ipv6() && ip.fragment.is_some(),
        is_first_fragment: ip.is_first_fragment(),
        identification: ip.fragment.map_or(0, |it| it.identification),
        local,
        key: Key { protocol: ip.protocol(), remote, ports },
        flags,
        begins,
        is_icmp: ip.protocol() == ip.icmp_number(),
    }
}

/// The remote address and the local one.
pub(super) fn ends(hook: Direction, ip: &Ip) -> (IpAddr, IpAddr) {
    match hook {
        Direction::Egress => (ip.destination, ip.source),
        Direction::Ingress => (ip.source, ip.destination),
    }
}

/// The part of a flow's key that identifies the ports, for a packet in this direction.
pub(super) fn ports(hook: Direction, ip: &Ip) -> Ports {
    let opposite = if hook == Direction::Egress { Direction::Ingress } else { Direction::Egress };
    match ip.upper {
        Upper::Tcp(source, destination, _) | Upper::Udp(source, destination) | Upper::Sctp(source, destination, _) => {
            match hook {
                Direction::Egress => Ports::Pair(destination, source),
                Direction::Ingress => Ports::Pair(source, destination),
            }
        }
        Upper::Icmp(kind, identifier) => match (ip.source.is_ipv4(), kind) {
            (true, 8 | 13 | 15 | 17) | (false, 128) => Ports::Question(kind, hook, identifier),
            (true, 0) => Ports::Question(8, opposite, identifier),
            (true, 14 | 16 | 18) | (false, 129) => Ports::Question(kind - 1, opposite, identifier),
            _ => Ports::None,
        },
        _ => Ports::None,
    }
}
