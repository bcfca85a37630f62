//! Candidates for rows where cluster-wide policies are in force.
//!
//! Problem: tiers are ordered lists in which the first rule that matches decides. What a changed rule changes is
//! therefore no product without products: an earlier rule can take a part away, and a still earlier one can give a part
//! of it back.
//! Strategy: a *seed* is a product that contains every flow that a change can affect: a rule of a tier that the other
//! side lacks, or has at another place, and what [`super::rows`] takes without tiers. Diagrams give the part of the seed
//! that changes. This target is then written with the products of both sides: those that contain nothing of it become
//! exceptions, and where these do not suffice, a product that contains a part of it cuts the seed in two.
//! Invariant: every flow of the target is in a candidate, and no other flow of the seed is. The verdict of a direction
//! is a function of the products that contain the flow, so the cuts come to an end.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::diagram::Diagram;
use super::groups::{EndSet, FlowProduct, PodSet, named_namespace, not_named};
use super::halves::{ClassPair, product};
use super::rows::{Candidate, Changes, PairGroup, allowing};
use super::{CauseKind, RowCause, WorldError};
use crate::diff::VerdictChange;
use weir_model::eval::RuleId;
use weir_model::{Direction, PolicyId, Tier};

/// The most candidates of one seed. A person reads fewer; an input beyond it is refused.
const MOST_PIECES: usize = 2_000;

/// Everything that a direction's verdict depends on, on both sides.
struct Vocabulary {
    products: Vec<FlowProduct>,
    /// Classes of ends that no product tells apart, in pairs.
    groups: Vec<PairGroup>,
    known: HashMap<(usize, ClassPair), Diagram>,
}

/// A product that contains every flow that one change can affect.
struct Seed {
    cause: RowCause,
    flows: FlowProduct,
}

/// The part of a product that changes, for a pair of classes in which the product has flows.
#[derive(Clone, Copy)]
struct Target {
    pair: ClassPair,
    /// The whole product.
    all: Diagram,
    /// What changes: no other flow may be in a candidate.
    changes: Diagram,
    /// What is in no candidate yet.
    missing: Diagram,
}

/// A product that cuts another one, and its flows for each pair of classes.
#[derive(Clone)]
struct Part {
    index: usize,
    flows: Rc<[Diagram]>,
}

/// What a seed is written with.
struct Writing<'v> {
    vocabulary: &'v mut Vocabulary,
    /// The flows that are in a candidate.
    written: HashMap<ClassPair, Diagram>,
    pieces: Vec<(FlowProduct, Vec<FlowProduct>)>,
}

impl Changes<'_, '_> {
    /// The candidates of one direction.
    pub(super) fn candidates_with_tiers(
        &mut self,
        change: VerdictChange,
        direction: Direction,
    ) -> Result<Vec<Candidate>, WorldError> {
        let mut vocabulary = self.vocabulary(direction)?;
        let mut candidates = Vec::new();
        let mut writing = Writing { vocabulary: &mut vocabulary, written: HashMap::new(), pieces: Vec::new() };
        for seed in self.seeds(change, direction)? {
            *self.under_comparison = self.names(change, &seed.cause);
            let targets = self.targets(change, direction, &seed.flows, &writing)?;
            self.express(seed.flows, targets, &mut writing)?;
            for (flows, except) in std::mem::take(&mut writing.pieces) {
                let cause = seed.cause.clone();
                candidates.push(Candidate { change, direction, cause, flows, except, family: None });
            }
        }
        Ok(candidates)
    }

    fn names(&self, change: VerdictChange, cause: &RowCause) -> Vec<String> {
        let (allowing, denying) = (allowing(change), 1 - allowing(change));
        let of = |side: usize| self.world.clusters[side];
        vec![match &cause.kind {
            CauseKind::Rule { rule, .. } => of(allowing).policy_name(rule.policy),
            CauseKind::Isolation(policy) => of(denying).policy_name(*policy),
            CauseKind::List(list, _) => of(denying).lists[list.index()].name.clone(),
            CauseKind::Tier { rule, is_allowing } => {
                of(if *is_allowing { allowing } else { denying }).tier_policy_name(rule.policy)
            }
        }]
    }

