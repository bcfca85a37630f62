//! Budgets of the agent: policies that cost too much are held, and all others come into force.
//!
//! Problem: one namespace can write policies whose generation needs more memory than the agent has. The kernel would
//! end the agent, again and again, and no pod's policy on the node could change any more.
//! Strategy: every generation is made to fit before it is made (`weir_compiler::fit`). If it turns out that the
//! estimate was too low, classification ends at the limit, and the next attempt begins at a lower level, which is
//! remembered for a while.
//! Invariant: a policy that does not fit isolates its pods and allows nothing, and an Event at the policy says so.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_compiler::classify::Limits;
use weir_compiler::compile::{Budget, Budgets};
use weir_compiler::fit::Fit;
use weir_compiler::index::{Generation, Key};
use weir_compiler::model::Cluster;

use super::{Agent, Notice, Value, shown};
use crate::watch::enforce::Enforce;

/// Without a limit on the container's memory.
const MEMORY: u64 = 1 << 30;
/// The part of the container's memory that the classes of a generation may take. Another part is what is in force, a
/// third one the artifact on its way to the kernel, and the rest is for objects.
const PART: u64 = 4;
/// Some seconds of work.
const STEPS: u64 = 1_000_000_000;
/// No higher level is tried for this time after an attempt exceeded its limits.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Events per namespace: the number of all Events is limited, and other tenants need theirs.
pub(super) const MOST_TOLD: usize = 3;

/// The budgets of generations: the given ones, and defaults for what every agent needs.
pub(crate) fn budgets(given: &[(Budget, u64)], container: Option<u64>) -> Budgets {
    let mut all = given.to_vec();
    for (budget, default) in [(Budget::Memory, container.unwrap_or(PART * MEMORY) / PART), (Budget::Steps, STEPS)] {
        if given.iter().all(|(it, _)| *it != budget) {
            all.push((budget, default));
        }
    }
    Budgets(all)
}

/// The limit on the memory of the container that this process runs in, if there is one.
pub(crate) fn container_memory() -> Option<u64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = files.iter().find_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())?;
    // The older file has a number near 2^63 where there is no limit.
    (limit < 1 << 60).then_some(limit)
}

/// The agent's budgets, and the policies that do not fit them.
#[derive(Debug, Default)]
pub(super) struct Budgeted {
    pub(super) budgets: Budgets,
    /// A level that was enough where the estimate was not, and when it was found.
    learned: Option<(u64, Instant)>,
    /// The policies of the generation in force that only isolate, and why.
    held: BTreeMap<Key, String>,
}

impl Budgeted {
    pub(super) fn new(budgets: Budgets) -> Self {
        Self { budgets, ..Self::default() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.budgets.limits()
    }

    /// The highest level that is worth an attempt.
    pub(super) fn highest(&self, now: Instant) -> Option<u64> {
        let (level, at) = self.learned?;
        (now.saturating_duration_since(at) < REMEMBERED).then_some(level)
    }

    /// An attempt exceeded the limits although its estimate did not. Says whether there is a lower level to try. If there
    /// is none, the level is not what is wrong, and it is forgotten.
    pub(super) fn exceeded(&mut self, fit: &Fit, now: Instant) -> bool {
        self.learned = fit.lower().map(|lower| (lower, now));
        self.learned.is_some()
    }

    /// A line for each namespace, because a namespace has thousands of policies.
    pub(super) fn unready(&self) -> Vec<String> {
        let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        self.held.keys().for_each(|key| *namespaces.entry(&key.namespace).or_default() += 1);
        let line = |(namespace, policies)| {
            format!("namespace {namespace}: {policies} policies do not fit the budget; they isolate and allow nothing")
        };
        namespaces.into_iter().map(line).collect()
    }

    pub(super) fn held(&self) -> &BTreeMap<Key, String> {
        &self.held
    }
}

impl<E: Enforce> Agent<E> {
    /// A generation is in force in which these policies have no rules.
    pub(super) fn tell_held(&mut self, fit: &Fit, now: Instant) {
        let held = self.index.generation().map(|Generation { cluster, .. }| reasons(cluster, fit)).unwrap_or_default();
        let mut told: BTreeMap<&str, usize> = BTreeMap::new();
        for (about, why) in &held {
            let of_namespace = told.entry(&about.namespace).or_default();
            *of_namespace += 1;
            if *of_namespace > MOST_TOLD {
                continue;
            }
            let uid = self.index.get(about).and_then(|it| it.meta.uid.clone());
            let message = format!("not in force on node {}: {why}", self.node);
            self.notices.tell(Notice { about: about.clone(), uid, reason: "NotEnforced", message }, now);
        }
        let is_news = |namespace: &str| !self.budgeted.held.keys().any(|key| key.namespace == namespace);
        for (namespace, count) in told.into_iter().filter(|(namespace, _)| is_news(namespace)) {
            let so = "they isolate their pods and allow nothing";
            let fields =
                [("namespace", Value::from(namespace)), ("policies", Value::from(count)), ("so", Value::from(so))];
            self.log.error("policies do not fit the budget", &fields);
        }
        for about in self.budgeted.held.keys().filter(|key| !held.contains_key(key)) {
            self.log.info("the policy fits the budget again", &[("object", shown(about))]);
        }
        self.budgeted.held = held;
    }
}

fn reasons(cluster: &Cluster, fit: &Fit) -> BTreeMap<Key, String> {
    let level = fit.level.unwrap_or_default();
    let reason = |held: &weir_compiler::fit::Held| {
        let policy = cluster.policy(held.policy);
        let key = Key {
            kind: "NetworkPolicy".to_owned(),
            namespace: cluster.namespaces[policy.namespace.index()].name.clone(),
            name: policy.name.clone(),
        };
        let why = format!(
            "the policies of its namespace name {} peers and ports, this policy {} of them, and the agent's budget has \
             room for {level} of each namespace; it isolates its pods and allows nothing",
            held.of_namespace, held.weight,
        );
        (key, why)
    };
    fit.held.iter().map(reason).collect()
}
