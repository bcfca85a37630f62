//! What programs and runtime share: maps, and the bytes of their keys and values. Said once, here.
//!
//! Numbers are in the machine's order (little-endian machines only); addresses and ports are as on the wire.

pub mod buckets;

use std::net::IpAddr;

/// The maps of a generation, by their number in programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum MapName {
    /// Interface → [`endpoint`].
    Endpoints,
    /// What changes without a new program: [`config`].
    Config,
    /// Per CPU: packets and bytes by hook and [`Outcome`].
    Counters,
    /// Records about denied flows: [`event`].
    Events,
    /// What limits the rate of records.
    EventLimit,
    /// `to_pod` of the other generation, while two are in force: [`config::OTHER`].
    Other,
    /// Ports of fragmented packets: [`fragments`].
    Fragments,
    /// Single IPv4 addresses → peer class.
    Exact4,
    /// IPv4 prefixes → peer class.
    Prefixes4,
    /// Single IPv6 addresses → peer class.
    Exact6,
    /// IPv6 prefixes → peer class.
    Prefixes6,
    /// (Direction, subject, peer) → set of atoms.
    Rows,
    /// (Direction, subject) → set of atoms.
    Defaults,
    /// (Node, IPv4 address): the node's own.
    Nodes4,
    /// (Node, IPv6 address): the node's own.
    Nodes6,
    /// (Protocol, port) → atom.
    Ports,
    /// IPv4 flows: [`buckets`].
    FlowBuckets4,
    /// IPv6 flows: [`buckets`].
    FlowBuckets6,
    /// How large these are: [`buckets::shape`].
    FlowShape,
    /// Peer classes that are denied to everybody, a bit each.
    Edge,
    /// IPv4 addresses of endpoints that are enforced.
    Local4,
    /// IPv6 addresses of endpoints that are enforced.
    Local6,
    /// Per CPU: packets and bytes that were dropped at the edge.
    EdgeDrops,
    /// Single IPv4 addresses that stand in blocks and lists, where the others have a map of their own → peer class.
    Listed4,
    /// The same for IPv6.
    Listed6,
}

impl MapName {
    /// All of them, in order.
    pub const ALL: [Self; 25] = [
        Self::Endpoints,
        Self::Config,
        Self::Counters,
        Self::Events,
        Self::EventLimit,
        Self::Other,
        Self::Fragments,
        Self::Exact4,
        Self::Prefixes4,
        Self::Exact6,
        Self::Prefixes6,
        Self::Rows,
        Self::Defaults,
        Self::Nodes4,
        Self::Nodes6,
        Self::Ports,
        Self::FlowBuckets4,
        Self::FlowBuckets6,
        Self::FlowShape,
        Self::Edge,
        Self::Local4,
        Self::Local6,
        Self::EdgeDrops,
        Self::Listed4,
        Self::Listed6,
    ];

    /// Its name in the kernel and in the object file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Config => "config",
            Self::Counters => "counters",
            Self::Events => "events",
            Self::EventLimit => "event_limit",
            Self::Fragments => "fragments",
            Self::Exact4 => "exact4",
            Self::Prefixes4 => "prefixes4",
            Self::Exact6 => "exact6",
            Self::Prefixes6 => "prefixes6",
            Self::Rows => "rows",
            Self::Defaults => "defaults",
            Self::Nodes4 => "nodes4",
            Self::Nodes6 => "nodes6",
            Self::Other => "other",
            Self::Ports => "ports",
            Self::FlowBuckets4 => "flow_table4",
            Self::FlowBuckets6 => "flow_table6",
            Self::FlowShape => "flow_shape",
            Self::Edge => "edge",
            Self::Local4 => "local4",
            Self::Local6 => "local6",
            Self::EdgeDrops => "edge_drops",
            Self::Listed4 => "listed4",
            Self::Listed6 => "listed6",
        }
    }
}