    /// All products of a direction: those of lists, rules and isolations of both sides, each once.
    fn vocabulary(&mut self, direction: Direction) -> Result<Vocabulary, WorldError> {
        let mut products: Vec<FlowProduct> = Vec::new();
        for side in 0..2 {
            products.extend(self.world.sides[side].tiers[direction as usize].iter().map(|it| it.flows.clone()));
        }
        for side in 0..2 {
            products.extend(self.world.sides[side].denied[direction as usize].iter().map(|it| it.flows.clone()));
        }
        for side in 0..2 {
            let traffic = self.world.all_traffic(side);
            let whole = |set: EndSet| product(direction, set, EndSet::everything(), traffic.clone());
            let of_classes = self.world.sides[side].isolating[direction as usize].clone();
            let with_policies = of_classes.iter().zip(&self.world.classes).filter(|(policies, _)| !policies.is_empty());
            let names: Vec<String> = with_policies.filter_map(|(_, class)| class.name().map(str::to_owned)).collect();
            // Where no policy isolates a pod, as far as namespaces show it.
            let elsewhere = if names.is_empty() { Default::default() } else { not_named(&names) };
            products.push(whole(EndSet::pods(PodSet { namespaces: elsewhere, ..PodSet::default() })));
            for name in &names {
                let set = PodSet { namespaces: named_namespace(name), ..PodSet::default() };
                products.push(whole(EndSet::pods(set)));
            }
            for policy in of_classes.into_iter().flatten() {
                products.push(whole(self.world.subjects(side, policy)));
                products.extend(self.world.rule_products(side, direction, policy));
            }
            // Traffic without ports, and the families of outside addresses, can be exempt on their own.
            products.push(whole(EndSet::pods(PodSet::default())));
        }
        let mut seen = HashSet::new();
        products.retain(|it| seen.insert(it.clone()));
        let groups = self.groups_of(&products.iter().collect::<Vec<_>>())?;
        Ok(Vocabulary { products, groups, known: HashMap::new() })
    }

