//! The rules, lists and services behind each entry of the tables, from the classes.

use std::sync::Arc;

use weir_artifact::Provenance;
use weir_artifact::provenance::{
    DescribedPolicy, ProvenanceList, ProvenancePolicy, ProvenanceRule, ProvenanceSubject, ProvenanceTier,
};
use weir_classes::{AtomSet, Atoms, Classes, PolicyDraft, Predicate, RuleParts, VipPort};
use weir_model::{Cluster, Direction, ListAction, PolicyId, RuleAction, TierPolicyId};
use weir_objects::origin::{FieldOrigin, FieldPath};

/// The descriptions of policies in the last manifest, for the next one. Most policies are the same then, and with
/// thousands of policies, their descriptions take longer than the rest of an artifact.
///
/// Invariant: a manifest that takes descriptions from here is byte for byte the one that is made without them. For this,
/// a description is taken only if the policy has the same rules, name and mode, and if no range of ports that is in
/// force has other atoms.
#[derive(Debug, Default)]
pub struct DescribedPolicies {
    atoms: Option<Atoms>,
    known: Vec<Described>,
    taken: usize,
}

/// A policy's rules, and their description.
type Described = (PolicyDraft, Arc<DescribedPolicy>);

/// The descriptions of the last manifest. Both manifests have the policies in the same order, so both lists are walked
/// together.
struct KnownPolicies {
    list: Vec<Described>,
    next: usize,
}

impl KnownPolicies {
    /// The description of a policy, if it has the same rules and mode. `order` is its place among all policies.
    fn find(&mut self, draft: &PolicyDraft, order: PolicyOrder<'_>) -> Option<&Arc<DescribedPolicy>> {
        while self.list.get(self.next).is_some_and(|(_, known)| order_of(known) < order) {
            self.next += 1;
        }
        let (known, description) = self.list.get(self.next)?;
        (known == draft && order_of(description) == order).then_some(description)
    }
}

/// Whether a policy is only reported; its namespace and its name.
type PolicyOrder<'p> = (bool, &'p str, &'p str);

fn order_of(known: &DescribedPolicy) -> PolicyOrder<'_> {
    let (namespace, name) = known.name.split_once('/').unwrap_or_default();
    (known.is_audit, namespace, name)
}

impl DescribedPolicies {
    /// How many descriptions the last manifest took from the one before.
    pub fn taken(&self) -> usize {
        self.taken
    }

    fn begin(&mut self, classes: &Classes) -> KnownPolicies {
        self.taken = 0;
        let is_kept = self.atoms.as_ref().is_some_and(|before| classes.atoms.keeps(before));
        self.atoms = Some(classes.atoms.clone());
        let before = std::mem::take(&mut self.known);
        KnownPolicies { list: if is_kept { before } else { Vec::new() }, next: 0 }
    }
}

/// Descriptions without positions, as far as possible those of the last manifest.
fn described(cluster: &Cluster, classes: &Classes, last: &mut DescribedPolicies) -> Vec<Arc<DescribedPolicy>> {
    let mut before = last.begin(classes);
    let describe = |id: PolicyId| {
        let draft = classes.draft_of(id);
        let policy_in_force = cluster.policy(id);
        let namespace = &cluster.namespaces[policy_in_force.namespace.index()].name;
        let known = before.find(&draft, (cluster.is_audit(id), namespace, &policy_in_force.name));
        last.taken += usize::from(known.is_some());
        let description =
            known.cloned().unwrap_or_else(|| Arc::new(policy(cluster, classes, id, &mut |_| None).into()));
        last.known.push((draft, Arc::clone(&description)));
        description
    };
    classes.policies().into_iter().map(describe).collect()
}

/// The positions of origins, or the last manifest if none has a position.
pub enum Positions<'a> {
    /// Finds the position of an origin.
    Of(&'a mut dyn FnMut(&FieldOrigin) -> Option<String>),
    /// No object came from a file.
    None(&'a mut DescribedPolicies),
}

/// The provenance of these classes.
pub fn provenance(cluster: &Cluster, classes: &Classes, positions: &mut Positions<'_>) -> Provenance {
    let predicates = vec![Vec::new(); classes.predicates().len()];
    let mut made = Provenance { predicates, ..Provenance::default() };
    let (policies, lists) = (classes.policies(), classes.lists());
    let mut nowhere = |_: &FieldOrigin| None;
    let place: &mut dyn FnMut(&FieldOrigin) -> Option<String> = match positions {
        Positions::Of(place) => {
            let one = |id: &PolicyId| Arc::new(policy(cluster, classes, *id, place).into());
            made.policies = policies.iter().map(one).collect();
            place
        }
        Positions::None(last) => {
            made.policies = described(cluster, classes, last);
            &mut nowhere
        }
    };
    let tiers = classes.tiers();
    for id in &tiers {
        made.tiers.push(tier(cluster, classes, *id, place));
    }
    for id in &lists {
        let list = &cluster.lists[id.index()];
        let predicate = classes.predicates().iter().position(|it| *it == Predicate::List(*id));
        made.lists.push(ProvenanceList {
            name: list.name.clone(),
            place: place(&FieldOrigin::new(list.object, FieldPath::root())),
            action: if list.action == ListAction::Deny { "Deny" } else { "Allow" },
            asked: [list.ingress, list.egress],
            predicate: predicate.map_or(u32::MAX, |index| index as u32),
        });
    }
    for subject in &classes.subjects {
        let number = |at: Result<usize, usize>| at.unwrap_or_else(|at| at) as u32;
        let of_list = |id| lists.iter().position(|it| it == id).map(|index| index as u32);
        let numbers = |ids: &[PolicyId]| ids.iter().map(|id| number(policies.binary_search(id))).collect();
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

fn add_peers(made: &mut Provenance, cluster: &Cluster, classes: &Classes) {
    for (number, peer) in (0..).zip(classes.peers.iter()) {
        peer.predicates.iter().for_each(|id| made.predicates[id.index()].push(number));
        if !peer.named.is_empty() {
            made.named.push((number, named(classes, Direction::Egress, &peer.named)));
        }
        let vip = peer.vip.and_then(|vip| classes.vips.get(vip as usize));
        let port = |it: &VipPort| (it.atom.0, service_port(cluster, it));
        let of_service = vip.into_iter().flat_map(|vip| &vip.ports).map(port);
        let host_port = |index: &u32| {
            let it = cluster.host_ports.get(*index as usize)?;
            Some((classes.atoms.find(it.protocol, it.port).0, cluster.host_port_name(*index as usize)))
        };
        let stands_for: Vec<_> = of_service.chain(peer.host_ports.iter().filter_map(host_port)).collect();
        if !stands_for.is_empty() {
            made.services.push((number, stands_for));
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

fn service_port(cluster: &Cluster, vip: &VipPort) -> String {
    let port = &cluster.services[vip.service.index()].ports[vip.port as usize];
    // Not `format!`: an agent names thousands of ports for each generation, and formatting would take most of the time.
    [&cluster.service_name(vip.service), " ", &port.port.to_string(), "/", port.protocol.name()].concat()
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
