//! The interface between programs and runtime: the maps, and the bytes of their keys and values. This is its only
//! definition.
//!
//! Numbers are in the machine's order (little-endian machines only); addresses and ports are as on the wire.

pub mod buckets;

use std::net::IpAddr;

use crate::map_image::{MapBytes, MapEntry};
use weir_objects::k8s::Direction;

weir_ebpf::named_enum! {
    /// The maps of a generation; programs refer to them by number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u32)]
    pub enum MapName {
        /// Interface → [`endpoint`].
        Endpoints = "endpoints",
        /// Parameters that change without a new program: [`config`].
        Config = "config",
        /// Per CPU: packets and bytes by hook and [`Outcome`].
        Counters = "counters",
        /// Records about dropped packets, and about packets that audit policies would deny: [`event`].
        Events = "events",
        /// The state of the rate limit on records.
        EventLimit = "event_limit",
        /// `to_pod` of the other generation, while two are in force: [`config::OTHER`].
        Other = "other",
        /// Ports of fragmented packets: [`fragments`].
        Fragments = "fragments",
        /// Single IPv4 addresses → peer class.
        Exact4 = "exact4",
        /// IPv4 prefixes → peer class.
        Prefixes4 = "prefixes4",
        /// Single IPv6 addresses → peer class.
        Exact6 = "exact6",
        /// IPv6 prefixes → peer class.
        Prefixes6 = "prefixes6",
        /// (Direction, subject, peer) → set of atoms.
        Rows = "rows",
        /// (Direction, subject) → set of atoms.
        Defaults = "defaults",
        /// (Node, IPv4 address) of the node's own addresses.
        Nodes4 = "nodes4",
        /// (Node, IPv6 address) of the node's own addresses.
        Nodes6 = "nodes6",
        /// (Protocol, port) → atom.
        Ports = "ports",
        /// IPv4 flows: [`buckets`].
        FlowBuckets4 = "flow_table4",
        /// IPv6 flows: [`buckets`].
        FlowBuckets6 = "flow_table6",
        /// The sizes of the flow tables: [`buckets::shape`].
        FlowShape = "flow_shape",
        /// One bit per peer class: whether lists deny it for every local endpoint, in both directions.
        Edge = "edge",
        /// IPv4 addresses of endpoints that are enforced.
        Local4 = "local4",
        /// IPv6 addresses of endpoints that are enforced.
        Local6 = "local6",
        /// Per CPU: the packets and bytes that were dropped at the edge.
        EdgeDrops = "edge_drops",
        /// Single IPv4 addresses from blocks and lists → peer class, where other single addresses have a map of their
        /// own.
        Listed4 = "listed4",
        /// The same for IPv6.
        Listed6 = "listed6",
    }
}

/// The value of `endpoints`.
pub mod endpoint {
    /// The subject class.
    pub const SUBJECT: i16 = 0;
    /// The directions that are filtered ([`super::FILTERS_INGRESS`], [`super::FILTERS_EGRESS`]), and those that would
    /// be ([`super::AUDIT_SHIFT`]). Two bytes.
    pub const FLAGS: i16 = 4;
    /// Two bytes: the endpoint's number on this node, from 0. The runtime fills it in. It locates the endpoint's share
    /// of tables that all endpoints have in common ([`super::fragments`]).
    pub const NUMBER: i16 = 6;
    /// The number of the endpoint's node.
    pub const NODE: i16 = 8;
    /// The endpoint's IPv4 address, or zero.
    pub const V4: i16 = 12;
    /// The endpoint's IPv6 address, or zero.
    pub const V6: i16 = 16;
    /// Six bytes: the hardware address of the pod's interface, or zero if it is unknown. The runtime fills it in. Two
    /// bytes of zero follow.
    pub const MAC: i16 = 32;
    /// The length of the value.
    pub const BYTES: u32 = 40;
    /// The type of the value.
    pub type Value = [u8; BYTES as usize];
}

/// The endpoint's rows can deny packets to it.
pub const FILTERS_INGRESS: u32 = 1;
/// The endpoint's rows can deny packets from it.
pub const FILTERS_EGRESS: u32 = 2;

/// The flags shifted by this many bits: the directions that would be filtered if the audit policies were enforced.
pub const AUDIT_SHIFT: u32 = 2;

