//! Estimates the cost of the classes of a cluster without making them.
//!
//! Strategy: the same sweeps as in classification, with a count instead of every set. A product is counted exactly if
//! that needs only a sort (predicates that hold in a range of addresses). If an exact count would take as long as the
//! product itself, the count is an upper bound (pods that a selector matches, ranges that become atoms). The cost of
//! Services is not included, because removing rules does not reduce it. The estimate takes as long as sorting the
//! contents of the policies. If it is too low, one attempt is lost: [`crate::Meter`] ends it at the limit, so
//! it needs no additional memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Held;
use crate::subjects::{SubjectDraft, needed_label};
use crate::{
    CLASS_BYTES, ENTRY_BYTES, Limits, Meter, Number, PAIR_BYTES, SET_COPIES, Scope, Spent, after, ranges_of_block,
    ranges_of_networks, ranges_of_nodes, subjects,
};
use weir_model::{
    Cluster, Direction, LabelSetId, NamespaceId, Peer, PolicyId, PortMatch, PortRule, Protocol, Rule, SelectorId,
    Standing, TierMatch, TierPeer, TierPolicyId,
};
use weir_objects::address::to_number;

/// Bytes that a rule costs by itself: its numbers, its provenance, its place in the source.
const RULE_BYTES: u64 = 300;

/// Sets of rules are counted only up to this power of two, because other bounds are lower.
const MOST_SHIFT: usize = 40;

/// Estimates the cost of the classes of a cluster.
pub fn estimate(cluster: &Cluster, scope: &Scope) -> Spent {
    of_draft(cluster, &subjects::draft(cluster, scope), &[])
}

/// Estimates the cost if the held policies have no rules.
pub(super) fn of_draft(cluster: &Cluster, draft: &SubjectDraft, held: &[Held]) -> Spent {
    let is_held = |id: &PolicyId| held.binary_search_by_key(id, |held| held.policy).is_ok();
    let policies: Vec<PolicyId> = draft.policies.iter().copied().filter(|id| !is_held(id)).collect();
    let counted = Counted::new(cluster, &policies, &draft.tiers);
    // A meter without limits as the counter, so that peaks and overflows are computed as in classification.
    let meter = Meter::new(Limits::NONE);
    let classes = counted.classes(&meter);
    let words = counted.ports(cluster, draft, &policies).div_ceil(64) + 1;
    // The sets of atoms of each rule and of each range.
    _ = meter.take(counted.rules * RULE_BYTES + counted.ranges.len() as u64 * 8 * words, counted.rules * words);
    rows(cluster, draft, &counted, RowEstimate { classes, words, is_held: &is_held }, &meter);
    meter.spent()
}

struct RowEstimate<'r> {
    classes: u64,
    words: u64,
    is_held: &'r dyn Fn(&PolicyId) -> bool,
}

/// Adds the cost of the rows: there is one for each set of policies that apply to a local endpoint.
fn rows(cluster: &Cluster, draft: &SubjectDraft, counted: &Counted<'_>, rows: RowEstimate<'_>, meter: &Meter) {
    let RowEstimate { classes, words, is_held } = rows;
    let subjects: BTreeSet<_> = draft
        .local
        .iter()
        .map(|local| {
            let ports = &cluster.endpoints[local.endpoint.index()].named_ports;
            let tiers = (&local.tiers, &local.audit_tiers);
            (&local.policies, &local.audit, tiers, &local.lists, if counted.has_names { &ports[..] } else { &[] })
        })
        .collect();
    // The rows of tiers are made once for each set of cluster-wide policies, and then merged with the others.
    let mut of_tiers: BTreeMap<_, [u64; 2]> = BTreeMap::new();
    for (.., tiers, _, _) in &subjects {
        of_tiers.entry(*tiers).or_insert_with(|| {
            Direction::ALL.map(|direction| {
                let in_force = tiers.0.iter().chain(tiers.1);
                let holding = in_force.map(|id| counted.holding_of_tier(cluster, *id, direction)).sum::<u64>();
                _ = meter.take(0, holding.saturating_mul(1 + words / 4));
                holding
            })
        });
    }
    // Most subjects of a namespace have the same policies, and equal sets are stored once.
    let mut sets: BTreeMap<Option<NamespaceId>, u64> = BTreeMap::new();
    for (policies, audit, tiers, ..) in subjects {
        let namespace = policies.iter().chain(audit).next().map(|id| cluster.policy(*id).namespace);
        for direction in Direction::ALL {
            let in_force = policies.iter().chain(audit).filter(|id| !is_held(id));
            let holding: u64 = in_force.map(|id| counted.holding(cluster, *id, direction)).sum();
            let of_tiers = of_tiers[&tiers][direction as usize];
            // A row has at most one entry for each class, however often its rules match the same one.
            let entries = (holding + of_tiers).min(classes);
            // The rules that apply to a class determine its set, so there are at most two to the power of `rules` sets.
            let in_force = policies.iter().chain(audit).filter(|id| !is_held(id));
            let rules: usize = in_force.map(|id| cluster.policy(*id).rules(direction).map_or(0, <[_]>::len)).sum();
            let largest = sets.entry(namespace).or_default();
            *largest = entries.min(1 << rules.min(MOST_SHIFT)).max(*largest);
            let steps = holding.saturating_mul(1 + words / 4) + entries.saturating_mul(words);
            _ = meter.take(entries.saturating_mul(ENTRY_BYTES), steps);
        }
    }
    // Only one row is open at a time, and each of its entries has its own set.
    let open = classes.saturating_mul(8 * words + 32);
    let sets: u64 = 2 * sets.values().sum::<u64>();
    _ = meter.take(sets.saturating_mul(SET_COPIES * (8 * words + 32)).saturating_add(open), 0);
}