/// The value of `endpoints`.
pub mod endpoint {
    /// The subject class.
    pub const SUBJECT: i16 = 0;
    /// Which directions are filtered: [`super::FILTERS_INGRESS`], [`super::FILTERS_EGRESS`], and which would be
    /// ([`super::STAGED_SHIFT`]). Two bytes.
    pub const FLAGS: i16 = 4;
    /// Two bytes: the endpoint's number on this node, from 0. The runtime fills it in; it finds the endpoint's share of tables
    /// that all endpoints have in common ([`super::fragments`]).
    pub const NUMBER: i16 = 6;
    /// The number of its node.
    pub const NODE: i16 = 8;
    /// Its IPv4 address, or zero.
    pub const V4: i16 = 12;
    /// Its IPv6 address, or zero.
    pub const V6: i16 = 16;
    /// Six bytes: the hardware address of the pod's interface, or zero if it is not known. The runtime fills it in. Two bytes of
    /// zero follow.
    pub const MAC: i16 = 32;
    /// All of it.
    pub const BYTES: u32 = 40;
}

/// The endpoint's rows can deny what comes to it.
pub const FILTERS_INGRESS: u32 = 1;
/// The endpoint's rows can deny what leaves it.
pub const FILTERS_EGRESS: u32 = 2;

/// So many bits above stands which directions would be filtered if what is staged were enforced.
pub const STAGED_SHIFT: u32 = 2;

/// The value of `config`.
pub mod config {
    /// The generation's number.
    pub const EPOCH: i32 = 0;
    /// 1: flows of older generations go on unasked.
    pub const KEEP_ESTABLISHED: i32 = 4;
    /// Time-outs in ticks, by [`super::State`], four bytes each.
    pub const TIMEOUTS: i32 = 8;
    /// Ticks in a second.
    pub const TICKS: i32 = 40;
    /// What this generation marks the packets with that its `from_pod` has seen: [`super::mark`].
    pub const STAMP: i32 = 44;
    /// The mark of the other generation in force, or [`super::mark::NONE`].
    pub const OTHER: i32 = 48;
    /// 1: what is staged decides, and nothing is reported of it. Only verification and tests set it.
    pub const STAGED: i32 = 52;
    /// Random numbers, eight bytes each, as old as the flow tables: [`super::buckets::SEEDS`].
    pub const SEEDS: i32 = 56;
    /// All of it.
    pub const BYTES: u32 = 120;
}

/// What `from_pod` leaves in a packet's `tc_index` for `to_pod` on the same host.
///
/// It survives routing and bridging, and from one host to another nothing of it is left.
pub mod mark {
    /// The generation, in the lower bits: 1 to 3.
    pub const STAMP: u32 = 3;
    /// No stamp is this.
    pub const NONE: u32 = 0xffff;
}

/// `fragments`: the ports of fragmented packets, for the fragments after the first.
///
/// Each endpoint has [`PLACES`] places of its own, so that no pod can use up the places of another one. A place is one number of
/// eight bytes, written and read in one piece: in the lower half the two ports as the flow's key has them, in the upper half a tag, the upper
/// half of a hash over everything that the fragments of a packet have in common. The lowest bits of the hash choose the place.
/// The hash has seeds that only this host knows.
///
/// Two packets can share a tag by chance (1 in 2^32). Then fragments after the first get the other packet's ports. Nothing
/// passes by that alone: the receiver cannot reassemble a packet whose first fragment was dropped.
pub mod fragments {
    /// Places of each endpoint: a power of two.
    pub const PLACES: u32 = 64;
}

/// A record in `events`.
pub mod event {
    /// Ticks.
    pub const TIME: i16 = 0;
    /// The interface.
    pub const IFINDEX: i16 = 8;
    /// [`super::Outcome`]
    pub const OUTCOME: i16 = 12;
    /// The hook: [`super::direction_number`].
    pub const HOOK: i16 = 13;
    /// 4 or 6.
    pub const FAMILY: i16 = 14;
    /// The IP protocol.
    pub const PROTOCOL: i16 = 15;
    /// The other end's address.
    pub const REMOTE: i16 = 16;
    /// The pod's address.
    pub const LOCAL: i16 = 32;
    /// The other end's port; of an ICMP question, what was asked and who asked: its type and its direction's number.
    pub const REMOTE_PORT: i16 = 48;
    /// The pod's port; of an ICMP question, its identifier.
    pub const LOCAL_PORT: i16 = 50;
    /// The generation.
    pub const EPOCH: i16 = 52;
    /// The other end's peer class, if it was asked for.
    pub const PEER: i16 = 56;
    /// All of it.
    pub const BYTES: u32 = 64;
}

