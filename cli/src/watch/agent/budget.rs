//! The agent's budgets. A policy that costs too much is held: it isolates its pods and allows nothing. All other
//! policies come into force.
//!
//! Problem: the policies of one namespace can need more memory than the agent has. The kernel would kill the agent
//! again and again, and no pod's policy on the node could change any more.
//! Strategy: before the agent builds a generation, `weir_classes::fit` removes the rules of policies that do not fit.
//! If the estimate was too low, classification stops at the limit. The next attempt starts at a lower level, and the
//! agent remembers that level for a while.
//! Invariant: a policy that does not fit isolates its pods and allows nothing, and an Event on the policy reports this.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_classes::Limits;
use weir_classes::fit::Fit;
use weir_classes::index::Key;
use weir_codegen::compile::{Budget, Budgets};
use weir_model::Cluster;

use super::{NodeAgent, Notice, Value, shown};
use crate::watch::enforce::Enforce;

/// The default memory budget if the container has no memory limit.
const MEMORY: u64 = 1 << 30;
/// The default memory budget is the container's limit divided by this number. One part is for the classes of the next
/// generation, one for the generation in force, one for the artifact on its way to the kernel, and the rest for
/// objects.
const PART: u64 = 4;
/// The default budget of steps: some seconds of work.
const STEPS: u64 = 1_000_000_000;
/// After an attempt exceeded its limits, no higher level is tried for this time.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The most Events per namespace. The number of all Events is limited, and other namespaces need theirs.
pub(super) const MOST_EVENTS: usize = 3;

/// The budgets of a generation: the given ones, and defaults for memory and steps.
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
    // Without a limit, the file of cgroup v1 contains a number near 2^63.
    (limit < 1 << 60).then_some(limit)
}

/// The agent's budgets, and the policies that do not fit them.
#[derive(Debug, Default)]
pub(super) struct BudgetState {
    budgets: Budgets,
    /// Set after an estimate was too low.
    learned: Option<LearnedLevel>,
    /// The policies of the generation in force that lost their rules, and why.
    held: BTreeMap<Key, String>,
}

/// The highest level to try after an attempt that exceeded its limits.
#[derive(Clone, Copy, Debug)]
struct LearnedLevel {
    level: u64,
    /// When the attempt failed.
    at: Instant,
}

impl BudgetState {
    pub(super) fn new(budgets: Budgets) -> Self {
        Self { budgets, ..Self::default() }
    }

    pub(super) fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    pub(super) fn limits(&self) -> Limits {
        self.budgets.limits()
    }

    /// The highest level to try, if an attempt exceeded its limits recently.
    pub(super) fn highest(&self, now: Instant) -> Option<u64> {
        let LearnedLevel { level, at } = self.learned?;
        (now.saturating_duration_since(at) < REMEMBERED).then_some(level)
    }

    /// Records that an attempt exceeded the limits although its estimate fitted. Returns whether there is a lower level
    /// to try. Otherwise the cause is not the level, and the learned level is forgotten.
    pub(super) fn exceeded(&mut self, fit: &Fit, now: Instant) -> bool {
        self.learned = fit.lower().map(|level| LearnedLevel { level, at: now });
        self.learned.is_some()
    }

    /// One line for each namespace, because a namespace may have thousands of policies.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        self.held.keys().for_each(|key| *namespaces.entry(&key.namespace).or_default() += 1);
        let line = |(namespace, policies)| {
            format!(
                "namespace {namespace}: {policies} policies do not fit the budget; they isolate their pods and allow nothing"
            )
        };
        namespaces.into_iter().map(line).collect()
    }

    /// The policies that have no rules in the generation in force, and why.
    pub(super) fn held(&self) -> &BTreeMap<Key, String> {
        &self.held
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Reports the policies that have no rules in the generation that has just come into force.
    pub(super) fn report_held_policies(&mut self, cluster: &Cluster, fit: &Fit, now: Instant) {
        let held = reasons(cluster, fit);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (about, why) in &held {
            let of_namespace = counts.entry(&about.namespace).or_default();
            *of_namespace += 1;
            if *of_namespace <= MOST_EVENTS {
                let message = format!("not in force on node {}: {why}", self.node);
                let uid = self.objects.uid(about);
                let notice = Notice { about: about.clone(), uid, reason: "NotEnforced", message };
                self.reports.notices.report(notice, now);
            }
        }
        let before = std::mem::take(&mut self.compile.budget.held);
        let is_new = |namespace: &str| !before.keys().any(|key| key.namespace == namespace);
        for (namespace, count) in counts.into_iter().filter(|(namespace, _)| is_new(namespace)) {
            let so = "they isolate their pods and allow nothing; use fewer or simpler rules, or a larger --budget";
            let fields =
                [("namespace", Value::from(namespace)), ("policies", Value::from(count)), ("so", Value::from(so))];
            self.reports.log.error("policies do not fit the budget", &fields);
        }
        for about in before.keys().filter(|key| !held.contains_key(key)) {
            self.reports.log.info("the policy fits the budget again", &[("object", shown(about))]);
        }
        self.compile.budget.held = held;
    }
}

fn reasons(cluster: &Cluster, fit: &Fit) -> BTreeMap<Key, String> {
    let level = fit.level.unwrap_or_default();
    let reason = |held: &weir_classes::fit::Held| {
        let policy = cluster.policy(held.policy);
        let key = Key {
            kind: "NetworkPolicy".to_owned(),
            namespace: cluster.namespaces[policy.namespace.index()].name.clone(),
            name: policy.name.clone(),
        };
        let why = format!(
            "the policies of its namespace name {} peers and ports, this policy {} of them, and the agent's budget has \
             room for {level} per namespace. The policy isolates its pods and allows nothing. Use fewer or simpler \
             rules, or start the agent with a larger --budget",
            held.of_namespace, held.weight,
        );
        (key, why)
    };
    fit.held.iter().map(reason).collect()
}
