//! Decides which policies a node can afford. All other policies are held: they isolate their pods and allow nothing.
//!
//! Problem: one namespace can write policies whose tables need more memory than the agent has. Refusing the whole
//! generation would freeze every other tenant of the node. Leaving policies out would open pods.
//! Strategy: estimate the cost of the classes before they are made ([`estimate`]). If the estimate is over the limits,
//! every namespace may keep policies up to the same weight, the *level*. The level is halved until the estimate fits,
//! down to the weight of ordinary namespaces. A policy over the level keeps its selector and its directions and loses
//! its rules, so its pods are isolated and it allows nothing.
//! Invariants, tested by `tests/fit.rs`: held policies allow no connection that the full policies deny. A namespace
//! whose weight is at most the level keeps everything. A weight depends only on a namespace's own policies, so a tenant
//! can raise only its own weight. A tenant can lower the level for others only down to the largest power of two at
//! which the node could afford *every* namespace.

mod estimate;

use std::collections::BTreeMap;

pub use estimate::estimate;

use crate::{Limits, Scope, Spent, subjects};
use weir_model::{Cluster, NamespaceId, Peer, Policy, PolicyId, PortMatch, Rule};

/// The divisor of the level after an attempt failed.
const STEP: u64 = 8;
/// The lowest level. Namespaces that weigh no more are ordinary: if they do not fit, the reason is not one namespace's
/// policies, and the generation in force stays.
const LEAST: u64 = 64;

/// A policy whose rules do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The policy.
    pub policy: PolicyId,
    /// The weight of the policy.
    pub weight: u64,
    /// The weight of all policies of its namespace on this node.
    pub of_namespace: u64,
}

/// The result of fitting a cluster to its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The estimated cost after fitting.
    pub estimate: Spent,
    /// The weight up to which every namespace keeps its policies; `None` if all namespaces keep everything.
    pub level: Option<u64>,
    /// The policies that lost their rules, by number.
    pub held: Vec<Held>,
    /// The weight of the heaviest namespace.
    heaviest: u64,
}

impl Fit {
    /// The level to try if the limits were exceeded although the estimate fitted. `None` if that level is too low for
    /// ordinary namespaces: then policies are not the cause, and removing more rules would not help. The step is large
    /// because each attempt may cost as much as the limits allow.
    pub fn lower(&self) -> Option<u64> {
        // The estimate had fitted, so it was too low for this cluster, and nothing says by how much.
        let level = self.level.unwrap_or_else(|| self.heaviest.next_power_of_two()) / STEP;
        (level >= LEAST).then_some(level)
    }
}

impl Limits {
    /// Whether an estimate is within these limits.
    pub fn allow(self, estimate: Spent) -> bool {
        estimate.bytes <= self.bytes && estimate.steps <= self.steps
    }
}

/// Removes the rules of policies that do not fit. No level above `highest` is tried: earlier attempts have shown that
/// higher levels do not fit.
pub fn fit(cluster: &mut Cluster, scope: &Scope, limits: Limits, highest: Option<u64>) -> Fit {
    // Once for all levels: policies are selected by their selectors, which they keep.
    let draft = subjects::draft(cluster, scope);
    let weights = Weights::new(cluster, &draft.policies);
    // At or above the heaviest weight a level holds no policy, which is the same as no level.
    let mut level = highest.filter(|level| *level < weights.heaviest());
    loop {
        let held = level.map_or_else(Vec::new, |level| weights.above(level));
        let estimate = estimate::of_draft(cluster, &draft, &held);
        // At the lowest level the search ends even if the estimate does not fit: ordinary namespaces lose no rules, and
        // the meter decides whether classification fits after all.
        if limits.allow(estimate) || level.is_some_and(|level| level <= LEAST) {
            held.iter().for_each(|held| empty(cluster, held.policy));
            return Fit { estimate, level, held, heaviest: weights.heaviest() };
        }
        // The level is always a power of two. If it followed the heaviest weight exactly, each rule that a held namespace
        // adds would move the level of all others (`policies_of_a_held_namespace_lower_no_other_level`).
        level = Some(match level {
            // The largest power of two below the heaviest weight.
            None => weights.heaviest().next_power_of_two() / 2,
            Some(level) => level / 2,
        });
    }
}

/// Removes the rules of a policy. It isolates its pods as before and allows nothing.
fn empty(cluster: &mut Cluster, id: PolicyId) {
    let enforced = cluster.policies.len();
    let policy = match cluster.policies.get_mut(id.index()) {
        Some(policy) => policy,
        None => &mut cluster.audit[id.index() - enforced],
    };
    // Only directions that the policy names: `None` must stay, because an empty list would isolate one more direction.
    for rules in [&mut policy.ingress, &mut policy.egress].into_iter().flatten() {
        *rules = Vec::new();
    }
}

/// The weights of the policies in force.
struct Weights {
    /// The policies of each namespace, the lightest first.
    policies: BTreeMap<NamespaceId, Vec<(u64, PolicyId)>>,
}

impl Weights {
    fn new(cluster: &Cluster, in_force: &[PolicyId]) -> Self {
        let mut policies: BTreeMap<NamespaceId, Vec<(u64, PolicyId)>> = BTreeMap::new();
        for id in in_force {
            let policy = cluster.policy(*id);
            policies.entry(policy.namespace).or_default().push((weight(cluster, policy), *id));
        }
        // With the lightest policies first, the most policies fit.
        policies.values_mut().for_each(|of_namespace| of_namespace.sort_unstable());
        Self { policies }
    }

    fn heaviest(&self) -> u64 {
        self.policies.values().map(|it| total(it)).max().unwrap_or_default()
    }

    /// The policies over the level: together with the lighter policies of their namespace, they weigh more than the
    /// level.
    fn above(&self, level: u64) -> Vec<Held> {
        let mut held = Vec::new();
        for of_namespace in self.policies.values() {
            let (mut kept, all) = (0_u64, total(of_namespace));
            for (weight, policy) in of_namespace {
                kept += weight;
                // The sum counts held policies too, so every policy after the first held one is held as well: the
                // heavier ones.
                if kept > level {
                    held.push(Held { policy: *policy, weight: *weight, of_namespace: all });
                }
            }
        }
        // `estimate::of_draft` searches this list.
        held.sort_by_key(|held| held.policy);
        held
    }
}

fn total(of_namespace: &[(u64, PolicyId)]) -> u64 {
    of_namespace.iter().map(|(weight, _)| weight).sum()
}

/// The weight of a policy: its rules, peers with their values and excepted blocks, and ports. A policy without rules
/// weighs nothing, because nothing can be removed from it.
fn weight(cluster: &Cluster, policy: &Policy) -> u64 {
    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
    rules.map(|rule| rule_weight(cluster, rule)).sum()
}

fn rule_weight(cluster: &Cluster, rule: &Rule) -> u64 {
    let peer = |peer: &Peer| match peer {
        Peer::Pods { namespaces, pods } => {
            let of_namespaces = namespaces.map_or(0, |selector| cluster.labels.selector(selector).size());
            of_namespaces + cluster.labels.selector(*pods).size()
        }
        Peer::Block { except, .. } => 1 + except.len() as u64,
    };
    let ports = rule.ports.iter().map(|port| match port.port {
        PortMatch::Any | PortMatch::Named(_) => 1,
        PortMatch::Range(first, last) => 1 + u64::from(first != last),
    });
    // Only the rule's own text counts, not the pods that it matches: other tenants' pods must not make a policy
    // heavier.
    1 + rule.peers.iter().map(peer).sum::<u64>() + ports.sum::<u64>()
}