/// What became of a packet; counted by hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Outcome {
    /// Of a flow that is allowed.
    Established,
    /// A new flow that policy allows.
    Allowed,
    /// A new flow that policy denies.
    Denied,
    /// The pod to itself.
    Itself,
    /// The pod and its own node.
    OwnNode,
    /// Nothing is in force in either direction.
    Unfiltered,
    /// An ICMP error about a live flow.
    Related,
    /// ARP, or IPv6 neighbour discovery.
    Neighbour,
    /// Headers that make no sense.
    Malformed,
    /// A family or encapsulation that we do not understand.
    Unknown,
    /// A fragment whose first one was not seen, or that is made to deceive.
    Fragment,
    /// From a pod, with a source that is not its own.
    Source,
    /// From an interface that we know nothing of.
    NoEndpoint,
    /// Of a flow that an older generation allowed and this one does not.
    Cut,
    /// With a source route: where it goes is not what its destination says.
    SourceRoute,
    /// Allowed, and denied if what is staged were enforced.
    WouldDeny,
    /// A new flow that is denied, and allowed if what is staged were enforced.
    WouldAllow,
    /// To the pod, for an address that is not the pod's. Counted, without a record: on a bridge, questions for neighbours come by
    /// all the time.
    Stray,
}

impl Outcome {
    /// All of them, in order.
    pub const ALL: [Self; 18] = [
        Self::Established,
        Self::Allowed,
        Self::Denied,
        Self::Itself,
        Self::OwnNode,
        Self::Unfiltered,
        Self::Related,
        Self::Neighbour,
        Self::Malformed,
        Self::Unknown,
        Self::Fragment,
        Self::Source,
        Self::NoEndpoint,
        Self::Cut,
        Self::SourceRoute,
        Self::WouldDeny,
        Self::WouldAllow,
        Self::Stray,
    ];

    /// As `weir counters` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Itself => "itself",
            Self::OwnNode => "own-node",
            Self::Unfiltered => "unfiltered",
            Self::Related => "related",
            Self::Neighbour => "neighbour",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Fragment => "fragment",
            Self::Source => "source",
            Self::NoEndpoint => "no-endpoint",
            Self::Cut => "cut",
            Self::SourceRoute => "source-route",
            Self::WouldDeny => "would-deny",
            Self::WouldAllow => "would-allow",
            Self::Stray => "stray",
        }
    }

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
}

/// Outcomes have this many places in `counters` for each hook.
pub const OUTCOMES: u32 = 32;

/// Where a flow is in its life. Odd numbers are confirmed flows: their beginner has spoken again after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// TCP, until its beginner speaks after an answer.
    TcpFresh,
    /// TCP, both sides seen.
    TcpOpen,
    /// UDP, until its beginner speaks after an answer.
    UdpFresh,
    /// UDP, both sides seen.
    UdpOpen,
    /// Anything else, until its beginner speaks after an answer.
    OtherFresh,
    /// Anything else, both sides seen.
    OtherOpen,
    /// TCP that has ended: both sides have sent FIN, or the pod has sent RST. Its slot is the first to be reused.
    TcpClosing,
}

impl State {
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

    /// How long such a flow lives without packets, in seconds, by state.
    pub const SECONDS: [u32; 8] = [60, 7_200, 30, 180, 30, 120, 120, 30];

    /// Whether its beginner has spoken again after an answer.
    pub fn is_confirmed(self) -> bool {
        self as u8 & 1 == 1
    }
}

/// Where a flow began, as far as there is evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Origin {
    /// In the pod, or anywhere outside of it.
    #[default]
    Elsewhere,
    /// On this host: one of its sockets sent the first packet.
    Host,
    /// In the pod itself, which reaches itself through a service.
    Itself,
    /// Unknown: its first packet here was in the middle of a connection. Both directions have to be allowed.
    MidStream,
}

impl Origin {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Elsewhere, Self::Host, Self::Itself, Self::MidStream];
}

/// Egress 1, ingress 0: in keys, flows and counters.
pub fn direction_number(direction: crate::model::Direction) -> u32 {
    match direction {
        crate::model::Direction::Ingress => 0,
        crate::model::Direction::Egress => 1,
    }
}

/// The key of `rows`.
pub fn row_key(direction: crate::model::Direction, subject: u32, peer: u32) -> [u8; 8] {
    let upper = subject | direction_number(direction) << 31;
    (u64::from(upper) << 32 | u64::from(peer)).to_le_bytes()
}

/// Four or sixteen bytes, as on the wire.
pub fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
