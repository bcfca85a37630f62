//! The facts about peers and services that all rows share, so that no row has to ask every class or service.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use super::RowBuilder;
use crate::meter::Meter;
use crate::peers::Peers;
use crate::ports::{AtomId, Atoms};
use crate::predicates::{PredicateId, RulePredicates};
use crate::subjects::SubjectDraft;
use crate::vips::{self, VipPort};
use crate::{PeerClass, PeerId};
use weir_model::{Cluster, EndpointId, Interner, ListId, NodeId, Protocol, Service, ServiceId};
use weir_objects::address::Family;

/// The facts about peers and services that all rows share.
#[derive(Debug, Default)]
pub(crate) struct RowFacts {
    pub(super) matching: Matching,
    pub(super) node_ports: Vec<VipPort>,
    /// Classes of addresses that services have or claim, of local nodes, and of hostPorts there.
    pub(super) special: Vec<PeerId>,
    /// By service and port, for IPv4 and IPv6: the different backends. Thousands of backends are a few classes.
    pub(super) behind: Vec<Vec<[Vec<BackendProperties>; 2]>>,
    /// The ports of backends, also of earlier ones.
    pub(super) backend_ports: BTreeSet<(Protocol, u16)>,
    pub(super) to_local: Vec<LocalBackends>,
}

/// A service port that leads to local endpoints.
#[derive(Clone, Debug)]
pub(crate) struct LocalBackends {
    pub(crate) service: u32,
    pub(crate) port: u32,
    /// These endpoints, sorted.
    pub(crate) endpoints: Vec<EndpointId>,
}

/// Peer classes: single ones, and all those with higher numbers from one number on.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerSpan {
    /// Sorted, all below the range.
    single: Vec<PeerId>,
    pub(super) range: Range<usize>,
}

impl PeerSpan {
    pub(super) fn len(&self) -> usize {
        self.single.len() + self.range.len()
    }

    pub(super) fn contains(&self, peer: PeerId) -> bool {
        self.range.contains(&peer.index()) || self.single.binary_search(&peer).is_ok()
    }

    /// The position of one of these classes among them, in an order without meaning.
    pub(super) fn position(&self, peer: PeerId) -> usize {
        match peer.index().checked_sub(self.range.start) {
            Some(position) => position,
            None => self.range.len() + self.single.partition_point(|it| *it < peer),
        }
    }
}

/// From predicates to classes. To ask every class about every rule would cost classes × rules for each subject; with
/// this, a row costs as much as its rules match.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// The peer classes that it contains.
    pub(super) classes: PeerSpan,
    /// By predicate: the classes for which it holds.
    holding: Vec<Vec<PeerId>>,
    /// By egress name: the classes that have it, with its number there.
    naming: Vec<Vec<(PeerId, u16)>>,
    lists: BTreeMap<ListId, PredicateId>,
}

impl Matching {
    /// Only these classes, which are sorted, and all those from a number on.
    pub(super) fn new(single: Vec<PeerId>, first: usize, rules: &RulePredicates, peers: &[PeerClass]) -> Self {
        let none = Self { lists: rules.of_lists(), ..Self::default() };
        let mut matching = none.extended(rules, &[]);
        single.iter().for_each(|id| matching.add(*id, &peers[id.index()]));
        matching.classes = PeerSpan { single, range: first..first };
        matching.extended(rules, peers)
    }

    /// Adds new classes, and room for new predicates and names.
    fn extended(mut self, rules: &RulePredicates, peers: &[PeerClass]) -> Self {
        self.holding.resize(rules.predicates.len(), Vec::new());
        self.naming.resize(rules.egress_names.len(), Vec::new());
        let first = self.classes.range.end;
        (0..).map(PeerId).zip(peers).skip(first).for_each(|(id, peer)| self.add(id, peer));
        self.classes.range.end = first.max(peers.len());
        self
    }

    fn add(&mut self, id: PeerId, peer: &PeerClass) {
        let Self { holding, naming, .. } = self;
        peer.predicates.iter().for_each(|predicate| holding[predicate.index()].push(id));
        peer.named.iter().for_each(|(name, number)| naming[*name as usize].push((id, *number)));
    }

    /// The classes for which a predicate holds.
    pub(super) fn holding(&self, predicate: PredicateId) -> &[PeerId] {
        &self.holding[predicate.index()]
    }

    /// The classes that have a port of an egress name, with its number there.
    pub(super) fn naming(&self, name: u32) -> &[(PeerId, u16)] {
        &self.naming[name as usize]
    }

    /// The predicate of a list that applies to a local endpoint.
    pub(super) fn of_list(&self, list: ListId) -> Option<PredicateId> {
        self.lists.get(&list).copied()
    }
}

/// The properties of a backend that a verdict can depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BackendProperties {
    pub(super) peer: PeerId,
    /// The port, whose atom can become another one while the backends stay the same.
    pub(super) port: u16,
    pub(super) atom: AtomId,
    /// The node of a host-network pod that is only a manifest: it has a node but no address.
    pub(super) node: Option<NodeId>,
}

