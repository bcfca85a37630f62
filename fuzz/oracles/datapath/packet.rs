//! Packets as the model sees them: fields instead of bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_model::Direction;

/// TCP's flags.
pub mod tcp {
    /// No more data from this side.
    pub const FIN: u8 = 0x01;
    /// Begins a connection, if ACK is not set.
    pub const SYN: u8 = 0x02;
    /// Ends a connection at once.
    pub const RST: u8 = 0x04;
    /// Acknowledges.
    pub const ACK: u8 = 0x10;
}

/// SCTP's first chunk that begins an association.
pub const INIT: u8 = 1;

/// A packet at one of the two hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Egress: the packet leaves the pod (`from_pod`). Ingress: it comes to the pod (`to_pod`).
    pub hook: Direction,
    /// The way on which it reached this host.
    pub arrival: Arrival,
    /// Whether a socket of this host sent it.
    pub has_socket: bool,
    /// The stamp that `from_pod` of a pod on this host has left, or 0.
    pub stamp: u32,
    /// The frame's content.
    pub body: Body,
}

/// The interface through which a packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// None: this host made it.
    None,
    /// The pod's own.
    Own,
    /// Another.
    Other,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// IPv4 or IPv6.
    Ip(Ip),
    /// ARP.
    Arp(Arp),
    /// A family that the datapath does not understand.
    UnknownFamily,
    /// A frame whose VLAN tag the device has taken off.
    Vlan(Ip),
}

/// An IP packet. Both addresses are of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// The fragment fields of IPv4, the fragment header of IPv6.
    pub fragment: Option<Fragment>,
    /// Bytes after the headers of `upper`.
    pub padding: usize,
    /// Something wrong with the headers.
    pub fault: Option<Fault>,
    /// The payload.
    pub upper: Upper,
}

/// A part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The identification, which is the same for all fragments of a packet.
    pub identification: u16,
    /// The fragment's offset, in units of eight bytes.
    pub offset: u16,
    /// Not the last part.
    pub more: bool,
}

/// A defect of the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The transport header ends after four bytes.
    Short,
    /// A source route that is not used up.
    SourceRoute,
}

/// The payload of an IP packet. For a fragment that is not the first, only the protocol is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upper {
    /// TCP: source port, destination port, flags.
    Tcp(u16, u16, u8),
    /// UDP: source port, destination port.
    Udp(u16, u16),
    /// SCTP: source port, destination port, the first chunk.
    Sctp(u16, u16, u8),
    /// A protocol without ports.
    Other(u8),
    /// ICMP or ICMPv6: type and identifier.
    Icmp(u8, u16),
    /// An ICMP error: type, and the packet that it quotes.
    Error(u8, Box<Ip>),
    /// Neighbour discovery.
    Neighbour(Neighbour),
}

/// A message of IPv6 neighbour discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its type: 133 to 137.
    pub kind: u8,
    /// The address that a solicitation or an advertisement is about.
    pub target: Ipv6Addr,
    /// The link-layer address in its option, if it has one.
    pub link_layer: Option<[u8; 6]>,
    /// Number of nonces, of eight bytes each.
    pub nonces: usize,
}

/// An ARP packet. Sender addresses; the target's protocol address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arp {
    /// A request, or a reply.
    pub is_request: bool,
    /// Whether the ARP header's hardware and protocol types are Ethernet and IPv4.
    pub is_ethernet: bool,
    /// The sender's hardware address.
    pub sender_hardware: [u8; 6],
    /// The sender's IPv4 address.
    pub sender: Ipv4Addr,
    /// The target's IPv4 address.
    pub target: Ipv4Addr,
    /// Bytes after the 28 of the packet.
    pub padding: usize,
}

/// The source address of every frame: the pod's address if the frame leaves the pod.
pub const FRAME_SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 2];

impl Ip {
    /// A whole packet without anything special.
    pub fn new(source: IpAddr, destination: IpAddr, upper: Upper) -> Self {
        Self { source, destination, hop_limit: 64, fragment: None, padding: 0, fault: None, upper }
    }

    /// Its protocol number.
    pub fn protocol(&self) -> u8 {
        match &self.upper {
            Upper::Tcp(..) => 6,
            Upper::Udp(..) => 17,
            Upper::Sctp(..) => 132,
            Upper::Other(number) => *number,
            Upper::Icmp(..) | Upper::Error(..) | Upper::Neighbour(_) => self.icmp_number(),
        }
    }

    /// Whether its protocol has a header that must be there.
    pub fn has_header(&self) -> bool {
        matches!(self.protocol(), 6 | 17 | 132) || self.protocol() == self.icmp_number()
    }

    /// The number of ICMP in its family.
    pub fn icmp_number(&self) -> u8 {
        if self.source.is_ipv4() { 1 } else { 58 }
    }

    /// A part of a packet that is not the first: it has no ports of its own.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|it| it.offset > 0)
    }

    /// The first of several parts.
    pub fn is_first_fragment(&self) -> bool {
        self.fragment.is_some_and(|it| it.offset == 0 && it.more)
    }
}
