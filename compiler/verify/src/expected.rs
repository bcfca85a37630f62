//! The oracle, evaluated for all endpoints and addresses at once.
//!
//! Problem: [`weir_model::eval`] judges one flow at a time; a table has millions of entries.
//! Strategy: the same sentences of the API, evaluated on sets. The properties of an address that policies can see are
//! its [`oracle_classes::OracleClass`], those of a local endpoint its [`OracleSubject`]. For each kind and direction,
//! one row says which slots of ports ([`super::slots`]) each oracle class may use. A rule is added to the row of each
//! oracle class that its peers match.
//! Invariants: made from the cluster alone, with nothing of `classes` and `codegen`; agrees with `eval` on every flow,
//! except for a pod's traffic to itself and ingress from its own node, which rows do not decide.
//! `compiler/verify/tests/verify_parts.rs` checks this: both ways of verification, every combination with `eval` and by
//! parts with this module, must find the same differences.

mod oracle_classes;
mod rows;
mod tiers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::bits::BitSets;
use super::slots::PortSlots;
pub(super) use oracle_classes::around;
use oracle_classes::{OracleClasses, PeerKey};
use tiers::KnownTiers;
use weir_model::directory::Directory;
use weir_model::labels::Selection;
use weir_model::{
    Cluster, Direction, EndpointId, Interner, LabelSetId, ListAction, ListId, NamespaceId, NodeId, PolicyId, PortRule,
    Rule, Standing, TierMatch, TierPolicyId,
};
use weir_objects::k8s::NamedPort;

/// The properties of a local endpoint that the oracle can see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OracleSubject<'c> {
    /// The policies that select it, sorted.
    pub(super) policies: Vec<PolicyId>,
    /// The cluster-wide policies that select it, in the order in which they are evaluated.
    pub(super) tiers: Vec<TierPolicyId>,
    /// The lists that apply to it, in their order.
    pub(super) lists: Vec<ListId>,
    named: &'c [NamedPort],
    node: Option<NodeId>,
    /// The service ports it is a backend of, each with the backend's port. An endpoint may always reach itself through
    /// them.
    behind: Vec<(usize, usize, u16)>,
    /// The hostPorts of its node that lead to itself: indices into [`Cluster::host_ports`].
    claims: Vec<usize>,
    /// The oracle classes of its own addresses; empty if it is behind no service, since they do not matter then.
    own: Vec<u32>,
}

/// The verdicts that the oracle expects of a cluster, for the given local endpoints.
pub(super) struct ExpectedVerdicts<'c> {
    cluster: &'c Cluster,
    pub(super) slots: PortSlots,
    pub(super) kinds: Interner<OracleSubject<'c>>,
    /// One endpoint of each kind.
    models: Vec<EndpointId>,
    kind_of: HashMap<EndpointId, u32>,
    oracle_classes: OracleClasses<'c>,
    pub(super) sets: BitSets,
    /// The oracle class of each backend, by service and port.
    backends: Vec<Vec<Vec<u32>>>,
    /// The oracle class of the pod behind each hostPort.
    claimants: Vec<u32>,
    tiers: RefCell<KnownTiers<'c>>,
}

impl<'c> ExpectedVerdicts<'c> {
    pub(super) fn new(cluster: &'c Cluster, directory: &'c Directory<'c>, local: &[EndpointId]) -> Self {
        let selected = Selected::new(cluster, local);
        // Only policies and lists that apply to a local endpoint. All others would cut addresses and ports into pieces
        // between which no verdict differs.
        let rules = selected.rules(cluster);
        let lists: BTreeSet<ListId> = selected.known.values().flat_map(|it| &it.lists).copied().collect();
        let nodes = local.iter().filter_map(|id| cluster.endpoints[id.index()].node).collect();
        let mut oracle_classes = OracleClasses::new(cluster, directory, &rules, lists.into_iter().collect(), nodes);
        // Backends get their oracle classes here, before any row is made: a row has one set for each oracle class that
        // exists at that time.
        let mut of_backend = |it: &weir_model::Backend| oracle_classes.plain(it.endpoint, it.address);
        let mut of_port = |port: &weir_model::ServicePort| port.backends.iter().map(&mut of_backend).collect();
        let backends = cluster.services.iter().map(|it| it.ports.iter().map(&mut of_port).collect()).collect();
        let of_claim = |it: &weir_model::HostPort| oracle_classes.plain(it.backend.endpoint, it.backend.address);
        let claimants = cluster.host_ports.iter().map(of_claim).collect();
        let mut expected = Self {
            cluster,
            slots: PortSlots::new(cluster, rules.iter().flat_map(|rule| rule.ports())),
            kinds: Interner::default(),
            models: Vec::new(),
            kind_of: HashMap::new(),
            oracle_classes,
            sets: BitSets::default(),
            backends,
            claimants,
            tiers: RefCell::default(),
        };
        expected.add_kinds(local, &selected);
        expected
    }

