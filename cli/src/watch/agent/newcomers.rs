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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use weir_classes::index::Key;
use weir_objects::k8s::Object;
use weir_runtime::sys::ChangedInterfaces;

use super::upkeep::CHECK;
use super::{NodeAgent, Value};
use crate::watch::discover::Attachment;
use crate::watch::enforce::Enforce;
use crate::watch::interfaces::{AttachedInterfaces, InterfaceOfPod};
use crate::watch::pod_uids::PodUids;
use crate::watch::resources::CLUSTER_POLICY_KINDS;

/// The pause between two reads of the result cache.
const PAUSE: Duration = Duration::from_millis(10);

/// How to treat a new pod of this node whose object the agent has not received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnknownPods {
    /// Drop all its packets until its object is received and its policy is in force
    Deny,
    /// Drop all its packets if a policy of its namespace, or a CidrList, may apply to it; otherwise none
    #[default]
    Allow,
}

/// The time of the next read of the result cache, and the results of earlier reads.
#[derive(Debug)]
pub(super) struct Newcomers {
    unknown: UnknownPods,
    /// The time of the next read of the result cache.
    due: Instant,
    reads: Option<CacheReads>,
}

/// The reads of the result cache since the host's interfaces could be read for the first time.
#[derive(Debug)]
struct CacheReads {
    last: Instant,
    /// The attachments for which it is decided whether to close their interfaces, by interface, as long as it exists.
    decided: BTreeMap<u32, Vec<Arc<Attachment>>>,
    /// If the first read could not read all results: when it began. Results that are older are not new.
    incomplete_at: Option<SystemTime>,
}

impl CacheReads {
    /// Whether this attachment is decided. The number of an interface alone does not say so: a later interface can get
    /// the same one.
    fn has_decided(&self, found: &InterfaceOfPod) -> bool {
        let new = &found.attachment;
        let is_it = |known: &Arc<Attachment>| {
            (known.attached_at, &known.namespace, &known.name, &known.uid)
                == (new.attached_at, &new.namespace, &new.name, &new.uid)
        };
        self.decided.get(&found.ifindex).is_some_and(|known| known.iter().any(is_it))
    }

    fn decide(&mut self, found: &InterfaceOfPod) {
        self.decided.entry(found.ifindex).or_default().push(Arc::clone(&found.attachment));
    }
}

