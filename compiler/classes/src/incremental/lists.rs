//! CIDR lists that come, change and go, and those that begin or cease to apply to local pods.
//!
//! Lists are numbered in the order in which they decide, so any change numbers all of them again. A list that applies
//! to a local pod has a predicate, which keeps its number. If the list goes or applies to none any more, the predicate
//! is kept for the next list, and holds nowhere meanwhile: otherwise lists that come and go would add predicates
//! without end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Effect, HeldRanges, Maintained, NeedsWhole};
use crate::addresses::Ranges;
use crate::subjects::LocalEndpoint;
use crate::{Predicate, PredicateId};
use weir_model::labels::matches;
use weir_model::resolve::{cidr_list, list_order};
use weir_model::{CidrList, ListId};
use weir_objects::k8s::{Body, Object};
use weir_objects::origin::{FieldOrigin, FieldPath};

/// A list that has changed, or begins to apply to a local pod.
#[derive(Clone, Debug)]
pub(crate) struct ListChange {
    pub(crate) name: String,
    /// `None` if it is gone.
    pub(crate) now: Option<PresentList>,
}

/// A list as it is now.
#[derive(Clone, Debug)]
pub(crate) struct PresentList {
    /// The object, without its entries: a list can have a million of them.
    pub(crate) object: Object,
    pub(crate) ranges: Ranges,
}

/// A list, with its number before the changes.
struct Slot {
    list: CidrList,
    before: Option<ListId>,
    /// The addresses that it contains, if it has changed.
    ranges: Option<Ranges>,
    /// Whether it is new, or more than its addresses has changed.
    is_other: bool,
}

impl Maintained {
    /// Replaces lists. Returns the present ranges of the predicates whose ranges may have changed.
    pub(super) fn replace_lists(
        &mut self,
        changes: Vec<ListChange>,
        effect: &mut Effect,
    ) -> Result<Vec<HeldRanges>, NeedsWhole> {
        let changes_use = !self.used_lists().iter().eq(&self.draft.lists);
        if changes.is_empty() && !changes_use {
            return Ok(Vec::new());
        }
        let slots = self.list_slots(changes);
        let stays = |(id, slot): (u32, &Slot)| slot.before == Some(ListId(id)) && !slot.is_other;
        if slots.len() == self.cluster.lists.len() && (0..).zip(&slots).all(stays) && !changes_use {
            return Ok(self.held_by_lists(slots));
        }
        let gone = self.renumber_lists(&slots);
        let mut held: BTreeMap<PredicateId, Ranges> = BTreeMap::new();
        for predicate in gone {
            self.free_predicate(predicate);
            held.insert(predicate, Ranges::default());
        }
        let (mut lists, mut changed) = (Vec::new(), Vec::new());
        for (id, Slot { list, ranges, .. }) in (0..).map(ListId).zip(slots) {
            lists.push(list);
            changed.extend(ranges.map(|ranges| (id, ranges)));
        }
        Arc::make_mut(&mut self.cluster).lists = lists;
        changed.iter().for_each(|(id, _)| self.apply_list(*id));
        let mut changed: BTreeMap<ListId, Ranges> = changed.into_iter().collect();
        let used = self.used_lists();
        let predicates = self.classes.rules.of_lists();
        for (id, predicate) in predicates.iter().filter(|(id, _)| !used.contains(id)) {
            self.ids.remove(&Predicate::List(*id));
            self.free_predicate(*predicate);
            held.insert(*predicate, Ranges::default());
        }
        for id in &used {
            match (predicates.get(id), changed.remove(id)) {
                (known, Some(ranges)) => {
                    let predicate = known.copied().unwrap_or_else(|| self.predicate_for(*id));
                    let object = self.cluster.lists[id.index()].object;
                    self.origins.predicates[predicate.index()] = FieldOrigin::new(object, FieldPath::root());
                    held.insert(predicate, ranges);
                }
                (Some(_), None) => {}
                // The index names the lists that begin to apply, with their addresses.
                (None, None) => return Err(NeedsWhole::Objects),
            }
        }
        self.uses.check()?;
        self.draft.lists = used.into_iter().collect();
        if self.draft.lists.is_empty() {
            self.classes.rows.denied_by_lists = None;
        }
        (effect.changes_facts, effect.changes_origins) = (true, true);
        Ok(held.into_iter().map(|(predicate, ranges)| HeldRanges { predicate, ranges }).collect())
    }

    /// The present ranges of lists with other addresses, if nothing else about any list changes. Then only addresses
    /// get other classes, and no list decides otherwise about a class.
    fn held_by_lists(&self, slots: Vec<Slot>) -> Vec<HeldRanges> {
        let predicates = self.classes.rules.of_lists();
        let held = |(id, slot): (ListId, Slot)| {
            // The other lists apply to no local pod, or have not changed.
            Some(HeldRanges { predicate: *predicates.get(&id)?, ranges: slot.ranges? })
        };
        (0..).map(ListId).zip(slots).filter_map(held).collect()
    }

