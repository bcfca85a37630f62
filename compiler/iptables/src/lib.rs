//! An independent engine for verdicts: policies as iptables rules, and a model of how the kernel evaluates them.
//!
//! ```text
//! model::Cluster ─render─▶ iptables-save, ip6tables-save, ipset save text ─parse─▶ Evaluator ─walk─▶ verdict, comments
//! ```
//!
//! Problem: a reference is only trustworthy if an independent implementation agrees with it.
//! Strategy: express the same policies in a language whose meaning the kernel defines, and evaluate only the text. The
//! same text can be given to the real `iptables-restore`.
//! Invariants: of [`weir_model::eval`] only the types are used (flows, verdicts, reasons), none of its logic; if the
//! text cannot express a flow, the answer is a [`Skip`] with its reason, never a guess.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod facts;
mod ipset;
mod parse;
mod render;
mod walk;

use std::collections::BTreeMap;
use std::net::IpAddr;

pub use parse::{Problem, TableParseError};
pub use render::{Rendering, render};
pub use walk::{ChainWalk, ConntrackState, Evaluator, ForwardedPacket, WalkEnd};

use facts::ClusterFacts;
use render::{Meaning, stage};

use weir_model::eval::{Basis, EndVerdict, Flow, FlowEnd, FlowProtocol, Judgement, Verdict};
use weir_model::{
    Cluster, Direction, EndpointId, FrontendPorts, HostNetworkPods, NodeId, Protocol, RuleAction, ServiceAddress,
    Standing,
};
use weir_objects::address::Family;

/// The engine for one cluster.
#[derive(Debug)]
pub struct IptablesEngine<'c> {
    facts: ClusterFacts<'c>,
    evaluator: Evaluator,
    meanings: BTreeMap<String, Meaning>,
}

/// Why a flow has no answer here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// Rules match addresses.
    #[error("{0} has no address, and iptables rules match nothing else")]
    NoAddress(String),
    /// The flow gives the endpoint an address that it does not have in the cluster.
    #[error("{address} is not {endpoint}'s, and iptables rules know a pod by its address")]
    NotItsAddress {
        /// The address of the flow.
        address: IpAddr,
        /// The endpoint of the flow.
        endpoint: String,
    },
    /// With `hostnetwork-pods: pod`, the address does not show which pod is meant.
    #[error("{0} is on its node's network, and an address does not tell them apart")]
    HostNetwork(String),
    /// No packet can have such addresses.
    #[error("source and destination are of different address families")]
    TwoFamilies,
    /// The destination is translated before the filter table sees the packet.
    #[error("{0} is the address of a service or hostPort, which is translated before iptables filters")]
    ServiceAddress(IpAddr),
}

impl<'c> IptablesEngine<'c> {
    /// Renders a cluster and parses the text. An error is a bug in Weir: the rendered text is invalid.
    pub fn new(cluster: &'c Cluster) -> Result<Self, TableParseError> {
        let (rendering, facts) = render::render_facts(ClusterFacts::new(cluster));
        let evaluator = Evaluator::parse(&rendering.v4, &rendering.v6, &rendering.sets)?;
        Ok(Self { facts, evaluator, meanings: rendering.meanings })
    }

    /// The rules.
    pub fn evaluator(&self) -> &Evaluator {
        &self.evaluator
    }

    /// Judges a new connection. The two stages are evaluated separately.
    pub fn judge(&self, flow: &Flow) -> Result<Judgement, Skip> {
        let packet = self.packet(flow)?;
        Ok(Judgement { egress: self.side(Direction::Egress, &packet), ingress: self.side(Direction::Ingress, &packet) })
    }

    /// The first packet of a flow.
    pub fn packet(&self, flow: &Flow) -> Result<ForwardedPacket, Skip> {
        let source = self.address(flow.source)?;
        let destination = self.address(flow.destination)?;
        if Family::of(source) != Family::of(destination) {
            return Err(Skip::TwoFamilies);
        }
        if self.is_service(source, destination, flow) {
            return Err(Skip::ServiceAddress(destination));
        }
        let (protocol, port) = match (flow.protocol, Family::of(source)) {
            (FlowProtocol::Transport(Protocol::Tcp), _) => (6, Some(flow.port)),
            (FlowProtocol::Transport(Protocol::Udp), _) => (17, Some(flow.port)),
            (FlowProtocol::Transport(Protocol::Sctp), _) => (132, Some(flow.port)),
            (FlowProtocol::Icmp, Family::V4) => (1, None),
            (FlowProtocol::Icmp, Family::V6) => (58, None),
        };
        Ok(ForwardedPacket { source, destination, protocol, port, state: ConntrackState::New, mark: 0 })
    }

    /// The address of an end; fails if the address alone does not identify the end of the flow.
    fn address(&self, end: FlowEnd) -> Result<IpAddr, Skip> {
        let name = |id| self.facts.cluster.endpoint_name(id);
        let Some(address) = end.address else {
            return Err(Skip::NoAddress(end.endpoint.map_or_else(|| "one end".to_owned(), name)));
        };
        let Some(id) = end.endpoint else { return Ok(address) };
        let standing = self.facts.endpoint(id).standing;
        if standing == Standing::HostNetwork && self.facts.cluster.assume.hostnetwork_pods == HostNetworkPods::Pod {
            return Err(Skip::HostNetwork(name(id)));
        }
        let expected = (standing == Standing::Member).then_some(id);
        match self.facts.owner(address) == expected {
            true => Ok(address),
            false => Err(Skip::NotItsAddress { address, endpoint: name(id) }),
        }
    }

