//! The terms of rules: predicates and names of ports. Changed policies add terms, and leave unused ones behind.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Effect, Maintained, NeedsWhole};
use crate::PredicateId;
use crate::predicates::{DraftRule, Predicate, RulePredicates, RuleTerms, TermOrigins, peer_predicate, tier_predicate};
use crate::sources::RulePlace;
use weir_model::{Direction, Policy, PolicyId, PortMatch, PortRule, Protocol, TierPolicy, TierPolicyId};
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
        // A list uses its predicate.
        rules.of_lists().into_values().for_each(|id| uses.set_list(id, true));
        uses
    }

    /// Records whether a predicate is that of a list.
    pub(super) fn set_list(&mut self, id: PredicateId, is_used: bool) {
        self.predicates.resize(self.predicates.len().max(id.index() + 1), 0);
        // No rule has it.
        self.predicates[id.index()] = u32::from(is_used);
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

impl NewTerms {
    /// Adds the terms of other policies.
    pub(super) fn extend(&mut self, other: Self) {
        self.predicates.extend(other.predicates);
        self.names.iter_mut().zip(other.names).for_each(|(names, other)| names.extend(other));
    }
}

impl Maintained {
    /// Whether an egress rule in force names this port.
    pub(crate) fn knows_name(&self, name: &str, protocol: Protocol) -> bool {
        self.classes.rules.ids[Direction::Egress as usize].get(name, protocol).is_some()
    }

    /// Adds the terms of these policies' rules that no rule in force has yet.
    pub(super) fn add_terms(&mut self, policies: &[PolicyId], tiers: &[TierPolicyId]) -> NewTerms {
        let mut new = NewTerms::default();
        let cluster = Arc::clone(&self.cluster);
        let add = &mut |place: RulePlace<'_>, index, term: Term<'_>| self.add_term(place, index, term, &mut new);
        policies.iter().for_each(|id| each_term(cluster.policy(*id), add));
        tiers.iter().for_each(|id| each_term_of_tier(cluster.tier_policy(*id), add));
        new
    }

    fn add_term(&mut self, place: RulePlace<'_>, index: usize, term: Term<'_>, new: &mut NewTerms) {
        let direction = place.direction as usize;
        match term {
            Term::Peer(predicate) if !self.ids.contains_key(&predicate) => {
                let id = Arc::make_mut(&mut self.classes.rules).add_predicate(predicate.clone());
                self.ids.insert(predicate, id);
                self.origins.predicates.push(place.peer(index));
                self.uses.predicates.push(0);
                new.predicates.push(id);
            }
            Term::Name(name, protocol) if self.classes.rules.ids[direction].get(name, protocol).is_none() => {
                let number = Arc::make_mut(&mut self.classes.rules).add_name(place.direction, name, protocol);
                self.origins.names(place.direction).push(place.port(index));
                self.uses.names[direction].push(0);
                new.names[direction].push(number);
            }
            Term::Peer(_) | Term::Name(..) => {}
        }
    }

    /// Finds other positions for terms whose first position was in an object that is gone or has changed.
    pub(super) fn replace_origins(&mut self, old: &[ObjectId], effect: &mut Effect) {
        let mut stale = StaleTerms::new(&mut self.origins, &self.classes.rules, &self.ids, old);
        let cluster = &self.cluster;
        for policy in cluster.policies.iter().chain(&cluster.audit) {
            if stale.is_empty() {
                break;
            }
            each_term(policy, &mut |place, index, term| stale.found(place, index, &term));
        }
        for id in &self.draft.tiers {
            each_term_of_tier(cluster.tier_policy(*id), &mut |place, index, term| stale.found(place, index, &term));
        }
        effect.changes_origins |= stale.is_any_other;
        // Ranges that pods' named ports need have the position of the name.
        let renewed = stale.renewed;
        for used in self.specs.values_mut().filter(|_| !renewed.is_empty()) {
            if let Some(origin) = renewed.get(&used.origin) {
                used.origin.clone_from(origin);
            }
        }
    }
}

/// Terms whose position is not known any more.
struct StaleTerms<'m> {
    origins: &'m mut TermOrigins,
    rules: &'m RuleTerms,
    ids: &'m HashMap<Predicate, PredicateId>,
    predicates: BTreeSet<PredicateId>,
    /// By direction.
    names: [BTreeSet<u32>; 2],
    /// The new position of each earlier position of a name.
    renewed: HashMap<FieldOrigin, FieldOrigin>,
    /// Whether a new position differs from the earlier one.
    is_any_other: bool,
}