/// The value of `config`.
pub mod config {
    /// The generation's number.
    pub const EPOCH: i32 = 0;
    /// 1: flows of older generations continue without a new decision.
    pub const KEEP_ESTABLISHED: i32 = 4;
    /// Time-outs in ticks, by [`super::FlowState`], four bytes each.
    pub const TIMEOUTS: i32 = 8;
    /// Ticks in a second.
    pub const TICKS: i32 = 40;
    /// The stamp that this generation's `from_pod` puts on the packets that it has seen: [`super::mark`].
    pub const STAMP: i32 = 44;
    /// The mark of the other generation in force, or [`super::mark::NONE`].
    pub const OTHER: i32 = 48;
    /// 1: the audit policies decide, and their outcomes are not reported. Only verification and tests set it.
    pub const AUDIT: i32 = 52;
    /// Random numbers of eight bytes each. They stay the same as long as the flow tables: [`super::buckets::SEEDS`].
    pub const SEEDS: i32 = 56;
    /// The length of the value.
    pub const BYTES: u32 = 120;
    /// The type of the value: words of four bytes.
    pub type Value = [u32; BYTES as usize / 4];
}

/// The mark that `from_pod` leaves in a packet's `tc_index` for `to_pod` on the same host.
///
/// It survives routing and bridging, but does not leave the host.
pub mod mark {
    /// The generation's stamp, in the lower bits: 1 to 3.
    pub const STAMP: u32 = 3;
    /// A value that no stamp has.
    pub const NONE: u32 = 0xffff;
}

/// `fragments`: the ports of fragmented packets, for the fragments after the first.
///
/// Each endpoint has [`PLACES`] places of its own, so that no pod can use up the places of another one. A place is one
/// number of eight bytes, written and read in one piece. Its lower half has the two ports as in the flow's key. Its
/// upper half is a tag: the upper half of a hash over all fields that the fragments of a packet share. The lowest bits
/// of the hash choose the place. The hash has seeds that only this host knows.
///
/// Two packets can share a tag by chance (1 in 2^32). Then the later fragments of one get the other's ports. No packet
/// gets past policy by that alone: the receiver cannot reassemble a packet whose first fragment was dropped.
pub mod fragments {
    /// Places of each endpoint: a power of two.
    pub const PLACES: u32 = 64;
}

/// A record in `events`.
pub mod event {
    /// The time, in ticks.
    pub const TIME: i16 = 0;
    /// The interface.
    pub const IFINDEX: i16 = 8;
    /// [`super::Outcome`]
    pub const OUTCOME: i16 = 12;
    /// The hook: [`super::direction_number`].
    pub const HOOK: i16 = 13;
    /// The address family: 4 or 6.
    pub const FAMILY: i16 = 14;
    /// The IP protocol.
    pub const PROTOCOL: i16 = 15;
    /// The other end's address.
    pub const REMOTE: i16 = 16;
    /// The pod's address.
    pub const LOCAL: i16 = 32;
    /// The other end's port; for an ICMP query, its type and the number of the direction in which it was sent.
    pub const REMOTE_PORT: i16 = 48;
    /// The pod's port; for an ICMP query, its identifier.
    pub const LOCAL_PORT: i16 = 50;
    /// The generation.
    pub const EPOCH: i16 = 52;
    /// The other end's peer class, if it was looked up.
    pub const PEER: i16 = 56;
    /// The length of the record.
    pub const BYTES: u32 = 64;
}

weir_ebpf::named_enum! {
    /// The outcome of a packet; counted by hook.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[repr(u32)]
    pub enum Outcome {
        /// A packet of an allowed flow.
        Established = "established",
        /// A new flow that policy allows.
        Allowed = "allowed",
        /// A new flow that policy denies.
        Denied = "denied",
        /// A packet of the pod to itself.
        Itself = "itself",
        /// A packet from the pod's own node.
        OwnNode = "own-node",
        /// The endpoint filters neither direction, or a packet that the program cannot classify comes in a direction
        /// that is not filtered.
        Unfiltered = "unfiltered",
        /// An ICMP error about a live flow.
        Related = "related",
        /// ARP, IPv6 neighbour discovery or a multicast listener message.
        Neighbour = "neighbour",
        /// Malformed or missing headers.
        Malformed = "malformed",
        /// A family or an encapsulation that the programs do not support.
        Unknown = "unknown",
        /// A fragment whose first fragment was not seen, or one that is made to hide its ports.
        Fragment = "fragment",
        /// A packet from a pod with a source address that is not the pod's, or a forged message to its neighbours.
        Source = "source",
        /// A packet at an interface that has no endpoint.
        NoEndpoint = "no-endpoint",
        /// A packet of a flow that an older generation allowed and this one denies.
        Cut = "cut",
        /// A packet with a source route: its final destination is not its destination address.
        SourceRoute = "source-route",
        /// A packet that is allowed, and would be denied if the audit policies were enforced.
        WouldDeny = "would-deny",
        /// A new flow that is denied, and would be allowed if the audit policies were enforced.
        WouldAllow = "would-allow",
        /// A packet to the pod for an address that is not the pod's. It is counted without a record, because a bridge
        /// floods neighbour solicitations all the time.
        Stray = "stray",
    }
}

