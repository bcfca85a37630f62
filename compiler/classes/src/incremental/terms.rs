//! The terms of rules: predicates and names of ports. Changed policies add terms, and leave unused ones behind.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Maintained, NeedsWhole};
use crate::PredicateId;
use crate::predicates::{DraftRule, Predicate, RulePredicates, peer_predicate};
use crate::sources::RulePlace;
use weir_model::{Cluster, Direction, Policy, PolicyId, PortMatch, Protocol};
use weir_objects::origin::{FieldOrigin, ObjectId};

/// How many rules contain each term.
#[derive(Debug)]
pub(super) struct Uses {
    predicates: Vec<u32>,
    /// By direction and name.
    names: [Vec<u32>; 2],
}

impl Uses {
    pub(super) fn new(rules: &RulePredicates) -> Self {
        let names = [&rules.ingress_names, &rules.egress_names].map(|names| vec![0; names.len()]);
        let mut uses = Self { predicates: vec![0; rules.predicates.len()], names };
        rules.all().for_each(|(direction, rule)| uses.change(direction, rule, 1));
        // A list uses its predicate. Lists neither come nor go here.
        for (count, predicate) in uses.predicates.iter_mut().zip(&rules.predicates) {
            *count += u32::from(matches!(predicate, Predicate::List(_)));
        }
        uses
    }

    pub(super) fn change(&mut self, direction: Direction, rule: &DraftRule, by: i32) {
        let add = |count: &mut u32| *count = count.saturating_add_signed(by);
        for id in rule.peers.iter().flatten() {
            self.predicates.get_mut(id.index()).map(add);
        }
        for name in rule.ports.iter().flat_map(|ports| &ports.named) {
            self.names[direction as usize].get_mut(*name as usize).map(add);
        }
    }

    /// An error if too many terms occur in no rule any more.
    pub(super) fn check(&self) -> Result<(), NeedsWhole> {
        let unused = self.predicates.iter().chain(self.names.iter().flatten()).filter(|count| **count == 0);
        if unused.count() > super::MOST_UNUSED { Err(NeedsWhole::Unused) } else { Ok(()) }
    }
}

/// The terms that no rule had before.
#[derive(Debug, Default)]
pub(super) struct NewTerms {
    pub(super) predicates: Vec<PredicateId>,
    /// Numbers of names, by direction.
    pub(super) names: [Vec<u32>; 2],
}

impl Maintained {
    /// Whether an egress rule in force names this port.
    pub(crate) fn knows_name(&self, name: &str, protocol: Protocol) -> bool {
        self.classes.rules.ids[Direction::Egress as usize].get(name, protocol).is_some()
    }

    /// Adds the terms of these policies' rules that no rule in force has yet.
    pub(super) fn add_terms(&mut self, policies: &[PolicyId]) -> NewTerms {
        let mut new = NewTerms::default();
        let cluster = Arc::clone(&self.cluster);
        for policy in policies.iter().map(|id| cluster.policy(*id)) {
            for (place, index, peer) in peers_of(policy) {
                let predicate = peer_predicate(Some(policy.namespace), peer);
                if !self.ids.contains_key(&predicate) {
                    let id = Arc::make_mut(&mut self.classes.rules).add_predicate(predicate.clone());
                    self.ids.insert(predicate, id);
                    self.origins.predicates.push(place.peer(index));
                    self.uses.predicates.push(0);
                    new.predicates.push(id);
                }
            }
            for (place, index, name, protocol) in names_of(policy) {
                let direction = place.direction as usize;
                if self.classes.rules.ids[direction].get(name, protocol).is_none() {
                    let number = Arc::make_mut(&mut self.classes.rules).add_name(place.direction, name, protocol);
                    self.origins.names(place.direction).push(place.port(index));
                    self.uses.names[direction].push(0);
                    new.names[direction].push(number);
                }
            }
        }
        new
    }

    /// Finds other positions for terms whose first position was in a policy that is gone or has changed.
    pub(super) fn replace_origins(&mut self, old: &[Policy]) {
        let objects: Vec<_> = old.iter().map(|policy| policy.object).collect();
        self.replace_origins_of_predicates(&objects);
        Direction::ALL.into_iter().for_each(|direction| self.replace_origins_of_names(direction, &objects));
    }

    fn replace_origins_of_predicates(&mut self, objects: &[ObjectId]) {
        let of_gone = self.origins.predicates.iter().zip(&self.classes.rules.predicates).enumerate();
        let stale = of_gone.filter(|(_, (origin, _))| objects.contains(&origin.object));
        let stale: HashMap<Predicate, PredicateId> =
            stale.map(|(index, (_, predicate))| (predicate.clone(), PredicateId(index as u32))).collect();
        let mut found: BTreeSet<PredicateId> = BTreeSet::new();
        for policy in policies(&self.cluster) {
            if found.len() == stale.len() {
                return;
            }
            for (place, index, peer) in peers_of(policy) {
                let predicate = stale.get(&peer_predicate(Some(policy.namespace), peer));
                if let Some(id) = predicate.filter(|id| found.insert(**id)) {
                    self.origins.predicates[id.index()] = place.peer(index);
                }
            }
        }
    }

    fn replace_origins_of_names(&mut self, direction: Direction, objects: &[ObjectId]) {
        let origins = self.origins.names(direction);
        let mut stale: BTreeSet<u32> =
            (0..).zip(&*origins).filter(|(_, origin)| objects.contains(&origin.object)).map(|(id, _)| id).collect();
        let mut renewed: HashMap<FieldOrigin, FieldOrigin> = HashMap::new();
        for policy in policies(&self.cluster) {
            if stale.is_empty() {
                break;
            }
            for (place, index, name, protocol) in names_of(policy).filter(|(place, ..)| place.direction == direction) {
                let number = self.classes.rules.ids[direction as usize].get(name, protocol);
                if let Some(number) = number.filter(|number| stale.remove(number)) {
                    let origin = place.port(index);
                    let before = std::mem::replace(&mut origins[number as usize], origin.clone());
                    renewed.insert(before, origin);
                }
            }
        }
        // Ranges that pods' named ports need have the position of the name.
        for used in self.specs.values_mut().filter(|_| !renewed.is_empty()) {
            if let Some(origin) = renewed.get(&used.origin) {
                used.origin.clone_from(origin);
            }
        }
    }
}

fn policies(cluster: &Cluster) -> impl Iterator<Item = &Policy> {
    cluster.policies.iter().chain(&cluster.audit)
}

/// The rules of a policy.
fn rules_of(policy: &Policy) -> impl Iterator<Item = (RulePlace<'_>, &weir_model::Rule)> {
    Direction::ALL.into_iter().flat_map(move |direction| {
        let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
        rules.map(move |(rule, of_rule)| (RulePlace::of_policy(policy, direction, rule), of_rule))
    })
}

/// The peers of a policy, with their rules and indices.
fn peers_of(policy: &Policy) -> impl Iterator<Item = (RulePlace<'_>, usize, &weir_model::Peer)> {
    rules_of(policy)
        .flat_map(|(place, rule)| rule.peers.iter().enumerate().map(move |(index, peer)| (place, index, peer)))
}

/// The named ports of a policy, with their rules and indices.
fn names_of(policy: &Policy) -> impl Iterator<Item = (RulePlace<'_>, usize, &str, Protocol)> {
    rules_of(policy).flat_map(|(place, rule)| {
        rule.ports.iter().enumerate().filter_map(move |(index, port)| match &port.port {
            PortMatch::Named(name) => Some((place, index, name.as_str(), port.protocol)),
            PortMatch::Any | PortMatch::Range(..) => None,
        })
    })
}
