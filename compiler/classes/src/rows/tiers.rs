//! Cluster-wide policies: which atoms each tier accepts and denies for a peer class.
//!
//! A tier is folded into two sets for each peer class: the accepted atoms and the denied ones. All other atoms belong to
//! the next tier, whether a `Pass` rule or no rule matched them. So a row is `accepted ∪ (below ∖ denied)`, from the last
//! tier to the first, and programs contain nothing of tiers.

use std::collections::HashMap;
use std::rc::Rc;

use super::open::{OpenRow, entry_bytes};
use super::{BackendProperties, RowBuilder, set_steps};
use crate::ports::AtomSet;
use crate::predicates::DraftTierRule;
use crate::{PeerId, SubjectClass};
use weir_model::{Direction, RuleAction, Tier, TierPolicyId};

/// The atoms that a tier has decided for a peer class. The three sets are disjoint.
#[derive(Clone, Default)]
pub(super) struct TierSets {
    accepted: AtomSet,
    denied: AtomSet,
    passed: AtomSet,
}

impl TierSets {
    /// Gives the atoms to an action, except those that an earlier rule has decided.
    fn decide(&mut self, action: RuleAction, atoms: &AtomSet) {
        let mut new = atoms.clone();
        [&self.accepted, &self.denied, &self.passed].into_iter().for_each(|earlier| new.subtract(earlier));
        match action {
            RuleAction::Accept => self.accepted.add(&new),
            RuleAction::Deny => self.denied.add(&new),
            RuleAction::Pass => self.passed.add(&new),
        }
    }

    /// Applies the tier to the verdicts of the tiers after it.
    pub(super) fn apply(&self, below: &mut AtomSet) {
        below.add(&self.accepted);
        below.subtract(&self.denied);
    }
}

/// The decisions of a tier about the traffic of one subject class in one direction.
pub(super) struct TierRow {
    /// For the peer classes without an entry: a rule that fails closed denies them.
    default: TierSets,
    /// Sorted.
    entries: Vec<(PeerId, TierSets)>,
}

impl TierRow {
    pub(super) fn get(&self, peer: PeerId) -> &TierSets {
        let found = self.entries.binary_search_by_key(&peer, |(id, _)| *id);
        found.map_or(&self.default, |index| &self.entries[index].1)
    }

    /// Applies the tier to the row of the tiers after it.
    fn apply(&self, open: &mut OpenRow) {
        let own: Vec<(PeerId, AtomSet)> =
            self.entries.iter().map(|(peer, _)| (*peer, open.get(*peer).clone())).collect();
        open.overlay(own);
        self.default.apply(&mut open.default);
        open.entries.iter_mut().for_each(|(peer, set)| self.get(*peer).apply(set));
    }
}

/// The rows that decide about a pod's packets that the node sends back to it: only cluster-wide policies, for both
/// directions. `None` if everything is allowed.
pub(super) struct HairpinRows {
    leaving: Option<OpenRow>,
    arriving: Option<OpenRow>,
}

impl HairpinRows {
    /// The row for egress, which also decides about the own node.
    pub(super) fn leaving(&self) -> Option<&OpenRow> {
        self.leaving.as_ref()
    }

    /// Whether the pod reaches itself at this backend. Both ends are the pod, so `peer` is its own class.
    pub(super) fn allow(&self, own: BackendProperties) -> bool {
        let allows = |row: &OpenRow| row.get(own.peer).contains(own.atom);
        self.leaving.as_ref().is_none_or(allows) && self.arriving.as_ref().is_none_or(allows)
    }

    /// Bytes that the meter counts for both.
    pub(super) fn bytes(&self) -> u64 {
        [&self.leaving, &self.arriving].into_iter().flatten().map(OpenRow::bytes).sum()
    }
}

/// The rows of tiers that were already made. Most subject classes are selected by the same cluster-wide policies.
pub(super) type TierRows = HashMap<TierRowKey, Rc<TierRow>>;

/// Everything that a tier's row depends on.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct TierRowKey {
    tier: Tier,
    direction: Direction,
    policies: Vec<TierPolicyId>,
    /// The numbers of the subject's named ports: only ingress rules depend on them.
    named: Vec<(u32, u16)>,
}

impl<'a> RowBuilder<'a> {
    /// Overlays the decisions of a tier.
    pub(super) fn overlay_tier(&self, tier: Tier, direction: Direction, subject: &SubjectClass, open: &mut OpenRow) {
        if let Some(row) = self.tier_row(tier, direction, subject) {
            let before = open.bytes();
            row.apply(open);
            // The caller gives back the bytes of the open row as they are at its end.
            _ = self.meter.take(open.bytes().saturating_sub(before), row.entries.len() as u64);
        }
    }