impl Outcome {
    /// Whether such packets are dropped.
    pub fn drops(self) -> bool {
        match self {
            Self::Denied
            | Self::Malformed
            | Self::Unknown
            | Self::Fragment
            | Self::Source
            | Self::NoEndpoint
            | Self::Cut
            | Self::SourceRoute
            | Self::WouldAllow
            | Self::Stray => true,
            Self::Established
            | Self::Allowed
            | Self::Itself
            | Self::OwnNode
            | Self::Unfiltered
            | Self::Related
            | Self::Neighbour
            | Self::WouldDeny => false,
        }
    }

    /// Whether the programs write records of such packets: of all drops except [`Self::Stray`], and of packets that
    /// would be dropped.
    pub fn is_recorded(self) -> bool {
        (self.drops() && self != Self::Stray) || self == Self::WouldDeny
    }
}

/// The number of places that `counters` has for each hook.
pub const OUTCOMES: u32 = 32;

/// A flow's state. Odd numbers are confirmed flows: the side that began the flow has sent again after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FlowState {
    /// TCP, until the side that began it sends after an answer.
    TcpFresh,
    /// TCP, confirmed.
    TcpOpen,
    /// UDP, until the side that began it sends after an answer.
    UdpFresh,
    /// UDP, confirmed.
    UdpOpen,
    /// Another protocol, until the side that began it sends after an answer.
    OtherFresh,
    /// Another protocol, confirmed.
    OtherOpen,
    /// TCP that has ended: both sides have sent FIN, or the pod has sent RST. It is not confirmed, so its slot is
    /// reused as easily as that of a fresh flow.
    TcpClosing,
}

impl FlowState {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [
        Self::TcpFresh,
        Self::TcpOpen,
        Self::UdpFresh,
        Self::UdpOpen,
        Self::OtherFresh,
        Self::OtherOpen,
        Self::TcpClosing,
    ];

    /// Time-outs by state: how many seconds a flow stays without a packet.
    pub const SECONDS: [u32; 8] = [60, 7_200, 30, 180, 30, 120, 120, 30];

    /// Whether the side that began the flow has sent again after an answer.
    pub fn is_confirmed(self) -> bool {
        self as u8 & 1 == 1
    }
}

/// Where a flow began, as far as there is evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Origin {
    /// In the pod, or anywhere that the other variants do not cover: the default without evidence.
    #[default]
    Elsewhere,
    /// On this host: one of its sockets sent the first packet.
    Host,
    /// In the pod itself, which reaches itself through a service.
    Itself,
    /// Unknown: the first packet seen was in the middle of a connection. Both directions must allow it.
    MidStream,
}

impl Origin {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Elsewhere, Self::Host, Self::Itself, Self::MidStream];
}

/// The name of a hook's program.
pub fn program_name(hook: Direction) -> &'static str {
    match hook {
        Direction::Ingress => "to_pod",
        Direction::Egress => "from_pod",
    }
}

/// The name of the program at the edge of the node.
pub const AT_EDGE: &str = "at_edge";

/// The entries that the runtime writes into a map of protected addresses, for the endpoints with these values.
pub fn protected<'a>(map: MapName, values: impl Iterator<Item = &'a [u8]>) -> Vec<MapEntry> {
    let (at, bytes) = match map {
        MapName::Local4 => (endpoint::V4 as usize, 4),
        MapName::Local6 => (endpoint::V6 as usize, 16),
        _ => return Vec::new(),
    };
    let addresses = values.filter_map(|value| value.get(at..at + bytes));
    // Zeros mean that the endpoint has no address of this family. As an entry they would protect 0.0.0.0.
    let given = addresses.filter(|address| address.iter().any(|byte| *byte != 0));
    given.map(|address| (address.into(), MapBytes::from(&PROTECTED[..]))).collect()
}

/// The map value of every protected address.
pub const PROTECTED: [u8; 4] = [1, 0, 0, 0];

/// Egress is 1, ingress 0, in keys, flows and counters.
pub fn direction_number(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => 0,
        Direction::Egress => 1,
    }
}

/// The key of `rows`.
pub fn row_key(direction: Direction, subject: u32, peer: u32) -> [u8; 8] {
    let upper = subject | direction_number(direction) << 31;
    (u64::from(upper) << 32 | u64::from(peer)).to_le_bytes()
}

/// The address's four or sixteen bytes, as on the wire.
pub fn address_bytes(address: IpAddr) -> MapBytes {
    match address {
        IpAddr::V4(v4) => MapBytes::from_slice(&v4.octets()),
        IpAddr::V6(v6) => MapBytes::from_slice(&v6.octets()),
    }
}
