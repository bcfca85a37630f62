//! Replaces policies: their objects, numbers, rules and ranges of ports.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Effect, Maintained, NeedsWhole, PolicyChange};
use crate::PredicateId;
use crate::ports::{PortSpec, PortSpecs, SpecUse, add_ports};
use crate::predicates::{DraftRule, Predicate, RulePredicates, peer_predicate};
use crate::sources::RulePlace;
use weir_model::labels::matches;
use weir_model::resolve::{is_audit, network_policy};
use weir_model::{Cluster, Direction, Namespace, NamespaceId, Policy, PolicyId};
use weir_objects::k8s::Body;

/// The rules of a policy in one direction, by their number.
type NumberedRules = ((PolicyId, Direction), Arc<[DraftRule]>);

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
        // A list uses its predicate. Lists do not change here.
        for (count, predicate) in uses.predicates.iter_mut().zip(&rules.predicates) {
            *count += u32::from(matches!(predicate, Predicate::List(_)));
        }
        uses
    }

    fn change(&mut self, direction: Direction, rule: &DraftRule, by: i32) {
        let add = |count: &mut u32| *count = count.saturating_add_signed(by);
        for id in rule.peers.iter().flatten() {
            self.predicates.get_mut(id.index()).map(add);
        }
        for name in rule.ports.iter().flat_map(|ports| &ports.named) {
            self.names[direction as usize].get_mut(*name as usize).map(add);
        }
    }

    /// An error if too many terms occur in no rule any more.
    fn check(&self) -> Result<(), NeedsWhole> {
        let unused = self.predicates.iter().chain(self.names.iter().flatten()).filter(|count| **count == 0);
        if unused.count() > super::MOST_UNUSED { Err(NeedsWhole::Unused) } else { Ok(()) }
    }
}

/// A policy, with its number before the changes.
struct Slot {
    policy: Policy,
    is_audit: bool,
    before: Option<PolicyId>,
    /// The local endpoints that it selects, if it has changed: indices into the draft.
    changed: Option<Vec<usize>>,
}

impl Slot {
    /// By the namespace's name, because new namespaces have the highest numbers.
    fn order<'s>(&'s self, namespaces: &'s [Namespace]) -> (bool, &'s str, &'s str) {
        (self.is_audit, &namespaces[self.policy.namespace.index()].name, &self.policy.name)
    }
}

