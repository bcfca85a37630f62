//! Flows through a service that end because of a backend that the service has lost.
//!
//! Problem and strategy are in `weir_classes::departed`. This file decides when to ask it, and retries if the kernel
//! refuses.
//! Invariants: flows that must end are kept until the kernel has ended them. A retry is scheduled only while there are
//! such flows.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_classes::departed::{AppliedChanges, Departed, EndedService};
use weir_classes::index::{Dirty, Generation};
use weir_objects::k8s::Object;

use super::{NodeAgent, RETRY, Value};
use crate::watch::backoff::Backoff;
use crate::watch::enforce::Enforce;

/// The backends that services have lost, and the flows that end because of them.
#[derive(Debug, Default)]
pub(super) struct DepartedBackends {
    departed: Departed,
    /// The services whose flows the kernel has not ended yet.
    pending: BTreeSet<EndedService>,
    retry: Option<Backoff>,
}

impl DepartedBackends {
    /// When to try again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.retry.map(|retry| retry.due())
    }

    /// Whether a pod's new class may forbid connections that still use the pod as a backend. Only a generation finds
    /// out which connections.
    pub(super) fn concerns(&self, object: &Object) -> bool {
        self.departed.concerns(object)
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Called when a generation has come into force.
    pub(super) fn end_flows_to_departed(&mut self, generation: &Generation, now: Instant) {
        let departed = &mut self.departed.departed;
        let ended = match generation.is_incremental {
            true => {
                let index = self.objects.index();
                let peer_at = |at| index.peer_at(at).unwrap_or_else(|| generation.classes.peer_at(at));
                let Generation { cluster, scope, classes, .. } = generation;
                departed.observe_changes(&AppliedChanges {
                    cluster,
                    scope,
                    classes,
                    has_holder: &|at| index.has_holder(at),
                    peer_at: &peer_at,
                })
            }
            false => departed.observe(&generation.cluster, &generation.scope),
        };
        self.departed.pending.extend(ended);
        self.end_flows(now);
    }

    /// Tries again to end flows that the kernel refused to end.
    pub(super) fn retry_ending_flows(&mut self, now: Instant) {
        if self.departed.retry.is_some_and(|retry| retry.is_due(now)) {
            self.end_flows(now);
        }
    }

    fn end_flows(&mut self, now: Instant) {
        if self.departed.pending.is_empty() {
            return;
        }
        let ended: Vec<EndedService> = self.departed.pending.iter().cloned().collect();
        match self.enforce.end_flows(&ended) {
            Ok(count) => {
                self.departed.pending.clear();
                self.departed.retry = None;
                let why = "their service has lost a backend that policy denies to their pod";
                self.reports.log.info("flows ended", &[("flows", Value::from(count)), ("why", Value::from(why))]);
            }
            Err(error) => {
                self.departed.retry = Some(Backoff::after(self.departed.retry, now, RETRY));
                let fields = [("error", Value::from(error.message))];
                self.reports.log.error("flows to a lost backend cannot be ended; retrying", &fields);
            }
        }
    }

    /// Passes on the backends that services got or lost without a new generation.
    pub(super) fn note_moved_backends(&mut self) {
        let count = self.take_moved_backends();
        self.reports.metrics.add("weir_backend_moves_total", &[], count as f64);
    }

    /// Passes on the backends that services got or lost. Returns the number of changes.
    pub(super) fn take_moved_backends(&mut self) -> usize {
        let moved = self.objects.index_mut().take_moved();
        moved.iter().for_each(|moved| self.departed.departed.moved(moved));
        moved.len()
    }

    /// Notes a change that was written as single entries. If a backend that has left its service has another class now,
    /// a new generation must compute the flows that end. `pod` says whether the changed object is such a backend's pod;
    /// `None` for other objects, such as lists and the namespaces of pods.
    pub(super) fn note_departed(&mut self, dirty: &Dirty, pod: Option<bool>, at: Instant) {
        let Dirty::Addresses(changes) = dirty else { return };
        let has_left = || changes.entries.iter().any(|(address, _)| self.departed.departed.has_left(*address));
        let concerns = pod.unwrap_or_else(has_left);
        if concerns && !changes.entries.is_empty() && self.objects.index().judges_services() {
            let message = "a backend that left its service has another class; compiling a new generation";
            self.reports.log.debug(message, &[]);
            self.pending.need_generation(at);
        }
    }
}
