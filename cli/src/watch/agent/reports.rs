//! The agent's reports on itself: log, metrics, Events, readiness, and the generation for the pods' annotations.
//!
//! Invariant: a report never changes the enforced policy, and the agent never waits for a report.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_classes::index::{ChangeEffect, Key};
use weir_objects::k8s::{Body, ClusterPeer, Object};

use super::cni_questions::no_new_generation;
use super::hook_checks::CheckedPods;
use super::objects::UnreadableObject;
use super::pending::{ChangeTimes, WaitingChanges};
use super::{NodeAgent, Notice, Value};
use crate::watch::annotate::PublishedGeneration;
use crate::watch::enforce::{Enforce, KernelSnapshot, PodFailure};
use crate::watch::log::Log;
use crate::watch::metrics::Metrics;
use crate::watch::notices::Notices;
use crate::watch::resources::CLUSTER_POLICY_KINDS;

/// The most unreadable objects that the notes name. A tenant can write any number of them.
const MOST_NOTES: usize = 50;

/// The note of a dry run. Its reports are otherwise the same as those of an agent that enforces.
pub(crate) const DRY_RUN: &str = "dry run: generations are compiled, and nothing is enforced";

/// The destinations of the agent's reports.
pub(crate) struct Reports {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) notices: Notices,
    /// Publishes the generation in force and its pods for the task that annotates pods.
    pub(crate) published: tokio::sync::watch::Sender<PublishedGeneration>,
    pub(crate) log: Log,
}

impl Reports {
    /// Records the times from the receipt of changes until now, when they come into force.
    pub(super) fn time_changes(&self, times: ChangeTimes, now: Instant) {
        let ChangeTimes { pods, others } = times;
        for (name, times) in [("weir_pod_enforced_seconds", pods), ("weir_policy_enforced_seconds", others)] {
            for at in times {
                self.metrics.observe(name, now.saturating_duration_since(at));
            }
        }
    }

    /// Reports deviations of the kernel's state that were repaired.
    pub(super) fn repaired(&self, repaired: &[String]) {
        for repaired in repaired {
            self.log.warn(
                "the kernel's state differed from the record; repaired",
                &[("what", Value::from(repaired.as_str()))],
            );
        }
        self.metrics.add("weir_drift_repairs_total", &[], repaired.len() as f64);
    }

    fn kernel_state(&self, state: &KernelSnapshot) {
        self.repaired(&state.repaired);
        for it in &state.packets {
            let verdict = if it.dropped { "dropped" } else { "passed" };
            let labels = [("direction", it.direction), ("reason", it.outcome), ("verdict", verdict)];
            self.metrics.set("weir_packets_total", &labels, it.packets as f64);
        }
        for drift in &state.drift {
            let so = if state.wrong_tables { "a new generation writes all tables" } else { "it cannot be repaired" };
            let fields = [("what", Value::from(drift.as_str())), ("so", Value::from(so))];
            self.log.error("the kernel's state differs from the record", &fields);
        }
        self.metrics.set("weir_drift", &[], state.drift.len() as f64);
        self.metrics.set("weir_lost_records_total", &[], f64::from(state.lost_records));
        for name in ["weir_map_bytes", "weir_map_entries", "weir_map_fill_ratio"] {
            self.metrics.clear(name);
        }
        for (map, bytes) in &state.memory {
            self.metrics.set("weir_map_bytes", &[("map", map)], *bytes as f64);
        }
        for fill in &state.maps {
            let labels = [("map", fill.name.as_str())];
            self.metrics.set("weir_map_entries", &labels, fill.entries as f64);
            let ratio = fill.entries as f64 / fill.max_entries.max(1) as f64;
            self.metrics.set("weir_map_fill_ratio", &labels, ratio);
        }
    }
}

/// The labels of `weir_unenforced_objects`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnenforcedLabels<'k> {
    kind: &'k str,
    why: &'static str,
}

