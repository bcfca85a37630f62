//! The cluster → classes and tables, which make the cost of a verdict independent of the size of the policies.
//!
//! Problem: a verdict is a union over policies, rules, peers, blocks with holes, named ports, lists and services.
//! Evaluating them one by one for every packet costs more with every policy.
//! Strategy: evaluate them beforehand, once for every *class*. Addresses for which the same predicates hold are one
//! peer class; local endpoints with the same policies, lists and port names are one subject class; (protocol, port)
//! pairs in the same ranges are one atom. The result is a table from (direction, subject class, peer class) to a set of
//! atoms; each row has a default, and holds only the entries that differ from it.
//! Invariants: peer class 0 matches no predicate; two runs over the same objects, in any order, give the same numbers;
//! nothing here is quadratic in pods × policies: selectors find their pods through an index of labels, and a row is
//! made from its subject's own rules alone.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod departed;
pub mod edge_denials;
pub mod fit;
pub(crate) mod incremental;
pub mod index;

mod addresses;
mod contributions;
mod meter;
mod peers;
mod ports;
mod predicates;
mod rows;
mod shared_sets;
mod sources;
mod stand_ins;
pub(crate) mod subjects;
mod vips;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

pub use addresses::{AddressMap, ClassRange, SingleAddress, SingleAddresses, SinglePiece};
pub(crate) use addresses::{Number, after, ranges_of_block, ranges_of_networks, ranges_of_nodes};
pub(crate) use meter::{CLASS_BYTES, ENTRY_BYTES, Meter, PAIR_BYTES, SET_COPIES};
pub use meter::{Exceeded, Limits, Spent};
pub use ports::{AtomId, AtomSet, AtomSetId, Atoms, PortInterval, PortSpec};
use predicates::Collected;
pub use predicates::{Predicate, PredicateId, RuleParts};
use rows::BuiltRows;
pub use rows::Row;
pub use sources::{MOST_COMPARES, SourceId, Sources};
pub use stand_ins::stand_ins;
pub use vips::{OtherPorts, ServiceVip, VipPort};

use weir_model::eval::RuleId;
use weir_model::{
    Cluster, Direction, EndpointId, HostNetworkPods, Icmp, Interner, ListId, NodeId, PolicyId, RuleAction, Standing,
    TierPolicyId, TierRuleId, id,
};
use weir_objects::address::Family;

id!(/// A peer class. Prints as `peer3`; `peer0` matches nothing.
    PeerId, "peer");
id!(/// A subject class. Prints as `subject3`.
    SubjectId, "subject");

/// Which endpoints are local: the ones that are enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Sorted.
    local: Vec<EndpointId>,
    /// Placeholder addresses for endpoints that have none: no block and no list contains them.
    stand_ins: BTreeMap<IpAddr, EndpointId>,
}

impl Scope {
    /// Every pod that has an address.
    pub fn everything(cluster: &Cluster) -> Self {
        Self::filter(cluster, |_| true)
    }

    /// No pod at all: for a node that does not exist in the input yet.
    pub fn nothing() -> Self {
        Self { local: Vec::new(), stand_ins: BTreeMap::new() }
    }

    /// The pods of one node; `None` if the input knows no such node.
    pub fn node(cluster: &Cluster, name: &str) -> Option<Self> {
        let node = cluster.nodes.iter().position(|node| node.name == name)?;
        Some(Self::filter(cluster, |on| on == Some(NodeId(node as u32))))
    }

    fn filter(cluster: &Cluster, keep: impl Fn(Option<NodeId>) -> bool) -> Self {
        let local = cluster
            .endpoints
            .iter()
            .enumerate()
            // A host-network pod has its node's address, so no program can be at its interface. A pod without an
            // address sends nothing yet; comparisons give such pods placeholder addresses before they make a scope.
            .filter(|(_, it)| it.standing == Standing::Member && !it.addresses.is_empty() && keep(it.node))
            .map(|(index, _)| EndpointId(index as u32))
            .collect();
        Self { local, stand_ins: BTreeMap::new() }
    }