    /// Whether the packet is translated before the filter table sees it.
    fn is_service(&self, source: IpAddr, destination: IpAddr, flow: &Flow) -> bool {
        let cluster = self.facts.cluster;
        if cluster.assume.service_address == ServiceAddress::Address {
            return false;
        }
        let is_meant = |protocol, port| flow.protocol == FlowProtocol::Transport(protocol) && flow.port == port;
        let is_node = cluster.nodes.iter().any(|node| node.addresses.contains(&destination));
        let is_pod = self.facts.owner(destination).is_some();
        let leads_away = |it: &FrontendPorts| {
            it.owner.is_some() && !is_pod || it.ports.iter().any(|port| is_meant(port.protocol, port.port))
        };
        // A pod's packets to its own address do not leave the pod.
        let sender = flow.source.endpoint.or(self.facts.owner(source));
        let is_itself = sender.is_some_and(|id| self.facts.endpoint(id).addresses.contains(&destination));
        if !is_itself && cluster.frontend(destination).is_some_and(leads_away) {
            return true;
        }
        if is_pod {
            return false;
        }
        let host_ports = cluster.host_ports.iter().filter(|it| it.is_at(cluster, destination));
        let mut host_ports = host_ports.filter(|it| is_meant(it.protocol, it.port));
        if host_ports.any(|it| self.begins_at(flow.source.endpoint, source, it.node)) {
            return true;
        }
        let node_ports = || {
            let mut ports = cluster.services.iter().flat_map(|service| &service.ports);
            ports.any(|port| port.node_port.is_some_and(|number| is_meant(port.protocol, number)))
        };
        is_node && self.is_at_its_node(flow.source.endpoint, source, destination) && node_ports()
    }

    /// Whether a packet begins at a node: with a pod there, or with the node itself.
    fn begins_at(&self, endpoint: Option<EndpointId>, source: IpAddr, node: NodeId) -> bool {
        let of_pod = endpoint.or(self.facts.owner(source)).and_then(|id| self.facts.endpoint(id).node);
        of_pod.map_or_else(|| self.facts.cluster.nodes[node.index()].addresses.contains(&source), |it| it == node)
    }

    /// Whether an address is one of the node where a packet begins: the pod's, or the node itself.
    fn is_at_its_node(&self, endpoint: Option<EndpointId>, source: IpAddr, destination: IpAddr) -> bool {
        let nodes = &self.facts.cluster.nodes;
        let endpoint = endpoint.or(self.facts.owner(source));
        match endpoint.and_then(|id| self.facts.endpoint(id).node) {
            Some(node) => nodes[node.index()].addresses.contains(&destination),
            None => nodes.iter().any(|it| it.addresses.contains(&source) && it.addresses.contains(&destination)),
        }
    }

    fn side(&self, direction: Direction, packet: &ForwardedPacket) -> EndVerdict {
        // If the table does not have the chain, nothing is dropped.
        let walk = self.evaluator.walk(stage(direction), packet);
        let walk = walk.unwrap_or(ChainWalk { ending: WalkEnd::Return, comments: Vec::new() });
        let verdict = match walk.ending {
            WalkEnd::Accept | WalkEnd::Return => Verdict::Allow,
            WalkEnd::Drop => Verdict::Deny,
        };
        let meanings = walk.comments.iter().filter_map(|comment| self.meanings.get(*comment).copied());
        explained(verdict, meanings)
    }
}

/// The verdict with its reasons, from the rules that matched.
fn explained(verdict: Verdict, meanings: impl Iterator<Item = Meaning>) -> EndVerdict {
    let (mut policies, mut rules, mut last, mut subject) = (Vec::new(), Vec::new(), None, false);
    let (mut decided, mut passed) = (None, Vec::new());
    for meaning in meanings {
        last = Some(meaning);
        match meaning {
            Meaning::Pod(_) => subject = true,
            Meaning::Policy(id) => policies.push(id),
            Meaning::Tier(id, RuleAction::Pass) => passed.push(id),
            Meaning::Tier(id, _) => decided = Some(id),
            // A policy rule may be several lines, and more than one of them may match.
            Meaning::Rule(id, _) if !rules.contains(&id) => rules.push(id),
            _ => {}
        }
    }
    let basis = match (last, verdict) {
        (Some(Meaning::List(list)), Verdict::Deny) => Basis::List(list),
        _ if decided.is_some() => decided.map_or(Basis::NotIsolated, Basis::Tier),
        (_, Verdict::Deny) => Basis::Isolated(policies),
        (Some(Meaning::Itself), _) => Basis::Itself,
        (Some(Meaning::OwnNode), _) => Basis::OwnNode,
        (Some(Meaning::Icmp), _) => Basis::IcmpAssumed,
        _ if !rules.is_empty() => Basis::Rules(rules),
        _ if subject => Basis::NotIsolated,
        _ => Basis::NotSubject,
    };
    EndVerdict::new(verdict, basis).after(passed)
}