/// Everything that the policies name, each thing once.
struct Counted<'c> {
    cluster: &'c Cluster,
    rules: u64,
    has_names: bool,
    ranges: HashSet<(Protocol, u16, u16)>,
    /// The blocks, networks and nodes, each with the number of ranges and pods for which it holds.
    blocks: HashMap<AddressPeer<'c>, u64>,
    /// The number of different sets of blocks that hold in some range.
    segments: u64,
    pairs: u64,
    selectors: Selectors<'c>,
}

impl<'c> Counted<'c> {
    fn new(cluster: &'c Cluster, policies: &[PolicyId], tiers: &[TierPolicyId]) -> Self {
        let mut it = Self {
            cluster,
            rules: 0,
            has_names: false,
            ranges: HashSet::new(),
            blocks: HashMap::new(),
            segments: 0,
            pairs: 0,
            selectors: Selectors::default(),
        };
        for id in policies {
            let policy = cluster.policy(*id);
            for direction in Direction::ALL {
                let rules = policy.rules(direction).unwrap_or_default().iter();
                rules.for_each(|rule| it.rule(policy.namespace, rule));
            }
        }
        for policy in tiers.iter().map(|id| cluster.tier_policy(*id)) {
            let rules = policy.ingress.iter().chain(&policy.egress).filter_map(|rule| rule.matched.as_ref());
            rules.for_each(|matched| it.tier_match(matched));
        }
        it.sweep::<u32>();
        it.sweep::<u128>();
        it.selectors.groups(cluster);
        it
    }

    fn rule(&mut self, own: NamespaceId, rule: &'c Rule) {
        self.rules += 1 + (rule.peers.len() + rule.ports.len()) as u64;
        self.count_ports(&rule.ports);
        for peer in &rule.peers {
            match peer {
                Peer::Block { .. } => _ = self.blocks.insert(AddressPeer::Block(peer), 0),
                Peer::Pods { namespaces, pods } => self.selectors.add(self.cluster, Some(own), *namespaces, *pods),
            }
        }
    }

    fn tier_match(&mut self, matched: &'c TierMatch) {
        self.rules += 1 + (matched.peers.len() + matched.ports.len()) as u64;
        self.count_ports(&matched.ports);
        for peer in &matched.peers {
            match peer {
                TierPeer::Networks(_) | TierPeer::Nodes(_) => _ = self.blocks.insert(AddressPeer::Tier(peer), 0),
                TierPeer::Pods { namespaces, pods } => {
                    self.selectors.add(self.cluster, None, Some(*namespaces), *pods);
                }
            }
        }
    }

    fn count_ports(&mut self, ports: &[PortRule]) {
        for port in ports {
            match port.port {
                PortMatch::Any => _ = self.ranges.insert((port.protocol, 0, u16::MAX)),
                PortMatch::Range(first, last) => _ = self.ranges.insert((port.protocol, first, last)),
                PortMatch::Named(_) => self.has_names = true,
            }
        }
    }