impl RowFacts {
    pub(crate) fn new(
        cluster: &Cluster,
        draft: &SubjectDraft,
        rules: &RulePredicates,
        atoms: &Atoms,
        peers: &Peers,
        meter: &Meter,
    ) -> Self {
        let of_peers = (0..).map(PeerId).zip(peers.list.iter());
        let facts = Self {
            matching: Matching::new(Vec::new(), 0, rules, &peers.list),
            node_ports: vips::node_ports(cluster, atoms),
            special: of_peers.filter(|(_, peer)| is_special(peer)).map(|(id, _)| id).collect(),
            // Filled in below, since that reads the other fields.
            behind: Vec::new(),
            backend_ports: backend_ports(&cluster.services).collect(),
            to_local: to_local(cluster, draft),
        };
        let builder = RowBuilder::new(cluster, rules, atoms, peers, meter, facts, Interner::default());
        let behind = |it: &Service| it.ports.iter().map(|port| builder.behind(port)).collect();
        let behind = cluster.services.iter().map(behind).collect();
        Self { behind, ..builder.facts }
    }

    /// Adds new peer classes, predicates and names. Returns the number from which classes are new.
    pub(crate) fn extend(&mut self, rules: &RulePredicates, peers: &Peers) -> usize {
        let first = self.matching.classes.range.end;
        let new = (0..).map(PeerId).zip(&*peers.list).skip(first);
        self.special.extend(new.filter(|(_, peer)| is_special(peer)).map(|(id, _)| id));
        self.matching = std::mem::take(&mut self.matching).extended(rules, &peers.list);
        first
    }

    /// Gives services their new numbers. The backends of new ones are not known yet.
    pub(crate) fn renumber_services(&mut self, numbers: &[Option<ServiceId>], count: usize) {
        self.node_ports.iter_mut().for_each(|port| port.renumber(numbers));
        let before = std::mem::replace(&mut self.behind, vec![Vec::new(); count]);
        for (behind, now) in before.into_iter().zip(numbers) {
            if let Some(id) = now {
                self.behind[id.index()] = behind;
            }
        }
    }

    /// Finds the node ports of services again. Returns whether they are others.
    pub(crate) fn renew_node_ports(&mut self, cluster: &Cluster, atoms: &Atoms) -> bool {
        let before = std::mem::replace(&mut self.node_ports, vips::node_ports(cluster, atoms));
        before != self.node_ports
    }

    /// Finds the atoms of backends again, after the atoms have changed.
    pub(crate) fn renumber_atoms(&mut self, cluster: &Cluster, before: &Atoms, atoms: &Atoms) {
        let is_same =
            |(protocol, port): &(Protocol, u16)| before.find(*protocol, *port) == atoms.find(*protocol, *port);
        if self.backend_ports.iter().all(is_same) {
            return;
        }
        for (service, of_service) in cluster.services.iter().zip(&mut self.behind) {
            for (port, families) in service.ports.iter().zip(of_service) {
                for backend in families.iter_mut().flatten() {
                    backend.atom = atoms.find(port.protocol, backend.port);
                }
            }
        }
    }

    /// Finds the service ports that lead to local endpoints again.
    pub(crate) fn renew_local(&mut self, cluster: &Cluster, draft: &SubjectDraft) {
        self.to_local = to_local(cluster, draft);
    }

    /// The different backends of a service port.
    pub(super) fn behind_port(&self, service: u32, port: u32, family: Family) -> &[BackendProperties] {
        &self.behind[service as usize][port as usize][usize::from(family == Family::V6)]
    }

    /// The service ports that lead to local endpoints.
    pub(crate) fn to_local(&self) -> &[LocalBackends] {
        &self.to_local
    }
}

/// Whether an address of this class is a service's, a local node's, or one with hostPorts.
fn is_special(peer: &PeerClass) -> bool {
    peer.vip.is_some() || !peer.nodes.is_empty() || !peer.host_ports.is_empty()
}

/// The ports of backends, without repetitions in a row: nearly all backends of a service have the same port.
pub(super) fn backend_ports<'s>(
    services: impl IntoIterator<Item = &'s Service>,
) -> impl Iterator<Item = (Protocol, u16)> {
    let ports = services.into_iter().flat_map(|service| &service.ports);
    let all = ports.flat_map(|port| port.backends.iter().map(|backend| (port.protocol, backend.port)));
    let mut last = None;
    all.filter(move |port| last.replace(*port) != Some(*port))
}

/// Whether packets are sent to the service, and not only to its pods.
pub(crate) fn is_reached(service: &Service) -> bool {
    !service.addresses.is_empty() || service.ports.iter().any(|port| port.node_port.is_some())
}

fn to_local(cluster: &Cluster, draft: &SubjectDraft) -> Vec<LocalBackends> {
    let local: HashSet<EndpointId> = draft.local.iter().map(|local| local.endpoint).collect();
    let mut found = Vec::new();
    for (service, of_service) in (0..).zip(&cluster.services).filter(|(_, it)| is_reached(it)) {
        for (index, port) in (0..).zip(&of_service.ports) {
            let endpoints = port.backends.iter().filter_map(|it| it.endpoint).filter(|id| local.contains(id));
            // A pod can be several backends of one port (several addresses or target ports).
            let endpoints: BTreeSet<EndpointId> = endpoints.collect();
            if !endpoints.is_empty() {
                found.push(LocalBackends { service, port: index, endpoints: endpoints.into_iter().collect() });
            }
        }
    }
    found
}