    /// The same scope, with placeholder addresses for endpoints that have none. The cluster then counts these addresses
    /// as the endpoints' own. As peers, the endpoints match by their labels alone, even if a block contains the
    /// placeholder.
    pub fn with_stand_ins(self, stand_ins: BTreeMap<IpAddr, EndpointId>) -> Self {
        Self { stand_ins, ..self }
    }

    /// Keeps only the given local endpoints.
    pub fn among(mut self, endpoints: &BTreeSet<EndpointId>) -> Self {
        self.local.retain(|id| endpoints.contains(id));
        self
    }

    /// The local endpoints, sorted.
    pub fn endpoints(&self) -> &[EndpointId] {
        &self.local
    }
}

/// Why a cluster cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassifyError {
    /// The assumption requires a distinction that programs cannot make on packets.
    #[error("`hostnetwork-pods=pod` cannot be enforced: packets of host-network pods carry their node's address")]
    HostNetworkPods,
    /// ICMP shares its atom with the protocols that have no ports: letting it through would let them through.
    #[error("`icmp=allow` cannot be enforced: programs do not tell ICMP from other protocols without ports")]
    Icmp,
    /// Classification exceeds a limit.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
}

/// Everything the tables are made of.
#[derive(Clone, Debug)]
pub struct Classes {
    /// The subject classes.
    pub subjects: Vec<SubjectClass>,
    /// The subject class of every local endpoint, in the order of the scope.
    pub subject_of: Vec<(EndpointId, SubjectId)>,
    /// The peer classes; the first one matches nothing.
    pub peers: Arc<Vec<PeerClass>>,
    /// Address → peer class.
    pub addresses: Arc<AddressMap>,
    /// (Protocol, port) → atom.
    pub atoms: Atoms,
    /// The verdicts.
    pub rows: VerdictRows,
    /// Services behind addresses.
    pub vips: Arc<Vec<ServiceVip>>,
    /// The positions in the input from which instructions can come.
    pub sources: Arc<Sources>,
    /// The cost of making these classes.
    pub spent: Spent,
    rules: Arc<predicates::RulePredicates>,
    lookup: Arc<peers::PeerLookup>,
}

/// Identifies a version of a policy's rules. Two are equal only if the policy is the same (namespace, name and mode)
/// and has not changed: a changed policy gets new rules, even if they are the same. Its number may be another one.
#[derive(Clone, Debug)]
pub struct PolicyRulesId(Arc<predicates::PolicyRules>);

impl PartialEq for PolicyRulesId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PolicyRulesId {}

impl Hash for PolicyRulesId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// The verdicts of all subject classes.
///
/// Invariant: every list has one element for each subject class, and every number in a row is one of a set in
/// `atom_sets`.
#[derive(Clone, Debug)]
pub struct VerdictRows {
    /// Sets of atoms, each once.
    pub atom_sets: Vec<AtomSet>,
    /// Rows for ingress, by subject class.
    pub ingress: Vec<Row>,
    /// Rows for egress, by subject class.
    pub egress: Vec<Row>,
    /// Rows for ingress and egress as they would be if the audit policies were enforced; `None` if no policy is in
    /// audit mode.
    pub audit: Option<[Vec<Row>; 2]>,
    /// For each subject class, the peer classes that its lists deny in ingress, sorted. `None` if lists deny no peer
    /// class in ingress.
    pub denied_by_lists: Option<Vec<Vec<PeerId>>>,
}

