//! Pods that wait for their policy: the CNI plug-in holds their start back until policy is in force on them.
//!
//! Invariant: a question gets exactly one answer. A question about a new pod waits for it, at most as long as the
//! question says.

use std::time::{Instant, SystemTime};

use weir_classes::index::{ChangeEffect, Key};
use weir_objects::k8s::{Body, Object};

use super::{NodeAgent, Value};
use crate::cni::wire::{CniAnswer, CniPod, CniQuestion, Verb};
use crate::watch::cni_socket::PendingQuestion;
use crate::watch::discover::Attachment;
use crate::watch::enforce::Enforce;
use crate::watch::pod_uids::PodUids;

/// Why pods cannot start before the agent has listed all kinds.
const UNLISTED: &str = "the agent has not listed all objects yet";

/// Questions about new pods that have no answer yet.
#[derive(Debug, Default)]
pub(super) struct HeldPods {
    questions: Vec<PendingQuestion>,
}

impl HeldPods {
    /// The time at which the first question must be answered.
    pub(super) fn due(&self) -> Option<Instant> {
        self.questions.iter().filter_map(|it| it.since.checked_add(it.question.wait)).min()
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Handles a question of the plug-in.
    pub(crate) fn asked(&mut self, question: PendingQuestion) {
        // A recreated interface has the same name, but policy is not in force on it. So interfaces that are gone are
        // forgotten before the question is answered.
        let host = self.local.interfaces_mut().host();
        self.enforcement.forget_gone(&host);
        match question.question.verb {
            Verb::Status => reply(&question, self.can_pods_start()),
            Verb::Check => reply(&question, self.is_enforced(&question.question)),
            Verb::Add => self.hold(question),
        }
    }

    /// Whether pods can start. A fault of a single pod or policy does not keep other pods from starting.
    fn can_pods_start(&self) -> CniAnswer {
        match (self.pending.error(), self.enforcement.epoch()) {
            _ if !self.objects.is_complete() => Err(UNLISTED.to_owned()),
            (Some(error), _) => Err(no_new_generation(error)),
            (None, None) => Err("no generation is in force yet".to_owned()),
            (None, Some(generation)) => Ok(generation),
        }
    }

    /// Takes the pod's interface and addresses from the question, because the API does not have them yet. The
    /// question then waits for its answer.
    fn hold(&mut self, held: PendingQuestion) {
        let CniQuestion { pod, interfaces, addresses, .. } = &held.question;
        let since = held.since;
        self.local.interfaces_mut().add_attachment(Attachment {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            host_interfaces: interfaces.clone(),
            addresses: addresses.clone(),
            attached_at: Some(SystemTime::now()),
        });
        let key = key(pod);
        let known = self.objects.index().get(&key).filter(|object| is_same(object, pod)).cloned();
        let stale = known.as_ref().map(|object| addresses_of(object).to_vec()).unwrap_or_default();
        self.starting.addresses.learn(&key, pod.uid.clone(), addresses.clone(), stale);
        if let Some(object) = known {
            let object = self.starting.addresses.complete(&self.node, &key, object, since);
            let dirty = self.objects.index_mut().apply(object);
            // Even if no class changes, the interface may be another one.
            if !dirty.brings_local_pod() {
                let fields = [("pod", Value::from(pod.path()))];
                self.reports.log.debug("a known pod has another attachment; compiling a new generation", &fields);
                self.pending.need_generation(since);
            }
            self.note(dirty, ChangeEffect::Isolating, true, since);
        }
        self.starting.held.questions.push(held);
    }

    /// Answers the questions about pods on which policy is in force. Questions whose time is over get the reason why
    /// it is not.
    pub(super) fn answer_held(&mut self, now: Instant) {
        for held in std::mem::take(&mut self.starting.held.questions) {
            let waited = now.saturating_duration_since(held.since);
            match self.is_enforced(&held.question) {
                Err(why) if waited >= held.question.wait => {
                    let fields = [("pod", Value::from(held.question.pod.path())), ("why", Value::from(why.as_str()))];
                    self.reports.log.error("policy was not in force on a new pod in time", &fields);
                    self.reports.metrics.add("weir_cni_timeouts_total", &[], 1.0);
                    reply(&held, Err(why));
                }
                Err(_) => self.starting.held.questions.push(held),
                Ok(generation) => {
                    self.reports.metrics.observe("weir_cni_held_seconds", waited);
                    reply(&held, Ok(generation));
                }
            }
        }
    }

    fn is_enforced(&self, question: &CniQuestion) -> CniAnswer {
        let pod = &question.pod;
        let path = pod.path();
        let enforced = self.enforcement.pods().iter().find(|(it, _)| it.path() == path);
        let is_same_attachment = enforced.is_some_and(|(it, at)| {
            it.uids().allow(pod.uid.as_deref()) && question.interfaces.iter().any(|it| **it == *at.name)
        });
        match self.enforcement.epoch() {
            Some(generation) if is_same_attachment => Ok(generation),
            _ => Err(self.why_not_enforced(pod)),
        }
    }

    fn why_not_enforced(&self, pod: &CniPod) -> String {
        let path = pod.path();
        if !self.objects.is_complete() {
            return UNLISTED.to_owned();
        }
        if !self.objects.index().get(&key(pod)).is_some_and(|object| is_same(object, pod)) {
            return "the agent has not received the pod's object yet".to_owned();
        }
        if let Some(error) = self.pending.error() {
            return no_new_generation(error);
        }
        let missing = self.local.interfaces().missing().iter().find(|(it, _)| it.path() == path);
        let refused = self.enforcement.refused().iter().find(|it| it.pod == path);
        let reason = missing.map(|(_, why)| why.to_string()).or_else(|| refused.map(|it| it.why.clone()));
        reason.unwrap_or_else(|| "the generation in force does not contain the pod yet".to_owned())
    }
}

/// Why the node's policy is out of date.
pub(super) fn no_new_generation(error: &str) -> String {
    format!("no new generation: {error}")
}

/// Sends the answer. An error means that the plug-in no longer waits for it.
fn reply(question: &PendingQuestion, answer: CniAnswer) {
    _ = question.reply.send(answer);
}

fn key(pod: &CniPod) -> Key {
    Key { kind: "Pod".to_owned(), namespace: pod.namespace.clone(), name: pod.name.clone() }
}

fn is_same(object: &Object, pod: &CniPod) -> bool {
    PodUids::of(object).allow(pod.uid.as_deref())
}

fn addresses_of(object: &Object) -> &[std::net::IpAddr] {
    match &object.body {
        Body::Pod(pod) => &pod.addresses,
        _ => &[],
    }
}
