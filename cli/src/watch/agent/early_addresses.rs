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

use weir_classes::index::{ChangeEffect, Key};
use weir_objects::k8s::{Body, Object, Phase};

use super::NodeAgent;
use crate::watch::backoff::{Backoff, BackoffLimits};
use crate::watch::enforce::Enforce;
use crate::watch::interfaces::LocalPod;
use crate::watch::pod_uids::PodUids;

/// The waits between two reads of the result cache.
const READS: BackoffLimits = BackoffLimits { first: Duration::from_millis(25), longest: Duration::from_secs(1) };

/// Pods that are starting, and their addresses.
/// Invariants: a pod is either searched for or has learned addresses, never both. The result cache is read only while
/// a pod is searched for.
#[derive(Debug, Default)]
pub(super) struct EarlyAddresses {
    /// Pods whose address is searched for: the objects as the API has them.
    searched: BTreeMap<Key, Object>,
    /// Addresses that the API does not have yet.
    learned: BTreeMap<Key, LearnedAddresses>,
    next_read: Option<Backoff>,
}

#[derive(Debug)]
struct LearnedAddresses {
    /// The pod's UID, if the CNI plug-in or the cache gave it.
    uid: Option<String>,
    addresses: Vec<IpAddr>,
    /// The addresses in the API while it does not have the new ones: none, or those that the pod had before its
    /// network was recreated.
    instead_of: Vec<IpAddr>,
}

impl LearnedAddresses {
    fn is_of(&self, object: &Object) -> bool {
        PodUids::of(object).allow(self.uid.as_deref())
    }
}

impl EarlyAddresses {
    /// When to read the result cache next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next_read.map(|read| read.due())
    }

    /// Called after a change on the host: pods that are starting may have their interfaces now.
    pub(super) fn hurry(&mut self, now: Instant) {
        if !self.searched.is_empty() {
            self.next_read = Some(Backoff::at(now, READS));
        }
    }

    /// Forgets a pod that is gone, has ended, or has its address in the API.
    pub(super) fn forget(&mut self, key: &Key) {
        self.searched.remove(key);
        self.learned.remove(key);
        if self.searched.is_empty() {
            self.next_read = None;
        }
    }

    /// Takes the addresses that the CNI plug-in reports for a pod.
    pub(super) fn learn(&mut self, key: &Key, uid: Option<String>, addresses: Vec<IpAddr>, instead_of: Vec<IpAddr>) {
        self.searched.remove(key);
        self.learned.insert(key.clone(), LearnedAddresses { uid, addresses, instead_of });
    }

    /// Returns an object of the API with the addresses that the API does not have yet. If a starting pod has no known
    /// address, it is searched for from now on.
    pub(super) fn complete(&mut self, node: &str, key: &Key, mut object: Object, now: Instant) -> Object {
        let known = self.learned.get(key).filter(|it| it.is_of(&object));
        if let Some(known) = known.filter(|it| is_on_network(node, &object).is_some_and(|has| has == it.instead_of)) {
            set_addresses(&mut object, &known.addresses);
            self.searched.remove(key);
            return object;
        }
        if is_on_network(node, &object).is_none_or(|addresses| !addresses.is_empty()) {
            self.forget(key);
            return object;
        }
        self.learned.remove(key);
        if self.searched.insert(key.clone(), object.clone()).is_none() {
            self.next_read = Some(Backoff::at(now, READS));
        }
        object
    }

    /// The pods to look up in the result cache, if a read is due. Schedules the next read.
    fn start_read(&mut self, now: Instant) -> Option<Vec<LocalPod>> {
        let read = self.next_read.filter(|read| read.is_due(now))?;
        self.next_read = Some(Backoff::after(Some(read), now, READS));
        Some(self.searched.values().map(LocalPod::of).collect())
    }

    /// Takes the addresses of a pod that was searched for. Returns its object with them.
    fn found(&mut self, pod: &LocalPod, addresses: Vec<IpAddr>) -> Option<Object> {
        let key = pod.key();
        let mut object = self.searched.remove(&key)?;
        set_addresses(&mut object, &addresses);
        let uid = pod.uid.as_deref().map(str::to_owned);
        self.learned.insert(key, LearnedAddresses { uid, addresses, instead_of: Vec::new() });
        Some(object)
    }

    /// Ends the reads if no pod is searched for any more.
    fn end_read(&mut self) {
        if self.searched.is_empty() {
            self.next_read = None;
        }
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

impl<E: Enforce> NodeAgent<E> {
    /// Reads the result cache, if that is due, for the addresses of pods that are starting.
    pub(super) fn read_early_addresses(&mut self, now: Instant) {
        let Some(searched) = self.starting.addresses.start_read(now) else { return };
        for found in self.local.interfaces_mut().cached_addresses(searched) {
            if let Some(object) = self.starting.addresses.found(&found.pod, found.addresses) {
                let dirty = self.objects.index_mut().apply(object);
                self.note(dirty, ChangeEffect::Isolating, true, now);
            }
        }
        self.starting.addresses.end_read();
    }
}
