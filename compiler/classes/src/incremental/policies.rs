//! Replaces policies: their objects, numbers, rules and ranges of ports.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::services::specs_of;
use super::terms::{NewTerms, renew};
use super::tiers::each_spec_of_tier;
use super::{Effect, Maintained, NeedsWhole, PolicyChange};
use crate::ports::{PortSpec, SpecUse, add_ports};
use crate::predicates::{DraftRule, PolicyRules};
use crate::sources::RulePlace;
use crate::subjects::LocalEndpoint;
use weir_model::labels::matches;
use weir_model::resolve::{is_audit, network_policy};
use weir_model::{Cluster, Direction, Namespace, NamespaceId, Policy, PolicyId};
use weir_objects::k8s::Body;
use weir_objects::origin::FieldOrigin;

/// A policy that has changed: its number before, and its present content.
struct Replacement {
    before: Option<PolicyId>,
    /// `None` if it is gone or selects no local endpoint.
    now: Option<PresentPolicy>,
}

struct PresentPolicy {
    policy: Policy,
    is_audit: bool,
    /// The local endpoints that it selects: indices into the draft.
    selected: Vec<usize>,
}

/// A policy, with its number before the changes.
struct Slot {
    policy: Policy,
    is_audit: bool,
    before: Option<PolicyId>,
    /// The local endpoints that it selects, if it has changed.
    changed: Option<Vec<usize>>,
}

impl Slot {
    /// By the namespace's name, because new namespaces have the highest numbers.
    fn order<'s>(&'s self, namespaces: &'s [Namespace]) -> (bool, &'s str, &'s str) {
        (self.is_audit, &namespaces[self.policy.namespace.index()].name, &self.policy.name)
    }
}

/// The result of putting policies in place of others.
#[derive(Default)]
struct ReplacedPolicies {
    /// The policies that were replaced or are gone.
    old: Vec<Policy>,
    /// The numbers of the new ones, with the local endpoints that they select.
    new: Vec<(PolicyId, Vec<usize>)>,
}

impl Maintained {
    /// Replaces policies. Returns the terms that no rule had before.
    pub(super) fn replace_policies(
        &mut self,
        changes: &[PolicyChange],
        effect: &mut Effect,
    ) -> Result<NewTerms, NeedsWhole> {
        if changes.is_empty() {
            return Ok(NewTerms::default());
        }
        let changes: Vec<Replacement> = changes.iter().filter_map(|change| self.replacement(change)).collect();
        let gone: Vec<PolicyId> = changes.iter().filter_map(|change| change.before).collect();
        let selected = changes.iter().filter_map(|change| change.now.as_ref()).flat_map(|it| &it.selected);
        effect.touched.extend(selected);
        effect.touched.extend(self.selected_before(&gone));
        self.count_uses(&gone, -1);
        let ReplacedPolicies { old, new } = if self.keeps_numbers(&changes) {
            self.replace_in_place(changes)
        } else {
            self.replace_and_number(changes)
        };
        for (id, selected) in &new {
            for index in selected {
                let local = &mut self.draft.local[*index];
                let list = if self.cluster.is_audit(*id) { &mut local.audit } else { &mut local.policies };
                list.insert(list.partition_point(|it| it < id), *id);
            }
        }
        let new: Vec<PolicyId> = new.into_iter().map(|(id, _)| id).collect();
        let terms = self.add_terms(&new, &[]);
        for id in &new {
            let rules = self.drafted_rules(*id).ok_or(NeedsWhole::Peers)?;
            Arc::make_mut(&mut self.classes.rules).replace(*id, rules);
        }
        self.count_uses(&new, 1);
        self.uses.check()?;
        self.replace_specs(&old, &new, effect);
        self.replace_origins(&old.iter().map(|policy| policy.object).collect::<Vec<_>>(), effect);
        Ok(terms)
    }

    /// The two sides of a change; `None` if the policy can be in no generation.
    fn replacement(&mut self, change: &PolicyChange) -> Option<Replacement> {
        // The namespaces of policies that exist are known. A policy that is gone may have been in no generation.
        let namespace = self.names.find(&change.namespace)?;
        let before = self.find_policy(&change.namespace, &change.name);
        Some(Replacement { before, now: self.present_policy(namespace, change) })
    }

    /// The changed policy; `None` if it is gone or selects no local endpoint.
    fn present_policy(&mut self, namespace: NamespaceId, change: &PolicyChange) -> Option<PresentPolicy> {
        let object = change.now.as_ref()?;
        let Body::NetworkPolicy(body) = &object.body else { return None };
        let cluster = Arc::make_mut(&mut self.cluster);
        let selects = |endpoint: &weir_model::Endpoint| {
            endpoint.namespace == namespace && matches(&body.pod_selector, cluster.labels.labels(endpoint.labels))
        };
        let local = self.draft.local.iter().enumerate();
        let selected = local.filter(|(_, local)| selects(&cluster.endpoints[local.endpoint.index()]));
        let selected: Vec<usize> = selected.map(|(index, _)| index).collect();
        // A policy of other nodes' pods is not in the view.
        if selected.is_empty() {
            return None;
        }
        let policy = network_policy(&mut cluster.labels, namespace, object, body);
        Some(PresentPolicy { policy, is_audit: is_audit(body, cluster.assume), selected })
    }