    /// Products that together contain every flow of a direction that changes.
    fn seeds(&mut self, change: VerdictChange, direction: Direction) -> Result<Vec<Seed>, WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let mut seeds = Vec::new();
        for side in [new, old] {
            for tier in Tier::ALL {
                let (own, other) = (side, 1 - side);
                let [own, other] = [own, other].map(|side| {
                    let all = self.world.sides[side].tiers[direction as usize].iter();
                    all.filter(|it| it.tier == tier).map(|it| (it.rule, (it.action, &it.flows))).collect::<Vec<_>>()
                });
                for (rule, flows) in moved(&own, &other) {
                    let kind = CauseKind::Tier { rule, is_allowing: side == new };
                    seeds.push(Seed { cause: RowCause { direction, kind }, flows: flows.1.clone() });
                }
            }
        }
        for class in 0..self.world.classes.len() {
            seeds.extend(self.policy_seeds(change, direction, class)?);
        }
        let [of_new, of_old] = [new, old].map(|side| &self.world.sides[side].denied[direction as usize]);
        let still: HashSet<&FlowProduct> = of_new.iter().map(|it| &it.flows).collect();
        for denied in of_old.iter().filter(|it| !still.contains(&it.flows)) {
            let cause = RowCause { direction, kind: CauseKind::List(denied.list, None) };
            seeds.push(Seed { cause, flows: denied.flows.clone() });
        }
        Ok(seeds)
    }

    /// The seeds of the NetworkPolicies of one namespace.
    fn policy_seeds(
        &mut self,
        change: VerdictChange,
        direction: Direction,
        class: usize,
    ) -> Result<Vec<Seed>, WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let [of_new, of_old] = [new, old].map(|side| self.world.isolating(side, direction, Some(class)).to_vec());
        let [new_meanings, old_meanings] =
            [(new, &of_new), (old, &of_old)].map(|(side, policies)| self.meanings(side, direction, policies));
        let allowed_before: HashSet<&FlowProduct> = old_meanings.iter().flat_map(|(_, rules)| rules).collect();
        let mut seeds = Vec::new();
        for policy in super::rows::unmatched(&of_new, &new_meanings, &old_meanings) {
            let (_, isolating): (_, Vec<PolicyId>) =
                self.isolated_among(old, direction, class, policy, new, &of_old)?;
            for (index, flows) in self.world.rule_products(new, direction, policy).into_iter().enumerate() {
                if allowed_before.contains(&flows) {
                    continue;
                }
                let rule = RuleId { policy, rule: index as u32 };
                let kind = CauseKind::Rule { rule, isolating: isolating.clone() };
                seeds.push(Seed { cause: RowCause { direction, kind }, flows });
            }
        }
        for policy in super::rows::unmatched(&of_old, &old_meanings, &new_meanings) {
            let (subjects, traffic) = (self.world.subjects(old, policy), self.world.all_traffic(new));
            let flows = product(direction, subjects, EndSet::everything(), traffic);
            seeds.push(Seed { cause: RowCause { direction, kind: CauseKind::Isolation(policy) }, flows });
        }
        Ok(seeds)
    }

    /// What changes within a product.
    fn targets(
        &mut self,
        change: VerdictChange,
        direction: Direction,
        flows: &FlowProduct,
        writing: &Writing<'_>,
    ) -> Result<Vec<Target>, WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let mut targets = Vec::new();
        for group in &writing.vocabulary.groups {
            let pair = group.asked;
            let all = self.world.product(flows, pair)?;
            if all.is_empty() {
                continue;
            }
            let [now, before] = [self.world.half(new, direction, pair)?, self.world.half(old, direction, pair)?];
            let opened = self.world.diagrams.and_not(now, before)?;
            let changes = self.world.diagrams.and(all, opened)?;
            targets.push(Target { pair, all, changes, missing: changes });
        }
        Ok(targets)
    }

    /// Writes what is missing of a product as products without products.
    fn express(
        &mut self,
        flows: FlowProduct,
        mut targets: Vec<Target>,
        writing: &mut Writing<'_>,
    ) -> Result<(), WorldError> {
        let parts = self.parts(&targets, writing.vocabulary)?;
        loop {
            self.update(&mut targets, writing)?;
            if targets.iter().all(|it| it.missing.is_empty()) {
                return Ok(());
            }
            if self.write(&flows, &targets, &parts, writing)? {
                continue;
            }
            // A part that can be written as it is, and otherwise one that has to be cut again.
            let mut is_written = false;
            for part in &parts {
                let Some((inside, within)) = self.inside(&flows, &targets, part, writing.vocabulary)? else { continue };
                let of_part = self.narrowed(&parts, part)?;
                if self.write(&inside, &within, &of_part, writing)? {
                    is_written = true;
                    break;
                }
            }
            if is_written {
                continue;
            }
            let Some((inside, within)) = self.cut(&flows, &targets, &parts, writing.vocabulary)? else {
                return Err(WorldError::TooLarge { policies: Vec::new() });
            };
            self.express(inside, within, writing)?;
        }
    }

    /// Removes from what is missing what is in a candidate by now.
    fn update(&mut self, targets: &mut [Target], writing: &Writing<'_>) -> Result<(), WorldError> {
        for target in targets {
            let written = writing.written.get(&target.pair).copied().unwrap_or(Diagram::NONE);
            target.missing = self.world.diagrams.and_not(target.missing, written)?;
        }
        Ok(())
    }

    /// Writes a product, if exceptions without anything that is missing take away all that does not change.
    fn write(
        &mut self,
        flows: &FlowProduct,
        targets: &[Target],
        parts: &[Part],
        writing: &mut Writing<'_>,
    ) -> Result<bool, WorldError> {
        let mut left: Vec<Diagram> = targets.iter().map(|it| it.all).collect();
        let mut except = Vec::new();
        for part in parts {
            let mut is_done = true;
            for (left, target) in left.iter().zip(targets) {
                is_done &= self.world.diagrams.and_not(*left, target.changes)?.is_empty();
            }
            if is_done {
                break;
            }
            let (mut meets, mut helps) = (false, false);
            for ((part, target), left) in part.flows.iter().zip(targets).zip(&left) {
                meets |= !self.world.diagrams.and(*part, target.missing)?.is_empty();
                let still = self.world.diagrams.and_not(*left, target.changes)?;
                helps |= !self.world.diagrams.and(*part, still)?.is_empty();
            }
            if helps && !meets {
                for (left, part) in left.iter_mut().zip(part.flows.iter()) {
                    *left = self.world.diagrams.and_not(*left, *part)?;
                }
                except.push(writing.vocabulary.products[part.index].clone());
            }
        }
        for (left, target) in left.iter().zip(targets) {
            if !self.world.diagrams.and_not(*left, target.changes)?.is_empty() {
                return Ok(false);
            }
        }
        if writing.pieces.len() >= MOST_PIECES {
            return Err(WorldError::TooLarge { policies: Vec::new() });
        }
        writing.pieces.push((flows.clone(), except));
        for (left, target) in left.into_iter().zip(targets) {
            let before = writing.written.get(&target.pair).copied().unwrap_or(Diagram::NONE);
            let written = self.world.diagrams.or(before, left)?;
            writing.written.insert(target.pair, written);
        }
        Ok(true)
    }

    /// The products that have a part of the targets' products, but not all of them.
    fn parts(&mut self, targets: &[Target], vocabulary: &mut Vocabulary) -> Result<Vec<Part>, WorldError> {
        let mut parts = Vec::new();
        for index in 0..vocabulary.products.len() {
            let mut flows = Vec::with_capacity(targets.len());
            let (mut is_all, mut is_none) = (true, true);
            for target in targets {
                let key = (index, target.pair);
                let product = match vocabulary.known.get(&key) {
                    Some(known) => *known,
                    None => {
                        let product = self.world.product(&vocabulary.products[index], target.pair)?;
                        vocabulary.known.insert(key, product);
                        product
                    }
                };
                let part = self.world.diagrams.and(product, target.all)?;
                is_all &= part == target.all;
                is_none &= part.is_empty();
                flows.push(part);
            }
            if !is_all && !is_none {
                parts.push(Part { index, flows: flows.into() });
            }
        }
        Ok(parts)
    }

    /// The parts within one of them.
    fn narrowed(&mut self, parts: &[Part], to: &Part) -> Result<Vec<Part>, WorldError> {
        let mut narrowed = Vec::new();
        for part in parts.iter().filter(|it| it.index != to.index) {
            let mut flows = Vec::with_capacity(part.flows.len());
            for (part, to) in part.flows.iter().zip(to.flows.iter()) {
                flows.push(self.world.diagrams.and(*part, *to)?);
            }
            if flows.iter().any(|it| !it.is_empty()) {
                narrowed.push(Part { index: part.index, flows: flows.into() });
            }
        }
        Ok(narrowed)
    }

    /// A part of a product, if something of it is missing.
    fn inside(
        &mut self,
        flows: &FlowProduct,
        targets: &[Target],
        part: &Part,
        vocabulary: &Vocabulary,
    ) -> Result<Option<(FlowProduct, Vec<Target>)>, WorldError> {
        let mut within = Vec::with_capacity(targets.len());
        for (target, part) in targets.iter().zip(part.flows.iter()) {
            let changes = self.world.diagrams.and(target.changes, *part)?;
            let missing = self.world.diagrams.and(target.missing, *part)?;
            within.push(Target { pair: target.pair, all: *part, changes, missing });
        }
        if within.iter().all(|it| it.missing.is_empty()) {
            return Ok(None);
        }
        Ok(flows.and(&vocabulary.products[part.index]).map(|inside| (inside, within)))
    }

    /// The part at which a product is cut: the first that leaves something outside that does not change, and if there is
    /// none, the first that leaves something outside that is missing.
    fn cut(
        &mut self,
        flows: &FlowProduct,
        targets: &[Target],
        parts: &[Part],
        vocabulary: &Vocabulary,
    ) -> Result<Option<(FlowProduct, Vec<Target>)>, WorldError> {
        for is_about_rest in [true, false] {
            for part in parts {
                let mut cuts = false;
                for (target, part) in targets.iter().zip(part.flows.iter()) {
                    let rest = self.world.diagrams.and_not(target.all, target.changes)?;
                    let asked = if is_about_rest { rest } else { target.missing };
                    cuts |= !self.world.diagrams.and_not(asked, *part)?.is_empty();
                }
                if !cuts {
                    continue;
                }
                if let Some((inside, mut within)) = self.inside(flows, targets, part, vocabulary)? {
                    within.retain(|it| !it.all.is_empty());
                    return Ok(Some((inside, within)));
                }
            }
        }
        Ok(None)
    }
}

