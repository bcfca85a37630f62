//! Cluster-wide policies that come, change and go.
//!
//! Their numbers are their order of evaluation, so all of them get new numbers. The rules of a policy are in the
//! classes only if it applies to a local pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::terms::NewTerms;
use super::{Effect, Maintained, NeedsWhole};
use crate::ports::{PortSpec, add_ports};
use crate::predicates::DraftTierRule;
use crate::sources::RulePlace;
use weir_model::labels::matches;
use weir_model::resolve::{tier_order, tier_policy};
use weir_model::{Direction, TierPolicy, TierPolicyId};
use weir_objects::k8s::{Body, Object};
use weir_objects::origin::{FieldOrigin, ObjectId};

/// A cluster-wide policy that has changed.
#[derive(Clone, Debug)]
pub(crate) struct TierChange {
    /// The kind of the object.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// `None` if it is gone.
    pub(crate) now: Option<Object>,
}

/// A policy, with its number before the changes.
struct Slot {
    policy: TierPolicy,
    before: Option<TierPolicyId>,
}

impl Maintained {
    /// Replaces cluster-wide policies. Returns the terms that no rule had before.
    pub(super) fn replace_tiers(
        &mut self,
        changes: &[TierChange],
        effect: &mut Effect,
    ) -> Result<NewTerms, NeedsWhole> {
        if changes.is_empty() {
            return Ok(NewTerms::default());
        }
        let cluster = Arc::make_mut(&mut self.cluster);
        let before = (0..).map(TierPolicyId).zip(std::mem::take(&mut cluster.tiers));
        let mut slots: Vec<Slot> = before.map(|(id, policy)| Slot { policy, before: Some(id) }).collect();
        let has_changed = |slot: &mut Slot| {
            let (kind, name) = (slot.policy.kind.name(), &slot.policy.name);
            changes.iter().any(|change| change.kind == kind && change.name == *name)
        };
        let old: Vec<Slot> = slots.extract_if(.., has_changed).collect();
        for object in changes.iter().filter_map(|change| change.now.as_ref()) {
            if let Body::ClusterPolicy(body) = &object.body {
                let policy = tier_policy(&mut cluster.labels, object, body, cluster.assume);
                slots.push(Slot { policy, before: None });
            }
        }
        slots.sort_by(|a, b| tier_order(&a.policy, &b.policy));
        self.forget_tiers(&old, effect);
        self.renumber_tiers(&slots);
        let new = (0..).map(TierPolicyId).zip(&slots).filter(|(_, slot)| slot.before.is_none());
        let new: Vec<TierPolicyId> = new.map(|(id, _)| id).collect();
        Arc::make_mut(&mut self.cluster).tiers = slots.into_iter().map(|slot| slot.policy).collect();
        let applied = self.apply_tiers(&new, effect);
        let terms = self.add_terms(&[], &applied);
        self.add_rules_of_tiers(&applied, effect)?;
        self.uses.check()?;
        self.replace_origins_of_tiers(&old.iter().map(|slot| slot.policy.object).collect::<Vec<_>>(), effect);
        Ok(terms)
    }

    /// Finds other positions for ranges and terms whose position was in policies that are gone or have changed.
    fn replace_origins_of_tiers(&mut self, objects: &[ObjectId], effect: &mut Effect) {
        self.replace_origins(objects, effect);
        let stale = self.specs.iter().filter(|(_, used)| objects.contains(&used.origin.object));
        self.refresh_origins(stale.map(|(spec, _)| *spec).collect(), effect);
    }

    /// Whether a policy applies to a local pod of the generation.
    pub(crate) fn applies_tier(&self, kind: &str, name: &str) -> bool {
        let mut applied = self.draft.tiers.iter().map(|id| self.cluster.tier_policy(*id));
        applied.any(|policy| policy.kind.name() == kind && policy.name == name)
    }

    /// Takes away the rules of policies that apply to no local pod any more.
    pub(super) fn forget_unused_tiers(&mut self, effect: &mut Effect) -> Result<(), NeedsWhole> {
        let used = self.draft.local.iter().flat_map(|it| it.tiers.iter().chain(&it.audit_tiers)).copied();
        let used: BTreeSet<TierPolicyId> = used.collect();
        let cluster = Arc::clone(&self.cluster);
        let unused: Vec<_> = self.draft.tiers.iter().filter(|id| !used.contains(id)).copied().collect();
        for id in &unused {
            self.forget_tier(*id, cluster.tier_policy(*id), effect);
            Arc::make_mut(&mut self.classes.rules).remove_tier(*id);
        }
        self.draft.tiers.retain(|id| used.contains(id));
        if !unused.is_empty() {
            let objects: Vec<_> = unused.iter().map(|id| cluster.tier_policy(*id).object).collect();
            self.replace_origins_of_tiers(&objects, effect);
        }
        // The index names the policies that begin to apply.
        if used.into_iter().eq(self.draft.tiers.iter().copied()) { Ok(()) } else { Err(NeedsWhole::Objects) }
    }

