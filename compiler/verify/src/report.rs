//! The result of a verification.

use std::net::IpAddr;

use super::errors::ICMP_ERROR;
use super::slots::SlotPort;
use weir_machine::Broken;
use weir_model::eval::Verdict;
use weir_model::{Direction, Protocol};

/// The most differences that a report keeps.
pub(super) const MOST_DIFFERENCES: usize = 20;

weir_ebpf::named_enum! {
    /// The parts that a verification checks and counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum VerifyPart {
        /// Endpoints: which ones there are, and the content of their values.
        Endpoints = "endpoints",
        /// Addresses, in each direction, and their classes.
        Addresses = "addresses",
        /// Ports, in each direction, and the bits that decide about them.
        Ports = "ports",
        /// Entries: the ports that a subject class allows a peer class.
        Entries = "table entries",
        /// Distinct sets, each with every port that differs from others.
        Sets = "ports of sets",
        /// Packets of real endpoints, compared with the oracle.
        Packets = "packets",
        /// Flows that an older generation allowed, compared with new ones.
        Again = "flows judged again",
        /// Packets at the edge of the node.
        Edge = "packets at the edge",
    }
}

/// The counts and differences of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// For each part, the number of checks and the number of those that agreed.
    pub parts: [(u64, u64); VerifyPart::ALL.len()],
    /// Whether every combination was run; otherwise the verification went by parts.
    pub exhaustive: bool,
    /// The first differences, up to a limit.
    pub differences: Vec<Difference>,
}

impl VerifyReport {
    /// Whether nothing differs.
    pub fn is_verified(&self) -> bool {
        // Both: some differences are no check that failed (a broken map), and differences beyond the limit are only in
        // the counts.
        self.differences.is_empty() && self.asked() == self.agreed()
    }

    /// The number of checks of all parts.
    pub fn asked(&self) -> u64 {
        self.parts.iter().map(|(asked, _)| asked).sum()
    }

    /// The number of checks that agreed.
    pub fn agreed(&self) -> u64 {
        self.parts.iter().map(|(_, agreed)| agreed).sum()
    }

    pub(super) fn count(&mut self, part: VerifyPart, asked: u64, agreed: u64) {
        if let Some(of) = self.parts.get_mut(part as usize) {
            *of = (of.0 + asked, of.1 + agreed);
        }
    }

    /// Adds the report of the second run, with audit policies and lists enforced.
    pub(super) fn add_audit(&mut self, audit: Self) {
        for (of, more) in self.parts.iter_mut().zip(audit.parts) {
            *of = (of.0 + more.0, of.1 + more.1);
        }
        // Exhaustive only if both runs were: otherwise the report would claim more than was done.
        self.exhaustive &= audit.exhaustive;
        audit
            .differences
            .into_iter()
            .for_each(|difference| self.add_difference(Difference::Audit(Box::new(difference))));
    }

    pub(super) fn add_difference(&mut self, difference: Difference) {
        // A wrong class of a large cluster gives thousands of differences with one cause. The first ones are enough to
        // find it.
        if self.differences.len() < MOST_DIFFERENCES {
            self.differences.push(difference);
        }
    }
}

/// A port as messages name it.
fn traffic((protocol, port): SlotPort) -> String {
    match protocol {
        Some(protocol) => format!("{protocol:?} port {port}"),
        None if (protocol, port) == ICMP_ERROR => "an ICMP error about a live flow".to_owned(),
        None if port == 0 => "an ICMP echo request".to_owned(),
        None => format!("IP protocol {port}"),
    }
}

/// A disagreement between the artifact and the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// A packet on which the programs and the oracle disagree.
    #[error(
        "{direction} of {endpoint}: {own} and {remote}, {traffic}: the programs {emitted:?}, the policies {expected:?}",
        direction = direction.name(), traffic = traffic((*protocol, *port))
    )]
    Verdict {
        /// The direction of the hook.
        direction: Direction,
        /// The name of the endpoint.
        endpoint: String,
        /// Its address.
        own: IpAddr,
        /// The address of the other end.
        remote: IpAddr,
        /// The transport protocol, if the packet has one.
        protocol: Option<Protocol>,
        /// The destination port.
        port: u16,
        /// The programs' verdict.
        emitted: Verdict,
        /// The oracle's verdict.
        expected: Verdict,
        /// The bytes of the packet.
        packet: Vec<u8>,
    },
    /// A flow that an older generation allowed is not judged as a new one is.
    #[error(
        "{direction}, other end {remote}, {protocol:?} port {port}: a new flow {new:?}, the same flow judged again {again:?}",
        direction = direction.name()
    )]
    Again {
        /// The direction in which the flow began.
        direction: Direction,
        /// The address of the other end.
        remote: IpAddr,
        /// The transport protocol, if the flow has one.
        protocol: Option<Protocol>,
        /// The destination port.
        port: u16,
        /// The programs' verdict on a new flow.
        new: Verdict,
        /// Their verdict on the same flow if an older generation allowed it.
        again: Verdict,
    },
    /// The programs or maps do not work.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// An endpoint that the cluster does not have.
    #[error("endpoint {0} is not in the input, has no address there, or occurs twice")]
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
        /// The direction of the flag.
        direction: Direction,
        /// The name of the endpoint.
        endpoint: String,
        /// Whether the value says that the direction is filtered.
        filters: bool,
    },
    /// An entry that is wrong, although packets that use it get the right verdict.
    #[error("{} of {endpoint}: the entry for {remote} is not what the policies say, and packets do not show it", direction.name())]
    Unconfirmed {
        /// The direction of the hook.
        direction: Direction,
        /// The name of one of the endpoints.
        endpoint: String,
        /// The address of the other end.
        remote: IpAddr,
    },
    /// A packet that the program at the edge drops although the address is not denied to every endpoint, or does not
    /// drop although it is.
    #[error("at the edge, a packet from {remote} to {pod} {}", if *dropped { "is dropped, but lists do not deny it to every pod" } else { "passes, but lists deny it to every pod" })]
    Edge {
        /// The source address.
        remote: IpAddr,
        /// The destination address.
        pod: IpAddr,
        /// Whether the program drops the packet.
        dropped: bool,
    },
    /// The configuration treats established flows differently from the cluster's assumption.
    #[error(
        "the configuration of the programs does not do with established flows what is assumed (`--assume established=…`)"
    )]
    Established,
    /// The manifest cannot be read.
    #[error("the manifest cannot be read")]
    Manifest,
    /// An assumption that no program enforces.
    #[error("`hostnetwork-pods=pod` and `icmp=allow` cannot be enforced, so there is nothing to be verified")]
    Assumption,
    /// A difference of the second run, with audit policies and lists enforced.
    #[error("with audit policies enforced: {0}")]
    Audit(Box<Difference>),
    /// The programs' way to a set cannot be followed.
    #[error("it cannot be followed how the programs find a set")]
    Unfollowed,
}