impl Maintained {
    /// Replaces policies. Returns the predicates that no rule had before.
    pub(super) fn replace_policies(
        &mut self,
        changes: Vec<PolicyChange>,
        effect: &mut Effect,
    ) -> Result<Vec<PredicateId>, NeedsWhole> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let mut slots = take_slots(Arc::make_mut(&mut self.cluster));
        let mut gone: Vec<(PolicyId, Policy)> = Vec::new();
        for change in changes {
            // The namespaces of policies that exist are known. A policy that is gone may have been in no generation.
            let Some(namespace) = self.names.find(&change.namespace) else { continue };
            let is_it = |slot: &Slot| slot.policy.namespace == namespace && slot.policy.name == change.name;
            let old = slots.iter().position(is_it).map(|index| slots.remove(index));
            let new = self.slot(namespace, &change);
            effect.touched.extend(new.iter().flat_map(|slot| slot.changed.iter().flatten()));
            if let Some(Slot { policy, before: Some(id), .. }) = old {
                effect.touched.extend(self.selected_before(id));
                gone.push((id, policy));
            }
            if let Some(new) = new {
                let namespaces = &self.cluster.namespaces;
                let at = slots.partition_point(|slot| slot.order(namespaces) < new.order(namespaces));
                slots.insert(at, new);
            }
        }
        self.renumber(&slots);
        let predicates = self.add_predicates(&slots)?;
        let fresh = self.draft_rules(&slots)?;
        self.count_uses(&gone, &fresh);
        self.uses.check()?;
        let numbers = numbers(&slots);
        self.classes.rules =
            self.classes.rules.renumbered(|id| numbers.get(id.index()).copied().flatten(), fresh).into();
        effect.changes_specs |= self.replace_specs(&gone, &slots);
        let cluster = Arc::make_mut(&mut self.cluster);
        let (audit, enforced): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(|slot| slot.is_audit);
        [cluster.policies, cluster.audit] =
            [enforced, audit].map(|slots| slots.into_iter().map(|slot| slot.policy).collect());
        self.replace_origins(&gone);
        Ok(predicates)
    }

    /// The changed policy; `None` if it is gone or selects no local endpoint.
    fn slot(&mut self, namespace: NamespaceId, change: &PolicyChange) -> Option<Slot> {
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
        let is_audit = is_audit(body, cluster.assume);
        Some(Slot { policy, is_audit, before: None, changed: Some(selected) })
    }

    /// Whether a policy is among those that select local pods.
    pub(crate) fn has_policy(&self, namespace: &str, name: &str) -> bool {
        let Some(namespace) = self.names.find(namespace) else { return false };
        let mut all = self.cluster.policies.iter().chain(&self.cluster.audit);
        all.any(|policy| policy.namespace == namespace && policy.name == name)
    }

    fn selected_before(&self, id: PolicyId) -> impl Iterator<Item = usize> {
        let local = self.draft.local.iter().enumerate();
        let selected = local.filter(move |(_, it)| it.policies.contains(&id) || it.audit.contains(&id));
        selected.map(|(index, _)| index)
    }

    /// Gives endpoints and subject classes the new numbers of their policies.
    fn renumber(&mut self, slots: &[Slot]) {
        let numbers = numbers(slots);
        let renumber = |ids: &mut Vec<PolicyId>| {
            let found = ids.iter().filter_map(|id| numbers.get(id.index()).copied().flatten());
            *ids = found.collect();
        };
        for local in &mut self.draft.local {
            renumber(&mut local.policies);
            renumber(&mut local.audit);
        }
        for subject in &mut self.classes.subjects {
            renumber(&mut subject.policies);
            subject.audit.iter_mut().for_each(|audit| renumber(&mut audit.policies));
        }
        for (id, slot) in (0..).map(PolicyId).zip(slots) {
            for index in slot.changed.iter().flatten() {
                let local = &mut self.draft.local[*index];
                let list = if slot.is_audit { &mut local.audit } else { &mut local.policies };
                list.insert(list.partition_point(|it| *it < id), id);
            }
        }
        self.draft.policies = (0..slots.len() as u32).map(PolicyId).collect();
    }

    /// Adds the predicates of peers that no rule in force has yet.
    fn add_predicates(&mut self, slots: &[Slot]) -> Result<Vec<PredicateId>, NeedsWhole> {
        let mut new = Vec::new();
        for policy in slots.iter().filter(|slot| slot.changed.is_some()).map(|slot| &slot.policy) {
            for (direction, rule, index, peer) in peers_of(policy) {
                let predicate = peer_predicate(Some(policy.namespace), peer);
                if self.ids.contains_key(&predicate) {
                    continue;
                }
                // A block cuts ranges of addresses, which can change the class of any address in it.
                if !matches!(predicate, Predicate::Pods { .. }) {
                    return Err(NeedsWhole::Peers);
                }
                let id = Arc::make_mut(&mut self.classes.rules).add_predicate(predicate.clone());
                self.ids.insert(predicate, id);
                self.origins.predicates.push(RulePlace::of_policy(policy, direction, rule).peer(index));
                self.uses.predicates.push(0);
                new.push(id);
            }
        }
        Ok(new)
    }

    /// The rules of the changed policies, in numbers.
    fn draft_rules(&self, slots: &[Slot]) -> Result<Vec<NumberedRules>, NeedsWhole> {
        let mut fresh = Vec::new();
        for (id, slot) in (0..).map(PolicyId).zip(slots).filter(|(_, slot)| slot.changed.is_some()) {
            for direction in Direction::ALL {
                let Some(rules) = slot.policy.rules(direction) else { continue };
                let draft = |rule| {
                    let (namespace, terms) = (slot.policy.namespace, &self.classes.rules);
                    DraftRule::of_known(rule, namespace, direction, terms, &self.ids)
                };
                let drafted = rules.iter().map(draft).collect::<Result<_, _>>()?;
                fresh.push(((id, direction), drafted));
            }
        }
        Ok(fresh)
    }

    fn count_uses(&mut self, gone: &[(PolicyId, Policy)], fresh: &[NumberedRules]) {
        for (id, _) in gone {
            for direction in Direction::ALL {
                let rules = self.classes.rules.of(*id, direction).unwrap_or_default();
                rules.iter().for_each(|rule| self.uses.change(direction, rule, -1));
            }
        }
        for ((_, direction), rules) in fresh {
            rules.iter().for_each(|rule| self.uses.change(*direction, rule, 1));
        }
    }

    /// Replaces the ranges of ports of changed policies. Returns whether a range is new or not used any more.
    fn replace_specs(&mut self, gone: &[(PolicyId, Policy)], slots: &[Slot]) -> bool {
        let specs = &mut self.specs;
        let mut ended: BTreeSet<PortSpec> = BTreeSet::new();
        let mut stale: BTreeSet<PortSpec> = BTreeSet::new();
        for (_, policy) in gone {
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
        for slot in slots.iter().filter(|slot| slot.changed.is_some()) {
            each_spec(&slot.policy, &mut |spec, origin| {
                // A range that ends and begins again has a new first position.
                if ended.remove(&spec) || stale.remove(&spec) {
                    specs.get_mut(&spec).into_iter().for_each(|used| used.origin = origin());
                }
                specs.entry(spec).or_insert_with(|| SpecUse { origin: origin(), count: 0 }).count += 1;
            });
        }
        let is_new = specs.len() > before;
        specs.retain(|_, used| used.count > 0);
        refresh_specs(specs, &stale, slots);
        is_new || !ended.is_empty()
    }

    /// Finds other positions for predicates whose first position was in a policy that is gone or has changed.
    fn replace_origins(&mut self, gone: &[(PolicyId, Policy)]) {
        let objects: Vec<_> = gone.iter().map(|(_, policy)| policy.object).collect();
        let of_gone = self.origins.predicates.iter().zip(&self.classes.rules.predicates).enumerate();
        let stale = of_gone.filter(|(_, (origin, _))| objects.contains(&origin.object));
        let stale: HashMap<Predicate, PredicateId> =
            stale.map(|(index, (_, predicate))| (predicate.clone(), PredicateId(index as u32))).collect();
        if stale.is_empty() {
            return;
        }
        let mut found: BTreeSet<PredicateId> = BTreeSet::new();
        for policy in self.cluster.policies.iter().chain(&self.cluster.audit) {
            for (direction, rule, index, peer) in peers_of(policy) {
                let predicate = stale.get(&peer_predicate(Some(policy.namespace), peer));
                if let Some(id) = predicate.filter(|id| found.insert(**id)) {
                    self.origins.predicates[id.index()] = RulePlace::of_policy(policy, direction, rule).peer(index);
                }
            }
            if found.len() == stale.len() {
                return;
            }
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
pub(super) fn each_spec(
    policy: &Policy,
    act: &mut dyn FnMut(PortSpec, &dyn Fn() -> weir_objects::origin::FieldOrigin),
) {
    for direction in Direction::ALL {
        for (rule, of_rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
            let place = RulePlace::of_policy(policy, direction, rule);
            add_ports(place, &of_rule.ports, &mut |protocol, (first, last), origin| {
                act(PortSpec { protocol, first, last }, origin);
            });
        }
    }
}

/// Finds positions for ranges whose position was in a policy that has changed, in the policies that still have them.
fn refresh_specs(specs: &mut PortSpecs, stale: &BTreeSet<PortSpec>, slots: &[Slot]) {
    let mut rest = stale.clone();
    for slot in slots {
        if rest.is_empty() {
            return;
        }
        each_spec(&slot.policy, &mut |spec, origin| {
            if rest.remove(&spec) {
                specs.get_mut(&spec).into_iter().for_each(|used| used.origin = origin());
            }
        });
    }
}

/// The peers of a policy, with their positions: direction, rule and index.
fn peers_of(policy: &Policy) -> impl Iterator<Item = (Direction, usize, usize, &weir_model::Peer)> {
    let rules = Direction::ALL.into_iter().flat_map(|direction| {
        let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
        rules.map(move |(rule, of_rule)| (direction, rule, of_rule))
    });
    rules.flat_map(|(direction, rule, of_rule)| {
        of_rule.peers.iter().enumerate().map(move |(index, peer)| (direction, rule, index, peer))
    })
}