/// Local endpoints to which the same policies, lists, named ports and node apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectClass {
    /// The policies that are enforced on it, sorted.
    pub policies: Vec<PolicyId>,
    /// The cluster-wide policies that are enforced on it, in the order they are evaluated.
    pub tiers: Vec<TierPolicyId>,
    /// The lists that apply to it, in the order they are decided.
    pub lists: Vec<ListId>,
    /// The numbers of its ports that ingress rules name: (name as listed in [`Atoms`], number), sorted.
    pub named: Vec<(u32, u16)>,
    /// Its node, if the node has an address or a host-network pod without one.
    pub node: Option<NodeId>,
    /// Service ports whose verdict is another one because it is a backend of them itself, sorted.
    pub own_services: Vec<OwnServicePort>,
    /// hostPorts whose verdict is another one because it is the pod behind them, sorted: indices into
    /// [`Cluster::host_ports`], and whether it may reach them.
    pub own_host_ports: Vec<(u32, bool)>,
    /// The audit policies and their effect on it.
    pub audit: Option<AuditEffect>,
}

/// A service port that leads to the pod itself, where that changes the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnServicePort {
    /// The service: an index into [`Cluster::services`].
    pub service: u32,
    /// The index of its port.
    pub port: u32,
    /// The family of the service address.
    pub family: Family,
    /// Whether the pod may reach it.
    pub is_allowed: bool,
}

/// The properties that a subject class gets if the audit policies are enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditEffect {
    /// The audit policies that select it, sorted.
    pub policies: Vec<PolicyId>,
    /// The cluster-wide audit policies that select it, in the order they are evaluated.
    pub tiers: Vec<TierPolicyId>,
    /// As in [`SubjectClass`].
    pub own_services: Vec<OwnServicePort>,
    /// As in [`SubjectClass`].
    pub own_host_ports: Vec<(u32, bool)>,
}

impl SubjectClass {
    /// The audit policies that select it.
    pub fn audit(&self) -> &[PolicyId] {
        self.audit.as_ref().map_or(&[], |audit| &audit.policies)
    }

    /// The cluster-wide policies that select it, audit ones too, in no order.
    pub fn all_tiers(&self) -> impl Iterator<Item = TierPolicyId> {
        let audit = self.audit.iter().flat_map(|audit| &audit.tiers);
        self.tiers.iter().chain(audit).copied()
    }

    /// The subject class as it would be if its audit policies were enforced.
    #[must_use]
    pub fn with_audit_enforced(mut self) -> Self {
        if let Some(audit) = self.audit.take() {
            // Their numbers follow those of the enforced ones.
            self.policies.extend(audit.policies);
            // Cluster-wide policies are numbered in the order in which they are evaluated, audit ones among the others.
            self.tiers.extend(audit.tiers);
            self.tiers.sort_unstable();
            // Replaced, not merged: one more policy can make a backend unreachable or reachable, so it adds entries and
            // removes some.
            self.own_services = audit.own_services;
            self.own_host_ports = audit.own_host_ports;
        }
        self
    }
}

/// The decisions of cluster-wide policies about the traffic between a subject class and a peer class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierDecision {
    /// The rule that accepts or denies; `None` if NetworkPolicies decide, or nothing does.
    pub decided: Option<(TierRuleId, RuleAction)>,
    /// The rules that passed the traffic on: at most one of each tier.
    pub passed: Vec<TierRuleId>,
}

/// Remote addresses that no rule, list, service or node in force distinguishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerClass {
    /// The predicates that hold, sorted.
    pub predicates: Arc<[PredicateId]>,
    /// The numbers of its ports that egress rules name, sorted.
    pub named: Vec<(u32, u16)>,
    /// The nodes whose address it is, of those that local endpoints run on, sorted. Two may share one to the outside.
    pub nodes: Vec<NodeId>,
    /// The family of a node's address: its node ports lead to backends of that family.
    pub family: Option<Family>,
    /// The services on it: an index into [`Classes::vips`].
    pub vip: Option<u32>,
    /// The hostPorts on it, of nodes that local endpoints run on: indices into [`Cluster::host_ports`], sorted.
    pub host_ports: Vec<u32>,
    /// Whether its addresses are pods' addresses: named ports and `ipblock-pods` depend on that.
    pub pods: bool,
}