impl Newcomers {
    pub(super) fn new(unknown: UnknownPods, now: Instant) -> Self {
        Self { unknown, due: now, reads: None }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Schedules a read of the result cache after a change on the host.
    fn hurry(&mut self, now: Instant) {
        let earliest = self.reads.as_ref().map_or(now, |reads| now.max(reads.last + PAUSE));
        self.due = self.due.min(earliest);
    }

    /// Whether a notification waits for the end of the pause after the last read.
    fn is_hurried(&self) -> bool {
        self.reads.as_ref().is_some_and(|reads| self.due <= reads.last + PAUSE)
    }

    /// Takes a read of the result cache. Returns the attachments that no read before had. The first read that finds the
    /// host's interfaces returns none: they may have existed before the agent.
    ///
    /// A result that cannot be read for a moment does not make its attachment a new one: it is forgotten when its
    /// interface is gone.
    fn new_attachments(&mut self, read: AttachedInterfaces, now: Instant) -> Vec<InterfaceOfPod> {
        // Without notifications, the result cache is read as often as interfaces are checked.
        self.due = now + CHECK;
        let AttachedInterfaces { of_pods, present, is_complete, begun } = read;
        let Some(reads) = &mut self.reads else {
            if present.is_some() {
                let incomplete_at = (!is_complete).then_some(begun);
                let mut reads = CacheReads { last: now, decided: BTreeMap::new(), incomplete_at };
                of_pods.iter().for_each(|it| reads.decide(it));
                self.reads = Some(reads);
            }
            return Vec::new();
        };
        reads.last = now;
        // If the clock was set back, it does not show which results are older.
        reads.incomplete_at = reads.incomplete_at.filter(|at| *at <= begun);
        if let Some(present) = present {
            reads.decided.retain(|ifindex, _| present.contains(ifindex));
        }
        let mut new = Vec::new();
        for found in of_pods {
            if reads.has_decided(&found) {
                continue;
            }
            reads.decide(&found);
            let is_old = found.attachment.attached_at.zip(reads.incomplete_at).is_some_and(|(it, at)| it < at);
            new.extend((!is_old).then_some(found));
        }
        new
    }

    /// Makes the next read return the attachments of this interface again.
    fn retry(&mut self, new: &InterfaceOfPod) {
        if let Some(reads) = &mut self.reads {
            reads.decided.remove(&new.ifindex);
        }
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Called when interfaces, tc or the CNI result cache have changed. Makes all regular checks due; hooks are checked
    /// only at interfaces that have changed.
    pub(super) fn host_changed(&mut self, changed: ChangedInterfaces, now: Instant) {
        self.starting.newcomers.hurry(now);
        self.upkeep.hooks.hurry(changed, now);
        self.starting.addresses.hurry(now);
        self.local.interfaces_mut().hurry(now);
        self.upkeep.interfaces.hurry(now);
    }

    /// Called before slow work. If a notification waits for the end of the pause, handles it now.
    pub(super) fn close_newcomers_first(&mut self, now: Instant) {
        if self.starting.newcomers.is_hurried() {
            self.starting.newcomers.due = now;
            self.close_newcomers(now);
        }
    }

    /// Closes the interfaces of new pods that policy may isolate.
    pub(super) fn close_newcomers(&mut self, now: Instant) {
        if self.starting.newcomers.due > now {
            return;
        }
        let read = self.local.interfaces_mut().attached_interfaces();
        for new in self.starting.newcomers.new_attachments(read, now) {
            if !self.enforcement.has_interface(new.ifindex) && self.must_be_closed(&new.attachment) {
                self.close(&new);
            }
        }
    }

    fn must_be_closed(&self, pod: &Attachment) -> bool {
        let is_denied_if_unknown = self.starting.newcomers.unknown == UnknownPods::Deny;
        self.may_be_isolated(&pod.namespace) || (is_denied_if_unknown && !self.is_known(pod))
    }

    fn may_be_isolated(&self, namespace: &str) -> bool {
        // Kinds without a namespace can apply to any pod.
        let applies = |object: &Object| object.meta.namespace.is_empty() || object.meta.namespace == namespace;
        let kinds = ["NetworkPolicy", "CidrList"].into_iter().chain(CLUSTER_POLICY_KINDS);
        kinds.into_iter().any(|kind| self.objects.index().of_kind(kind).any(applies))
    }

    fn is_known(&self, pod: &Attachment) -> bool {
        let key = Key { kind: "Pod".to_owned(), namespace: pod.namespace.clone(), name: pod.name.clone() };
        self.objects.index().get(&key).is_some_and(|object| PodUids::of(object).allow(pod.uid.as_deref()))
    }

    fn close(&mut self, new: &InterfaceOfPod) {
        let path = format!("{}/{}", new.attachment.namespace, new.attachment.name);
        let mut fields = vec![("pod", Value::from(path)), ("interface", Value::from(new.name.as_str()))];
        match self.enforce.close(&new.name) {
            Ok(()) => {
                self.reports.metrics.add("weir_new_pods_closed_total", &[], 1.0);
                self.reports.log.info("a new pod's interface is closed until policy is in force on it", &fields);
            }
            Err(error) => {
                // The next check tries again if the interface still exists.
                self.starting.newcomers.retry(new);
                fields.push(("error", Value::from(error.message)));
                self.reports.log.warn("a new pod's interface cannot be closed", &fields);
            }
        }
    }
}
