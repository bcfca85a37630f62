//! Candidates for rows where cluster-wide policies are in force.
//!
//! Problem: tiers are ordered lists in which the first matching rule decides. An earlier rule can take a part away from
//! the flows that a changed rule affects, and a still earlier rule can give a part of it back. A product with products
//! as exceptions cannot describe every such set of flows.
//! Strategy: a *seed* is a product that contains every flow that one change can affect. The seeds are the rules of a
//! tier that the other side lacks or has at another place, the changed rules and isolations of NetworkPolicies, and the
//! products that only the lists of one side deny. Diagrams give the changed part of a seed: its *target*. The target is
//! then covered with candidates. Products of either side that contain no flow of the target become exceptions. Where
//! these exceptions do not remove every unchanged flow, a product that contains a part of the target cuts the seed in
//! two.
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
use weir_model::{Direction, Tier};

/// The most candidates of one seed. A person reads fewer; an input beyond it is refused.
const MOST_PIECES: usize = 2_000;

/// The products on which a direction's verdict depends, of both sides.
pub(super) struct Vocabulary {
    products: Vec<FlowProduct>,
    /// Pairs of classes of ends. Every product has the same flows for all pairs of a group.
    groups: Vec<PairGroup>,
    /// Cache: the flows of a product, by its index in `products`, between two classes.
    diagrams: HashMap<(usize, ClassPair), Diagram>,
}

/// A product that contains every flow that one change can affect.
struct Seed {
    cause: RowCause,
    flows: FlowProduct,
}

/// The changed part of a product, for a pair of classes in which the product has flows.
#[derive(Clone, Copy)]
struct Target {
    pair: ClassPair,
    /// The whole product.
    all: Diagram,
    /// The flows that change: no other flow may be in a candidate.
    changes: Diagram,
    /// The flows that change and are in no candidate yet.
    missing: Diagram,
}

/// A product that cuts another one, and its flows for each pair of classes.
struct Part {
    index: usize,
    flows: Rc<[Diagram]>,
}

/// The candidates of one direction so far.
struct Cover<'v> {
    vocabulary: &'v mut Vocabulary,
    /// The flows that are in a candidate.
    covered: HashMap<ClassPair, Diagram>,
    /// The products of the present seed, each with its exceptions.
    pieces: Vec<(FlowProduct, Vec<FlowProduct>)>,
}

impl Changes<'_, '_> {
    /// The candidates of one direction.
    pub(super) fn candidates_with_tiers(
        &mut self,
        change: VerdictChange,
        direction: Direction,
        vocabulary: &mut Vocabulary,
    ) -> Result<Vec<Candidate>, WorldError> {
        let mut candidates = Vec::new();
        let mut cover = Cover { vocabulary, covered: HashMap::new(), pieces: Vec::new() };
        for seed in self.seeds(change, direction)? {
            *self.under_comparison = self.names(change, &seed.cause);
            let targets = self.targets(change, direction, &seed.flows, &cover)?;
            self.cover(seed.flows, targets, &mut cover)?;
            for (flows, except) in std::mem::take(&mut cover.pieces) {
                let cause = seed.cause.clone();
                candidates.push(Candidate { change, direction, cause, flows, except, family: None });
            }
        }
        Ok(candidates)
    }

