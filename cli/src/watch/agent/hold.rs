//! Pods that wait for their policy: the CNI plug-in holds their start back until policy is in force on them.

use std::time::{Instant, SystemTime};

use weir_classes::index::Key;
use weir_objects::k8s::{Body, Object};

use super::{Agent, Value};
use crate::cni::wire::{Answer, Pod, Question, Verb};
use crate::watch::discover::Cached;
use crate::watch::enforce::Enforce;
use crate::watch::hold::Waiting;

impl<E: Enforce> Agent<E> {
    /// Handles a question of the plug-in.
    pub(crate) fn asked(&mut self, waiting: Waiting) {
        // A recreated interface has the same name, but policy is not in force on it. So interfaces that are gone are
        // forgotten before the question is answered.
        let (interfaces, _) = self.places.check();
        self.enforced.retain(|_, at| interfaces.has(at));
        match waiting.question.verb {
            Verb::Status => {
                reply(&waiting, self.can_let_go());
            }
            Verb::Check => reply(&waiting, self.is_let_go(&waiting.question)),
            Verb::Add => self.hold(waiting),
        }
    }

    /// Whether pods can start. A fault of a single pod or policy does not keep other pods from starting.
    fn can_let_go(&self) -> Answer {
        match (&self.failure, self.in_force) {
            _ if !self.unlisted.is_empty() => Err("the objects of the API are not all known yet".to_owned()),
            (Some(error), _) => Err(format!("no new generation: {error}")),
            (None, None) => Err("no generation is in force yet".to_owned()),
            (None, Some(generation)) => Ok(generation),
        }
    }

    /// Takes the pod's interface and addresses from the question, because the API does not have them yet. The
    /// question then waits for its answer.
    fn hold(&mut self, waiting: Waiting) {
        let Question { pod, interfaces, addresses, .. } = &waiting.question;
        let since = waiting.since;
        self.places.tell(Cached {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            host_interfaces: interfaces.clone(),
            addresses: addresses.clone(),
            made: Some(SystemTime::now()),
        });
        let key = key(pod);
        let known = self.index.get(&key).filter(|object| is_same(object, pod)).cloned();
        let stale = known.as_ref().map(|object| addresses_of(object).to_vec()).unwrap_or_default();
        self.early.tell(&key, pod.uid.clone(), addresses.clone(), stale);
        if let Some(object) = known {
            let object = self.early.complete(&self.node, &key, object, since);
            let dirty = self.index.apply(object);
            self.note(dirty, true, since);
            // Even if no class changes, the interface may be another one.
            self.pending.want_generation(since);
        }
        self.waiting.push(waiting);
    }

    /// Answers the questions about pods on which policy is in force. Questions whose time is over get the reason why
    /// it is not.
    pub(super) fn let_go(&mut self, now: Instant) {
        for waiting in std::mem::take(&mut self.waiting) {
            let waited = now.saturating_duration_since(waiting.since);
            match self.is_let_go(&waiting.question) {
                Err(why) if waited >= waiting.question.wait => {
                    let fields =
                        [("pod", Value::from(waiting.question.pod.path())), ("why", Value::from(why.as_str()))];
                    self.log.error("policy was not in force in time on a new pod", &fields);
                    self.metrics.add("weir_cni_timeouts_total", &[], 1.0);
                    reply(&waiting, Err(why));
                }
                Err(_) => self.waiting.push(waiting),
                Ok(generation) => {
                    self.metrics.observe("weir_cni_held_seconds", waited);
                    reply(&waiting, Ok(generation));
                }
            }
        }
    }

    /// The time at which the first waiting question is over.
    pub(super) fn let_go_due(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|it| it.since.checked_add(it.question.wait)).min()
    }

    fn is_let_go(&self, question: &Question) -> Answer {
        let pod = &question.pod;
        let path = pod.path();
        let enforced = self.enforced.iter().find(|(it, _)| it.path() == path);
        let right = enforced.is_some_and(|(it, at)| {
            let same = it.uid.as_ref().zip(pod.uid.as_ref()).is_none_or(|(a, b)| a == b);
            same && question.interfaces.contains(&at.name)
        });
        match self.in_force {
            Some(generation) if right => Ok(generation),
            _ => Err(self.why_not(pod)),
        }
    }

    fn why_not(&self, pod: &Pod) -> String {
        let path = pod.path();
        if !self.unlisted.is_empty() {
            return "the objects of the API are not all known yet".to_owned();
        }
        if !self.index.get(&key(pod)).is_some_and(|object| is_same(object, pod)) {
            return "the API has not told of the pod".to_owned();
        }
        if let Some(error) = &self.failure {
            return format!("no new generation: {error}");
        }
        let missing = self.places.missing().iter().find(|(it, _)| it.path() == path);
        let refused = self.refused.iter().find(|(it, _)| *it == path);
        let reason = missing.map(|(_, why)| why.to_string()).or_else(|| refused.map(|(_, why)| why.clone()));
        reason.unwrap_or_else(|| "the generation in force does not have it yet".to_owned())
    }
}

/// Sends the answer. An error means that the plug-in no longer waits for it.
fn reply(waiting: &Waiting, answer: Answer) {
    _ = waiting.reply.send(answer);
}

fn key(pod: &Pod) -> Key {
    Key { kind: "Pod".to_owned(), namespace: pod.namespace.clone(), name: pod.name.clone() }
}

fn is_same(object: &Object, pod: &Pod) -> bool {
    object.meta.uid.as_ref().zip(pod.uid.as_ref()).is_none_or(|(a, b)| a == b)
}

fn addresses_of(object: &Object) -> &[std::net::IpAddr] {
    match &object.body {
        Body::Pod(pod) => &pod.addresses,
        _ => &[],
    }
}