/// The rules of a tier that the other side lacks, or has at another place among the rules that both have. If the first
/// rule that matches a flow is not the same on both sides, this rule of one side is among them.
fn moved<R: Copy, M: Clone + Eq + std::hash::Hash>(own: &[(R, M)], other: &[(R, M)]) -> Vec<(R, M)> {
    // Behind an equal rule, a rule never is the first that matches.
    let first = |rules: &[(R, M)]| {
        let mut seen = HashSet::new();
        rules.iter().filter(|(_, meaning)| seen.insert(meaning.clone())).cloned().collect::<Vec<_>>()
    };
    let (own, other) = (first(own), first(other));
    let places: HashMap<&M, usize> = other.iter().enumerate().map(|(place, (_, meaning))| (meaning, place)).collect();
    let common: Vec<(usize, usize)> =
        own.iter().enumerate().filter_map(|(index, (_, meaning))| Some((index, *places.get(meaning)?))).collect();
    let kept: HashSet<usize> = ascending(&common).into_iter().collect();
    own.into_iter().enumerate().filter(|(index, _)| !kept.contains(index)).map(|(_, rule)| rule).collect()
}

/// The indices of a longest part whose places ascend.
fn ascending(common: &[(usize, usize)]) -> Vec<usize> {
    // For each length, the position in `common` at which a part of this length ends with the smallest place.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(common.len());
    for (position, (_, place)) in common.iter().enumerate() {
        let length = ends.partition_point(|end| common[*end].1 < *place);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = position,
            None => ends.push(position),
        }
    }
    let mut found = Vec::new();
    let mut next = ends.last().copied();
    while let Some(position) = next {
        found.push(common[position].0);
        next = before[position];
    }
    found
}

impl FlowProduct {
    /// The flows in both products. `None` if that is nothing, as far as it shows without diagrams.
    fn and(&self, other: &Self) -> Option<Self> {
        let (source, destination) = (self.source.and(&other.source), self.destination.and(&other.destination));
        let is_empty = |end: &EndSet| end.pods.is_empty() && end.ranges.is_empty();
        let traffic = self.traffic.and(&other.traffic)?;
        (!is_empty(&source) && !is_empty(&destination)).then_some(Self { source, destination, traffic })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn moved_rules_are_those_outside_of_a_longest_common_part() {
        let rules = |text: &str| text.chars().enumerate().collect::<Vec<_>>();
        let moved = |own: &str, other: &str| -> String {
            super::moved(&rules(own), &rules(other)).into_iter().map(|(_, meaning)| meaning).collect()
        };
        assert_eq!(moved("abc", "abc"), "");
        assert_eq!(moved("abc", "ac"), "b");
        assert_eq!(moved("bca", "abc"), "a");
        assert_eq!(moved("abca", "abc"), "", "behind an equal rule");
        assert_eq!(moved("", "abc"), "");
        assert_eq!(moved("dcba", "abcd").len(), 3);
    }
}