fn in_words(key: &Key) -> String {
    match key.namespace.as_str() {
        "" => format!("{} {}", key.kind, key.name),
        namespace => format!("{} {namespace}/{}", key.kind, key.name),
    }
}

fn unreadable_line((key, object): (&Key, &UnreadableObject)) -> String {
    format!("{}: {}", in_words(key), object.error)
}

fn has_unsupported_peer(object: &Object) -> bool {
    let Body::ClusterPolicy(policy) = &object.body else { return false };
    let peers = policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers);
    peers.into_iter().any(|peer| matches!(peer, ClusterPeer::DomainNames(_) | ClusterPeer::Unknown))
}

impl<E: Enforce> NodeAgent<E> {
    /// Brings gauges and readiness up to date.
    pub(super) fn report(&self, now: Instant) {
        self.count_unenforced(now);
        self.count_waiting(now);
        if !self.objects.is_complete() {
            return;
        }
        self.reports.metrics.set_notes(&self.notes());
        self.reports.metrics.set_unready(&self.unready(now));
        self.count_endpoints(self.local.closed().count(), now);
        if let Some(epoch) = self.enforcement.epoch() {
            self.reports.metrics.set("weir_generation", &[], f64::from(epoch));
        }
    }

    /// The reasons why the agent is not ready: faults of this node, which keep policy from being in force here.
    ///
    /// A DaemonSet's rollout depends on readiness. A new agent that is not ready stops the rollout. Old agents that are
    /// not ready are replaced all at once, because they already count as unavailable. So a fault in an object, which
    /// all agents read, must not be a reason: see [`Self::notes`]. The reasons, and whether a tenant can cause them:
    ///
    /// * There is no new generation. The budgets bound what policies can do to this. Services over the budget can cause
    ///   it on all nodes, but then no change comes into force. A new version of the agent that cannot compile the
    ///   cluster's objects must stop its rollout.
    /// * The interface of a local pod is not found, is contested, refuses our programs, or has another program before
    ///   ours. A pod with CAP_NET_ADMIN can delete its interface, or take the address of a neighbour whose interface no
    ///   CNI result names. This has an effect only on the node where the pod runs, and policy is not in force there, or
    ///   other pods are cut off.
    /// * A pod of this node cannot be read at all, so policy is not in force on it. With `--files`, the directory
    ///   cannot be read, so no change comes into force.
    /// * Kinds that policies need are not listed. This is the node's connection to the API server, or its permissions.
    fn unready(&self, now: Instant) -> Vec<String> {
        let mut unready: Vec<String> = self.pending.error().map(no_new_generation).into_iter().collect();
        unready.extend(self.missing(now).map(|(pod, error)| format!("pod {}: {error}", pod.path())));
        unready.extend(self.local.contested().map(|it| it.to_string()));
        unready.extend(self.unreadable(true).map(unreadable_line));
        if !self.enforcement.is_any() && unready.is_empty() {
            unready.push("no generation is in force yet".to_owned());
        }
        unready.extend(self.enforcement.refused().iter().map(ToString::to_string));
        unready.extend(self.upkeep.hooks.unready());
        unready.extend(self.scopes.unready());
        unready
    }

