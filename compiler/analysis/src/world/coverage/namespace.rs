//! The policies of one namespace, judged against each other.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::super::WorldError;
use super::super::diagram::Diagram;
use super::super::groups::{FlowProduct, PortSet, TrafficSet};
use super::super::halves::{ClassPair, EndClass, PossibleWorld, opposite, subject_role};
use super::super::namespaces::NamespaceClass;
use super::super::variables::Role;
use super::{CoveredRule, DeniedRule, DuplicatePolicy, RedundantPolicy, RulePlace, fewest};
use weir_model::eval::RuleId;
use weir_model::labels::matches;
use weir_model::{Direction, Peer, PolicyId};
use weir_objects::k8s::{LabelSelector, NAMESPACE_NAME_LABEL};

/// Both sides of [`PossibleWorld`] are the same cluster.
const SIDE: usize = 0;

/// A rule with its flows.
struct RuleFlows {
    rule: RuleId,
    flows: FlowProduct,
    subjects: Diagram,
    /// By group of remote classes; empty until they are needed.
    diagrams: Vec<Diagram>,
    /// Whether it was reported, alone or with its policy: then it covers no other rule.
    is_gone: bool,
}

/// Remote classes for which every rule of the direction has the same flows.
struct RemoteGroup {
    asked: EndClass,
    all: Vec<EndClass>,
}

/// One direction of the namespace's policies.
struct DirectionRules {
    direction: Direction,
    /// The pods of each policy that isolates in the direction.
    subjects: BTreeMap<PolicyId, Diagram>,
    /// All rules, policy by policy.
    rules: Vec<RuleFlows>,
    /// The indexes of each policy's rules.
    of_policy: HashMap<PolicyId, Range<usize>>,
    /// Computed when they are needed.
    remotes: Vec<RemoteGroup>,
}

/// The policies of the other end of a pair: the pods that they isolate, and the flows of each rule.
struct FarEnd {
    isolating: Vec<(PolicyId, Diagram)>,
    rules: Vec<Diagram>,
}

/// For each selector of namespaces, whether each class matches; `None` for classes with unknown labels. Most namespaces
/// ask about the same selectors.
#[derive(Default)]
pub(super) struct DeclaredMatches {
    known: HashMap<LabelSelector, Vec<Option<bool>>>,
}

impl DeclaredMatches {
    fn of(&mut self, world: &PossibleWorld<'_>, selector: &LabelSelector) -> &[Option<bool>] {
        if !self.known.contains_key(selector) {
            let is_match = |class: &NamespaceClass| match class {
                NamespaceClass::Declared { labels, .. } => Some(matches(selector, &labels[SIDE])),
                NamespaceClass::Mentioned(_) | NamespaceClass::Other => None,
            };
            self.known.insert(selector.clone(), world.classes.iter().map(is_match).collect());
        }
        &self.known[selector]
    }
}

/// The policies of a namespace. Those that were reported are gone.
pub(super) struct NamespaceRules<'w, 'c> {
    world: &'w mut PossibleWorld<'c>,
    declared: &'w mut DeclaredMatches,
    class: usize,
    /// Policies that select a possible pod and were not reported.
    policies: Vec<PolicyId>,
    directions: [DirectionRules; 2],
    likely: LikelyNeighbours,
}

impl<'w, 'c> NamespaceRules<'w, 'c> {
    pub(super) fn new(
        world: &'w mut PossibleWorld<'c>,
        class: usize,
        policies: &BTreeSet<PolicyId>,
        declared: &'w mut DeclaredMatches,
    ) -> Result<Self, WorldError> {
        let directions = Direction::ALL.map(|direction| DirectionRules {
            direction,
            subjects: BTreeMap::new(),
            rules: Vec::new(),
            of_policy: HashMap::new(),
            remotes: Vec::new(),
        });
        let likely = LikelyNeighbours::new(world, policies);
        let mut it = Self { world, declared, class, policies: policies.iter().copied().collect(), directions, likely };
        it.directions.sort_by_key(|at| at.direction as usize);
        for at in 0..2 {
            it.add_rules(at)?;
        }
        let selects_pods = |policy: &PolicyId| it.directions.iter().any(|at| at.subjects.contains_key(policy));
        it.policies.retain(selects_pods);
        Ok(it)
    }

