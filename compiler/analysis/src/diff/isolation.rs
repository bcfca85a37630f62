//! Isolation that begins or ends, by endpoint and direction; and the policies that changed.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster_side::ClusterSide;
use super::tables::isolating;
use super::{DiffEndpoint, IsolationChange};
use weir_model::{Cluster, Direction, EndpointId, Peer, Policy, PolicyId, Rule};
use weir_objects::k8s::LabelSelector;

/// The changes for endpoints that exist on both sides.
pub(super) fn changes(sides: &[Option<ClusterSide<'_>>; 2], endpoints: &[DiffEndpoint]) -> Vec<IsolationChange> {
    // A survey has no base, and so no isolation that could begin.
    let [Some(base), Some(head)] = sides else { return Vec::new() };
    let mut found: BTreeMap<(Direction, bool, Vec<PolicyId>), Vec<u32>> = BTreeMap::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        // For a new endpoint, all of its traffic is in the rows as new. "Its isolation begins" would add nothing.
        let [Some(before), Some(after)] = endpoint.ids else { continue };
        for direction in Direction::ALL {
            // Whether any policy isolates is the change with the largest effect. Other policies in addition are only
            // rules in rows.
            let (was, is) = (of(base, before, direction), of(head, after, direction));
            let change = match (was.is_empty(), is.is_empty()) {
                (true, false) => (direction, true, is),
                (false, true) => (direction, false, was),
                _ => continue,
            };
            found.entry(change).or_default().push(index as u32);
        }
    }
    let make = |((direction, begins, policies), endpoints)| IsolationChange { direction, begins, endpoints, policies };
    found.into_iter().map(make).collect()
}

/// The policies that isolate an endpoint.
pub(super) fn of(side: &ClusterSide<'_>, id: EndpointId, direction: Direction) -> Vec<PolicyId> {
    let subject = side.subject(id);
    subject.map_or(Vec::new(), |subject| isolating(side.cluster, &side.classes, direction, subject).collect())
}

/// For each side, the policies that the other side lacks or has in another form.
pub(super) fn changed_policies(sides: &[Option<ClusterSide<'_>>; 2]) -> [BTreeSet<PolicyId>; 2] {
    let [Some(base), Some(head)] = sides else { return Default::default() };
    let by_name = |cluster: &Cluster| -> BTreeMap<String, PolicyId> {
        // By name, because the two clusters number their policies differently. Audit policies isolate nothing and are
        // left out.
        (0..cluster.policies.len() as u32).map(|id| (cluster.policy_name(PolicyId(id)), PolicyId(id))).collect()
    };
    let names = [by_name(base.cluster), by_name(head.cluster)];
    let mut changed = [BTreeSet::new(), BTreeSet::new()];
    for (which, other) in [(0, 1), (1, 0)] {
        for (name, id) in &names[which] {
            let clusters = if which == 0 { [base.cluster, head.cluster] } else { [head.cluster, base.cluster] };
            // A renamed policy counts as changed on both sides, even if its content is the same: nothing else
            // identifies it.
            let same = names[other].get(name).is_some_and(|it| is_same(clusters, *id, *it));
            if !same {
                changed[which].insert(*id);
            }
        }
    }
    changed
}

/// Whether two policies have the same content, each in its own cluster.
fn is_same(clusters: [&Cluster; 2], one: PolicyId, other: PolicyId) -> bool {
    let (one, other) = (&clusters[0].policies[one.index()], &clusters[1].policies[other.index()]);
    let subjects = |which: usize, policy: &Policy| clusters[which].labels.selector(policy.subjects).clone();
    subjects(0, one) == subjects(1, other)
        && Direction::ALL.iter().all(|direction| {
            let spoken = |which: usize, policy: &Policy| {
                let rules = policy.rules(*direction)?;
                // In the order written: rules in another order mean the same and count as changed. That only decides
                // which policies a row names, and the author did change this policy.
                Some(rules.iter().map(|rule| spelled(clusters[which], rule)).collect::<Vec<_>>())
            };
            spoken(0, one) == spoken(1, other)
        })
}

/// A rule with the selectors themselves instead of their numbers.
type Spelled = (Vec<SpelledPeer>, Vec<weir_model::PortRule>);

#[derive(PartialEq)]
enum SpelledPeer {
    Pods(Option<LabelSelector>, LabelSelector),
    Block(Peer),
}

fn spelled(cluster: &Cluster, rule: &Rule) -> Spelled {
    let selector = |id| cluster.labels.selector(id).clone();
    let peer = |peer: &Peer| match peer {
        Peer::Pods { namespaces, pods } => SpelledPeer::Pods(namespaces.map(selector), selector(*pods)),
        Peer::Block { .. } => SpelledPeer::Block(peer.clone()),
    };
    (rule.peers.iter().map(peer).collect(), rule.ports.clone())
}
