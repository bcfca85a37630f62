//! The verdict of both ends on a flow: the differences between a source class and a destination class, as numbered
//! parts.

use std::collections::HashMap;

use super::atoms::SetId;
use super::tables::{EntryId, EntryTables, ReasonId, SetReason};
use super::{Decides, EndState, Presence, VerdictChange};
use weir_classes::AtomSet;
use weir_model::Interner;

number!(
    /// The number of a [`CellPart`].
    PartId
);

/// A difference that many cells share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CellPart {
    pub(super) presence: Presence,
    pub(super) change: VerdictChange,
    pub(super) decides: Decides,
    pub(super) set: SetId,
    /// The reasons at the source and at the destination; `None` where that end does not decide.
    pub(super) egress: Option<ReasonId>,
    pub(super) ingress: Option<ReasonId>,
}

/// Numbered parts, and the parts of pairs of entries that are already known.
#[derive(Default)]
pub(super) struct CellTable {
    distinct: Interner<CellPart>,
    known: HashMap<(EntryId, EntryId, Presence), Vec<PartId>>,
}

impl CellTable {
    pub(super) fn part(&self, id: PartId) -> &CellPart {
        &self.distinct[id.index()]
    }

    /// The differences for a pair of the source's entry and the destination's entry.
    pub(super) fn parts(
        &mut self,
        tables: &mut EntryTables<'_, '_>,
        egress: EntryId,
        ingress: EntryId,
        presence: Presence,
    ) -> &[PartId] {
        let key = (egress, ingress, presence);
        // Not `entry`, since making the parts numbers new ones in `self`. Pairs of entries repeat over all cells of the
        // grid.
        if !self.known.contains_key(&key) {
            let parts = self.make(tables, egress, ingress, presence);
            self.known.insert(key, parts);
        }
        &self.known[&key]
    }

    fn make(
        &mut self,
        tables: &mut EntryTables<'_, '_>,
        egress: EntryId,
        ingress: EntryId,
        presence: Presence,
    ) -> Vec<PartId> {
        let (out, into) = (tables.entry(egress), tables.entry(ingress));
        let get = |id: SetId| tables.atoms.get(id).clone();
        let (outs, intos) = (out.sets.map(get), into.sets.map(get));
        // Both ends first, then the comparison. To compare each end by itself would report a rule that the other end's
        // denial makes ineffective.
        let allowed = [and(&outs[0], &intos[0]), and(&outs[1], &intos[1])];
        let mut found = Vec::new();
        for (change, lacking, having) in [(VerdictChange::Added, 0, 1), (VerdictChange::Removed, 1, 0)] {
            let differs = minus(&allowed[having], &allowed[lacking]);
            if differs.is_empty() {
                continue;
            }
            // The end that did not allow it before or does not allow it now decides.
            let by_egress = and(&differs, &intos[lacking]);
            let by_ingress = and(&differs, &outs[lacking]);
            // The rest was denied at both ends. The three parts do not overlap, because traffic that both ends allowed
            // on the lacking side is no difference.
            let by_both = minus(&minus(&differs, &by_egress), &by_ingress);
            let split = [(Decides::Egress, by_egress), (Decides::Ingress, by_ingress), (Decides::Both, by_both)];
            for (decides, set) in split.into_iter().filter(|(_, set)| !set.is_empty()) {
                let set = tables.atoms.intern(set);
                let of = |tables: &mut EntryTables<'_, '_>, reason, decides| {
                    // The end that allows the traffic on both sides has no part in the difference. Its rules would
                    // split rows in vain.
                    if decides { Some(narrow(tables, reason, having, set)) } else { None }
                };
                let egress = of(tables, out.reason, decides != Decides::Ingress);
                let ingress = of(tables, into.reason, decides != Decides::Egress);
                found.push(PartId(self.distinct.intern(CellPart { presence, change, decides, set, egress, ingress })));
            }
        }
        found
    }
}

/// The part of a reason that concerns a set: the rules that allow any of it on the side that allows it.
fn narrow(tables: &mut EntryTables<'_, '_>, reason: ReasonId, having: usize, set: SetId) -> ReasonId {
    let whole = tables.reason(reason).clone();
    let allows = |of_rule: SetId| !and(tables.atoms.get(of_rule), tables.atoms.get(set)).is_empty();
    let mut rules = [Vec::new(), Vec::new()];
    // Only rules of the allowing side: on the other side the traffic is denied because no rule allows it.
    let kept = whole.rules[having].iter().filter(|(_, of_rule)| allows(*of_rule));
    // Forgets which ports of the set each rule allows, so that rows with the same rules become one.
    rules[having] = kept.map(|(rule, _)| (*rule, SetId::ALL)).collect();
    let mut states = whole.states;
    let mut tiers = [Vec::new(), Vec::new()];
    for which in [0, 1] {
        let mut rest = tables.atoms.get(set).clone();
        for (rule, of_rule) in whole.tiers[which].iter().filter(|(_, of_rule)| allows(*of_rule)) {
            rest.subtract(tables.atoms.get(*of_rule));
            tiers[which].push((*rule, SetId::ALL));
        }
        if rest.is_empty() && !tiers[which].is_empty() {
            states[which] = EndState::Tier;
        }
    }
    // If an end is absent on the side that allows the set, it counts as absent on both.
    if states[having] == EndState::Absent {
        states[1 - having] = EndState::Absent;
    }
    // Reasons are part of a part's identity, so traffic that different rules allow is in different rows, each with its
    // rules.
    tables.intern_reason(SetReason { states, rules, tiers })
}

fn and(a: &AtomSet, b: &AtomSet) -> AtomSet {
    let mut both = a.clone();
    both.intersect(b);
    both
}

fn minus(a: &AtomSet, b: &AtomSet) -> AtomSet {
    let mut rest = a.clone();
    rest.subtract(b);
    rest
}
