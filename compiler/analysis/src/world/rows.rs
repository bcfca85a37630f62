//! Rows: one for each rule, isolation or list that makes a difference.
//!
//! Both sides are compared twice: once for traffic that the head allows and the base denies, once the other way round.
//! The side that allows is `new` here, the side that denies is `old`. New traffic is allowed by a rule that `old` lacks,
//! or it is traffic of pods that only `old` isolates, or traffic that only a list of `old` denies. Each of these is a
//! candidate: a product, without the products that `old` allows and without those that lists of `new` deny. Diagrams
//! show which candidates contain a flow, and which of their peers and exceptions matter.
//!
//! Policies are compared by their meaning first: a policy that both sides have, under any name, allows nothing new.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::diagram::Diagram;
use super::examples::ExampleContext;
use super::groups::{EndSet, FlowProduct, TrafficSet};
use super::halves::{ClassPair, DeniedProduct, EndClass, PossibleWorld, opposite, product, subject_role};
use super::variables::Role;
use super::{CauseKind, RowCause, WorldDiff, WorldError, WorldRow};
use crate::addresses::AddressSet;
use crate::diff::VerdictChange;
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, PolicyId};
use weir_objects::address::Family;
use weir_objects::k8s::LabelSelector;

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// The rows of a comparison.
pub(super) fn rows(clusters: [&Cluster; 2], most: usize, watch: &dyn Fn(u64, u64)) -> Result<WorldDiff, WorldError> {
    let mut world = PossibleWorld::new(clusters, most);
    let mut diff = WorldDiff::default();
    let mut under_comparison = Vec::new();
    let found = Changes { world: &mut world, under_comparison: &mut under_comparison }.find(&mut diff, watch);
    match found {
        Ok(()) => Ok(diff),
        Err(WorldError::TooLarge { .. }) => Err(WorldError::TooLarge { policies: under_comparison }),
        Err(other) => Err(other),
    }
}

/// A row, if it contains a flow.
pub(super) struct Candidate {
    pub(super) change: VerdictChange,
    pub(super) direction: Direction,
    pub(super) cause: RowCause,
    pub(super) flows: FlowProduct,
    pub(super) except: Vec<FlowProduct>,
    pub(super) family: Option<Family>,
}

impl Candidate {
    /// The candidate once for each family, if addresses matter to it.
    fn by_family(self) -> Vec<Self> {
        let products = || self.except.iter().chain([&self.flows]);
        let sets = || products().flat_map(|it| it.source.pods.iter().chain(&it.destination.pods));
        if sets().all(|it| it.addresses.is_none()) {
            return vec![self];
        }
        let one = |family| {
            let mut flows = self.flows.clone();
            let mut except = self.except.clone();
            except.iter_mut().chain([&mut flows]).for_each(|it| it.keep_family(family));
            Self { flows, except, family: Some(family), cause: self.cause.clone(), ..self }
        };
        [Family::V4, Family::V6].map(one).into()
    }
}

/// The meaning of a policy in one direction.
type PolicyMeaning = (EndSet, Vec<FlowProduct>);

/// The policies of one namespace that isolate pods in one direction, on both sides.
pub(super) struct ChangedPolicies {
    pub(super) of_old: Vec<PolicyId>,
    new_meanings: Vec<PolicyMeaning>,
    old_meanings: Vec<PolicyMeaning>,
    /// The policies of the new side whose meaning the old side lacks.
    pub(super) only_new: Vec<PolicyId>,
    /// The policies of the old side whose meaning the new side lacks.
    pub(super) only_old: Vec<PolicyId>,
}

/// Pairs of classes for which every namespace selector of a candidate gives the same results.
pub(super) struct PairGroup {
    sources: Vec<EndClass>,
    destinations: Vec<EndClass>,
    /// One of these pairs. The candidate has the same flows for all of them.
    pub(super) asked: ClassPair,
    /// Whether the group is one namespace of unknown labels, as both ends. Such a pair is in no other group: the ends
    /// have the same labels there.
    is_shared: bool,
}