    fn forget_tier(&mut self, id: TierPolicyId, policy: &TierPolicy, effect: &mut Effect) {
        self.count_uses_of_tier(id, -1);
        let mut ended: Vec<PortSpec> = Vec::new();
        each_spec_of_tier(policy, &mut |spec, _| ended.push(spec));
        ended.into_iter().for_each(|spec| self.drop_spec(spec, effect));
    }

    /// Takes away the rules and ranges of policies, which still have their numbers.
    fn forget_tiers(&mut self, old: &[Slot], effect: &mut Effect) {
        for Slot { policy, before } in old {
            let Some(id) = before.filter(|id| self.draft.tiers.contains(id)) else { continue };
            self.forget_tier(id, policy, effect);
            let local = self.draft.local.iter().enumerate();
            let selected = local.filter(|(_, it)| it.tiers.contains(&id) || it.audit_tiers.contains(&id));
            effect.touched.extend(selected.map(|(index, _)| index));
        }
    }

    fn renumber_tiers(&mut self, slots: &[Slot]) {
        let most = slots.iter().filter_map(|slot| slot.before).max().map_or(0, |id| id.index() + 1);
        let mut numbers: Vec<Option<TierPolicyId>> = vec![None; most];
        for (id, slot) in (0..).map(TierPolicyId).zip(slots) {
            slot.before.into_iter().for_each(|before| numbers[before.index()] = Some(id));
        }
        let number = |id: TierPolicyId| numbers.get(id.index()).copied().flatten();
        let renumber = |ids: &mut Vec<TierPolicyId>| *ids = ids.iter().filter_map(|id| number(*id)).collect();
        for local in &mut self.draft.local {
            renumber(&mut local.tiers);
            renumber(&mut local.audit_tiers);
        }
        for subject in &mut self.classes.subjects {
            renumber(&mut subject.tiers);
            subject.audit.iter_mut().for_each(|audit| renumber(&mut audit.tiers));
        }
        renumber(&mut self.draft.tiers);
        self.classes.rules = self.classes.rules.with_renumbered_tiers(number).into();
    }

    /// Applies policies to the local endpoints that they select. Returns those that select any.
    fn apply_tiers(&mut self, new: &[TierPolicyId], effect: &mut Effect) -> Vec<TierPolicyId> {
        let cluster = &self.cluster;
        let mut applied: BTreeSet<TierPolicyId> = BTreeSet::new();
        for (index, local) in self.draft.local.iter_mut().enumerate() {
            let it = &cluster.endpoints[local.endpoint.index()];
            let (own, of) = (cluster.labels.labels(it.labels), cluster.namespaces[it.namespace.index()].labels);
            for id in new {
                let policy = cluster.tier_policy(*id);
                let is_selected = matches(cluster.labels.selector(policy.namespaces), cluster.labels.labels(of))
                    && matches(cluster.labels.selector(policy.pods), own);
                if is_selected {
                    let list = if policy.is_audit { &mut local.audit_tiers } else { &mut local.tiers };
                    list.insert(list.partition_point(|it| it < id), *id);
                    effect.touched.insert(index);
                    applied.insert(*id);
                }
            }
        }
        self.draft.tiers.extend(&applied);
        self.draft.tiers.sort_unstable();
        applied.into_iter().collect()
    }

    fn add_rules_of_tiers(&mut self, applied: &[TierPolicyId], effect: &mut Effect) -> Result<(), NeedsWhole> {
        for id in applied {
            for direction in Direction::ALL {
                let rules = self.cluster.tier_policy(*id).rules(direction).iter();
                let draft = |rule| DraftTierRule::of_known(rule, direction, &self.classes.rules, &self.ids);
                let drafted = rules.map(draft).collect::<Option<Vec<_>>>().ok_or(NeedsWhole::Peers)?;
                Arc::make_mut(&mut self.classes.rules).add_tier(*id, direction, drafted);
            }
            self.count_uses_of_tier(*id, 1);
            let mut found: Vec<(PortSpec, FieldOrigin)> = Vec::new();
            each_spec_of_tier(self.cluster.tier_policy(*id), &mut |spec, origin| found.push((spec, origin())));
            found.into_iter().for_each(|(spec, origin)| self.add_spec(spec, origin, effect));
        }
        Ok(())
    }

    fn count_uses_of_tier(&mut self, id: TierPolicyId, by: i32) {
        for direction in Direction::ALL {
            let rules = self.classes.rules.of_tier(id, direction).iter().filter_map(|rule| rule.matched.as_ref());
            rules.for_each(|rule| self.uses.change(direction, rule, by));
        }
    }
}

/// Calls `act` with each range of ports of a policy, and its position.
pub(super) fn each_spec_of_tier(policy: &TierPolicy, act: &mut dyn FnMut(PortSpec, &dyn Fn() -> FieldOrigin)) {
    for direction in Direction::ALL {
        for (rule, of_rule) in policy.rules(direction).iter().enumerate() {
            let place = RulePlace::of_tier(policy, direction, rule, of_rule);
            let ports = of_rule.matched.as_ref().map_or(&[][..], |it| &it.ports);
            add_ports(place, ports, &mut |protocol, (first, last), origin| {
                act(PortSpec { protocol, first, last }, origin);
            });
        }
    }
}