    /// Adds the rules of all policies that select a possible pod.
    fn add_rules(&mut self, at: usize) -> Result<(), WorldError> {
        let direction = self.directions[at].direction;
        let role = subject_role(direction);
        let pair = ClassPair::of(direction, Some(self.class), None);
        for policy in self.world.isolating(SIDE, direction, Some(self.class)).to_vec() {
            let subjects = self.world.subjects(SIDE, policy);
            let subjects = self.world.ends(&subjects, role, pair)?;
            if subjects.is_empty() {
                continue;
            }
            self.directions[at].subjects.insert(policy, subjects);
            let products = self.world.rule_products(SIDE, direction, policy);
            let first = self.directions[at].rules.len();
            self.directions[at].of_policy.insert(policy, first..first + products.len());
            let rules = products.into_iter().zip(0..).map(|(flows, rule)| {
                let rule = RuleId { policy, rule };
                RuleFlows { rule, flows, subjects, diagrams: Vec::new(), is_gone: false }
            });
            self.directions[at].rules.extend(rules);
        }
        Ok(())
    }

    /// Policies that do the same as an earlier one. A policy that is not judged stays, so it comes first.
    pub(super) fn duplicates(&mut self, judged: &BTreeSet<PolicyId>) -> Result<Vec<DuplicatePolicy>, WorldError> {
        let mut by_subjects: HashMap<[Option<Diagram>; 2], Vec<PolicyId>> = HashMap::new();
        let (others, own): (Vec<PolicyId>, Vec<PolicyId>) = self.policies.iter().partition(|it| !judged.contains(it));
        let mut found = Vec::new();
        for policy in others.into_iter().chain(own) {
            let subjects = self.directions.each_ref().map(|at| at.subjects.get(&policy).copied());
            let known = by_subjects.entry(subjects).or_default();
            let mut original = None;
            if judged.contains(&policy) {
                for other in known.iter() {
                    if original.is_none() && self.allow_the_same(policy, *other)? {
                        original = Some(*other);
                    }
                }
            }
            match original {
                Some(original) => found.push(DuplicatePolicy { policy, original }),
                None => known.push(policy),
            }
        }
        found.iter().for_each(|it| self.remove_policy(it.policy));
        Ok(found)
    }

