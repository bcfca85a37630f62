//! Addresses of local pods before the API reports them.
//!
//! Problem: the kubelet reports a pod's address to the API a second or more after the pod has begun to send packets.
//! Strategy: the CNI plug-in reports the address to the agent. Without the plug-in, the agent reads the result cache
//! for pods that are starting on this node; it contains the address as soon as the interface exists. Such an address
//! counts for the pod with the same UID, until the API reports an address that is new. The longer a pod takes to
//! start, the less often the cache is read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_classes::index::Key;
use weir_objects::k8s::{Body, Object, Phase};

use super::{Agent, Backoff};
use crate::watch::enforce::Enforce;

const FIRST_LOOK: Duration = Duration::from_millis(25);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Pods that are starting.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The objects as the API has them, without an address.
    starting: BTreeMap<Key, Object>,
    /// Addresses that the API does not have yet.
    learned: BTreeMap<Key, Learned>,
    look: Option<Backoff>,
}

#[derive(Debug)]
struct Learned {
    /// The pod's UID, if the CNI plug-in or the cache gave it.
    uid: Option<String>,
    addresses: Vec<IpAddr>,
    /// The addresses in the API while it does not have the new ones: none, or those that the pod had before its
    /// network was recreated.
    instead_of: Vec<IpAddr>,
}

impl Learned {
    fn is_of(&self, object: &Object) -> bool {
        self.uid.as_ref().zip(object.meta.uid.as_ref()).is_none_or(|(a, b)| a == b)
    }
}

impl Early {
    /// When to read the result cache next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look.map(|(at, _)| at)
    }

    /// Called after a change on the host: pods that are starting may have their interfaces now.
    pub(super) fn hurry(&mut self, now: Instant) {
        if !self.starting.is_empty() {
            self.look = Some((now, FIRST_LOOK));
        }
    }

    /// Forgets a pod that is gone, has ended, or has its address in the API.
    pub(super) fn forget(&mut self, key: &Key) {
        self.starting.remove(key);
        self.learned.remove(key);
        if self.starting.is_empty() {
            self.look = None;
        }
    }

    /// Takes the addresses that the CNI plug-in reports for a pod.
    pub(super) fn tell(&mut self, key: &Key, uid: Option<String>, addresses: Vec<IpAddr>, instead_of: Vec<IpAddr>) {
        self.starting.remove(key);
        self.learned.insert(key.clone(), Learned { uid, addresses, instead_of });
    }

    /// Returns an object of the API with the addresses that the API does not have yet. If a starting pod has no known
    /// address, it is searched for from now on.
    pub(super) fn complete(&mut self, node: &str, key: &Key, mut object: Object, now: Instant) -> Object {
        let known = self.learned.get(key).filter(|it| it.is_of(&object));
        if let Some(known) = known.filter(|it| is_on_network(node, &object).is_some_and(|has| has == it.instead_of)) {
            set_addresses(&mut object, &known.addresses);
            self.starting.remove(key);
            return object;
        }
        if is_on_network(node, &object).is_none_or(|addresses| !addresses.is_empty()) {
            self.forget(key);
            return object;
        }
        self.learned.remove(key);
        if self.starting.insert(key.clone(), object.clone()).is_none() {
            self.look = Some((now, FIRST_LOOK));
        }
        object
    }
}

/// The pod's addresses in the API. `None` if the object is no pod of this node with a network of its own, or has ended.
fn is_on_network<'o>(node: &str, object: &'o Object) -> Option<&'o [IpAddr]> {
    let Body::Pod(pod) = &object.body else { return None };
    let has_ended = matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
    (pod.node.as_deref() == Some(node) && !pod.host_network && !has_ended).then_some(&pod.addresses)
}

fn set_addresses(object: &mut Object, addresses: &[IpAddr]) {
    if let Body::Pod(pod) = &mut object.body {
        pod.addresses = addresses.to_vec();
    }
}

impl<E: Enforce> Agent<E> {
    /// Reads the result cache, if that is due, for the addresses of pods that are starting.
    pub(super) fn look_early(&mut self, now: Instant) {
        let Some((_, wait)) = self.early.look.filter(|(at, _)| *at <= now) else { return };
        self.early.look = Some((now + wait, (wait * 2).min(LONGEST_LOOK)));
        let starting = self.early.starting.iter();
        let wanted = starting.map(|(key, object)| (key.clone(), object.meta.uid.clone())).collect();
        for (key, uid, addresses) in self.places.attached(wanted) {
            let Some(mut object) = self.early.starting.remove(&key) else { continue };
            set_addresses(&mut object, &addresses);
            self.early.learned.insert(key, Learned { uid, addresses, instead_of: Vec::new() });
            let dirty = self.index.apply(object);
            self.note(dirty, true, now);
        }
        if self.early.starting.is_empty() {
            self.early.look = None;
        }
    }
}