    /// The row where no NetworkPolicy and no list applies: to the own node, and to the pod itself through a service.
    /// `None` if everything is allowed there.
    pub(super) fn exempt(&self, direction: Direction, subject: &SubjectClass) -> Option<OpenRow> {
        if !self.has_tiers(direction, subject) {
            return None;
        }
        let mut open = OpenRow { default: AtomSet::all(self.atoms.count()), entries: Vec::new() };
        if self.rules_of(direction, subject).is_none() {
            self.overlay_tier(Tier::Baseline, direction, subject, &mut open);
        }
        self.overlay_tier(Tier::Admin, direction, subject, &mut open);
        Some(open)
    }

    /// The rows for a pod's packets that the node sends back to it.
    pub(super) fn hairpin(&self, subject: &SubjectClass) -> HairpinRows {
        let [arriving, leaving] = Direction::ALL.map(|direction| self.exempt(direction, subject));
        HairpinRows { leaving, arriving }
    }

    /// Whether any cluster-wide policy has rules for the subject in this direction.
    pub(super) fn has_tiers(&self, direction: Direction, subject: &SubjectClass) -> bool {
        subject.tiers.iter().any(|id| !self.rules.of_tier(*id, direction).is_empty())
    }

    /// The decisions of a tier; `None` if it has no rule for the subject in this direction.
    pub(super) fn tier_row(&self, tier: Tier, direction: Direction, subject: &SubjectClass) -> Option<Rc<TierRow>> {
        let has_rules = |id: &&TierPolicyId| {
            self.cluster.tier_policy(**id).tier == tier && !self.rules.of_tier(**id, direction).is_empty()
        };
        let policies: Vec<TierPolicyId> = subject.tiers.iter().filter(has_rules).copied().collect();
        if policies.is_empty() {
            return None;
        }
        let named = if direction == Direction::Ingress { subject.named.clone() } else { Vec::new() };
        let key = TierRowKey { tier, direction, policies, named };
        if let Some(known) = self.tier_rows.borrow().get(&key) {
            return Some(Rc::clone(known));
        }
        let row = Rc::new(self.new_tier_row(direction, subject, &key.policies));
        self.tier_rows.borrow_mut().insert(key, Rc::clone(&row));
        Some(row)
    }

    fn new_tier_row(&self, direction: Direction, subject: &SubjectClass, policies: &[TierPolicyId]) -> TierRow {
        let none = AtomSet::none(self.atoms.count());
        let empty = TierSets { accepted: none.clone(), denied: none.clone(), passed: none };
        let mut entries = TierEntries { list: HashMap::new(), default: empty };
        // In the order in which they are evaluated: the first rule that matches an atom decides about it.
        for rule in policies.iter().flat_map(|id| self.rules.of_tier(*id, direction)) {
            let before = entries.list.len();
            let is_last = self.add_tier_rule(direction, subject, rule, &mut entries);
            let new = (entries.list.len() - before) as u64;
            if !self.meter.take(3 * new * entry_bytes(&entries.default.accepted), 1) || is_last {
                break;
            }
        }
        let TierEntries { list, default } = entries;
        let mut entries: Vec<_> = list.into_iter().collect();
        entries.sort_unstable_by_key(|(peer, _)| *peer);
        TierRow { default, entries }
    }

    /// Adds a rule. Returns whether no later rule can match anything.
    fn add_tier_rule(
        &self,
        direction: Direction,
        subject: &SubjectClass,
        rule: &DraftTierRule,
        entries: &mut TierEntries,
    ) -> bool {
        let Some(matched) = &rule.matched else { return false };
        let atoms = self.atoms_of(direction, subject, matched.ports.as_ref());
        let Some(peers) = &matched.peers else {
            // The rule fails closed, so it decides everything that is left.
            let sets = entries.list.values_mut().chain([&mut entries.default]);
            sets.for_each(|sets| sets.decide(rule.action, &atoms));
            return true;
        };
        for predicate in peers {
            let holding = self.matching().holding(*predicate);
            if !self.meter.take(0, holding.len() as u64 * set_steps(self.atoms)) {
                return true;
            }
            holding.iter().for_each(|peer| entries.of(*peer).decide(rule.action, &atoms));
        }
        self.each_name(direction, matched, Some(peers), |peer, atom| {
            let mut one = AtomSet::none(self.atoms.count());
            one.insert(atom);
            entries.of(peer).decide(rule.action, &one);
        });
        false
    }

    /// Whether a `Deny` rule may be about the backends that a service port has not got yet.
    pub(super) fn denies_unknown_backends(&self, subject: &SubjectClass, is_isolated: bool) -> bool {
        let asked = |id: &&TierPolicyId| !is_isolated || self.cluster.tier_policy(**id).tier == Tier::Admin;
        let mut rules = subject.tiers.iter().filter(asked).flat_map(|id| self.rules.of_tier(*id, Direction::Egress));
        rules.any(|rule| rule.action == RuleAction::Deny)
    }
}

struct TierEntries {
    list: HashMap<PeerId, TierSets>,
    default: TierSets,
}

impl TierEntries {
    fn of(&mut self, peer: PeerId) -> &mut TierSets {
        self.list.entry(peer).or_insert_with(|| self.default.clone())
    }
}
