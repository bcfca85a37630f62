//! Policies and rules that add nothing to the others, for every pod that could exist.
//!
//! Problem: a rule that others cover looks as if it mattered, and narrowing it denies nothing. Several rules may cover
//! it only together, in words of their own.
//! Strategy: policies of different namespaces or directions never cover each other, so each namespace is judged alone
//! ([`namespace`]). A rule is covered if its diagram without the others' diagrams is empty. First policies are judged,
//! then the rules of those that stay, each time from the last to the first. A reported policy or rule no longer covers
//! others, so all of them can be removed together.
//! Invariants: no flow between possible ends changes if everything reported is removed. Policies that isolate pods that
//! no other policy isolates are never reported, and policies without rules only if they are duplicates.
//! A namespace that does not fit its budget is in [`Coverage::unfinished`], and nothing is said about it.

mod namespace;

use std::collections::BTreeSet;

use super::diagram::Diagrams;
use super::halves::PossibleWorld;
use super::{MOST_NODES, WorldError};
use namespace::{DeclaredMatches, NamespaceRules};
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, PolicyId};

/// The part of all steps that the policies of one namespace may take: one of these.
const SHARES: u64 = 8;

/// A rule, with its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulePlace {
    /// The direction.
    pub direction: Direction,
    /// The rule.
    pub rule: RuleId,
}

/// A policy that does the same as another one of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicatePolicy {
    /// The policy.
    pub policy: PolicyId,
    /// The other one.
    pub original: PolicyId,
}

/// A policy with rules whose pods other policies isolate, and whose traffic their rules allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedundantPolicy {
    /// The policy.
    pub policy: PolicyId,
    /// The other policies. None of them can be left out.
    pub by: Vec<PolicyId>,
    /// Rules of these policies that cover the policy's rules.
    pub rules: Vec<RulePlace>,
}

/// A rule that other rules cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoveredRule {
    /// The rule.
    pub rule: RulePlace,
    /// The other rules. None of them can be left out.
    pub by: Vec<RulePlace>,
}

/// A rule whose traffic policies at the other end deny, for every pod that could exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedRule {
    /// The rule.
    pub rule: RulePlace,
    /// The policies that isolate pods at the other end.
    pub by: Vec<PolicyId>,
}

/// What adds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Policies that do the same as another one.
    pub duplicates: Vec<DuplicatePolicy>,
    /// Policies that add nothing to others.
    pub redundant: Vec<RedundantPolicy>,
    /// Rules of all other policies that add nothing to others.
    pub covered: Vec<CoveredRule>,
    /// Rules of all other policies that have no effect, because the other end denies their traffic.
    pub denied: Vec<DeniedRule>,
    /// Policies that were not judged: their diagrams do not fit the budget.
    pub unfinished: Vec<PolicyId>,
}

/// The policies to judge.
#[derive(Clone, Copy, Debug)]
pub struct CoverageScope<'s> {
    /// These policies, against all policies of the cluster.
    pub judged: &'s BTreeSet<PolicyId>,
    /// Whether to look for rules that the other end denies.
    pub with_denied: bool,
}

/// Judges policies and their rules, in at most about `steps` operations on diagrams.
pub fn coverage(cluster: &Cluster, scope: CoverageScope<'_>, steps: u64) -> Coverage {
    let judged = scope.judged;
    let mut world = PossibleWorld::new([cluster, cluster], MOST_NODES);
    let mut found = Coverage::default();
    let mut left = steps;
    let mut declared = DeclaredMatches::default();
    for class in 0..world.classes.len() {
        let of_direction = |direction| world.isolating(0, direction, Some(class)).iter().copied();
        let policies: BTreeSet<PolicyId> = Direction::ALL.into_iter().flat_map(of_direction).collect();
        if policies.is_disjoint(judged) {
            continue;
        }
        let share = left.min(steps / SHARES);
        world.forget(Diagrams::new(MOST_NODES).within_steps(share));
        match of_namespace(&mut world, class, &policies, scope, &mut declared) {
            Ok(coverage) => found.extend(coverage),
            Err(_) => found.unfinished.extend(policies.intersection(judged)),
        }
        left -= share - world.diagrams.steps_left();
    }
    found
}

fn of_namespace(
    world: &mut PossibleWorld<'_>,
    class: usize,
    policies: &BTreeSet<PolicyId>,
    CoverageScope { judged, with_denied }: CoverageScope<'_>,
    declared: &mut DeclaredMatches,
) -> Result<Coverage, WorldError> {
    let mut rules = NamespaceRules::new(world, class, policies, declared)?;
    let duplicates = rules.duplicates(judged)?;
    let redundant = rules.redundant(judged)?;
    let covered = rules.covered(judged)?;
    let denied = if with_denied { rules.denied(judged)? } else { Vec::new() };
    Ok(Coverage { duplicates, redundant, covered, denied, unfinished: Vec::new() })
}

impl Coverage {
    fn extend(&mut self, other: Self) {
        self.duplicates.extend(other.duplicates);
        self.redundant.extend(other.redundant);
        self.covered.extend(other.covered);
        self.denied.extend(other.denied);
        self.unfinished.extend(other.unfinished);
    }
}

/// A smallest list of candidates that pass the test together: one alone if possible, the first ones otherwise. All
/// candidates together must pass it.
fn fewest<T: Copy>(
    candidates: Vec<T>,
    mut pass: impl FnMut(&[T]) -> Result<bool, WorldError>,
) -> Result<Vec<T>, WorldError> {
    for one in &candidates {
        if pass(&[*one])? {
            return Ok(vec![*one]);
        }
    }
    let mut needed = candidates;
    for index in (0..needed.len()).rev() {
        let left_out = needed.remove(index);
        if !pass(&needed)? {
            needed.insert(index, left_out);
        }
    }
    Ok(needed)
}