    /// All products of a direction: those of lists, rules and isolations of both sides, each once.
    pub(super) fn vocabulary(&mut self, direction: Direction) -> Result<Vocabulary, WorldError> {
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
            // All traffic with pods. With `icmp: allow` it lacks the traffic without ports, which policies then do not
            // decide about, so this product separates the two.
            products.push(whole(EndSet::pods(PodSet::default())));
        }
        let mut seen = HashSet::new();
        products.retain(|it| seen.insert(it.clone()));
        let groups = self.groups_of(&products.iter().collect::<Vec<_>>())?;
        Ok(Vocabulary { products, groups, diagrams: HashMap::new() })
    }

    /// Products that together contain every flow of a direction that changes.
    fn seeds(&mut self, change: VerdictChange, direction: Direction) -> Result<Vec<Seed>, WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let mut seeds = Vec::new();
        for side in [new, old] {
            for tier in Tier::ALL {
                let [own, other] = [side, 1 - side].map(|side| {
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
        for denied in self.no_longer_denied(change, direction) {
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
        let changed = self.changed_policies(change, direction, class);
        let mut seeds = Vec::new();
        for policy in &changed.only_new {
            let (_, isolating) = self.isolated_among(change, direction, class, *policy, &changed.of_old)?;
            for (rule, flows) in self.rules_only_new(change, direction, *policy, &changed) {
                let kind = CauseKind::Rule { rule, isolating: isolating.clone() };
                seeds.push(Seed { cause: RowCause { direction, kind }, flows });
            }
        }
        for policy in &changed.only_old {
            let flows = self.isolated_flows(change, direction, *policy);
            seeds.push(Seed { cause: RowCause { direction, kind: CauseKind::Isolation(*policy) }, flows });
        }
        Ok(seeds)
    }

    /// The targets within a product: one for each group of pairs in which it has flows.
    fn targets(
        &mut self,
        change: VerdictChange,
        direction: Direction,
        flows: &FlowProduct,
        cover: &Cover<'_>,
    ) -> Result<Vec<Target>, WorldError> {
        let (new, old) = (allowing(change), 1 - allowing(change));
        let mut targets = Vec::new();
        for group in &cover.vocabulary.groups {
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

    /// Adds candidates until no flow of the targets is missing.
    fn cover(&mut self, flows: FlowProduct, mut targets: Vec<Target>, cover: &mut Cover<'_>) -> Result<(), WorldError> {
        let parts = self.parts(&targets, cover.vocabulary)?;
        loop {
            self.remove_covered(&mut targets, cover)?;
            if targets.iter().all(|it| it.missing.is_empty()) {
                return Ok(());
            }
            if self.add_candidate(&flows, &targets, &parts, cover)? {
                continue;
            }
            // A part that is a candidate with exceptions alone is better than a part that has to be cut again.
            let mut is_added = false;
            for part in &parts {
                let Some((inside, within)) = self.inside(&flows, &targets, part, cover.vocabulary)? else { continue };
                let of_part = self.narrowed(&parts, part)?;
                if self.add_candidate(&inside, &within, &of_part, cover)? {
                    is_added = true;
                    break;
                }
            }
            if is_added {
                continue;
            }
            let Some((inside, within)) = self.cut(&flows, &targets, &parts, cover.vocabulary)? else {
                return Err(WorldError::TooLarge { policies: Vec::new() });
            };
            self.cover(inside, within, cover)?;
        }
    }

    /// Removes the flows that a candidate contains from the missing ones.
    fn remove_covered(&mut self, targets: &mut [Target], cover: &Cover<'_>) -> Result<(), WorldError> {
        for target in targets {
            let covered = cover.covered.get(&target.pair).copied().unwrap_or(Diagram::NONE);
            target.missing = self.world.diagrams.and_not(target.missing, covered)?;
        }
        Ok(())
    }

    /// Adds a product as a candidate, if exceptions without a missing flow remove every unchanged flow from it.
    fn add_candidate(
        &mut self,
        flows: &FlowProduct,
        targets: &[Target],
        parts: &[Part],
        cover: &mut Cover<'_>,
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
                except.push(cover.vocabulary.products[part.index].clone());
            }
        }
        for (left, target) in left.iter().zip(targets) {
            if !self.world.diagrams.and_not(*left, target.changes)?.is_empty() {
                return Ok(false);
            }
        }
        if cover.pieces.len() >= MOST_PIECES {
            return Err(WorldError::TooLarge { policies: Vec::new() });
        }
        cover.pieces.push((flows.clone(), except));
        for (left, target) in left.into_iter().zip(targets) {
            let before = cover.covered.get(&target.pair).copied().unwrap_or(Diagram::NONE);
            let covered = self.world.diagrams.or(before, left)?;
            cover.covered.insert(target.pair, covered);
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
                let product = match vocabulary.diagrams.get(&key) {
                    Some(known) => *known,
                    None => {
                        let product = self.world.product(&vocabulary.products[index], target.pair)?;
                        vocabulary.diagrams.insert(key, product);
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

    /// A part of a product with its targets, if a flow of it is missing.
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

    /// The part at which a product is cut: the first outside of which an unchanged flow remains, and otherwise the first
    /// outside of which a missing flow remains.
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
    /// The flows in both products. `None` if the sets alone show that no flow is in both.
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