    /// Whether the rules of two policies with the same pods allow the same.
    fn allow_the_same(&mut self, one: PolicyId, other: PolicyId) -> Result<bool, WorldError> {
        for at in 0..2 {
            let [some, others] = [one, other].map(|policy| self.rules_of(at, policy));
            for (rules, of_other) in [(&some, &others), (&others, &some)] {
                for rule in rules {
                    if !self.is_covered(at, *rule, of_other)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Policies with rules that add nothing to others.
    pub(super) fn redundant(&mut self, judged: &BTreeSet<PolicyId>) -> Result<Vec<RedundantPolicy>, WorldError> {
        let mut found = Vec::new();
        for policy in self.policies.clone().into_iter().rev().filter(|it| judged.contains(it)) {
            let others = self.neighbours(policy)?;
            if self.allows_something(policy)? && self.is_redundant(policy, &others)? {
                self.remove_policy(policy);
                found.push(policy);
            }
        }
        // Only policies that stay are named, and only after all others are gone.
        let mut named = Vec::new();
        for policy in found.into_iter().rev() {
            named.push(self.redundant_policy(policy)?);
        }
        Ok(named)
    }

    fn redundant_policy(&mut self, policy: PolicyId) -> Result<RedundantPolicy, WorldError> {
        let others = self.neighbours(policy)?;
        let by = fewest(others, |others| self.is_redundant(policy, others))?;
        let mut covering = BTreeSet::new();
        for at in 0..2 {
            let candidates: Vec<usize> = by.iter().flat_map(|other| self.rules_of(at, *other)).collect();
            for rule in self.own_rules(at, policy) {
                let needed = fewest(candidates.clone(), |others| self.is_covered(at, rule, others))?;
                covering.extend(needed.into_iter().map(|it| self.place(at, it)));
            }
        }
        Ok(RedundantPolicy { policy, by, rules: covering.into_iter().collect() })
    }

    /// Whether other policies isolate the policy's pods and allow what its rules allow.
    fn is_redundant(&mut self, policy: PolicyId, others: &[PolicyId]) -> Result<bool, WorldError> {
        for at in 0..2 {
            let Some(mut rest) = self.directions[at].subjects.get(&policy).copied() else { continue };
            for other in others {
                if let Some(subjects) = self.directions[at].subjects.get(other) {
                    rest = self.world.diagrams.and_not(rest, *subjects)?;
                }
            }
            if !rest.is_empty() {
                return Ok(false);
            }
        }
        for at in 0..2 {
            let candidates: Vec<usize> = others.iter().flat_map(|other| self.rules_of(at, *other)).collect();
            for rule in self.own_rules(at, policy) {
                if !self.is_covered(at, rule, &candidates)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether a rule of the policy allows a possible flow.
    fn allows_something(&mut self, policy: PolicyId) -> Result<bool, WorldError> {
        for at in 0..2 {
            for rule in self.own_rules(at, policy) {
                if self.diagrams(at, rule)?.iter().any(|it| !it.is_empty()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The other policies that share a direction and a possible pod with a policy.
    fn neighbours(&mut self, policy: PolicyId) -> Result<Vec<PolicyId>, WorldError> {
        let mut found = Vec::new();
        for other in self.likely.of(policy).filter(|it| *it != policy).collect::<BTreeSet<_>>() {
            if self.policies.binary_search(&other).is_err() {
                continue;
            }
            for at in 0..2 {
                let subjects = &self.directions[at].subjects;
                let (Some(one), Some(another)) = (subjects.get(&policy), subjects.get(&other)) else { continue };
                if !self.world.diagrams.and(*one, *another)?.is_empty() {
                    found.push(other);
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Rules of the policies that stay, if other rules cover them.
    pub(super) fn covered(&mut self, judged: &BTreeSet<PolicyId>) -> Result<Vec<CoveredRule>, WorldError> {
        let mut named = Vec::new();
        for at in 0..2 {
            let mut found = Vec::new();
            for index in (0..self.directions[at].rules.len()).rev() {
                let RuleFlows { rule, is_gone, .. } = &self.directions[at].rules[index];
                if *is_gone || !judged.contains(&rule.policy) {
                    continue;
                }
                let others = self.candidates(at, index)?;
                if !others.is_empty() && self.is_possible(at, index)? && self.is_covered(at, index, &others)? {
                    self.directions[at].rules[index].is_gone = true;
                    found.push(index);
                }
            }
            // Only rules that stay are named.
            for index in found.into_iter().rev() {
                let mut others = self.candidates(at, index)?;
                let policy = self.directions[at].rules[index].rule.policy;
                // The policy's own rules first: they are the best explanation.
                others.sort_by_key(|it| self.directions[at].rules[*it].rule.policy != policy);
                let by = fewest(others, |others| self.is_covered(at, index, others))?;
                let by = by.into_iter().map(|it| self.place(at, it)).collect();
                named.push(CoveredRule { rule: self.place(at, index), by });
            }
        }
        Ok(named)
    }

    /// Other rules that may have a flow in common with a rule.
    fn candidates(&mut self, at: usize, rule: usize) -> Result<Vec<usize>, WorldError> {
        let own = self.directions[at].rules[rule].rule.policy;
        let mut found = Vec::new();
        for policy in self.likely.of(own).chain([own]).collect::<BTreeSet<_>>() {
            for other in self.rules_of(at, policy) {
                let [one, another] = [rule, other].map(|it| &self.directions[at].rules[it]);
                if other != rule
                    && share_traffic(&one.flows.traffic, &another.flows.traffic)
                    && !self.world.diagrams.and(one.subjects, another.subjects)?.is_empty()
                {
                    found.push(other);
                }
            }
        }
        Ok(found)
    }

    /// Rules of the policies that stay whose traffic policies at the other end deny.
    pub(super) fn denied(&mut self, judged: &BTreeSet<PolicyId>) -> Result<Vec<DeniedRule>, WorldError> {
        let mut far_ends = HashMap::new();
        let mut found = Vec::new();
        for at in 0..2 {
            for index in 0..self.directions[at].rules.len() {
                let RuleFlows { rule, is_gone, .. } = &self.directions[at].rules[index];
                if *is_gone || !judged.contains(&rule.policy) || !self.may_be_denied(at, index) {
                    continue;
                }
                let by = self.denying(at, index, &mut far_ends)?;
                found.extend(by.map(|by| DeniedRule { rule: self.place(at, index), by }));
            }
        }
        Ok(found)
    }

    /// Whether all peers are pods: addresses outside are never denied at the other end. A rule without peers has them.
    fn may_be_denied(&self, at: usize, rule: usize) -> bool {
        let direction = self.directions[at].direction;
        let RuleId { policy, rule } = self.directions[at].rules[rule].rule;
        let rules = self.world.clusters[SIDE].policy(policy).rules(direction).unwrap_or_default();
        let peers = rules.get(rule as usize).map_or(&[][..], |it| &it.peers);
        !peers.is_empty() && peers.iter().all(|it| matches!(it, Peer::Pods { .. }))
    }

    /// The policies of the other end, if they deny all flows of a rule.
    fn denying(
        &mut self,
        at: usize,
        rule: usize,
        far_ends: &mut HashMap<(Direction, ClassPair), FarEnd>,
    ) -> Result<Option<Vec<PolicyId>>, WorldError> {
        let direction = self.directions[at].direction;
        let diagrams = self.diagrams(at, rule)?;
        let mut pairs = Vec::new();
        for (group, flows) in self.directions[at].remotes.iter().zip(&diagrams).filter(|(_, it)| !it.is_empty()) {
            for remote in &group.all {
                // Ends that no policy isolates allow everything.
                if self.world.isolating(SIDE, opposite(direction), *remote).is_empty() {
                    return Ok(None);
                }
                pairs.push((ClassPair::of(direction, Some(self.class), *remote), *flows));
            }
        }
        let mut by = BTreeSet::new();
        for (pair, flows) in &pairs {
            // Both directions ask about pairs within the namespace.
            let key = (opposite(direction), *pair);
            if let Entry::Vacant(entry) = far_ends.entry(key) {
                let end = far_end(self.world, entry.key().0, *pair)?;
                entry.insert(end);
            }
            let Some(far) = far_ends.get(&key) else { continue };
            let mut open = *flows;
            for (policy, subjects) in &far.isolating {
                let rest = self.world.diagrams.and_not(open, *subjects)?;
                by.extend((rest != open).then_some(*policy));
                open = rest;
            }
            if !open.is_empty() {
                return Ok(None);
            }
            for allowed in &far.rules {
                if !self.world.diagrams.and(*flows, *allowed)?.is_empty() {
                    return Ok(None);
                }
            }
        }
        Ok((!pairs.is_empty()).then(|| by.into_iter().collect()))
    }

    /// Whether a rule allows a possible flow.
    fn is_possible(&mut self, at: usize, rule: usize) -> Result<bool, WorldError> {
        Ok(self.diagrams(at, rule)?.iter().any(|it| !it.is_empty()))
    }

    /// Whether other rules together allow every flow of a rule.
    fn is_covered(&mut self, at: usize, rule: usize, others: &[usize]) -> Result<bool, WorldError> {
        for (group, flows) in self.diagrams(at, rule)?.into_iter().enumerate() {
            let mut rest = flows;
            for other in others {
                if rest.is_empty() {
                    break;
                }
                let other = self.diagrams(at, *other)?[group];
                rest = self.world.diagrams.and_not(rest, other)?;
            }
            if !rest.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The flows of a rule, by group of remote classes.
    fn diagrams(&mut self, at: usize, rule: usize) -> Result<Vec<Diagram>, WorldError> {
        if self.directions[at].remotes.is_empty() {
            self.directions[at].remotes = self.remotes(at)?;
        }
        let direction = self.directions[at].direction;
        if self.directions[at].rules[rule].diagrams.is_empty() {
            let flows = self.directions[at].rules[rule].flows.clone();
            let remotes: Vec<EndClass> = self.directions[at].remotes.iter().map(|it| it.asked).collect();
            let product = |remote| self.world.product(&flows, ClassPair::of(direction, Some(self.class), remote));
            self.directions[at].rules[rule].diagrams = remotes.into_iter().map(product).collect::<Result<_, _>>()?;
        }
        Ok(self.directions[at].rules[rule].diagrams.clone())
    }

    /// The remote classes, grouped by the results of all namespace selectors of the direction's rules. The own namespace
    /// and the outside are groups of their own.
    fn remotes(&mut self, at: usize) -> Result<Vec<RemoteGroup>, WorldError> {
        let direction = self.directions[at].direction;
        let remote_role = subject_role(opposite(direction));
        let mut selectors: Vec<LabelSelector> = Vec::new();
        for rule in &self.directions[at].rules {
            let remote = match remote_role {
                Role::Source => &rule.flows.source,
                Role::Destination => &rule.flows.destination,
            };
            selectors.extend(remote.pods.iter().map(|it| it.namespaces.clone()));
        }
        selectors.sort_unstable();
        selectors.dedup();
        // A namespace that a selector names is the only one that it can match.
        let wanted = |it: &LabelSelector| it.match_labels.get(NAMESPACE_NAME_LABEL).map(str::to_owned);
        let names: Vec<Option<String>> = selectors.iter().map(wanted).collect();
        let known: Vec<Vec<Option<bool>>> =
            selectors.iter().map(|it| self.declared.of(self.world, it).to_vec()).collect();
        let mut groups: BTreeMap<Vec<Diagram>, Vec<EndClass>> = BTreeMap::new();
        for class in (0..self.world.classes.len()).filter(|it| *it != self.class) {
            let pair = ClassPair::of(direction, Some(self.class), Some(class));
            let mut answers = Vec::with_capacity(selectors.len());
            for ((selector, name), known) in selectors.iter().zip(&names).zip(&known) {
                let is_other = name.is_some() && name.as_deref() != self.world.classes[class].name();
                answers.push(match known[class] {
                    _ if is_other => Diagram::NONE,
                    Some(true) => Diagram::ALL,
                    Some(false) => Diagram::NONE,
                    None => self.world.namespace_labels(selector, remote_role, pair)?,
                });
            }
            if answers.iter().any(|it| !it.is_empty()) {
                groups.entry(answers).or_default().push(Some(class));
            }
        }
        let mut groups: Vec<Vec<EndClass>> = groups.into_values().collect();
        groups.sort_unstable();
        groups.extend([vec![Some(self.class)], vec![None]]);
        Ok(groups.into_iter().map(|all| RemoteGroup { asked: all[0], all }).collect())
    }

    /// The indexes of a policy's rules.
    fn own_rules(&self, at: usize, policy: PolicyId) -> Range<usize> {
        self.directions[at].of_policy.get(&policy).cloned().unwrap_or_default()
    }

    /// The indexes of a policy's rules that were not reported.
    fn rules_of(&self, at: usize, policy: PolicyId) -> Vec<usize> {
        self.own_rules(at, policy).filter(|it| !self.directions[at].rules[*it].is_gone).collect()
    }

    fn place(&self, at: usize, rule: usize) -> RulePlace {
        let DirectionRules { direction, rules, .. } = &self.directions[at];
        RulePlace { direction: *direction, rule: rules[rule].rule }
    }

    fn remove_policy(&mut self, policy: PolicyId) {
        self.policies.retain(|it| *it != policy);
        for at in 0..2 {
            for rule in self.own_rules(at, policy) {
                self.directions[at].rules[rule].is_gone = true;
            }
        }
    }
}

/// Collects the pods that policies of the other end isolate, and the flows of their rules.
fn far_end(world: &mut PossibleWorld<'_>, direction: Direction, pair: ClassPair) -> Result<FarEnd, WorldError> {
    let mut far = FarEnd { isolating: Vec::new(), rules: Vec::new() };
    for policy in world.isolating(SIDE, direction, pair.subject(direction)).to_vec() {
        let subjects = world.subjects(SIDE, policy);
        let subjects = world.ends(&subjects, subject_role(direction), pair)?;
        far.isolating.push((policy, subjects));
        for flows in world.rule_products(SIDE, direction, policy) {
            far.rules.push(world.product(&flows, pair)?);
        }
    }
    Ok(far)
}

/// Whether two sets of traffic may have some in common. A name may be that of any port.
fn share_traffic(one: &TrafficSet, other: &TrafficSet) -> bool {
    // A rule that allows traffic without ports allows all ports, too.
    let meet = |a: &PortSet, b: &PortSet| a.protocol == b.protocol && a.first <= b.last && b.first <= a.last;
    one.ports.iter().any(|a| other.ports.iter().any(|b| meet(a, b)))
}

/// Finds the policies that may select a pod of a policy, without comparing all pairs.
///
/// Most policies of a namespace require one value of one key, such as `app`. Policies that require different values of
/// it have no pod in common.
struct LikelyNeighbours {
    values: HashMap<PolicyId, String>,
    by_value: HashMap<String, Vec<PolicyId>>,
    /// Policies that do not require one value.
    others: Vec<PolicyId>,
    all: Vec<PolicyId>,
}

impl LikelyNeighbours {
    fn new(world: &PossibleWorld<'_>, policies: &BTreeSet<PolicyId>) -> Self {
        let cluster = world.clusters[SIDE];
        let selector = |policy: PolicyId| cluster.labels.selector(cluster.policy(policy).subjects);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for policy in policies {
            selector(*policy).match_labels.keys().for_each(|key| *counts.entry(key).or_default() += 1);
        }
        let key = counts.into_iter().max_by_key(|(_, count)| *count).map(|(key, _)| key);
        let all = policies.iter().copied().collect();
        let mut it = Self { values: HashMap::new(), by_value: HashMap::new(), others: Vec::new(), all };
        for policy in policies {
            match key.and_then(|key| selector(*policy).match_labels.get(key)) {
                Some(value) => {
                    it.values.insert(*policy, value.to_owned());
                    it.by_value.entry(value.to_owned()).or_default().push(*policy);
                }
                None => it.others.push(*policy),
            }
        }
        it
    }

    fn of(&self, policy: PolicyId) -> impl Iterator<Item = PolicyId> + use<> {
        let found = match self.values.get(&policy) {
            Some(value) => [self.by_value.get(value).cloned().unwrap_or_default(), self.others.clone()].concat(),
            None => self.all.clone(),
        };
        found.into_iter()
    }
}