    fn add_kinds(&mut self, local: &[EndpointId], selected: &Selected) {
        let behind = behind(self.cluster);
        for id in local {
            let endpoint = &self.cluster.endpoints[id.index()];
            let found = selected.known.get(&(endpoint.namespace, endpoint.labels));
            let InForce { policies, tiers, lists } = found.cloned().unwrap_or_default();
            let behind = behind.get(id).cloned().unwrap_or_default();
            // By address as well: a backend from an EndpointSlice may name an address and no pod.
            let is_own = |it: &weir_model::HostPort| {
                it.backend.endpoint == Some(*id)
                    || it.backend.address.is_some_and(|at| endpoint.addresses.contains(&at))
            };
            let claims = endpoint.node.into_iter().flat_map(|node| self.cluster.host_ports_of(node));
            let claims = claims.filter(|(_, it)| is_own(it)).map(|(index, _)| index).collect();
            // With them, every pod would be a kind of its own, and the rows of a namespace would be computed once for
            // each pod.
            let own = if behind.is_empty() { &[][..] } else { &endpoint.addresses };
            let own = own.iter().map(|address| self.oracle_classes.plain(Some(*id), Some(*address))).collect();
            let kind = OracleSubject {
                policies,
                tiers,
                lists,
                named: &endpoint.named_ports,
                node: endpoint.node,
                behind,
                claims,
                own,
            };
            // A row costs every rule times every oracle class, so endpoints that the oracle cannot distinguish share
            // one.
            let number = self.kinds.intern(kind);
            if number as usize == self.models.len() {
                self.models.push(*id);
            }
            self.kind_of.insert(*id, number);
        }
    }

    /// The kind of a local endpoint.
    pub(super) fn kind(&self, id: EndpointId) -> u32 {
        // No row has this number, so a question about an endpoint out of scope cannot get another endpoint's answer.
        self.kind_of.get(&id).copied().unwrap_or(u32::MAX)
    }

    /// The oracle class of an address.
    pub(super) fn oracle_class(&mut self, address: IpAddr) -> u32 {
        self.oracle_classes.of(address)
    }

    /// Whether the lists deny an oracle class to every local endpoint in both directions, and no other tier decides
    /// before lists.
    pub(super) fn is_denied_to_all(&self, oracle_class: u32) -> bool {
        let Some(lists) = self.oracle_classes.lists_of_plain(oracle_class) else { return false };
        let denies = |kind: &OracleSubject<'_>, ingress: bool| {
            let mut containing =
                kind.lists.iter().filter(|id| lists.contains(id)).map(|id| &self.cluster.lists[id.index()]);
            // The first list decides, also if it allows: `any(Deny)` would expect the edge program to drop addresses
            // that an earlier list lets in.
            let first = containing.find(|list| if ingress { list.ingress } else { list.egress });
            first.is_some_and(|list| list.action == ListAction::Deny)
        };
        // `all` of no endpoints is true. Without the first half, an artifact without endpoints would be expected to
        // drop every listed address.
        !self.kinds.is_empty() && self.kinds.iter().all(|kind| denies(kind, true) && denies(kind, false))
    }

    /// The first and last address of every range in force with their neighbours; every address of an endpoint, service,
    /// node or hostPort; and the first and last address of each family.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        self.oracle_classes.cuts()
    }
}

/// A rule of a NetworkPolicy, with the namespace of its policy, or of a cluster-wide policy.
#[derive(Clone, Copy)]
enum AnyRule<'c> {
    OfPolicy(NamespaceId, &'c Rule),
    OfTier(&'c TierMatch),
}

impl<'c> AnyRule<'c> {
    fn ports(self) -> &'c [PortRule] {
        match self {
            Self::OfPolicy(_, rule) => &rule.ports,
            Self::OfTier(matched) => &matched.ports,
        }
    }

    fn peers(self) -> Vec<PeerKey<'c>> {
        match self {
            Self::OfPolicy(own, rule) => rule.peers.iter().map(|peer| PeerKey::of_policy(own, peer)).collect(),
            Self::OfTier(matched) => matched.peers.iter().map(PeerKey::Tier).collect(),
        }
    }
}

/// The policies and lists in force for each combination of namespace and labels.
struct Selected {
    known: HashMap<(NamespaceId, LabelSetId), InForce>,
}