impl<'m> StaleTerms<'m> {
    fn new(
        origins: &'m mut TermOrigins,
        rules: &'m RuleTerms,
        ids: &'m HashMap<Predicate, PredicateId>,
        old: &[ObjectId],
    ) -> Self {
        let of_old = |origins: &[FieldOrigin]| -> Vec<u32> {
            let numbered = (0..).zip(origins);
            numbered.filter(|(_, origin)| old.contains(&origin.object)).map(|(number, _)| number).collect()
        };
        let predicates = of_old(&origins.predicates).into_iter().map(PredicateId).collect();
        let names = Direction::ALL.map(|direction| of_old(origins.names(direction)).into_iter().collect());
        Self { origins, rules, ids, predicates, names, renewed: HashMap::new(), is_any_other: false }
    }

    fn is_empty(&self) -> bool {
        self.predicates.is_empty() && self.names.iter().all(BTreeSet::is_empty)
    }

    fn found(&mut self, place: RulePlace<'_>, index: usize, term: &Term<'_>) {
        match term {
            Term::Peer(predicate) => {
                if let Some(id) = self.ids.get(predicate).filter(|id| self.predicates.remove(id)) {
                    self.is_any_other |= renew(&mut self.origins.predicates[id.index()], place.peer(index));
                }
            }
            Term::Name(name, protocol) => {
                let direction = place.direction as usize;
                let number = self.rules.ids[direction].get(name, *protocol);
                if let Some(number) = number.filter(|number| self.names[direction].remove(number)) {
                    let origin = place.port(index);
                    let known = &mut self.origins.names(place.direction)[number as usize];
                    let before = known.clone();
                    if renew(known, origin.clone()) {
                        self.is_any_other = true;
                        self.renewed.insert(before, origin);
                    }
                }
            }
        }
    }
}

/// Replaces a position. Returns whether it is another one.
pub(super) fn renew(origin: &mut FieldOrigin, now: FieldOrigin) -> bool {
    let is_other = *origin != now;
    *origin = now;
    is_other
}

/// A term of a rule: a peer, or the name of a port.
enum Term<'p> {
    Peer(Predicate),
    Name(&'p str, Protocol),
}

/// Called with each term of a policy, its rule, and its index among the rule's peers or ports.
type ActOnTerm<'a> = dyn FnMut(RulePlace<'_>, usize, Term<'_>) + 'a;

fn each_term(policy: &Policy, act: &mut ActOnTerm<'_>) {
    for direction in Direction::ALL {
        for (index, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
            let place = RulePlace::of_policy(policy, direction, index);
            let peers = rule.peers.iter().map(|peer| peer_predicate(Some(policy.namespace), peer));
            peers.enumerate().for_each(|(index, predicate)| act(place, index, Term::Peer(predicate)));
            each_name(place, &rule.ports, act);
        }
    }
}

fn each_term_of_tier(policy: &TierPolicy, act: &mut ActOnTerm<'_>) {
    for direction in Direction::ALL {
        for (index, rule) in policy.rules(direction).iter().enumerate() {
            let place = RulePlace::of_tier(policy, direction, index, rule);
            let Some(matched) = &rule.matched else { continue };
            let peers = matched.peers.iter().map(tier_predicate).enumerate();
            peers.for_each(|(index, predicate)| act(place, index, Term::Peer(predicate)));
            each_name(place, &matched.ports, act);
        }
    }
}

fn each_name(place: RulePlace<'_>, ports: &[PortRule], act: &mut ActOnTerm<'_>) {
    for (index, port) in ports.iter().enumerate() {
        if let PortMatch::Named(name) = &port.port {
            act(place, index, Term::Name(name, port.protocol));
        }
    }
}
