//! The rules, lists and services behind each entry of the tables, from the classes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use weir_artifact::Provenance;
use weir_artifact::provenance::{
    DescribedPolicies, PredicatePeers, ProvenanceList, ProvenancePolicy, ProvenanceRule, ProvenanceSubject,
    ProvenanceTier,
};
use weir_classes::{AtomSet, Atoms, Classes, PeerClass, PolicyRulesId, Predicate, RuleParts, VipPort};
use weir_model::{Cluster, Direction, ListAction, ListId, PolicyId, RuleAction, TierPolicyId};
use weir_objects::origin::{FieldOrigin, FieldPath};

/// The descriptions of policies and predicates in the last manifest, for the next one. Most policies are the same then,
/// and with thousands of policies, their descriptions take longer than the rest of an artifact.
///
/// Strategy: policies are described in groups of about [`GROUP`]. The description of a group is used again if the same
/// policies follow each other, whatever their numbers are. If a policy comes, changes or goes, its group is described
/// again, and sometimes the one beside it.
/// Invariant: a manifest that takes descriptions from here is byte for byte the one that is made without them. For
/// this, a description is taken only if the policies have the same rules, names and modes, and if no range of ports
/// that is in force has other atoms.
#[derive(Debug, Default)]
pub struct LastDescriptions {
    atoms: Option<Atoms>,
    known: Vec<KnownDescription>,
    predicates: Option<KnownPredicates>,
    taken: usize,
}

/// The peer classes of all predicates, and the classes that they were made from.
#[derive(Debug)]
struct KnownPredicates {
    of: Arc<Vec<PeerClass>>,
    peers: Arc<PredicatePeers>,
}

impl KnownPredicates {
    fn are_of(&self, classes: &Classes) -> bool {
        Arc::ptr_eq(&self.of, &classes.peers) && self.peers.predicates() == classes.predicates().len()
    }
}

/// The usual number of policies in a group.
const GROUP: usize = 16;

/// The descriptions of a group of policies.
#[derive(Clone, Debug)]
struct KnownDescription {
    policies: Vec<Option<PolicyRulesId>>,
    described: Arc<DescribedPolicies>,
}

impl LastDescriptions {
    /// How many descriptions of policies the last manifest took from the one before.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// The peer classes of all predicates.
    fn predicates(&mut self, classes: &Classes) -> Arc<PredicatePeers> {
        let known = self.predicates.take().filter(|known| known.are_of(classes));
        let made = || KnownPredicates { of: Arc::clone(&classes.peers), peers: Arc::new(predicates(classes)) };
        Arc::clone(&self.predicates.insert(known.unwrap_or_else(made)).peers)
    }

    fn begin(&mut self, classes: &Classes) -> Vec<KnownDescription> {
        self.taken = 0;
        let is_kept = self.atoms.as_ref().is_some_and(|before| classes.atoms.keeps(before));
        self.atoms = Some(classes.atoms.clone());
        let before = std::mem::take(&mut self.known);
        if is_kept { before } else { Vec::new() }
    }
}

/// Descriptions of sorted policies without positions, as far as possible those of the last manifest.
fn described(
    cluster: &Cluster,
    classes: &Classes,
    policies: &[PolicyId],
    last: &mut LastDescriptions,
) -> Vec<Arc<DescribedPolicies>> {
    let has_rules = |known: &KnownDescription| known.policies.iter().all(Option::is_some);
    let with_first = |known: KnownDescription| Some((known.policies.first()?.clone(), known));
    let before = last.begin(classes).into_iter().filter(has_rules);
    let mut before: HashMap<_, _> = before.filter_map(with_first).collect();
    let rules: Vec<Option<PolicyRulesId>> = policies.iter().map(|id| classes.rules_id(*id)).collect();
    let describe = |id: &PolicyId| policy(cluster, classes, *id, &mut |_| None);
    let make = |of: Range<usize>| KnownDescription {
        policies: rules[of.clone()].to_vec(),
        described: Arc::new(policies[of].iter().map(describe).collect::<Vec<_>>().into()),
    };
    // The policies `from..at` have no description yet.
    let (mut from, mut at) = (0, 0);
    while at < rules.len() {
        let is_same = |known: &KnownDescription| rules[at..].starts_with(&known.policies);
        // A few policies are described together with the group after them: otherwise groups would get ever smaller.
        let may_take = at == from || at - from >= GROUP / 2;
        match before.remove(&rules[at]).filter(|known| may_take && is_same(known)) {
            Some(known) => {
                last.known.extend(groups(from..at).map(make));
                last.taken += known.policies.len();
                at += known.policies.len();
                from = at;
                last.known.push(known);
            }
            None => at += 1,
        }
    }
    // The same for a few policies at the end, with the group in front of them.
    if let Some(group) = last.known.pop_if(|_| (1..GROUP / 2).contains(&(at - from))) {
        from -= group.policies.len();
        last.taken -= group.policies.len();
    }
    last.known.extend(groups(from..at).map(make));
    last.known.iter().map(|known| Arc::clone(&known.described)).collect()
}