    /// Counts the blocks in every range between two cuts, and the ranges in every block.
    fn sweep<N: Number>(&mut self) {
        let mut cuts: Vec<(N, i64)> = Vec::new();
        let mut ranges: Vec<(AddressPeer<'c>, N, N)> = Vec::new();
        for (peer, number) in self.blocks.keys().copied().zip(1_i64..) {
            for (first, last) in ranges_within::<N>(self.cluster, peer) {
                // The block's number, negative where the block ends.
                cuts.push((first, number));
                cuts.extend(after(last).map(|end| (end, -number)));
                ranges.push((peer, first, last));
            }
        }
        // At one address, ends (negative numbers) sort before beginnings, so blocks that only touch never count as
        // overlapping.
        cuts.sort_unstable();
        let (mut active, mut set, mut known) = (0, 0_u64, HashSet::from([0]));
        for (_, block) in &cuts {
            active += block.signum();
            // Sets are compared by a sum that one addition updates. Exact sets, as classification has them, would cost
            // a good part of the classification that this estimate is to avoid.
            set = set.wrapping_add(mixed(block.unsigned_abs()).wrapping_mul(block.signum() as u64));
            // If several cuts have the same address, the sets between them are counted too.
            if known.insert(set) {
                self.segments += 1;
                self.pairs = self.pairs.saturating_add(active.unsigned_abs());
            }
        }
        let distinct = known.len() as u64;
        let pods: Vec<N> = {
            let addresses = self.cluster.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
            let of_family = addresses.map(|address| to_number(*address)).filter(|(family, _)| *family == N::FAMILY);
            let numbers: BTreeSet<N> = of_family.map(|(_, number)| N::of(number)).collect();
            numbers.into_iter().collect()
        };
        for (peer, first, last) in ranges {
            let pods = pods.partition_point(|at| *at <= last) - pods.partition_point(|at| *at < first);
            let within = cuts.partition_point(|(at, _)| *at <= last) - cuts.partition_point(|(at, _)| *at < first);
            // This assumes that sets recur inside a block as often as elsewhere.
            let share = within as u64 * distinct / cuts.len() as u64 + 1 + pods as u64;
            self.blocks.entry(peer).and_modify(|ranges| *ranges += share);
        }
    }

    /// Adds the cost of the peer classes; returns how many there can be.
    fn classes(&self, meter: &Meter) -> u64 {
        let pods = self.selectors.classes;
        let classes = 1 + self.segments + pods;
        let pairs = self.pairs.saturating_add(self.selectors.pairs);
        _ = meter.take(pairs.saturating_mul(PAIR_BYTES) + classes * CLASS_BYTES, pairs + self.selectors.steps);
        classes
    }

    /// The number of cuts between ports at which an atom can begin, from rules and from services.
    fn ports(&self, cluster: &Cluster, draft: &SubjectDraft, policies: &[PolicyId]) -> u64 {
        let judges_egress = policies.iter().any(|id| cluster.policy(*id).egress.is_some())
            || draft.tiers.iter().any(|id| cluster.tier_policy(*id).judges_leaving())
            || draft.lists.iter().any(|id| cluster.lists[id.index()].egress);
        let mut cuts: HashSet<(Protocol, u32)> = HashSet::new();
        let both = |first: u16, last: u16| [u32::from(first), u32::from(last) + 1];
        self.ranges.iter().for_each(|(of, first, last)| cuts.extend(both(*first, *last).map(|at| (*of, at))));
        if judges_egress {
            for port in cluster.services.iter().flat_map(|service| &service.ports) {
                cuts.extend(both(port.port, port.port).map(|at| (port.protocol, at)));
            }
        }
        let named = if self.has_names { cluster.endpoints.iter().map(|it| it.named_ports.len()).sum() } else { 0 };
        // However many pods name ports, no two atoms of a protocol begin at the same one of its 65,536 ports. The cut
        // behind port 65,535 begins no atom.
        (cuts.len() + 2 * named).min(3 * 65_536) as u64
    }

    /// The number of classes for which the peers of a policy hold, summed over the peers.
    fn holding(&self, cluster: &'c Cluster, id: PolicyId, direction: Direction) -> u64 {
        let policy = cluster.policy(id);
        let peers = policy.rules(direction).unwrap_or_default().iter().flat_map(|rule| &rule.peers);
        peers
            .map(|peer| match peer {
                Peer::Block { .. } => self.holding_of_addresses(AddressPeer::Block(peer)),
                Peer::Pods { namespaces, pods } => {
                    self.selectors.matched(cluster, namespaces.is_none().then_some(policy.namespace), *pods)
                }
            })
            .fold(0, u64::saturating_add)
    }

    /// The same for a cluster-wide policy.
    fn holding_of_tier(&self, cluster: &'c Cluster, id: TierPolicyId, direction: Direction) -> u64 {
        let rules = cluster.tier_policy(id).rules(direction).iter().filter_map(|rule| rule.matched.as_ref());
        let peers = rules.flat_map(|rule| &rule.peers);
        peers
            .map(|peer| match peer {
                TierPeer::Networks(_) | TierPeer::Nodes(_) => self.holding_of_addresses(AddressPeer::Tier(peer)),
                TierPeer::Pods { pods, .. } => self.selectors.matched(cluster, None, *pods),
            })
            .fold(0, u64::saturating_add)
    }

    fn holding_of_addresses(&self, peer: AddressPeer<'c>) -> u64 {
        self.blocks.get(&peer).copied().unwrap_or_default()
    }
}

/// Mixes the bits of a number, so that different sets of numbers do not have the same sum by chance. A tenant that
/// causes collisions lowers the estimate, but makes no table larger.
fn mixed(number: u64) -> u64 {
    // Constants and shifts of SplitMix64 (https://prng.di.unimi.it/splitmix64.c), without its last round. Sums of plain
    // numbers would be equal for {1, 4} and {2, 3}.
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// The ranges of addresses that a peer contains, in a family.
fn ranges_within<N: Number>(cluster: &Cluster, peer: AddressPeer<'_>) -> Vec<(N, N)> {
    match peer {
        AddressPeer::Block(Peer::Block { cidr, except }) if cidr.family() == N::FAMILY => {
            ranges_of_block(*cidr, except)
        }
        AddressPeer::Tier(TierPeer::Networks(networks)) => ranges_of_networks(networks),
        AddressPeer::Tier(TierPeer::Nodes(nodes)) => ranges_of_nodes(cluster, *nodes),
        AddressPeer::Block(_) | AddressPeer::Tier(_) => Vec::new(),
    }
}

/// A peer that selects addresses: of a NetworkPolicy, or of a cluster-wide policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum AddressPeer<'c> {
    Block(&'c Peer),
    Tier(&'c TierPeer),
}

/// Selectors of pods, by the condition that narrows them down.
#[derive(Default)]
struct Selectors<'c> {
    known: HashSet<(Option<NamespaceId>, Option<SelectorId>, SelectorId)>,
    /// The number of selectors that apply to every pod, to the pods of a namespace, or to the pods with a label.
    everywhere: u64,
    of_namespace: HashMap<NamespaceId, u64>,
    of_label: HashMap<(&'c str, &'c str), u64>,
    /// The number of labels and values that all selectors name together.
    size: u64,
    /// The number of groups: all of them, those of each namespace, and those with each label. A group consists of the
    /// pods of a namespace that have the same labels.
    classes: u64,
    groups_of_namespace: HashMap<NamespaceId, u64>,
    groups_of_label: HashMap<(&'c str, &'c str), u64>,
    pairs: u64,
    steps: u64,
}

impl<'c> Selectors<'c> {
    fn add(
        &mut self,
        cluster: &'c Cluster,
        own: Option<NamespaceId>,
        namespaces: Option<SelectorId>,
        pods: SelectorId,
    ) {
        let own = own.filter(|_| namespaces.is_none());
        // Equal selectors are one predicate in classification too.
        if !self.known.insert((own, namespaces, pods)) {
            return;
        }
        let selector = cluster.labels.selector(pods);
        self.size += selector.size();
        match (needed_label(selector), own) {
            (Some(label), _) => *self.of_label.entry(label).or_default() += 1,
            (None, Some(own)) => *self.of_namespace.entry(own).or_default() += 1,
            (None, None) => self.everywhere += 1,
        }
    }

    /// The number of groups that a selector can match.
    fn matched(&self, cluster: &Cluster, own: Option<NamespaceId>, pods: SelectorId) -> u64 {
        let of_namespace = |own| self.groups_of_namespace.get(&own).copied().unwrap_or_default();
        let narrow = own.map_or(self.classes, of_namespace);
        let label = needed_label(cluster.labels.selector(pods));
        label.map_or(narrow, |label| self.groups_of_label.get(&label).copied().unwrap_or_default().min(narrow))
    }

    /// Counts the groups, and the selectors that must be evaluated for each group.
    fn groups(&mut self, cluster: &'c Cluster) {
        // Without selectors no labels distinguish pods, so there are no groups, and the pods need not be visited.
        if self.known.is_empty() {
            return;
        }
        let members = cluster.endpoints.iter().filter(|it| it.standing == Standing::Member);
        let groups: BTreeSet<(NamespaceId, LabelSetId)> = members.map(|it| (it.namespace, it.labels)).collect();
        // The average instead of each selector's size for each group: the latter is the product that the estimate must
        // not compute.
        let average = self.size / self.known.len() as u64 + 1;
        for (namespace, labels) in &groups {
            *self.groups_of_namespace.entry(*namespace).or_default() += 1;
            let mut labelled = 0;
            for label in cluster.labels.labels(*labels) {
                let Some(selectors) = self.of_label.get(&label) else { continue };
                labelled += selectors;
                *self.groups_of_label.entry(label).or_default() += 1;
            }
            let held = self.everywhere + self.of_namespace.get(namespace).copied().unwrap_or_default() + labelled;
            self.pairs += held;
            self.steps = self.steps.saturating_add(held.saturating_mul(average));
        }
        self.classes = groups.len() as u64;
    }
}
