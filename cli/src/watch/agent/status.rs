//! The agent's reports on itself: readiness, objects, endpoints, and the kernel's counters.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_classes::index::Key;

use super::{Agent, Notice, Value};
use crate::watch::enforce::{Enforce, Survey};

fn shown_in_words(key: &Key) -> String {
    match key.namespace.as_str() {
        "" => format!("{} {}", key.kind, key.name),
        namespace => format!("{} {namespace}/{}", key.kind, key.name),
    }
}

impl<E: Enforce> Agent<E> {
    /// Brings gauges and readiness up to date.
    pub(super) fn tell(&self, now: Instant) {
        self.count_unenforced(now);
        if !self.unlisted.is_empty() {
            return;
        }
        let mut unready: Vec<String> = self.failure.iter().map(|error| format!("no new generation: {error}")).collect();
        unready.extend(self.missing(now).map(|(pod, error)| format!("pod {}: {error}", pod.path())));
        let closed = self.closed_pods();
        unready.extend(closed.iter().map(|(pod, why)| format!("pod {pod}: {why}")));
        let unread = |(key, message): (&Key, &String)| format!("{}: {message}", shown_in_words(key));
        unready.extend(self.malformed.iter().map(unread));
        if self.in_force.is_none() && unready.is_empty() {
            unready.push("no generation is in force yet".to_owned());
        }
        unready.extend(self.refused.iter().map(|(pod, why)| format!("pod {pod}: {why}")));
        unready.extend(self.unseen());
        unready.extend(self.budgeted.unready());
        self.metrics.set_unready(unready);
        let is_contested = self.places.missing().values().filter(|why| why.is_contested).count();
        let (missing, refused) = (self.missing(now).count(), self.refused.len());
        let ending = self.places.missing().len() - is_contested - missing;
        let [enforced, astray, unknown] = self.seen(self.enforced.len());
        for (state, count) in [
            ("enforced", enforced),
            ("astray", astray),
            ("unknown", unknown),
            ("closed", closed.len()),
            ("no_interface", missing),
            ("ending", ending),
            ("refused", refused),
        ] {
            self.metrics.set("weir_endpoints", &[("state", state)], count as f64);
        }
        if let Some(epoch) = self.in_force {
            self.metrics.set("weir_generation", &[], f64::from(epoch));
        }
    }

    /// Compares the kernel's state with the record, has deviations repaired, and updates the metrics of the kernel.
    pub(super) fn survey(&mut self) {
        self.count_objects();
        if self.in_force.is_none() {
            return;
        }
        match self.enforce.survey() {
            Ok(survey) => {
                self.surveyed(&survey);
                weir_runtime::sys::give_memory_back();
            }
            Err(trouble) => {
                self.metrics.add("weir_failures_total", &[("stage", "survey")], 1.0);
                self.log.error("the kernel's state cannot be compared", &[("error", Value::from(trouble.0))]);
            }
        }
    }

    fn surveyed(&self, survey: &Survey) {
        self.repaired(&survey.repaired);
        for (direction, outcome, dropped, packets) in &survey.packets {
            let verdict = if *dropped { "dropped" } else { "passed" };
            let labels = [("direction", *direction), ("reason", *outcome), ("verdict", verdict)];
            self.metrics.set("weir_packets_total", &labels, *packets as f64);
        }
        for drift in &survey.drift {
            self.log.error("the kernel's state is not as it should be", &[("what", Value::from(drift.as_str()))]);
        }
        self.metrics.set("weir_drift", &[], survey.drift.len() as f64);
        self.metrics.set("weir_lost_records_total", &[], f64::from(survey.lost));
        for name in ["weir_map_bytes", "weir_map_entries", "weir_map_fill_ratio"] {
            self.metrics.clear(name);
        }
        for (map, bytes) in &survey.memory {
            self.metrics.set("weir_map_bytes", &[("map", map)], *bytes as f64);
        }
        for (map, entries, room) in &survey.maps {
            let labels = [("map", map.as_str())];
            self.metrics.set("weir_map_entries", &labels, *entries as f64);
            self.metrics.set("weir_map_fill_ratio", &labels, *entries as f64 / (*room).max(1) as f64);
        }
    }

    /// Reports a failed generation on the policies and lists that have changed since the last one that came into force.
    pub(super) fn tell_policies(&mut self, error: &str, now: Instant) {
        for about in &self.pending.policies {
            let uid = self.index.get(about).and_then(|it| it.meta.uid.clone());
            let message = format!("not in force on node {}: {error}; what was in force stays", self.node);
            self.notices.tell(Notice { about: about.clone(), uid, reason: "NotEnforced", message }, now);
        }
    }

    /// Reports on pods that policy is not in force on them, and why.
    pub(super) fn tell_pods(&mut self, failed: &[(String, String)], now: Instant) {
        for (pod, why) in failed {
            let Some((namespace, name)) = pod.split_once('/') else { continue };
            let about = Key { kind: "Pod".to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
            let uid = self.index.get(&about).and_then(|it| it.meta.uid.clone());
            let message = format!("its policy is not in force on node {}: {why}", self.node);
            self.notices.tell(Notice { about, uid, reason: "NotEnforced", message }, now);
        }
    }

    fn count_unenforced(&self, now: Instant) {
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut count = |kind, why| *counts.entry((kind, why)).or_default() += 1;
        self.malformed.keys().for_each(|key| count(key.kind.as_str(), "malformed"));
        if self.failure.is_some() {
            self.pending.policies.iter().for_each(|key| count(key.kind.as_str(), "failed"));
        }
        self.budgeted.held().keys().for_each(|key| count(key.kind.as_str(), "budget"));
        self.missing(now).for_each(|_| count("Pod", "no_interface"));
        self.closed_pods().iter().for_each(|_| count("Pod", "closed"));
        self.refused.iter().for_each(|_| count("Pod", "refused"));
        self.metrics.clear("weir_unenforced_objects");
        for ((kind, why), count) in counts {
            self.metrics.set("weir_unenforced_objects", &[("kind", kind), ("why", why)], f64::from(count));
        }
    }

    fn count_objects(&self) {
        self.metrics.set("weir_audit_policies", &[], self.index.audited() as f64);
        for kind in ["Namespace", "Node", "Pod", "Service", "EndpointSlice", "NetworkPolicy", "CidrList"] {
            self.metrics.set("weir_objects", &[("kind", kind)], self.index.keys(kind).count() as f64);
        }
    }
}
