//! Pods of this node that come or leave without a new generation.
//!
//! Problem and conditions are in `compiler/classes/src/index/local.rs`, the order of the kernel's operations in
//! `runtime-bpf/src/runtime/pods.rs`. This file finds the interface of a pod that comes, and makes a generation if the
//! pod cannot come alone.
//! Invariants: the entries of a pod's addresses are written before its interface opens ([`super::entry_writes`]). If
//! anything fails, a generation is requested, which contains the pod.

use std::time::Instant;

use weir_classes::index::{Dirty, Key, LocalArrival, LocalChange};

use super::local::with_static_uid;
use super::{LocalPod, NodeAgent, Value, shown};
use crate::watch::annotate::{AnnotatedPod, PublishedGeneration};
use crate::watch::enforce::{Enforce, EnforceError, GonePod, NewPod, PodAtInterface};

impl<E: Enforce> NodeAgent<E> {
    /// Makes the changes of local pods that wait. If a generation is needed soon anyway, it contains them.
    pub(super) fn change_local_pods(&mut self, now: Instant) {
        let locals = self.pending.writes.take_locals();
        if locals.is_empty() || self.pending.isolates_soon() {
            return;
        }
        for change in locals {
            let made = match change {
                LocalChange::Came(arrival) => self.add_local_pod(arrival, now),
                LocalChange::Left { pod, .. } => self.remove_gone(&[gone(&pod)]),
            };
            if let Err(EnforceError { message }) = made {
                let fields = [("error", Value::from(message))];
                self.reports.log.info("a pod cannot come or leave alone; compiling a new generation", &fields);
                // The generation contains this change and the others.
                return self.pending.need_generation(now);
            }
        }
    }

    fn add_local_pod(&mut self, arrival: LocalArrival, now: Instant) -> Result<(), EnforceError> {
        let LocalArrival { pod: key, uid, addresses, like, subject, .. } = arrival;
        let pod = LocalPod::new(&key.namespace, &key.name, uid.as_deref(), addresses.as_slice());
        let pod = with_static_uid(pod, self.objects.index());
        let found = self.find_also(&pod, now).ok_or_else(|| EnforceError::new("its interface is not found"))?;
        let ifindex = found.ifindex;
        let at = PodAtInterface { pod: pod.path(), interface: found.name.to_string() };
        let uid = uid.as_ref().map(String::from);
        let generation = self.enforce.add_pod(&NewPod { at, uid, ifindex, addresses, like, subject })?;
        self.enforcement.add_pod(pod, found);
        self.time_new_pods();
        self.reports.metrics.add("weir_single_pods_total", &[("change", "came")], 1.0);
        self.reports.log.info("the generation in force has a new pod", &[("pod", shown(&key))]);
        let pods = self.enforcement.pods().keys().map(AnnotatedPod::from).collect();
        self.reports.published.send_replace(PublishedGeneration { generation, pods });
        Ok(())
    }

    /// Removes pods that lost their interface, and may come back at another one.
    pub(super) fn remove_lost(&mut self, lost: &[LocalPod], now: Instant) {
        let pods: Vec<GonePod> = lost.iter().map(|pod| GonePod { pod: pod.path(), is_deleted: false }).collect();
        let removed = match self.enforcement.is_writable() {
            true => self.remove_gone(&pods),
            false => Err(EnforceError::new("the generation in force is not the latest one")),
        };
        if let Err(EnforceError { message }) = removed {
            let fields = [("error", Value::from(message))];
            self.reports
                .log
                .info("pods that lost their interface cannot leave alone; compiling a new generation", &fields);
            self.pending.need_generation(now);
        }
    }

    /// Logs the first object that a new generation is needed for. For a pod, it is the reason why the pod cannot come
    /// or leave alone.
    pub(super) fn log_first_cause(&self, key: &Key, dirty: &Dirty) {
        if *dirty == Dirty::Everything && self.objects.is_complete() && !self.pending.needs_generation() {
            self.reports
                .log
                .debug("an object cannot change alone; compiling a new generation", &[("object", shown(key))]);
        }
    }

    fn remove_gone(&mut self, pods: &[GonePod]) -> Result<(), EnforceError> {
        self.enforce.remove_pods(pods)?;
        self.enforcement.remove_pods(|pod| pods.iter().any(|gone| gone.pod == pod.path()));
        let deleted = pods.iter().filter(|it| it.is_deleted).count();
        self.reports.metrics.add("weir_single_pods_total", &[("change", "left")], deleted as f64);
        Ok(())
    }

    /// Forgets the interfaces of pods that leave without a generation. A generation would do this when it searches.
    pub(super) fn forget_left(&mut self, dirty: &Dirty) {
        let Dirty::Addresses(changes) = dirty else { return };
        for change in &changes.locals {
            if let LocalChange::Left { pod, uid } = change {
                let pod = LocalPod::new(&pod.namespace, &pod.name, uid.as_deref(), []);
                self.local.interfaces_mut().forget(&pod);
            }
        }
    }
}

fn gone(key: &Key) -> GonePod {
    GonePod { pod: format!("{}/{}", key.namespace, key.name), is_deleted: true }
}
