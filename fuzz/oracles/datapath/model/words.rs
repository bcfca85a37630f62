//! The terms of the rules: outcomes, flows and their states, and the questions that the model asks about policy.

use std::net::IpAddr;

use weir_model::Direction;

/// The policy of one generation for one endpoint.
pub trait Policy {
    /// Whether a connection in this direction may begin. `port` is the remote port for egress and the local port for
    /// ingress. For ingress, the answer never treats the packet as one from the endpoint itself or from its own node:
    /// the model decides about those.
    fn allows(&mut self, direction: Direction, remote: IpAddr, protocol: u8, port: u16) -> bool;
    /// Whether any packet could be denied in this direction.
    fn filters(&self, direction: Direction) -> bool;
    /// Whether this is an address of the endpoint's node.
    fn is_own_node(&self, address: IpAddr) -> bool;
    /// Whether flows of older generations continue without a new verdict.
    fn keeps_established(&self) -> bool;
}

/// The pod behind the interface.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its IPv4 address.
    pub v4: Option<IpAddr>,
    /// Its IPv6 address.
    pub v6: Option<IpAddr>,
    /// The hardware address of its interface, if that is known.
    pub hardware: Option<[u8; 6]>,
}

impl Endpoint {
    /// Whether this is its address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.v4 == Some(address) || self.v6 == Some(address)
    }
}

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the counters' own")]
pub enum Outcome {
    Established,
    Allowed,
    Denied,
    Itself,
    OwnNode,
    Unfiltered,
    Related,
    Neighbour,
    Malformed,
    Unknown,
    Fragment,
    Source,
    Stray,
    NoEndpoint,
    Cut,
    SourceRoute,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 16] = [
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
        Self::Stray,
        Self::NoEndpoint,
        Self::Cut,
        Self::SourceRoute,
    ];

    /// The name in the counters.
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
            Self::Stray => "stray",
            Self::NoEndpoint => "no-endpoint",
            Self::Cut => "cut",
            Self::SourceRoute => "source-route",
        }
    }

    /// Whether the packet passes.
    pub fn passes(self) -> bool {
        match self {
            Self::Established
            | Self::Allowed
            | Self::Itself
            | Self::OwnNode
            | Self::Unfiltered
            | Self::Related
            | Self::Neighbour => true,
            Self::Denied
            | Self::Malformed
            | Self::Unknown
            | Self::Fragment
            | Self::Source
            | Self::Stray
            | Self::NoEndpoint
            | Self::Cut
            | Self::SourceRoute => false,
        }
    }
}

/// Who began a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another host or pod, or the pod itself towards others.
    Elsewhere,
    /// The pod's own node.
    Host,
    /// The pod, towards itself.
    Itself,
    /// Unknown: the first packet that was seen did not begin a connection.
    MidStream,
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its beginner has not sent anything since an answer.
    Fresh,
    /// Both sides are known to talk.
    Open,
    /// TCP: it was ended.
    Closing,
}

/// The part of a flow's key that identifies the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The protocol has none.
    None,
    /// The remote one and the local one.
    Pair(u16, u16),
    /// For an ICMP question: its type, the direction in which it is asked, and its identifier.
    Question(u8, Direction, u16),
}

/// A flow.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct Flow {
    pub key: Key,
    pub local: IpAddr,
    pub begun: Direction,
    pub origin: Origin,
    pub state: State,
    pub is_answered: bool,
    /// The sides that have sent FIN: to the pod, from the pod.
    pub fins: [bool; 2],
    pub is_cut: bool,
    pub generation: u32,
    pub last: u64,
}

/// The key under which a flow is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct Key {
    pub protocol: u8,
    pub remote: IpAddr,
    pub ports: Ports,
}