/// Makes the classes of a cluster, for the endpoints in scope.
pub fn classify(cluster: &Cluster, scope: &Scope) -> Result<Classes, ClassifyError> {
    classify_within(cluster, scope, Limits::NONE)
}

/// Like [`classify`], but fails as soon as the cost exceeds the limits.
pub fn classify_within(cluster: &Cluster, scope: &Scope, limits: Limits) -> Result<Classes, ClassifyError> {
    classify_parts(cluster, scope, limits).map(|(classes, _)| classes)
}

/// The data of the stages that classes do not contain. Changes of policies are applied to them: see [`incremental`].
#[derive(Debug)]
pub(crate) struct StageParts {
    pub(crate) draft: subjects::SubjectDraft,
    origins: predicates::TermOrigins,
    ids: HashMap<Predicate, PredicateId>,
    specs: ports::PortSpecs,
    peers: peers::Peers,
    facts: rows::RowFacts,
    sets: Interner<AtomSet>,
    spent_for_services: Spent,
}

/// Like [`classify_within`], and returns the data of the stages.
pub(crate) fn classify_parts(
    cluster: &Cluster,
    scope: &Scope,
    limits: Limits,
) -> Result<(Classes, StageParts), ClassifyError> {
    // An error, not the nearest reading that can be enforced: the operator chose this one and would believe that it is
    // in force.
    if cluster.assume.hostnetwork_pods == HostNetworkPods::Pod {
        return Err(ClassifyError::HostNetworkPods);
    }
    if cluster.assume.icmp == Icmp::Allow {
        return Err(ClassifyError::Icmp);
    }
    let meter = Meter::new(limits);
    // First the subjects: only policies and lists that apply to a local endpoint get predicates, atoms and classes.
    // Those of other nodes would make every table larger and change no verdict here.
    let draft = subjects::draft(cluster, scope);
    let Collected { rules, origins, ids } = predicates::collect(cluster, &draft);
    let specs = ports::specs(cluster, &draft, &rules, &origins);
    let atoms = ports::atoms(&specs, &rules, &meter);
    // A stage that reached a limit returns an incomplete result. Without this check the next stage would spend as much
    // again on it.
    meter.check()?;
    // Atoms come before peers, because the key of a service address names the atoms of its ports.
    let peers = peers::classify(cluster, &draft, &rules, &atoms, &meter)?;
    let sources = sources::of(cluster, &rules, &origins, &specs, &peers);
    let built = rows::build(cluster, &draft, &rules, &atoms, &peers, &meter);
    // The loops over rows end silently at a limit, and then rows can lack denials of lists. This check keeps them from
    // being enforced.
    meter.check()?;
    let BuiltRows { subjects, subject_of, rows, facts, sets } = built;
    let classes = Classes {
        subjects,
        subject_of,
        peers: Arc::clone(&peers.list),
        addresses: Arc::clone(&peers.addresses),
        atoms,
        rows,
        vips: Arc::clone(&peers.vips),
        sources: sources.into(),
        spent: meter.spent(),
        rules: rules.into(),
        lookup: Arc::clone(&peers.lookup),
    };
    let spent_for_services = meter.spent_for_services();
    Ok((classes, StageParts { draft, origins, ids, specs, peers, facts, sets, spent_for_services }))
}

impl Classes {
    /// The peer class of an address.
    pub fn peer_at(&self, address: IpAddr) -> PeerId {
        self.addresses.find(address)
    }

    /// The row of a subject class.
    pub fn row(&self, direction: Direction, subject: SubjectId) -> &Row {
        match direction {
            Direction::Ingress => &self.rows.ingress[subject.index()],
            Direction::Egress => &self.rows.egress[subject.index()],
        }
    }

    /// The atoms allowed between a subject class and a peer class.
    pub fn allowed(&self, direction: Direction, subject: SubjectId, peer: PeerId) -> &AtomSet {
        let row = self.row(direction, subject);
        &self.rows.atom_sets[row.find(peer).index()]
    }