    /// Faults of objects or files, which are the same for all agents that read them. They do not affect readiness:
    ///
    /// * An object that cannot be read. Every user who may write policies can write one. Its readable parts deny at
    ///   least as much as the object does, except that an entry of a deny list is left out if the agent never could read
    ///   it. Of a Namespace, Node or Service, the last readable content stays in force.
    /// * A policy that does not fit the budget.
    /// * Two pods that report the same address, so that the address belongs to neither. The pods may be on different
    ///   nodes, and each node that writes the status of pods can cause this.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.enforce.is_dry_run().then(|| DRY_RUN.to_owned()).into_iter().collect();
        notes.extend(self.unreadable_notes());
        notes.extend(self.compile.budget.notes());
        notes.extend(self.local.disputed().map(|it| it.to_string()));
        notes
    }

    /// The objects that cannot be read, with their errors: faults of this node, or the others.
    fn unreadable(&self, is_node_fault: bool) -> impl Iterator<Item = (&Key, &UnreadableObject)> {
        self.objects.unreadable().iter().filter(move |(_, it)| it.is_node_fault == is_node_fault)
    }

    /// Notes about objects that cannot be read: in turn one of each namespace, so that a namespace with many of them
    /// does not hide another's.
    fn unreadable_notes(&self) -> Vec<String> {
        let mut namespaces: BTreeMap<&str, VecDeque<(&Key, &UnreadableObject)>> = BTreeMap::new();
        let mut others = 0;
        for (key, it) in self.unreadable(false) {
            let of_namespace = namespaces.entry(&key.namespace).or_default();
            match of_namespace.len() < MOST_NOTES {
                true => of_namespace.push_back((key, it)),
                false => others += 1,
            }
        }
        let mut chosen = Vec::new();
        while chosen.len() < MOST_NOTES && namespaces.values().any(|it| !it.is_empty()) {
            chosen.extend(namespaces.values_mut().filter_map(VecDeque::pop_front));
        }
        others += chosen.len().saturating_sub(MOST_NOTES) + namespaces.values().map(VecDeque::len).sum::<usize>();
        chosen.truncate(MOST_NOTES);
        let mut notes: Vec<String> = chosen.into_iter().map(unreadable_line).collect();
        notes.extend((others > 0).then(|| format!("{others} other objects cannot be read; the log names them")));
        notes
    }

    /// Reports the changes that wait for a generation, and the CPU budget that they may wait for.
    fn count_waiting(&self, now: Instant) {
        for (label, effect) in [("isolating", ChangeEffect::Isolating), ("allowing", ChangeEffect::Allowing)] {
            let WaitingChanges { count, oldest } = self.pending.waiting(effect);
            let age = oldest.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            let labels = [("effect", label)];
            self.reports.metrics.set("weir_waiting_changes", &labels, f64::from(count));
            self.reports.metrics.set("weir_waiting_seconds", &labels, age.as_secs_f64());
        }
        self.reports.metrics.set("weir_cpu_budget_cores", &[], self.pace.share().cores());
        self.reports.metrics.set("weir_cpu_budget_seconds", &[], self.pace.balance());
    }

    fn count_endpoints(&self, closed: usize, now: Instant) {
        let without_interface = self.local.interfaces().missing();
        let contested = without_interface.values().filter(|why| why.is_contested).count();
        let (missing, refused) = (self.missing(now).count(), self.enforcement.refused());
        let ending = without_interface.len() - contested - missing;
        let CheckedPods { enforced, astray, unknown } = self.upkeep.hooks.count(self.enforcement.pods().len(), refused);
        for (state, count) in [
            ("enforced", enforced),
            ("astray", astray),
            ("unknown", unknown),
            ("closed", closed),
            ("no_interface", missing),
            ("ending", ending),
            ("refused", refused.len()),
        ] {
            self.reports.metrics.set("weir_endpoints", &[("state", state)], count as f64);
        }
    }

    /// Reconciles the kernel's state with the record, and updates the metrics of the kernel. A table that another
    /// process has changed needs a new generation.
    pub(super) fn reconcile(&mut self, now: Instant) {
        self.count_objects();
        if !self.enforcement.is_any() {
            return;
        }
        match self.enforce.reconcile() {
            Ok(state) => {
                self.reports.kernel_state(&state);
                if state.wrong_tables {
                    self.pending.need_generation(now);
                }
            }
            Err(error) => {
                self.reports.metrics.add("weir_failures_total", &[("stage", "survey")], 1.0);
                let fields = [("error", Value::from(error.message))];
                self.reports.log.error("the kernel's state cannot be compared with the record", &fields);
            }
        }
    }

    /// Reports a failed generation on the policies and lists that have changed since the last one that came into force.
    pub(super) fn report_failed_generation(&mut self, error: &str, now: Instant) {
        for about in self.pending.policies() {
            let message =
                format!("not in force on node {}: {error}; the previous generation stays in force", self.node);
            let uid = self.objects.uid(about);
            self.reports.notices.report(Notice { about: about.clone(), uid, reason: "NotEnforced", message }, now);
        }
    }

    /// Sends an Event on each pod on which policy is not in force, with the reason.
    pub(super) fn report_pods(&mut self, failed: &[PodFailure], now: Instant) {
        for PodFailure { pod, why } in failed {
            let Some((namespace, name)) = pod.split_once('/') else { continue };
            let about = Key { kind: "Pod".to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
            let uid = self.objects.uid(&about);
            let message = format!("policy is not in force on the pod on node {}: {why}", self.node);
            self.reports.notices.report(Notice { about, uid, reason: "NotEnforced", message }, now);
        }
    }

    /// The cluster-wide policies that have a rule whose peers cannot be enforced, so that it fails closed.
    fn unsupported_peers(&self) -> impl Iterator<Item = &Object> {
        let policies = CLUSTER_POLICY_KINDS.into_iter().flat_map(|kind| self.objects.index().of_kind(kind));
        policies.filter(|object| has_unsupported_peer(object))
    }

    /// Sends an Event on a cluster-wide policy with a rule that fails closed.
    pub(super) fn report_unsupported_peers(&mut self, object: &Object, now: Instant) {
        if has_unsupported_peer(object) {
            let message = format!(
                "node {}: a peer cannot be enforced (domain names, or a field of a newer API), so its rule fails closed: \
                 an Accept rule matches nothing, a Deny or Pass rule denies all traffic of its subject",
                self.node
            );
            let (about, uid) = (Key::of(object), object.meta.uid.as_ref().map(String::from));
            self.reports.notices.report(Notice { about, uid, reason: "UnsupportedPeer", message }, now);
        }
    }

    fn count_unenforced(&self, now: Instant) {
        let mut counts: BTreeMap<UnenforcedLabels<'_>, u32> = BTreeMap::new();
        let unreadable = self.objects.unreadable();
        let mut count = |kind, why| *counts.entry(UnenforcedLabels { kind, why }).or_default() += 1;
        unreadable.keys().for_each(|key| count(key.kind.as_str(), "malformed"));
        if self.pending.error().is_some() {
            self.pending.policies().iter().for_each(|key| count(key.kind.as_str(), "failed"));
        }
        self.unsupported_peers().for_each(|object| count(object.body.kind(), "unsupported_peer"));
        self.compile.budget.held().keys().for_each(|key| count(key.kind.as_str(), "budget"));
        self.missing(now).for_each(|_| count("Pod", "no_interface"));
        self.local.closed().for_each(|_| count("Pod", "closed"));
        self.enforcement.refused().iter().for_each(|_| count("Pod", "refused"));
        self.reports.metrics.clear("weir_unenforced_objects");
        for (UnenforcedLabels { kind, why }, count) in counts {
            let labels = [("kind", kind), ("why", why)];
            self.reports.metrics.set("weir_unenforced_objects", &labels, f64::from(count));
        }
    }

    fn count_objects(&self) {
        let index = self.objects.index();
        self.reports.metrics.set("weir_audit_policies", &[], index.audited() as f64);
        let kinds = ["Namespace", "Node", "Pod", "Service", "EndpointSlice", "NetworkPolicy", "CidrList"];
        // The number of objects of a kind that is not followed is not known: it is not 0.
        self.reports.metrics.clear("weir_objects");
        for kind in kinds.into_iter().chain(CLUSTER_POLICY_KINDS).filter(|kind| self.scopes.is_followed(kind)) {
            self.reports.metrics.set("weir_objects", &[("kind", kind)], index.count(kind) as f64);
        }
    }
}