/// Divides positions into groups of about [`GROUP`], of nearly the same size.
fn groups(all: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let count = (all.len() + GROUP / 2) / GROUP;
    let count = if all.is_empty() { 0 } else { count.max(1) };
    (0..count).map(move |group| {
        let [start, end] = [group, group + 1].map(|it| all.start + it * all.len() / count);
        start..end
    })
}

/// The positions of origins, or the last manifest if none has a position.
pub enum Positions<'a> {
    /// Finds the position of an origin.
    Of(&'a mut dyn FnMut(&FieldOrigin) -> Option<String>),
    /// No object came from a file.
    None(&'a mut LastDescriptions),
}

/// The provenance of these classes.
pub fn provenance(cluster: &Cluster, classes: &Classes, positions: &mut Positions<'_>) -> Provenance {
    let predicates = match positions {
        Positions::Of(_) => Arc::new(predicates(classes)),
        Positions::None(last) => last.predicates(classes),
    };
    let mut made = Provenance { predicates, ..Provenance::default() };
    let (policies, lists) = (classes.policies(), classes.lists());
    let mut nowhere = |_: &FieldOrigin| None;
    let place: &mut dyn FnMut(&FieldOrigin) -> Option<String> = match positions {
        Positions::Of(place) => {
            let all: Vec<_> = policies.iter().map(|id| policy(cluster, classes, *id, place)).collect();
            made.policies.extend((!all.is_empty()).then(|| Arc::new(all.into())));
            place
        }
        Positions::None(last) => {
            made.policies = described(cluster, classes, &policies, last);
            &mut nowhere
        }
    };
    let tiers = classes.tiers();
    for id in &tiers {
        made.tiers.push(tier(cluster, classes, *id, place));
    }
    let of_lists = if lists.is_empty() { BTreeMap::new() } else { predicates_of_lists(classes) };
    for id in &lists {
        let list = &cluster.lists[id.index()];
        made.lists.push(ProvenanceList {
            name: list.name.clone(),
            place: place(&FieldOrigin::new(list.object, FieldPath::root())),
            action: if list.action == ListAction::Deny { "Deny" } else { "Allow" },
            asked: [list.ingress, list.egress],
            predicate: of_lists.get(id).copied().unwrap_or(u32::MAX),
        });
    }
    let mut places = vec![0; policies.last().map_or(0, |last| last.index() + 1)];
    (0..).zip(&policies).for_each(|(place, id)| places[id.index()] = place);
    for subject in &classes.subjects {
        let number = |at: Result<usize, usize>| at.unwrap_or_else(|at| at) as u32;
        let of_list = |id| lists.binary_search(id).ok().map(|index| index as u32);
        let numbers = |ids: &[PolicyId]| ids.iter().map(|id| places[id.index()]).collect();
        made.subjects.push(ProvenanceSubject {
            policies: numbers(&subject.policies),
            audit: numbers(subject.audit()),
            tiers: subject.all_tiers().map(|id| number(tiers.binary_search(&id))).collect(),
            lists: subject.lists.iter().filter_map(of_list).collect(),
            named: named(classes, Direction::Ingress, &subject.named),
        });
    }
    add_peers(&mut made, cluster, classes);
    made
}

/// The number of each list's predicate, the first one if it has several.
fn predicates_of_lists(classes: &Classes) -> BTreeMap<ListId, u32> {
    let list = |(number, predicate): (usize, &Predicate)| match predicate {
        Predicate::List(id) => Some((*id, number as u32)),
        _ => None,
    };
    classes.predicates().iter().enumerate().rev().filter_map(list).collect()
}

fn predicates(classes: &Classes) -> PredicatePeers {
    let mut peers = vec![Vec::new(); classes.predicates().len()];
    for (number, peer) in (0..).zip(classes.peers.iter()) {
        peer.predicates.iter().for_each(|id| peers[id.index()].push(number));
    }
    peers.into()
}

fn add_peers(made: &mut Provenance, cluster: &Cluster, classes: &Classes) {
    let mut name = String::new();
    for (number, peer) in (0..).zip(classes.peers.iter()) {
        if !peer.named.is_empty() {
            made.named.push((number, named(classes, Direction::Egress, &peer.named)));
        }
        let vip = peer.vip.and_then(|vip| classes.vips.get(vip as usize));
        let mut ports = made.services.of_peer(number);
        for port in vip.into_iter().flat_map(|vip| &vip.ports) {
            write_service_port(cluster, port, &mut name);
            ports.add(port.atom.0, &name);
        }
        for index in &peer.host_ports {
            if let Some(it) = cluster.host_ports.get(*index as usize) {
                ports.add(classes.atoms.find(it.protocol, it.port).0, &cluster.host_port_name(*index as usize));
            }
        }
    }
}

fn policy(
    cluster: &Cluster,
    classes: &Classes,
    id: PolicyId,
    place: &mut dyn FnMut(&FieldOrigin) -> Option<String>,
) -> ProvenancePolicy {
    let policy = cluster.policy(id);
    let rules = Direction::ALL.map(|direction| {
        let drafted = classes.drafted(id, direction)?;
        let rule = |(index, parts): (usize, RuleParts)| rule(place(&policy.rule_origin(direction, index)), parts);
        Some(drafted.into_iter().enumerate().map(rule).collect())
    });
    let place = place(&FieldOrigin::new(policy.object, FieldPath::root()));
    ProvenancePolicy { name: cluster.policy_name(id), is_audit: cluster.is_audit(id), place, rules }
}

fn tier(
    cluster: &Cluster,
    classes: &Classes,
    id: TierPolicyId,
    place: &mut dyn FnMut(&FieldOrigin) -> Option<String>,
) -> ProvenanceTier {
    let policy = cluster.tier_policy(id);
    let rules = Direction::ALL.map(|direction| {
        let drafted = classes.drafted_tier(id, direction).into_iter().enumerate();
        let mut rule = |(index, (action, parts)): (usize, (RuleAction, Option<RuleParts>))| {
            let place = place(&policy.rule_origin(direction, index));
            (action.name(), parts.map(|parts| rule(place, parts)))
        };
        drafted.map(&mut rule).collect()
    });
    ProvenanceTier {
        name: cluster.tier_policy_name(id),
        tier: policy.tier.name(),
        is_audit: policy.is_audit,
        place: place(&FieldOrigin::new(policy.object, FieldPath::root())),
        rules,
    }
}

fn rule(place: Option<String>, parts: RuleParts) -> ProvenanceRule {
    ProvenanceRule {
        place,
        predicates: parts.predicates.map(|ids| ids.iter().map(|id| id.0).collect()),
        atoms: parts.atoms.as_ref().map(ranges),
        names: parts.names,
    }
}

fn named(classes: &Classes, direction: Direction, named: &[(u32, u16)]) -> Vec<(u32, u32)> {
    let names = match direction {
        Direction::Ingress => &classes.atoms.ingress_names,
        Direction::Egress => &classes.atoms.egress_names,
    };
    named.iter().map(|(name, number)| (*name, classes.atoms.find(names[*name as usize].0, *number).0)).collect()
}

/// Writes `namespace/service port/protocol`.
fn write_service_port(cluster: &Cluster, vip: &VipPort, out: &mut String) {
    let service = &cluster.services[vip.service.index()];
    let port = &service.ports[vip.port as usize];
    out.clear();
    // Not `format!`: an agent names thousands of ports for each generation, and formatting would take most of the time.
    let namespace = cluster.namespaces[service.namespace.index()].name.as_str();
    let number = port.port.to_string();
    out.extend([namespace, "/", &service.name, " ", &number, "/", port.protocol.name()]);
}

/// The first and last atom of every run of atoms.
fn ranges(set: &AtomSet) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for atom in set.atoms().map(|it| it.0) {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == atom => *last = atom,
            _ => found.push((atom, atom)),
        }
    }
    found
}