impl PairGroup {
    fn pairs<'g>(&'g self, world: &'g PossibleWorld<'_>) -> impl Iterator<Item = ClassPair> + 'g {
        let of_source = move |source: &'g EndClass| {
            let pair = |destination: &EndClass| ClassPair { source: *source, destination: *destination };
            self.destinations.iter().map(pair)
        };
        let all = self.sources.iter().flat_map(of_source);
        all.filter(|pair| self.is_shared || !world.shares_labels(*pair))
    }
}

pub(super) struct Changes<'w, 'c> {
    pub(super) world: &'w mut PossibleWorld<'c>,
    /// The policies that are compared at the moment, for an error.
    pub(super) under_comparison: &'w mut Vec<String>,
}

impl Changes<'_, '_> {
    fn find(&mut self, diff: &mut WorldDiff, watch: &dyn Fn(u64, u64)) -> Result<(), WorldError> {
        let mut examples = ExampleContext::new(self.world.clusters);
        let mut vocabularies = Vec::new();
        for direction in DIRECTIONS {
            if self.has_tiers(direction) {
                vocabularies.push((direction, self.vocabulary(direction)?));
            }
        }
        for (pass, change) in [VerdictChange::Added, VerdictChange::Removed].into_iter().enumerate() {
            let mut candidates = Vec::new();
            for direction in DIRECTIONS {
                if let Some((_, vocabulary)) = vocabularies.iter_mut().find(|(of, _)| *of == direction) {
                    candidates.extend(self.candidates_with_tiers(change, direction, vocabulary)?);
                    continue;
                }
                for class in 0..self.world.classes.len() {
                    candidates.extend(self.policy_candidates(change, direction, class)?);
                }
                candidates.extend(self.list_candidates(change, direction));
            }
            if self.has_dual_endpoints() {
                candidates = candidates.into_iter().flat_map(Candidate::by_family).collect();
            }
            let count = candidates.len();
            for (index, candidate) in candidates.into_iter().enumerate() {
                // Both passes have about the same number of candidates.
                watch((pass * count + index) as u64, 2 * count as u64);
                *self.under_comparison = self.names(change, &candidate.cause);
                let cause = candidate.cause.clone();
                match self.row(candidate, &mut examples)? {
                    Found::Row(row) => diff.rows.push(*row),
                    Found::WithoutEffect => diff.without_effect.push((change, cause)),
                    Found::Nothing => {}
                }
            }
        }
        Ok(())
    }