    /// Whether a policy is among those that select local pods.
    pub(crate) fn has_policy(&self, namespace: &str, name: &str) -> bool {
        self.find_policy(namespace, name).is_some()
    }

    /// The number of a policy.
    fn find_policy(&self, namespace: &str, name: &str) -> Option<PolicyId> {
        let Cluster { policies, audit, namespaces, .. } = &*self.cluster;
        let order =
            |it: &Policy| (namespaces[it.namespace.index()].name.as_str(), it.name.as_str()).cmp(&(namespace, name));
        let enforced = policies.binary_search_by(order);
        let found = enforced.or_else(|_| audit.binary_search_by(order).map(|at| policies.len() + at));
        found.ok().map(|index| PolicyId(index as u32))
    }

    fn selected_before(&self, policies: &[PolicyId]) -> impl Iterator<Item = usize> {
        let local = self.draft.local.iter().enumerate();
        let is_selected = |it: &LocalEndpoint| it.policies.iter().chain(&it.audit).any(|id| policies.contains(id));
        local.filter(move |(_, it)| is_selected(it)).map(|(index, _)| index)
    }

    /// Whether every change puts a policy in the place of one with the same name and mode, so that no policy gets
    /// another number. This is what most edits do, and the other policies are not visited then.
    fn keeps_numbers(&self, changes: &[Replacement]) -> bool {
        changes.iter().all(|change| match (change.before, &change.now) {
            (Some(id), Some(now)) => self.cluster.is_audit(id) == now.is_audit,
            (None, None) => true,
            _ => false,
        })
    }

    fn replace_in_place(&mut self, changes: Vec<Replacement>) -> ReplacedPolicies {
        let mut replaced = ReplacedPolicies::default();
        let Cluster { policies, audit, .. } = Arc::make_mut(&mut self.cluster);
        for (id, now) in changes.into_iter().filter_map(|change| change.before.zip(change.now)) {
            let enforced = policies.len();
            let place = policies.get_mut(id.index()).unwrap_or_else(|| &mut audit[id.index() - enforced]);
            replaced.old.push(std::mem::replace(place, now.policy));
            replaced.new.push((id, now.selected));
        }
        let is_kept = |id: &PolicyId| replaced.new.iter().all(|(new, _)| new != id);
        for local in &mut self.draft.local {
            local.policies.retain(is_kept);
            local.audit.retain(is_kept);
        }
        replaced
    }

    /// Replaces policies, and gives all policies the numbers of their order.
    fn replace_and_number(&mut self, changes: Vec<Replacement>) -> ReplacedPolicies {
        let mut replaced = ReplacedPolicies::default();
        let mut slots = take_slots(Arc::make_mut(&mut self.cluster));
        let gone: BTreeSet<PolicyId> = changes.iter().filter_map(|change| change.before).collect();
        let is_gone = |slot: &mut Slot| slot.before.is_some_and(|id| gone.contains(&id));
        replaced.old.extend(slots.extract_if(.., is_gone).map(|slot| slot.policy));
        let namespaces = &self.cluster.namespaces;
        for PresentPolicy { policy, is_audit, selected } in changes.into_iter().filter_map(|change| change.now) {
            let new = Slot { policy, is_audit, before: None, changed: Some(selected) };
            let at = slots.partition_point(|slot| slot.order(namespaces) < new.order(namespaces));
            slots.insert(at, new);
        }
        self.renumber(&slots);
        let cluster = Arc::make_mut(&mut self.cluster);
        for (id, Slot { policy, is_audit, changed, .. }) in (0..).map(PolicyId).zip(slots) {
            if is_audit { &mut cluster.audit } else { &mut cluster.policies }.push(policy);
            replaced.new.extend(changed.map(|selected| (id, selected)));
        }
        replaced
    }

    /// Gives endpoints, subject classes and rules the new numbers of their policies.
    fn renumber(&mut self, slots: &[Slot]) {
        let numbers = numbers(slots);
        let number = |id: PolicyId| numbers.get(id.index()).copied().flatten();
        let renumber = |ids: &mut Vec<PolicyId>| *ids = ids.iter().filter_map(|id| number(*id)).collect();
        for local in &mut self.draft.local {
            renumber(&mut local.policies);
            renumber(&mut local.audit);
        }
        for subject in &mut self.classes.subjects {
            renumber(&mut subject.policies);
            subject.audit.iter_mut().for_each(|audit| renumber(&mut audit.policies));
        }
        self.classes.rules = self.classes.rules.renumbered(number).into();
        self.draft.policies = (0..slots.len() as u32).map(PolicyId).collect();
    }