    /// The rules that allow an atom: the provenance of a table entry.
    pub fn provenance(&self, direction: Direction, subject: SubjectId, peer: PeerId, atom: AtomId) -> Vec<RuleId> {
        rows::provenance(self, direction, subject, peer, atom)
    }

    /// The decisions of cluster-wide policies about an atom.
    pub fn tier_decision(
        &self,
        cluster: &Cluster,
        direction: Direction,
        subject: SubjectId,
        peer: PeerId,
        atom: AtomId,
    ) -> TierDecision {
        rows::tier_decision(self, cluster, direction, subject, peer, atom)
    }

    /// Whether any policy or list applies to egress of a local endpoint.
    pub fn judges_egress(&self, cluster: &Cluster) -> bool {
        self.subjects.iter().any(|subject| {
            // Audit policies count too: their verdict on a service address is only reported, but it must be right.
            subject.policies.iter().chain(subject.audit()).any(|id| cluster.policy(*id).egress.is_some())
                || subject.all_tiers().any(|id| cluster.tier_policy(id).judges_leaving())
                || subject.lists.iter().any(|id| cluster.lists[id.index()].egress)
        })
    }

    /// The peer predicates of a rule, any of which is enough; `None` if the rule names no peer, so every peer matches.
    pub fn peers_of(&self, direction: Direction, id: RuleId) -> Option<&[PredicateId]> {
        self.rules.of(id.policy, direction)?.get(id.rule as usize)?.peers.as_deref()
    }

    /// The policies that select a local endpoint, audit ones too, sorted.
    pub fn policies(&self) -> Vec<PolicyId> {
        let ids = || self.subjects.iter().flat_map(|subject| subject.policies.iter().chain(subject.audit()));
        let mut selects = vec![false; ids().max().map_or(0, |last| last.index() + 1)];
        ids().for_each(|id| selects[id.index()] = true);
        (0..).map(PolicyId).zip(selects).filter(|(_, selects)| *selects).map(|(id, _)| id).collect()
    }

    /// The cluster-wide policies that select a local endpoint, audit ones too, in the order they are evaluated.
    pub fn tiers(&self) -> Vec<TierPolicyId> {
        let found: BTreeSet<TierPolicyId> = self.subjects.iter().flat_map(SubjectClass::all_tiers).collect();
        found.into_iter().collect()
    }

    /// The lists that apply to a local endpoint, in the order in which they decide.
    pub fn lists(&self) -> Vec<ListId> {
        let mut found: Vec<ListId> = self.subjects.iter().flat_map(|subject| subject.lists.clone()).collect();
        // A cluster's lists are numbered in the order in which they decide, so sorting restores that order.
        found.sort();
        found.dedup();
        found
    }

    /// The rules of a policy in force, as predicate numbers and atoms; `None` if it does not isolate in this direction.
    pub fn drafted(&self, policy: PolicyId, direction: Direction) -> Option<Vec<RuleParts>> {
        let rules = self.rules.of(policy, direction)?;
        Some(rules.iter().map(|rule| rule.parts(&self.atoms)).collect())
    }

    /// Identifies the rules of a policy; `None` if no policy in force has this number.
    pub fn rules_id(&self, policy: PolicyId) -> Option<PolicyRulesId> {
        self.rules.by_policy().get(policy).map(|rules| PolicyRulesId(Arc::clone(rules)))
    }

    /// The rules of a cluster-wide policy in force, each with its action, as predicate numbers and atoms; `None` for a
    /// rule that matches nothing.
    pub fn drafted_tier(&self, policy: TierPolicyId, direction: Direction) -> Vec<(RuleAction, Option<RuleParts>)> {
        let rules = self.rules.of_tier(policy, direction).iter();
        rules.map(|rule| (rule.action, rule.matched.as_ref().map(|it| it.parts(&self.atoms)))).collect()
    }

    /// Peer predicates in force.
    pub fn predicates(&self) -> &[Predicate] {
        &self.rules.predicates
    }
}
