//! What verification says.

use std::net::IpAddr;

use super::errors::ICMP_ERROR;
use super::slots::Port;
use crate::engine::Broken;
use crate::model::eval::Verdict;
use crate::model::{Direction, Protocol};

/// So many differences are told in full.
pub(super) const MOST_TOLD: usize = 20;

/// What was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Endpoints: who is there, and what their values say.
    Endpoints,
    /// Addresses, in each direction, and their classes.
    Addresses,
    /// Ports, in each direction, and the bits that they ask for.
    Ports,
    /// Entries: what a subject class allows a peer class.
    Entries,
    /// Distinct sets, each with every port that differs from others.
    Sets,
    /// Packets at endpoints as they are, beside the oracle.
    Packets,
    /// Flows that an older generation allowed, beside new ones.
    Again,
    /// Packets at the edge of the node.
    Edge,
}

impl Part {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Endpoints,
        Self::Addresses,
        Self::Ports,
        Self::Entries,
        Self::Sets,
        Self::Packets,
        Self::Again,
        Self::Edge,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Addresses => "addresses",
            Self::Ports => "ports",
            Self::Entries => "table entries",
            Self::Sets => "ports of sets",
            Self::Packets => "packets",
            Self::Again => "flows judged again",
            Self::Edge => "packets at the edge",
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How often each part was asked about, and how often what was found is what is expected.
    pub parts: [(u64, u64); Part::ALL.len()],
    /// Whether every combination was run; else it went by parts.
    pub exhaustive: bool,
    /// The first differences.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Whether nothing differs.
    pub fn is_verified(&self) -> bool {
        self.differences.is_empty() && self.asked() == self.agreed()
    }

    /// Everything that was asked.
    pub fn asked(&self) -> u64 {
        self.parts.iter().map(|(asked, _)| asked).sum()
    }

    /// Of that, what is as expected.
    pub fn agreed(&self) -> u64 {
        self.parts.iter().map(|(_, agreed)| agreed).sum()
    }

    pub(super) fn count(&mut self, part: Part, asked: u64, agreed: u64) {
        if let Some(of) = self.parts.get_mut(part as usize) {
            *of = (of.0 + asked, of.1 + agreed);
        }
    }

    /// What came of it with what is staged enforced.
    pub(super) fn add_staged(&mut self, staged: Self) {
        for (of, more) in self.parts.iter_mut().zip(staged.parts) {
            *of = (of.0 + more.0, of.1 + more.1);
        }
        self.exhaustive &= staged.exhaustive;
        staged.differences.into_iter().for_each(|difference| self.tell(Difference::Staged(Box::new(difference))));
    }

    pub(super) fn tell(&mut self, difference: Difference) {
        if self.differences.len() < MOST_TOLD {
            self.differences.push(difference);
        }
    }
}

/// A port as messages name it.
fn traffic((protocol, port): Port) -> String {
    match protocol {
        Some(protocol) => format!("{protocol:?} port {port}"),
        None if (protocol, port) == ICMP_ERROR => "an ICMP error about a live flow".to_owned(),
        None if port == 0 => "an ICMP echo request".to_owned(),
        None => format!("IP protocol {port}"),
    }
}

/// Something that is not as the cluster says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// A witness.
    #[error(
        "{direction} of {endpoint}: {own} and {remote}, {traffic}: the programs {emitted:?}, the policies {expected:?}",
        direction = direction.name(), traffic = traffic((*protocol, *port))
    )]
    Verdict {
        /// At which hook.
        direction: Direction,
        /// Of whom.
        endpoint: String,
        /// Its address.
        own: IpAddr,
        /// The other end's.
        remote: IpAddr,
        /// Over what.
        protocol: Option<Protocol>,
        /// The destination port.
        port: u16,
        /// What the programs say.
        emitted: Verdict,
        /// What the oracle says.
        expected: Verdict,
        /// The packet.
        packet: Vec<u8>,
    },
    /// A flow that an older generation allowed is not judged as a new one is.
    #[error(
        "{direction}, other end {remote}, {protocol:?} port {port}: a new flow {new:?}, the same flow judged again {again:?}",
        direction = direction.name()
    )]
    Again {
        /// In which direction it began.
        direction: Direction,
        /// The other end.
        remote: IpAddr,
        /// Over what.
        protocol: Option<Protocol>,
        /// The destination port.
        port: u16,
        /// What the programs say of a new one.
        new: Verdict,
        /// What they say of an old one.
        again: Verdict,
    },
    /// The programs or maps do not work.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// An endpoint that the cluster does not have.
    #[error("endpoint {0} is not in the input, has no address there, or is there twice")]
    Endpoint(String),
    /// An endpoint that the artifact does not have.
    #[error("endpoint {0} of the input is missing")]
    Missing(String),
    /// A value in `endpoints` with addresses that are not the endpoint's.
    #[error("endpoint {0} has other addresses in the input")]
    Addresses(String),
    /// A value in `endpoints` with a node whose addresses are not those of the endpoint's.
    #[error("endpoint {0} is on a node with other addresses in the input")]
    Node(String),
    /// A value in `endpoints` that filters where nothing is in force, or does not where something can be denied.
    #[error(
        "{direction} of {endpoint} is {what}",
        direction = direction.name(), what = if *filters { "filtered, and nothing is in force" } else { "not filtered, and can be denied" }
    )]
    Filter {
        /// In which direction.
        direction: Direction,
        /// Of whom.
        endpoint: String,
        /// What the value says.
        filters: bool,
    },
    /// An entry that is wrong, and packets that are judged rightly all the same.
    #[error("{} of {endpoint}: the entry for {remote} is not what the policies say, and packets do not show it", direction.name())]
    Unconfirmed {
        /// At which hook.
        direction: Direction,
        /// Of whom.
        endpoint: String,
        /// The other end.
        remote: IpAddr,
    },
    /// Dropped at the edge of the node and not denied to everybody, or the other way round.
    #[error("at the edge, a packet from {remote} to {pod} {}", if *dropped { "is dropped, and lists do not deny it to everybody" } else { "goes on, and lists deny it to everybody" })]
    Edge {
        /// Where it comes from.
        remote: IpAddr,
        /// Where it goes.
        pod: IpAddr,
        /// What the program does.
        dropped: bool,
    },
    /// What becomes of flows of older generations.
    #[error(
        "the configuration of the programs does not do with established flows what is assumed (`--assume established=…`)"
    )]
    Established,
    /// No manifest that can be read.
    #[error("the manifest cannot be read")]
    Manifest,
    /// An assumption that no program enforces.
    #[error("`hostnetwork-pods=pod` and `icmp=allow` cannot be enforced, so there is nothing to be verified")]
    Assumption,
    /// Something that would be so if what is staged were enforced.
    #[error("with staged policies enforced: {0}")]
    Staged(Box<Difference>),
    /// Programs whose way to a set cannot be followed.
    #[error("it cannot be followed how the programs find a set")]
    Unfollowed,
}