    /// The rules of a policy, in numbers. `None` if a term is not known.
    fn drafted_rules(&self, id: PolicyId) -> Option<PolicyRules> {
        let policy = self.cluster.policy(id);
        let mut drafted = PolicyRules::default();
        for direction in Direction::ALL {
            let Some(rules) = policy.rules(direction) else { continue };
            let draft = |rule| DraftRule::of_known(rule, policy.namespace, direction, &self.classes.rules, &self.ids);
            drafted[direction as usize] = Some(rules.iter().map(draft).collect::<Option<_>>()?);
        }
        Some(drafted)
    }

    /// Adds the rules of policies to the uses of terms, or takes them away.
    fn count_uses(&mut self, policies: &[PolicyId], by: i32) {
        for (id, direction) in policies.iter().flat_map(|id| Direction::ALL.map(|direction| (*id, direction))) {
            let rules = self.classes.rules.of(id, direction).unwrap_or_default();
            rules.iter().for_each(|rule| self.uses.change(direction, rule, by));
        }
    }

    /// Replaces the ranges of ports of policies.
    fn replace_specs(&mut self, old: &[Policy], new: &[PolicyId], effect: &mut Effect) {
        let Self { specs, cluster, .. } = self;
        let mut ended: BTreeSet<PortSpec> = BTreeSet::new();
        let mut stale: BTreeSet<PortSpec> = BTreeSet::new();
        for policy in old {
            each_spec(policy, &mut |spec, _| {
                let Some(used) = specs.get_mut(&spec) else { return };
                used.count -= 1;
                if used.count == 0 {
                    ended.insert(spec);
                } else if used.origin.object == policy.object {
                    stale.insert(spec);
                }
            });
        }
        let before = specs.len();
        for id in new {
            each_spec(cluster.policy(*id), &mut |spec, origin| {
                // A range that ends and begins again has a new first position.
                if (ended.remove(&spec) || stale.remove(&spec))
                    && let Some(used) = specs.get_mut(&spec)
                {
                    effect.changes_origins |= renew(&mut used.origin, origin());
                }
                specs.entry(spec).or_insert_with(|| SpecUse { origin: origin(), count: 0 }).count += 1;
            });
        }
        effect.changes_specs |= specs.len() > before || !ended.is_empty();
        specs.retain(|_, used| used.count > 0);
        self.refresh_origins(stale, effect);
    }

    /// Finds positions for ranges whose position was in an object that has changed, in objects that still have them.
    pub(super) fn refresh_origins(&mut self, mut stale: BTreeSet<PortSpec>, effect: &mut Effect) {
        let Self { cluster, specs, draft, .. } = self;
        let mut found = |stale: &mut BTreeSet<PortSpec>, spec: PortSpec, origin: &dyn Fn() -> FieldOrigin| {
            if stale.remove(&spec)
                && let Some(used) = specs.get_mut(&spec)
            {
                effect.changes_origins |= renew(&mut used.origin, origin());
            }
        };
        for policy in cluster.policies.iter().chain(&cluster.audit) {
            if stale.is_empty() {
                return;
            }
            each_spec(policy, &mut |spec, origin| found(&mut stale, spec, origin));
        }
        for id in &draft.tiers {
            each_spec_of_tier(cluster.tier_policy(*id), &mut |spec, origin| found(&mut stale, spec, origin));
        }
        for (spec, origin) in cluster.services.iter().flat_map(specs_of) {
            found(&mut stale, spec, &|| origin.clone());
        }
    }
}

/// The policies of a cluster, which keeps none.
fn take_slots(cluster: &mut Cluster) -> Vec<Slot> {
    let enforced = std::mem::take(&mut cluster.policies).into_iter().map(|policy| (policy, false));
    let audit = std::mem::take(&mut cluster.audit).into_iter().map(|policy| (policy, true));
    let numbered = (0..).map(PolicyId).zip(enforced.chain(audit));
    numbered.map(|(id, (policy, is_audit))| Slot { policy, is_audit, before: Some(id), changed: None }).collect()
}

/// The new number of each policy, by its old one; `None` for those that are gone or have changed.
fn numbers(slots: &[Slot]) -> Vec<Option<PolicyId>> {
    let most = slots.iter().filter_map(|slot| slot.before).max().map_or(0, |id| id.index() + 1);
    let mut numbers = vec![None; most];
    for (id, slot) in (0..).map(PolicyId).zip(slots) {
        if let Some(before) = slot.before {
            numbers[before.index()] = Some(id);
        }
    }
    numbers
}

/// Calls `act` with each range of ports of a policy, and its position.
pub(super) fn each_spec(policy: &Policy, act: &mut dyn FnMut(PortSpec, &dyn Fn() -> FieldOrigin)) {
    for direction in Direction::ALL {
        for (rule, of_rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
            let place = RulePlace::of_policy(policy, direction, rule);
            add_ports(place, &of_rule.ports, &mut |protocol, (first, last), origin| {
                act(PortSpec { protocol, first, last }, origin);
            });
        }
    }
}
