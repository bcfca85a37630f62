//! Pods whose interface is gone because they end.
//!
//! Problem: the container runtime removes a pod's interface before the kubelet reports to the API that the pod is gone.
//! On a node where pods start and end often, the agent would be unready most of the time, log warnings, and raise an
//! alert about missing enforcement.
//! Strategy: a pod whose interface is missing is excused for a while if it had an interface before or is being deleted.
//! An excused pod is not reported as a fault, because no packet passes an interface that does not exist.
//! Invariant: a pod whose interface was never found is not excused for long, because the interface may exist without
//! our knowledge. Only a pod that lost its interface and is being deleted is excused until it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{LocalPod, NodeAgent, Value};
use crate::watch::discover::NotFound;
use crate::watch::enforce::Enforce;

/// Long enough for a runtime to recreate a pod's network, and for a kubelet to report the end of a pod.
const EXCUSED: Duration = Duration::from_secs(60);

/// Pods without an interface. The list has the pods of the last search that were not found.
#[derive(Debug, Default)]
pub(super) struct AbsentPods {
    pods: BTreeMap<LocalPod, AbsentPod>,
}

#[derive(Clone, Copy, Debug)]
struct AbsentPod {
    since: Instant,
    /// Whether its interface was known before.
    had_interface: bool,
}

impl<E: Enforce> NodeAgent<E> {
    /// Updates the list after a search. `found_before` are the pods that had an interface before it.
    pub(super) fn note_absent(&mut self, found_before: &BTreeSet<LocalPod>, now: Instant) {
        let before = std::mem::take(&mut self.local.absent.pods);
        let missing = self.local.interfaces().missing().keys();
        let absent = missing.map(|pod| {
            let new = AbsentPod { since: now, had_interface: found_before.contains(pod) };
            (pod.clone(), before.get(pod).copied().unwrap_or(new))
        });
        self.local.absent.pods = absent.collect();
        let missing = self.local.interfaces().missing().iter();
        for (pod, error) in missing.filter(|(pod, _)| !before.contains_key(pod)) {
            let fields = [("pod", Value::from(pod.path())), ("error", Value::from(error.to_string()))];
            match self.is_excused(pod, now) {
                true => self.reports.log.info("the pod's interface is gone", &fields[..1]),
                false => self.reports.log.warn("the pod's interface is not found; retrying", &fields),
            }
        }
    }

    /// Pods that may run without policy because their interface is not known.
    pub(super) fn missing(&self, now: Instant) -> impl Iterator<Item = (&LocalPod, &NotFound)> {
        let missing = self.local.interfaces().missing().iter();
        missing.filter(move |(pod, why)| !why.is_contested && !self.is_excused(pod, now))
    }

    fn is_excused(&self, pod: &LocalPod, now: Instant) -> bool {
        let Some(AbsentPod { since, had_interface }) = self.local.absent.pods.get(pod).copied() else { return false };
        let object = self.objects.index().get(&pod.key());
        let is_deleted = object.is_some_and(|it| it.meta.deleting && it.meta.uid.as_deref() == pod.uid.as_deref());
        let is_recent = now.saturating_duration_since(since) < EXCUSED;
        (had_interface && is_deleted) || ((had_interface || is_deleted) && is_recent)
    }
}