    /// The names of the policies and the list of a cause.
    pub(super) fn names(&self, change: VerdictChange, cause: &RowCause) -> Vec<String> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let of = |side: usize| self.world.clusters[side];
        match &cause.kind {
            CauseKind::Rule { rule, .. } => vec![of(new).policy_name(rule.policy)],
            CauseKind::Isolation(policy) => vec![of(old).policy_name(*policy)],
            CauseKind::List(list, rule) => {
                let policy = rule.map(|rule| of(new).policy_name(rule.policy));
                policy.into_iter().chain([of(old).lists[list.index()].name.clone()]).collect()
            }
            CauseKind::Tier { rule, is_allowing } => {
                vec![of(if *is_allowing { new } else { old }).tier_policy_name(rule.policy)]
            }
        }
    }

    /// Whether cluster-wide policies decide in a direction, on any side.
    fn has_tiers(&self, direction: Direction) -> bool {
        self.world.sides.iter().any(|it| !it.tiers[direction as usize].is_empty())
    }

    /// Whether an endpoint of the input has addresses of both families.
    fn has_dual_endpoints(&self) -> bool {
        let has = |family| move |address: &IpAddr| Family::of(*address) == family;
        let mut endpoints = self.world.clusters.iter().flat_map(|it| &it.endpoints);
        endpoints.any(|it| it.addresses.iter().any(has(Family::V4)) && it.addresses.iter().any(has(Family::V6)))
    }

    /// The candidates of the policies of one namespace.
    fn policy_candidates(
        &mut self,
        change: VerdictChange,
        direction: Direction,
        class: usize,
    ) -> Result<Vec<Candidate>, WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let changed = self.changed_policies(change, direction, class);
        if changed.only_new.is_empty() && changed.only_old.is_empty() {
            return Ok(Vec::new());
        }
        let of_side = |side: usize, policies: &[PolicyId]| -> Vec<String> {
            policies.iter().map(|it| self.world.clusters[side].policy_name(*it)).collect()
        };
        *self.under_comparison = [of_side(new, &changed.only_new), of_side(old, &changed.only_old)].concat();
        self.under_comparison.sort_unstable();
        self.under_comparison.dedup();
        let mut candidates = Vec::new();
        for policy in &changed.only_new {
            let (subjects, isolating) = self.isolated_among(change, direction, class, *policy, &changed.of_old)?;
            if subjects.pods.is_empty() {
                continue;
            }
            for (rule, flows) in self.rules_only_new(change, direction, *policy, &changed) {
                let except = self.exceptions(new, direction, &changed.old_meanings);
                let cause = RowCause { direction, kind: CauseKind::Rule { rule, isolating: isolating.clone() } };
                let flows = with_subjects(direction, flows, subjects.clone());
                candidates.push(Candidate { change, direction, cause, flows, except, family: None });
            }
        }
        for policy in &changed.only_old {
            let mut except: Vec<FlowProduct> = changed
                .new_meanings
                .iter()
                .map(|(subjects, _)| {
                    product(direction, subjects.clone(), EndSet::everything(), self.world.all_traffic(new))
                })
                .collect();
            except.extend(self.exceptions(new, direction, &changed.old_meanings));
            let flows = self.isolated_flows(change, direction, *policy);
            let cause = RowCause { direction, kind: CauseKind::Isolation(*policy) };
            candidates.push(Candidate { change, direction, cause, flows, except, family: None });
        }
        Ok(candidates)
    }

    /// Compares the policies of one namespace by their meanings.
    pub(super) fn changed_policies(
        &self,
        change: VerdictChange,
        direction: Direction,
        class: usize,
    ) -> ChangedPolicies {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let [of_new, of_old] = [new, old].map(|side| self.world.isolating(side, direction, Some(class)).to_vec());
        let [new_meanings, old_meanings] =
            [(new, &of_new), (old, &of_old)].map(|(side, policies)| self.meanings(side, direction, policies));
        let only_new = unmatched(&of_new, &new_meanings, &old_meanings);
        let only_old = unmatched(&of_old, &old_meanings, &new_meanings);
        ChangedPolicies { of_old, new_meanings, old_meanings, only_new, only_old }
    }

    /// The rules of a policy of the new side that no policy of the old side in this namespace has.
    pub(super) fn rules_only_new(
        &self,
        change: VerdictChange,
        direction: Direction,
        policy: PolicyId,
        changed: &ChangedPolicies,
    ) -> Vec<(RuleId, FlowProduct)> {
        let before: HashSet<&FlowProduct> = changed.old_meanings.iter().flat_map(|(_, rules)| rules).collect();
        let rules = self.world.rule_products(allowing(change), direction, policy).into_iter().enumerate();
        let rules = rules.filter(|(_, flows)| !before.contains(flows));
        rules.map(|(index, flows)| (RuleId { policy, rule: index as u32 }, flows)).collect()
    }

    /// All traffic of the pods that a policy of the old side isolates.
    pub(super) fn isolated_flows(&self, change: VerdictChange, direction: Direction, policy: PolicyId) -> FlowProduct {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let subjects = self.world.subjects(old, policy);
        product(direction, subjects, EndSet::everything(), self.world.all_traffic(new))
    }

    /// The products that lists of the old side deny and no list of the new side does.
    pub(super) fn no_longer_denied(&self, change: VerdictChange, direction: Direction) -> Vec<&DeniedProduct> {
        let [of_new, of_old] =
            [allowing(change), 1 - allowing(change)].map(|side| &self.world.sides[side].denied[direction as usize]);
        let still: HashSet<&FlowProduct> = of_new.iter().map(|it| &it.flows).collect();
        of_old.iter().filter(|it| !still.contains(&it.flows)).collect()
    }

    /// The flows that do not change although a rule or the end of an isolation allows them: the old side allowed them,
    /// or a list denies them on the new side.
    fn exceptions(&self, new: usize, direction: Direction, old: &[PolicyMeaning]) -> Vec<FlowProduct> {
        let mut except: Vec<FlowProduct> = old.iter().flat_map(|(_, rules)| rules.iter().cloned()).collect();
        except.extend(self.world.sides[new].denied[direction as usize].iter().map(|it| it.flows.clone()));
        except.sort_unstable();
        except.dedup();
        except
    }

    /// The pods that a policy of the new side selects and that policies of the old side isolate.
    pub(super) fn isolated_among(
        &mut self,
        change: VerdictChange,
        direction: Direction,
        class: usize,
        policy: PolicyId,
        of_old: &[PolicyId],
    ) -> Result<(EndSet, Vec<PolicyId>), WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let subjects = self.world.subjects(new, policy);
        let (pair, role) = (ClassPair::of(direction, Some(class), None), subject_role(direction));
        let selected = self.world.ends(&subjects, role, pair)?;
        let (mut both, mut isolating) = (EndSet::default(), Vec::new());
        for other in of_old {
            let others = self.world.subjects(old, *other);
            let diagram = self.world.ends(&others, role, pair)?;
            if !self.world.diagrams.and(selected, diagram)?.is_empty() {
                both.extend(subjects.and(&others));
                isolating.push(*other);
            }
        }
        let isolated = self.world.isolated(old, direction, pair)?;
        let are_all = self.world.diagrams.and_not(selected, isolated)?.is_empty();
        Ok((if are_all { subjects } else { both }, isolating))
    }

    fn meanings(&self, side: usize, direction: Direction, policies: &[PolicyId]) -> Vec<PolicyMeaning> {
        let meaning = |policy: &PolicyId| {
            let mut rules = self.world.rule_products(side, direction, *policy);
            rules.sort_unstable();
            rules.dedup();
            (self.world.subjects(side, *policy), rules)
        };
        policies.iter().map(meaning).collect()
    }

    /// Traffic that only lists of the old side deny: everything that the policies of the new side allow there.
    fn list_candidates(&self, change: VerdictChange, direction: Direction) -> Vec<Candidate> {
        let new = allowing(change);
        let denied_before = self.no_longer_denied(change, direction);
        if denied_before.is_empty() {
            return Vec::new();
        }
        let of_new = &self.world.sides[new].denied[direction as usize];
        let denied_still: Vec<FlowProduct> = of_new.iter().map(|it| it.flows.clone()).collect();
        let isolating: Vec<PolicyId> =
            self.world.sides[new].isolating[direction as usize].iter().flatten().copied().collect();
        let mut candidates = Vec::new();
        for denied in denied_before {
            let cause = |rule| RowCause { direction, kind: CauseKind::List(denied.list, rule) };
            let isolated = |policy: &PolicyId| {
                let subjects = self.world.subjects(new, *policy);
                product(direction, subjects, EndSet::everything(), self.world.all_traffic(new))
            };
            let mut except: Vec<FlowProduct> = isolating.iter().map(isolated).collect();
            except.extend(denied_still.iter().cloned());
            let flows = denied.flows.clone();
            candidates.push(Candidate { change, direction, cause: cause(None), flows, except, family: None });
            for policy in &isolating {
                for (index, rule) in self.world.rule_products(new, direction, *policy).into_iter().enumerate() {
                    let flows = FlowProduct {
                        source: rule.source.and(&denied.flows.source),
                        destination: rule.destination.and(&denied.flows.destination),
                        traffic: rule.traffic,
                    };
                    let except = denied_still.clone();
                    let cause = cause(Some(RuleId { policy: *policy, rule: index as u32 }));
                    candidates.push(Candidate { change, direction, cause, flows, except, family: None });
                }
            }
        }
        candidates
    }

    fn row(&mut self, mut candidate: Candidate, examples: &mut ExampleContext) -> Result<Found, WorldError> {
        let groups = self.groups(&candidate)?;
        let groups = self.with_exceptions(&candidate, groups)?;
        self.trim(&mut candidate, &groups)?;
        let mut regions = Vec::new();
        for (group, except) in &groups {
            regions
                .extend(self.region(&candidate.flows, candidate.family, group, *except)?.map(|region| (group, region)));
        }
        if regions.is_empty() {
            return Ok(Found::Nothing);
        }
        self.trim_exceptions(&mut candidate, &groups)?;
        let (new, other) = (allowing(candidate.change), opposite(candidate.direction));
        let (mut passing, mut is_cut) = (None, false);
        'pairs: for (group, region) in regions {
            for pair in group.pairs(self.world).collect::<Vec<_>>() {
                let half = self.world.half(new, other, pair)?;
                is_cut |= !self.world.diagrams.and_not(region, half)?.is_empty();
                if passing.is_none() {
                    let open = self.world.diagrams.and(region, half)?;
                    passing = examples.confirmed(self.world, candidate.change, pair, open)?;
                }
                if is_cut && passing.is_some() {
                    break 'pairs;
                }
            }
        }
        let Some((example, judged)) = passing else { return Ok(Found::WithoutEffect) };
        let has_tiers = self.has_tiers(candidate.direction);
        let Candidate { change, direction, cause, flows, except, family } = candidate;
        let given = is_cut.then_some(other);
        let decided = has_tiers.then(|| judged.map(|it| it.side(direction).clone()));
        Ok(Found::Row(Box::new(WorldRow { change, cause, flows, except, given, family, example, decided })))
    }

    /// Groups of pairs for which all namespace selectors of the candidate have the same results.
    fn groups(&mut self, candidate: &Candidate) -> Result<Vec<PairGroup>, WorldError> {
        self.groups_of(&candidate.except.iter().chain([&candidate.flows]).collect::<Vec<_>>())
    }

    /// Groups of pairs for which the namespace selectors of all products have the same results.
    pub(super) fn groups_of(&mut self, products: &[&FlowProduct]) -> Result<Vec<PairGroup>, WorldError> {
        let sources = self.classes_alike(products, Role::Source)?;
        let destinations = self.classes_alike(products, Role::Destination)?;
        let mut groups = Vec::new();
        for sources in &sources {
            for destinations in &destinations {
                let pair = |source: usize, destination: usize| {
                    let pair =
                        ClassPair { source: *sources.get(source)?, destination: *destinations.get(destination)? };
                    // No policy applies to traffic between two outside addresses.
                    let applies = pair.source.is_some() || pair.destination.is_some();
                    (applies && !self.world.shares_labels(pair)).then_some(pair)
                };
                let asked = pair(0, 0).or_else(|| pair(0, 1)).or_else(|| pair(1, 0));
                let (sources, destinations) = (sources.clone(), destinations.clone());
                groups.extend(asked.map(|asked| PairGroup { sources, destinations, asked, is_shared: false }));
            }
        }
        for class in (0..self.world.classes.len()).map(Some) {
            let asked = ClassPair { source: class, destination: class };
            let (sources, destinations) = (vec![class], vec![class]);
            let is_shared = self.world.shares_labels(asked);
            groups.extend(is_shared.then_some(PairGroup { sources, destinations, asked, is_shared }));
        }
        Ok(groups)
    }

    /// The classes, grouped by the results of the products' namespace selectors. Outside is a group of its own.
    fn classes_alike(&mut self, products: &[&FlowProduct], role: Role) -> Result<Vec<Vec<EndClass>>, WorldError> {
        let mut selectors: Vec<&LabelSelector> =
            products.iter().flat_map(|it| &end(it, role).pods).map(|it| &it.namespaces).collect();
        selectors.sort_unstable();
        selectors.dedup();
        let mut groups: HashMap<Vec<Diagram>, Vec<EndClass>> = HashMap::new();
        for class in 0..self.world.classes.len() {
            let pair = match role {
                Role::Source => ClassPair { source: Some(class), destination: None },
                Role::Destination => ClassPair { source: None, destination: Some(class) },
            };
            let answers: Result<Vec<Diagram>, WorldError> =
                selectors.iter().map(|it| self.world.namespace_labels(it, role, pair)).collect();
            groups.entry(answers?).or_default().push(Some(class));
        }
        let mut groups: Vec<Vec<EndClass>> = groups.into_values().collect();
        groups.sort_unstable();
        groups.push(vec![None]);
        Ok(groups)
    }

    /// The groups in which the product has flows, each with the diagram of all exceptions.
    fn with_exceptions(
        &mut self,
        candidate: &Candidate,
        groups: Vec<PairGroup>,
    ) -> Result<Vec<(PairGroup, Diagram)>, WorldError> {
        let mut asked = Vec::new();
        for group in groups {
            if !self.world.product(&candidate.flows, group.asked)?.is_empty() {
                let except = self.world.union(&candidate.except, group.asked)?;
                asked.push((group, except));
            }
        }
        Ok(asked)
    }

    /// The flows of a group that a product changes, if there are any.
    fn region(
        &mut self,
        flows: &FlowProduct,
        family: Option<Family>,
        group: &PairGroup,
        except: Diagram,
    ) -> Result<Option<Diagram>, WorldError> {
        let all = self.world.product(flows, group.asked)?;
        let all = match family {
            Some(family) => self.world.within_family(all, family)?,
            None => all,
        };
        let region = self.world.diagrams.and_not(all, except)?;
        Ok((!region.is_empty()).then_some(region))
    }

    fn is_unchanged(
        &mut self,
        flows: &FlowProduct,
        family: Option<Family>,
        groups: &[(PairGroup, Diagram)],
    ) -> Result<bool, WorldError> {
        for (group, except) in groups {
            if self.region(flows, family, group, *except)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes peers and ports of which no flow changes.
    fn trim(&mut self, candidate: &mut Candidate, groups: &[(PairGroup, Diagram)]) -> Result<(), WorldError> {
        let Candidate { flows, family, .. } = candidate;
        for role in [Role::Source, Role::Destination] {
            for index in (0..end(flows, role).pods.len()).rev() {
                let mut one = flows.clone();
                *end_mut(&mut one, role) = EndSet::pods(end(flows, role).pods[index].clone());
                if self.is_unchanged(&one, *family, groups)? {
                    end_mut(flows, role).pods.remove(index);
                }
            }
            let mut outside = flows.clone();
            end_mut(&mut outside, role).pods.clear();
            if !end(flows, role).ranges.is_empty() && self.is_unchanged(&outside, *family, groups)? {
                end_mut(flows, role).ranges = AddressSet::default();
            }
        }
        for index in (0..flows.traffic.ports.len()).rev() {
            let mut one = flows.clone();
            one.traffic = TrafficSet { portless: false, ports: vec![flows.traffic.ports[index].clone()] };
            if self.is_unchanged(&one, *family, groups)? {
                flows.traffic.ports.remove(index);
            }
        }
        let mut portless = flows.clone();
        portless.traffic.ports.clear();
        if flows.traffic.portless && self.is_unchanged(&portless, *family, groups)? {
            flows.traffic.portless = false;
        }
        Ok(())
    }

    /// Removes exceptions that have no flow in common with the product.
    fn trim_exceptions(
        &mut self,
        candidate: &mut Candidate,
        groups: &[(PairGroup, Diagram)],
    ) -> Result<(), WorldError> {
        let mut kept = Vec::new();
        for except in std::mem::take(&mut candidate.except) {
            for (group, _) in groups {
                let flows = self.world.product(&candidate.flows, group.asked)?;
                let one = self.world.product(&except, group.asked)?;
                if !self.world.diagrams.and(flows, one)?.is_empty() {
                    kept.push(except);
                    break;
                }
            }
        }
        candidate.except = kept;
        Ok(())
    }
}

enum Found {
    Row(Box<WorldRow>),
    /// The other end denies all of its flows.
    WithoutEffect,
    /// No flow changes.
    Nothing,
}

/// The side that allows the flows of a row.
pub(super) fn allowing(change: VerdictChange) -> usize {
    match change {
        VerdictChange::Added => 1,
        VerdictChange::Removed => 0,
    }
}

fn end(flows: &FlowProduct, role: Role) -> &EndSet {
    match role {
        Role::Source => &flows.source,
        Role::Destination => &flows.destination,
    }
}

fn end_mut(flows: &mut FlowProduct, role: Role) -> &mut EndSet {
    match role {
        Role::Source => &mut flows.source,
        Role::Destination => &mut flows.destination,
    }
}

fn with_subjects(direction: Direction, mut flows: FlowProduct, subjects: EndSet) -> FlowProduct {
    *end_mut(&mut flows, subject_role(direction)) = subjects;
    flows
}

/// The policies whose meaning the other side lacks. A meaning that occurs more often on this side adds nothing.
fn unmatched(policies: &[PolicyId], meanings: &[PolicyMeaning], others: &[PolicyMeaning]) -> Vec<PolicyId> {
    let known: HashSet<&PolicyMeaning> = others.iter().collect();
    policies.iter().zip(meanings).filter(|(_, it)| !known.contains(it)).map(|(policy, _)| *policy).collect()
}
