//! The pods of this node: in a generation, at their interfaces, and leaving them.
//!
//! Invariant: a pod is its UID. A pod that is deleted keeps its rules at its own interface for as long as that is there, and nowhere
//! else: whatever address it had may be another pod's by then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use weir_compiler::index::{Generation, Key};
use weir_compiler::k8s::{Body, Object};
use weir_compiler::model::{Cluster, EndpointId, Standing};

use super::{Agent, shown};
use crate::watch::discover::{Found, Witness};
use crate::watch::enforce::{Enforce, Left};
use crate::watch::place::Pod;

/// The local pods of a generation, and those whose addresses may be other pods'.
pub(super) fn pods(generation: &Generation, node: &str) -> BTreeSet<Pod> {
    let cluster = &generation.cluster;
    let in_scope = generation.scope.endpoints().iter().map(|id| pod(cluster, *id, &[]));
    in_scope.chain(unaddressed(generation, node).into_keys()).collect()
}

/// Local pods without any address that is surely theirs. Whether that has to be told: while pods come and go it is normal that a
/// pod that is being deleted has an address that is a new pod's by now.
pub(super) fn unaddressed(generation: &Generation, node: &str) -> BTreeMap<Pod, bool> {
    let cluster = &generation.cluster;
    let is_here = |id: EndpointId| {
        let it = &cluster.endpoints[id.index()];
        let is_local = it.node.is_some_and(|of| cluster.nodes[of.index()].name == node);
        is_local && it.addresses.is_empty() && it.standing == Standing::Member
    };
    let lost = cluster.lost_addresses.iter().filter(|(id, _)| is_here(*id));
    lost.map(|(id, addresses)| (pod(cluster, *id, addresses), !cluster.endpoints[id.index()].terminating)).collect()
}

fn pod(cluster: &Cluster, id: EndpointId, lost: &[std::net::IpAddr]) -> Pod {
    let endpoint = &cluster.endpoints[id.index()];
    Pod {
        namespace: cluster.namespaces[endpoint.namespace.index()].name.clone(),
        name: endpoint.name.clone(),
        uid: endpoint.uid.clone(),
        addresses: endpoint.addresses.iter().chain(lost).copied().collect(),
    }
}

/// A pod that an agent before this one has enforced.
pub(super) fn remembered(left: Left) -> Option<(Pod, Found)> {
    let (namespace, name) = left.pod.split_once('/')?;
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let pod = Pod { namespace, name, uid: Some(left.uid), addresses: Vec::new() };
    Some((pod, Found { ifindex: left.ifindex, name: left.interface, by: Witness::Record, made: None }))
}

/// Pods as `namespace/name`, each with the name of an interface.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    pub(super) endpoints: Vec<(String, String)>,
    /// Nothing passes at these.
    pub(super) closed: Vec<(String, String)>,
}

impl<E: Enforce> Agent<E> {
    /// A pod that is deleted keeps its rules as long as its own interface is there. Its address is another pod's as soon as one says so.
    pub(super) fn leaves(&mut self, key: &Key, at: Instant) -> bool {
        let Some(object) = self.index.get(key) else { return false };
        let pod = identity(object);
        let Some(found) = self.places.interface_of(&pod) else { return false };
        let mut object = object.clone();
        object.meta.deleting = true;
        let dirty = self.index.apply(object);
        self.note(dirty, true, at);
        self.leaving.insert(key.clone(), (pod, found));
        true
    }

    /// Deleted pods whose interface turned out to be another pod's have left.
    pub(super) fn let_leave(&mut self, now: Instant) {
        let places = &self.places;
        let gone: Vec<Key> =
            self.leaving.extract_if(.., |_, (pod, found)| !places.is_at(pod, found)).map(|(key, _)| key).collect();
        for key in gone {
            self.log.info("a deleted pod has no interface any more", &[("pod", shown(&key))]);
            let dirty = self.index.delete(&key);
            self.note(dirty, true, now);
        }
    }

    /// What is enforced at which interface, and where nothing passes; pods as `namespace/name`.
    pub(super) fn interfaces(&self) -> Interfaces {
        let Interfaces { mut endpoints, mut closed } = Interfaces::default();
        for (pod, found) in self.places.found() {
            let of = if self.unaddressed.contains_key(pod) { &mut closed } else { &mut endpoints };
            of.push((pod.path(), found.name.clone()));
        }
        closed.extend(self.places.contested().iter().map(|(name, pod)| (pod.clone(), name.clone())));
        Interfaces { endpoints, closed }
    }

    /// Every local pod's UID, also of those whose interface is not known; not of those that may be at another's interface.
    pub(super) fn uids(&self) -> BTreeMap<String, String> {
        let missing = self.places.missing().iter().filter(|(_, why)| !why.is_contested).map(|(pod, _)| pod);
        let known = self.places.found().keys().chain(missing);
        known.filter_map(|pod| Some((pod.path(), pod.uid.clone()?))).collect()
    }

    /// Pods at whose interfaces nothing passes because it is not known which packets are theirs, and why.
    pub(super) fn closed_pods(&self) -> Vec<(String, String)> {
        let missing = self.places.missing().iter().filter(|(_, why)| why.is_contested);
        let contested = missing.map(|(pod, why)| (pod.path(), format!("nothing passes at its interface: {why}")));
        let shared = "nothing passes at its interface: another pod says that it has its address";
        let unaddressed = self.unaddressed.iter().filter(|(_, is_told)| **is_told);
        contested.chain(unaddressed.map(|(pod, _)| (pod.path(), shared.to_owned()))).collect()
    }
}

fn identity(object: &Object) -> Pod {
    let addresses = match &object.body {
        Body::Pod(pod) => pod.addresses.clone(),
        _ => Vec::new(),
    };
    let meta = &object.meta;
    Pod { namespace: meta.namespace.clone(), name: meta.name.clone(), uid: meta.uid.clone(), addresses }
}
