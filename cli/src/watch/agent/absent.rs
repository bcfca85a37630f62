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

use weir_classes::index::Key;

use super::{Agent, Pod, Value};
use crate::watch::discover::NotFound;
use crate::watch::enforce::Enforce;

/// Long enough for a runtime to recreate a pod's network, and for a kubelet to report the end of a pod.
const EXCUSED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Absent {
    pods: BTreeMap<Pod, Since>,
}

#[derive(Clone, Copy, Debug)]
struct Since {
    at: Instant,
    /// Whether its interface was known before.
    had_interface: bool,
}

impl<E: Enforce> Agent<E> {
    /// Updates the list after a search. `found_before` are the pods that had an interface before it.
    pub(super) fn note_absent(&mut self, found_before: &BTreeSet<Pod>, now: Instant) {
        let before = std::mem::take(&mut self.absent.pods);
        for pod in self.places.missing().keys() {
            let new = Since { at: now, had_interface: found_before.contains(pod) };
            self.absent.pods.insert(pod.clone(), before.get(pod).copied().unwrap_or(new));
        }
        for (pod, error) in self.places.missing().iter().filter(|(pod, _)| !before.contains_key(pod)) {
            let fields = [("pod", Value::from(pod.path())), ("error", Value::from(error.to_string()))];
            match self.is_excused(pod, now) {
                true => self.log.info("its interface is gone", &fields[..1]),
                false => self.log.warn("no interface yet; it is looked for again", &fields),
            }
        }
    }

    /// Pods that may run without policy because their interface is not known.
    pub(super) fn missing(&self, now: Instant) -> impl Iterator<Item = (&Pod, &NotFound)> {
        self.places.missing().iter().filter(move |(pod, why)| !why.is_contested && !self.is_excused(pod, now))
    }

    fn is_excused(&self, pod: &Pod, now: Instant) -> bool {
        let Some(Since { at, had_interface }) = self.absent.pods.get(pod).copied() else { return false };
        let key = Key { kind: "Pod".to_owned(), namespace: pod.namespace.clone(), name: pod.name.clone() };
        let is_deleted = self.index.get(&key).is_some_and(|it| it.meta.deleting && it.meta.uid == pod.uid);
        let is_recent = now.saturating_duration_since(at) < EXCUSED;
        (had_interface && is_deleted) || ((had_interface || is_deleted) && is_recent)
    }
}
