//! Flows through a service that end because of a backend that the service has lost.
//!
//! Problem and strategy are in `weir_classes::departed`. This file decides when to ask it, and retries if the kernel
//! refuses. Invariant: flows that must end are kept until the kernel has ended them.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_classes::departed::{Departed, EndedService};
use weir_classes::index::{Dirty, Generation};
use weir_objects::k8s::Object;

use super::{Agent, Backoff, Value, back_off};
use crate::watch::enforce::Enforce;

#[derive(Debug, Default)]
pub(super) struct Ending {
    departed: Departed,
    /// The services whose flows the kernel has not ended yet.
    pending: BTreeSet<EndedService>,
    retry: Option<Backoff>,
}

impl Ending {
    /// When to try again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.retry.map(|(at, _)| at)
    }

    /// Whether a pod's new class may forbid connections that still use the pod as a backend. Only a generation finds
    /// out which connections.
    pub(super) fn concerns(&self, object: &Object) -> bool {
        self.departed.concerns(object)
    }
}

impl<E: Enforce> Agent<E> {
    /// Called when a generation has come into force.
    pub(super) fn end_departed(&mut self, generation: &Generation, now: Instant) {
        let Generation { cluster, scope, .. } = generation;
        self.ending.pending.extend(self.ending.departed.observe(cluster, scope));
        self.end_flows(now);
    }

    /// Tries again to end flows that the kernel refused to end.
    pub(super) fn end_flows_again(&mut self, now: Instant) {
        if self.ending.due().is_some_and(|due| due <= now) {
            self.end_flows(now);
        }
    }

    fn end_flows(&mut self, now: Instant) {
        if self.ending.pending.is_empty() {
            return;
        }
        let ended: Vec<EndedService> = self.ending.pending.iter().cloned().collect();
        match self.enforce.end_flows(&ended) {
            Ok(count) => {
                self.ending.pending.clear();
                self.ending.retry = None;
                let why = "their services have lost a backend that their pods may not reach any more";
                self.log.info("flows ended", &[("flows", Value::from(count)), ("why", Value::from(why))]);
            }
            Err(trouble) => {
                self.ending.retry = Some(back_off(self.ending.retry, now));
                self.log.error("flows that have to end go on", &[("error", Value::from(trouble.0))]);
            }
        }
    }

    /// Notes a change of a pod that was written as single entries. If the pod was a backend and left its service, a new
    /// generation must compute the flows that end.
    pub(super) fn note_departed(&mut self, dirty: &Dirty, concerns: bool, at: Instant) {
        let changes_class = matches!(dirty, Dirty::Addresses(changes) if !changes.entries.is_empty());
        if concerns && changes_class && self.index.judges_services() {
            self.pending.want_generation(at);
        }
    }
}
