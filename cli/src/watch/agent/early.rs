//! Local pods on their networks before the API says so.
//!
//! Problem: the kubelet tells the API a pod's address a second or more after the pod has begun to talk. Strategy: the result cache
//! has it as soon as the interface is there; for pods that are starting on this node it is looked at, and what it says of the pod's
//! own UID stands until the API says something. A pod that starts for long is looked for less often.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_compiler::index::Key;
use weir_compiler::k8s::{Body, Object, Phase};

use super::{Agent, Backoff};
use crate::watch::enforce::Enforce;

const FIRST_LOOK: Duration = Duration::from_millis(25);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Pods that are starting.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// As the API has them: without an address.
    starting: BTreeMap<Key, Object>,
    /// What the cache says of those.
    learned: BTreeMap<Key, (Option<String>, Vec<IpAddr>)>,
    look: Option<Backoff>,
}

impl Early {
    /// When to look.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look.map(|(at, _)| at)
    }

    /// A pod is gone, or is no pod.
    pub(super) fn forget(&mut self, key: &Key) {
        self.starting.remove(key);
        self.learned.remove(key);
        if self.starting.is_empty() {
            self.look = None;
        }
    }

    /// What the API says, with what is known beyond it.
    pub(super) fn complete(&mut self, node: &str, key: &Key, mut object: Object, now: Instant) -> Object {
        if !is_starting(node, &object) {
            self.forget(key);
            return object;
        }
        let known = self.learned.get(key).filter(|(uid, _)| *uid == object.meta.uid);
        if let Some((_, addresses)) = known {
            set_addresses(&mut object, addresses);
            return object;
        }
        self.learned.remove(key);
        if self.starting.insert(key.clone(), object.clone()).is_none() {
            self.look = Some((now, FIRST_LOOK));
        }
        object
    }
}

fn is_starting(node: &str, object: &Object) -> bool {
    let Body::Pod(pod) = &object.body else { return false };
    let has_ended = matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
    pod.node.as_deref() == Some(node) && !pod.host_network && pod.addresses.is_empty() && !has_ended
}

fn set_addresses(object: &mut Object, addresses: &[IpAddr]) {
    if let Body::Pod(pod) = &mut object.body {
        pod.addresses = addresses.to_vec();
    }
}

impl<E: Enforce> Agent<E> {
    /// Looks whether pods that are starting have their interfaces.
    pub(super) fn look_early(&mut self, now: Instant) {
        let Some((_, wait)) = self.early.look.filter(|(at, _)| *at <= now) else { return };
        self.early.look = Some((now + wait, (wait * 2).min(LONGEST_LOOK)));
        let starting = self.early.starting.iter();
        let wanted = starting.map(|(key, object)| (key.clone(), object.meta.uid.clone())).collect();
        for (key, uid, addresses) in self.places.attached(wanted) {
            let Some(mut object) = self.early.starting.remove(&key) else { continue };
            set_addresses(&mut object, &addresses);
            self.early.learned.insert(key, (uid, addresses));
            let dirty = self.index.apply(object);
            self.note(dirty, true, now);
        }
        if self.early.starting.is_empty() {
            self.early.look = None;
        }
    }
}
