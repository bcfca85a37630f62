//! Describes classes and packets in words.

use weir_artifact::packet::CLIENT_PORT;
use weir_classes::{AtomId, Atoms, Classes, PeerId, Predicate, SubjectId};
use weir_codegen::packet_engines::PacketQuestion;
use weir_model::eval::FlowProtocol;
use weir_model::{Cluster, Direction, Protocol, SelectorId};
use weir_objects::k8s::LabelSelector;

use super::WitnessPacket;
use crate::rule_mismatch::protocol_name;

/// The classes of a packet's ends and of its port.
#[derive(Clone, Debug)]
pub struct PacketClasses {
    /// The endpoint's class.
    pub subject: ClassDescription,
    /// The class of the other end's address.
    pub peer: ClassDescription,
    /// The class of protocol and port.
    pub atom: ClassDescription,
}

/// A class: its name, and the properties that all its members share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassDescription {
    /// Its number in words.
    pub name: String,
    /// The properties that distinguish its members from others.
    pub is: Vec<String>,
}

/// Classes, with the cluster that they were compiled from.
pub(crate) struct ClassDescriber<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) classes: &'c Classes,
}

impl ClassDescriber<'_> {
    /// Describes the classes that decide about a packet.
    pub(crate) fn packet(&self, question: &PacketQuestion) -> PacketClasses {
        let atom = match question.protocol {
            FlowProtocol::Transport(protocol) => self.classes.atoms.find(protocol, question.port),
            FlowProtocol::Icmp => Atoms::REST,
        };
        PacketClasses {
            subject: self.subject(question.subject),
            peer: self.peer(self.classes.peer_at(question.remote)),
            atom: self.atom(atom),
        }
    }

    /// Describes a subject class: the policies and lists that apply to its pods, and the numbers of their named ports.
    fn subject(&self, id: SubjectId) -> ClassDescription {
        let subject = &self.classes.subjects[id.index()];
        let policies = subject.policies.iter().map(|id| format!("selected by {}", self.cluster.policy_name(*id)));
        let lists =
            subject.lists.iter().map(|id| format!("subject to CidrList {}", self.cluster.lists[id.index()].name));
        let tiers = subject.tiers.iter().map(|id| format!("selected by {}", self.cluster.tier_policy_name(*id)));
        let mut is: Vec<String> = tiers.chain(policies).chain(lists).collect();
        is.extend(self.named(&subject.named, &self.classes.atoms.ingress_names));
        ClassDescription { name: id.to_string(), is }
    }

    /// Describes a peer class: the predicates that match its addresses, the numbers of named ports, and the nodes,
    /// services and host ports that have the addresses.
    fn peer(&self, id: PeerId) -> ClassDescription {
        let peer = &self.classes.peers[id.index()];
        let predicates = self.classes.predicates();
        let mut is: Vec<String> = peer.predicates.iter().map(|it| self.predicate(&predicates[it.index()])).collect();
        is.extend(self.named(&peer.named, &self.classes.atoms.egress_names));
        is.extend(peer.nodes.iter().map(|it| format!("an address of node {}", self.cluster.nodes[it.index()].name)));
        let vip = peer.vip.and_then(|vip| self.classes.vips.get(vip as usize));
        let mut services: Vec<_> = vip.iter().flat_map(|vip| &vip.ports).map(|port| port.service).collect();
        services.sort_unstable();
        services.dedup();
        is.extend(services.into_iter().map(|it| format!("an address of service {}", self.cluster.service_name(it))));
        is.extend(peer.host_ports.iter().map(|it| self.cluster.host_port_name(*it as usize)));
        ClassDescription { name: id.to_string(), is }
    }

    /// Describes an atom: its port ranges. Atom 0 has none.
    fn atom(&self, id: AtomId) -> ClassDescription {
        let intervals = self.classes.atoms.intervals.iter().filter(|it| it.atom == id && id != Atoms::REST);
        let is = intervals.map(|it| ports(it.spec.first, it.spec.last, it.spec.protocol)).collect();
        ClassDescription { name: id.to_string(), is }
    }

    fn named(&self, named: &[(u32, u16)], names: &[(Protocol, String)]) -> Vec<String> {
        let one = |(name, number): &(u32, u16)| {
            let (protocol, name) = names.get(*name as usize)?;
            Some(format!("its port {name} is {number}/{}", protocol_name(*protocol)))
        };
        named.iter().filter_map(one).collect()
    }

    fn predicate(&self, predicate: &Predicate) -> String {
        match predicate {
            Predicate::Pods { own, namespaces, pods } => {
                let of = match (own, namespaces) {
                    (Some(own), _) => format!(" of {}", self.cluster.namespaces[own.index()].name),
                    (None, Some(namespaces)) => match self.selector(*namespaces) {
                        Some(selector) => format!(" of namespaces with {selector}"),
                        None => " of any namespace".to_owned(),
                    },
                    (None, None) => String::new(),
                };
                let with = self.selector(*pods).map_or(String::new(), |selector| format!(" with {selector}"));
                format!("a pod{of}{with}")
            }
            Predicate::Block { cidr, except } if except.is_empty() => format!("in {cidr}"),
            Predicate::Block { cidr, except } => {
                let holes: Vec<String> = except.iter().map(ToString::to_string).collect();
                format!("in {cidr} except {}", holes.join(", "))
            }
            Predicate::Networks(networks) => {
                let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
                format!("in {}", networks.join(", "))
            }
            Predicate::Nodes(nodes) => match self.selector(*nodes) {
                Some(selector) => format!("a node with {selector}"),
                None => "a node".to_owned(),
            },
            Predicate::List(id) => format!("in CidrList {}", self.cluster.lists[id.index()].name),
        }
    }

    /// A selector as kubectl prints it; `None` if it selects everything.
    fn selector(&self, id: SelectorId) -> Option<String> {
        let selector = self.cluster.labels.selector(id);
        (*selector != LabelSelector::default()).then(|| selector.to_string())
    }
}

fn ports(first: u16, last: u16, protocol: Protocol) -> String {
    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
    format!("{range}/{}", protocol_name(protocol))
}

/// `IPv4 10.0.0.1 > 10.0.0.2, tcp 40000 > 80 syn, 54 bytes`
pub fn summary(witness: &WitnessPacket) -> String {
    let PacketQuestion { direction, own, remote, protocol, port, .. } = witness.question;
    let (source, destination) = match direction {
        Direction::Ingress => (remote, own),
        Direction::Egress => (own, remote),
    };
    let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let above = match protocol {
        FlowProtocol::Transport(protocol) => {
            let syn = if protocol == Protocol::Tcp { " syn" } else { "" };
            format!("{} {CLIENT_PORT} > {port}{syn}", protocol_name(protocol))
        }
        FlowProtocol::Icmp => "icmp echo request".to_owned(),
    };
    format!("{family} {source} > {destination}, {above}, {} bytes", witness.packet.len())
}