    /// The lists that apply to local pods.
    fn used_lists(&self) -> BTreeSet<ListId> {
        self.draft.local.iter().flat_map(|it| &it.lists).copied().collect()
    }

    /// Whether a list applies to a local pod of the generation.
    pub(crate) fn applies_list(&self, name: &str) -> bool {
        self.draft.lists.iter().any(|id| self.cluster.lists[id.index()].name == name)
    }

    /// All lists in the order of their new numbers.
    fn list_slots(&mut self, changes: Vec<ListChange>) -> Vec<Slot> {
        let cluster = Arc::make_mut(&mut self.cluster);
        let before = (0..).map(ListId).zip(cluster.lists.iter().cloned());
        let slot = |(id, list)| Slot { list, before: Some(id), ranges: None, is_other: false };
        let mut slots: Vec<Slot> = before.map(slot).collect();
        for ListChange { name, now } in changes {
            let at = slots.iter().position(|slot| slot.list.name == name);
            let before = at.map(|index| slots.remove(index));
            if let Some(PresentList { object, ranges }) = now
                && let Body::CidrList(body) = &object.body
            {
                let list = cidr_list(&mut cluster.labels, &object, body);
                let is_other = before.as_ref().is_none_or(|slot| slot.list != list);
                let before = before.and_then(|slot| slot.before);
                slots.push(Slot { list, before, ranges: Some(ranges), is_other });
            }
        }
        slots.sort_by(|a, b| list_order(&a.list, &b.list));
        slots
    }

    /// Gives endpoints and predicates the new numbers of their lists. Lists that have changed apply to no endpoint until
    /// [`Self::apply_list`]. Returns the predicates of lists that are gone.
    fn renumber_lists(&mut self, slots: &[Slot]) -> Vec<PredicateId> {
        let numbered = || (0..).map(ListId).zip(slots);
        let numbers: BTreeMap<ListId, ListId> = numbered().filter_map(|(id, slot)| Some((slot.before?, id))).collect();
        let changed: BTreeSet<ListId> = numbered().filter(|it| it.1.ranges.is_some()).map(|(id, _)| id).collect();
        for LocalEndpoint { lists, .. } in &mut self.draft.local {
            // Lists that have not changed keep their order.
            let kept = lists.iter().filter_map(|id| numbers.get(id).copied());
            *lists = kept.filter(|id| !changed.contains(id)).collect();
        }
        let predicates = self.classes.rules.of_lists();
        self.ids.retain(|predicate, _| !matches!(predicate, Predicate::List(_)));
        let rules = Arc::make_mut(&mut self.classes.rules);
        let mut gone = Vec::new();
        for (before, id) in predicates {
            match numbers.get(&before) {
                Some(now) => {
                    rules.set_predicate(id, Predicate::List(*now));
                    self.ids.insert(Predicate::List(*now), id);
                }
                None => gone.push(id),
            }
        }
        gone
    }

    /// Applies a list that has changed to the local endpoints that it selects.
    fn apply_list(&mut self, id: ListId) {
        let cluster = &self.cluster;
        let CidrList { namespaces, pods, .. } = &cluster.lists[id.index()];
        let [namespaces, pods] = [namespaces, pods].map(|selector| cluster.labels.selector(*selector));
        for local in &mut self.draft.local {
            let it = &cluster.endpoints[local.endpoint.index()];
            let (own, of) = (it.labels, cluster.namespaces[it.namespace.index()].labels);
            if matches(namespaces, cluster.labels.labels(of)) && matches(pods, cluster.labels.labels(own)) {
                local.lists.insert(local.lists.partition_point(|known| *known < id), id);
            }
        }
    }

    fn free_predicate(&mut self, id: PredicateId) {
        // It holds for no address.
        Arc::make_mut(&mut self.classes.rules).set_predicate(id, Predicate::Networks(Vec::new()));
        self.uses.set_list(id, false);
        self.free.push(id);
    }

    /// A predicate for a list that had none.
    fn predicate_for(&mut self, list: ListId) -> PredicateId {
        let (rules, predicate) = (Arc::make_mut(&mut self.classes.rules), Predicate::List(list));
        let id = if let Some(free) = self.free.pop() {
            rules.set_predicate(free, predicate.clone());
            free
        } else {
            self.origins.predicates.push(FieldOrigin::new(self.cluster.lists[list.index()].object, FieldPath::root()));
            rules.add_predicate(predicate.clone())
        };
        self.ids.insert(predicate, id);
        self.uses.set_list(id, true);
        id
    }
}
