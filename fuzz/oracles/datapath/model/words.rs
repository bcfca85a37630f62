//! The nouns of the rules: outcomes, flows and their states, and the questions that the model asks of policy.

use std::net::IpAddr;

use weir_compiler::model::Direction;

/// What policy says in one generation about one endpoint.
pub trait Policy {
    /// Whether a connection in this direction may begin. `port` is the remote one of egress, the local one of ingress.
    /// A packet of ingress is never taken for one of the endpoint itself or of its own node: the model decides about those.
    fn allows(&mut self, direction: Direction, remote: IpAddr, protocol: u8, port: u16) -> bool;
    /// Whether any packet could be denied in this direction.
    fn filters(&self, direction: Direction) -> bool;
    /// Whether this is an address of the endpoint's node.
    fn is_own_node(&self, address: IpAddr) -> bool;
    /// Whether flows of older generations go on unasked.
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

/// What becomes of a packet.
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

    /// As the counters name it.
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

    /// Whether the packet goes on.
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

/// Where a flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its beginner has not sent anything since an answer.
    Fresh,
    /// Both sides are known to talk.
    Open,
    /// TCP: it was ended.
    Closing,
}

/// What stands for ports in a flow's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The protocol has none.
    None,
    /// The remote one and the local one.
    Pair(u16, u16),
    /// Of an ICMP question: what was asked, in which direction, with which identifier.
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

/// What finds a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct Key {
    pub protocol: u8,
    pub remote: IpAddr,
    pub ports: Ports,
}
