//! Pods that are connected before their policy is in force.
//!
//! Problem: a pod can send packets as soon as its interface exists. A generation takes a tenth of a second. While the
//! API server is unreachable, the agent knows nothing of the pods that the container runtime starts (static pods,
//! restarts).
//! Strategy: the CNI result names the pod's namespace and name before its first process runs. A new interface is closed
//! immediately if a policy may isolate the pod. The generation that includes the pod opens it. Labels are ignored:
//! those of an unknown pod are not known, and a known pod waits only for its generation.
//! Invariants: the agent closes only veths that a CNI result names as a pod's, and none that existed before the agent.
//! Only a generation that is in force on an interface opens it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use weir_classes::index::Key;

use super::{Agent, CHECK, Value};
use crate::watch::discover::Cached;
use crate::watch::enforce::Enforce;

/// The pause between two reads of the result cache.
const PAUSE: Duration = Duration::from_millis(10);

/// How to treat a new pod of this node that the API has not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnknownPods {
    /// Drop all its packets until the API has reported it and its policy is in force
    Deny,
    /// Drop all its packets if a policy of its namespace, or a CidrList, may apply to it; otherwise none
    #[default]
    Allow,
}

#[derive(Debug)]
pub(super) struct Newcomers {
    unknown: UnknownPods,
    /// Interfaces for which it was already decided whether to close them; `None` before the first read of the result
    /// cache.
    judged: Option<BTreeSet<u32>>,
    /// The time of the next read of the result cache, and of the last one.
    due: Option<Instant>,
    looked: Option<Instant>,
}

impl Newcomers {
    pub(super) fn new(unknown: UnknownPods, now: Instant) -> Self {
        Self { unknown, judged: None, due: Some(now), looked: None }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Schedules a read of the result cache after a change on the host.
    pub(super) fn stir(&mut self, now: Instant) {
        let earliest = self.looked.map_or(now, |looked| now.max(looked + PAUSE));
        self.due = Some(self.due.map_or(earliest, |due| due.min(earliest)));
    }
}

impl<E: Enforce> Agent<E> {
    /// Called when interfaces, tc or the CNI result cache have changed. Makes all regular checks due.
    pub(super) fn stirred(&mut self, now: Instant) {
        self.newcomers.stir(now);
        self.look_soon(now);
        self.early.hurry(now);
        self.places.hurry(now);
        self.check_at = self.check_at.map(|due| due.min(now));
    }

    /// Called before slow work. If a notification waits for the end of the pause, handles it now.
    pub(super) fn judge_newcomers_first(&mut self, now: Instant) {
        let is_stirred =
            self.newcomers.due.zip(self.newcomers.looked).is_some_and(|(due, looked)| due <= looked + PAUSE);
        if is_stirred {
            self.newcomers.due = Some(now);
            self.judge_newcomers(now);
        }
    }

    /// Closes the interfaces of new pods that policy may isolate.
    pub(super) fn judge_newcomers(&mut self, now: Instant) {
        if self.newcomers.due.is_none_or(|due| due > now) {
            return;
        }
        // Without notifications, the result cache is read as often as interfaces are checked.
        (self.newcomers.looked, self.newcomers.due) = (Some(now), Some(now + CHECK));
        let attached = self.places.attachments();
        let there: BTreeSet<u32> = attached.iter().map(|(ifindex, ..)| *ifindex).collect();
        let Some(judged) = self.newcomers.judged.replace(there) else { return };
        for (ifindex, interface, pod) in attached {
            let is_enforced = self.enforced.values().any(|at| at.ifindex == ifindex);
            if !judged.contains(&ifindex) && !is_enforced && self.is_to_be_closed(&pod) {
                self.close(ifindex, &interface, &pod);
            }
        }
    }

    fn is_to_be_closed(&self, pod: &Cached) -> bool {
        self.may_be_isolated(&pod.namespace) || (self.newcomers.unknown == UnknownPods::Deny && !self.is_known(pod))
    }

    fn may_be_isolated(&self, namespace: &str) -> bool {
        let applies = |key: &Key| key.kind == "CidrList" || key.namespace == namespace;
        ["NetworkPolicy", "CidrList"].into_iter().any(|kind| self.index.keys(kind).any(applies))
    }

    fn is_known(&self, pod: &Cached) -> bool {
        let key = Key { kind: "Pod".to_owned(), namespace: pod.namespace.clone(), name: pod.name.clone() };
        let same = |uid: &Option<String>| uid.as_ref().zip(pod.uid.as_ref()).is_none_or(|(a, b)| a == b);
        self.index.get(&key).is_some_and(|object| same(&object.meta.uid))
    }

    fn close(&mut self, ifindex: u32, interface: &str, pod: &Cached) {
        let path = format!("{}/{}", pod.namespace, pod.name);
        let mut fields = vec![("pod", Value::from(path)), ("interface", Value::from(interface))];
        match self.enforce.close(interface) {
            Ok(()) => {
                self.metrics.add("weir_new_pods_closed_total", &[], 1.0);
                self.log.info("closed until policy is in force on it", &fields);
            }
            Err(trouble) => {
                // The next check tries again if the interface still exists.
                self.newcomers.judged.iter_mut().for_each(|judged| _ = judged.remove(&ifindex));
                fields.push(("error", Value::from(trouble.0)));
                self.log.warn("a new pod's interface cannot be closed", &fields);
            }
        }
    }
}