/// The policies and lists in force for one combination.
#[derive(Clone, Default)]
struct InForce {
    policies: Vec<PolicyId>,
    tiers: Vec<TierPolicyId>,
    lists: Vec<ListId>,
}

impl Selected {
    fn new(cluster: &Cluster, local: &[EndpointId]) -> Self {
        // By namespace first: a policy can select only pods of its own namespace, and large clusters have most of their
        // policies elsewhere.
        let mut of_namespace: HashMap<NamespaceId, Vec<PolicyId>> = HashMap::new();
        for (index, policy) in cluster.policies.iter().enumerate() {
            of_namespace.entry(policy.namespace).or_default().push(PolicyId(index as u32));
        }
        let mut selection = Selection::new(&cluster.labels);
        let mut known = HashMap::new();
        for id in local {
            let endpoint = &cluster.endpoints[id.index()];
            // Pods of one controller have the same labels, so selectors are matched once for each combination and not
            // once for each pod.
            let key = (endpoint.namespace, endpoint.labels);
            known.entry(key).or_insert_with(|| {
                // Spec: "podSelector selects the pods to which this NetworkPolicy object applies"; policies are
                // namespaced.
                let mut selects = |selector, labels| selection.matches(&cluster.labels, selector, labels);
                let candidates = of_namespace.get(&key.0).map_or(&[][..], Vec::as_slice).iter().copied();
                let policies = candidates.filter(|id| selects(cluster.policies[id.index()].subjects, key.1)).collect();
                let namespace = cluster.namespaces[key.0.index()].labels;
                // In the order of the cluster: the first list that contains an address decides about it.
                let lists = (0..cluster.lists.len() as u32).map(ListId);
                let applies = |id: &ListId| {
                    let list = &cluster.lists[id.index()];
                    selects(list.namespaces, namespace) && selects(list.pods, key.1)
                };
                let lists = lists.filter(applies).collect();
                // Spec: "Namespaces is used to select pods via namespace selectors. Pods is used to select pods via
                // namespace AND pod selectors." They are numbered in the order in which they are evaluated.
                let tiers = (0..).map(TierPolicyId).zip(&cluster.tiers).filter(|(_, policy)| {
                    !policy.is_audit && selects(policy.namespaces, namespace) && selects(policy.pods, key.1)
                });
                let tiers = tiers.map(|(id, _)| id).collect();
                InForce { policies, tiers, lists }
            });
        }
        Self { known }
    }

    /// The rules of all policies that select a local endpoint.
    fn rules<'c>(&self, cluster: &'c Cluster) -> Vec<AnyRule<'c>> {
        let policies: BTreeSet<PolicyId> = self.known.values().flat_map(|it| &it.policies).copied().collect();
        let tiers: BTreeSet<TierPolicyId> = self.known.values().flat_map(|it| &it.tiers).copied().collect();
        let mut rules = Vec::new();
        for direction in Direction::ALL {
            for policy in policies.iter().map(|id| &cluster.policies[id.index()]) {
                rules.extend(
                    policy.rules(direction).into_iter().flatten().map(|it| AnyRule::OfPolicy(policy.namespace, it)),
                );
            }
            for policy in tiers.iter().map(|id| &cluster.tiers[id.index()]) {
                rules.extend(policy.rules(direction).iter().filter_map(|it| it.matched.as_ref()).map(AnyRule::OfTier));
            }
        }
        rules
    }
}

/// The service ports of which each endpoint is a backend.
fn behind(cluster: &Cluster) -> BTreeMap<EndpointId, Vec<(usize, usize, u16)>> {
    // The API may show two pods with one address for a moment. Both then count as the backend.
    let mut owners: HashMap<IpAddr, Vec<EndpointId>> = HashMap::new();
    let members = cluster.endpoints.iter().enumerate().filter(|(_, it)| it.standing == Standing::Member);
    for (index, endpoint) in members {
        for address in &endpoint.addresses {
            owners.entry(*address).or_default().push(EndpointId(index as u32));
        }
    }
    let mut behind: BTreeMap<EndpointId, Vec<(usize, usize, u16)>> = BTreeMap::new();
    for (service, of_service) in cluster.services.iter().enumerate() {
        for (port, of_port) in of_service.ports.iter().enumerate() {
            for backend in &of_port.backends {
                let at = backend.address.and_then(|address| owners.get(&address)).map_or(&[][..], Vec::as_slice);
                for id in at.iter().copied().chain(backend.endpoint) {
                    behind.entry(id).or_default().push((service, port, backend.port));
                }
            }
        }
    }
    // A backend that is named by pod and by address was added twice, one after the other. Two equal kinds must not
    // differ in that.
    behind.values_mut().for_each(|it| it.dedup());
    behind
}
