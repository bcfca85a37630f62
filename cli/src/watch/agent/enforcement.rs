//! The generation in force on this node, and the pods that it is enforced on.
//!
//! Invariants: single entries are written only in [`GenerationInForce::Indexed`], because otherwise the index has other
//! class numbers than the kernel's tables. A pod is listed as enforced only if the last installation did not fail on
//! it, and only as long as its interface exists. Refused pods always have a time at which they are retried.

use std::collections::BTreeMap;
use std::time::Instant;

use super::RETRY;
use super::local::LocalPods;
use crate::watch::backoff::Backoff;
use crate::watch::discover::{FoundInterface, Inventory};
use crate::watch::enforce::PodFailure;
use crate::watch::interfaces::LocalPod;

/// The generation in force, and whether the index answers changes for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GenerationInForce {
    /// This agent has not put a generation into force. One of the previous agent may be in force.
    #[default]
    None,
    /// The generation with this number is in force, and is the index's.
    Indexed(u32),
    /// The generation with this number was the last one in force. The index has a newer one, whose installation has
    /// not succeeded. It may still have come into force, so the class numbers of the kernel's tables are not known.
    Outdated(u32),
}

/// Pods on which the kernel refused the generation.
#[derive(Debug)]
struct RefusedPods {
    pods: Vec<PodFailure>,
    retry: Backoff,
}

/// The generation in force, and its pods.
#[derive(Debug, Default)]
pub(super) struct Enforcement {
    generation: GenerationInForce,
    /// The pods on which it is in force, with their interfaces.
    pods: BTreeMap<LocalPod, FoundInterface>,
    refused: Option<RefusedPods>,
}

impl Enforcement {
    /// The number of the generation in force.
    pub(super) fn epoch(&self) -> Option<u32> {
        match self.generation {
            GenerationInForce::None => None,
            GenerationInForce::Indexed(epoch) | GenerationInForce::Outdated(epoch) => Some(epoch),
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.epoch().is_some()
    }

    /// Whether single entries may be written.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self.generation, GenerationInForce::Indexed(_))
    }

    /// Notes that the index has a new generation, which is not installed yet.
    pub(super) fn index_is_newer(&mut self) {
        if let GenerationInForce::Indexed(epoch) = self.generation {
            self.generation = GenerationInForce::Outdated(epoch);
        }
    }

    /// Notes that the index's generation has come into force.
    pub(super) fn index_is_in_force(&mut self, epoch: u32) {
        self.generation = GenerationInForce::Indexed(epoch);
    }

    /// Takes the result of an installation: all pods with an interface are enforced, except the pods without an address
    /// of their own and those on which it failed.
    pub(super) fn set_pods(&mut self, local: &LocalPods, failed: &[PodFailure], now: Instant) {
        let before = self.refused.take().map(|it| it.retry);
        if !failed.is_empty() {
            self.refused = Some(RefusedPods { pods: failed.to_vec(), retry: Backoff::after(before, now, RETRY) });
        }
        self.pods = local.interfaces().found().clone();
        let is_refused = |pod: &LocalPod| failed.iter().any(|it| it.pod == pod.path());
        self.pods.retain(|pod, _| !local.is_unaddressed(pod) && !is_refused(pod));
    }

    /// Adds a pod that came into force without a new generation.
    pub(super) fn add_pod(&mut self, pod: LocalPod, at: FoundInterface) {
        self.pods.insert(pod, at);
    }

    /// Removes pods that left without a new generation.
    pub(super) fn remove_pods(&mut self, is_gone: impl Fn(&LocalPod) -> bool) {
        self.pods.retain(|pod, _| !is_gone(pod));
    }

    /// Removes the pods whose interface is gone. A recreated interface has the same name, but no policy.
    pub(super) fn forget_gone(&mut self, host: &Inventory) {
        self.pods.retain(|_, at| host.has(at));
    }

    pub(super) fn pods(&self) -> &BTreeMap<LocalPod, FoundInterface> {
        &self.pods
    }

    pub(super) fn has_interface(&self, ifindex: u32) -> bool {
        self.pods.values().any(|at| at.ifindex == ifindex)
    }

    /// Pods on which the kernel refused the generation, each with the error.
    pub(super) fn refused(&self) -> &[PodFailure] {
        self.refused.as_ref().map_or(&[], |it| it.pods.as_slice())
    }

    /// When to try the generation again on the refused pods.
    pub(super) fn retry_due(&self) -> Option<Instant> {
        self.refused.as_ref().map(|it| it.retry.due())
    }
}
