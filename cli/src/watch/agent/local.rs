//! The pods of this node: in a generation, at their interfaces, and leaving them.
//!
//! Invariant: a pod is identified by its UID. A deleted pod keeps its rules at its own interface until that interface
//! is gone, and nowhere else: its address may belong to another pod by then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use weir_classes::index::{Generation, Key};
use weir_objects::k8s::{Body, Object};
use weir_model::{Cluster, EndpointId, Standing};

use super::{Agent, shown};
use crate::watch::discover::{Found, Witness};
use crate::watch::enforce::{Enforce, Left};
use crate::watch::place::Pod;

/// The local pods of a generation, including those whose addresses other pods claim too.
pub(super) fn pods(generation: &Generation, node: &str) -> BTreeSet<Pod> {
    let cluster = &generation.cluster;
    let in_scope = generation.scope.endpoints().iter().map(|id| pod(cluster, *id, &[]));
    in_scope.chain(unaddressed(generation, node).into_keys()).collect()
}

/// Local pods all of whose addresses other pods claim too. The value says whether to report the pod: a terminating pod
/// is not reported, because a new pod commonly gets the address of a pod that is being deleted.
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

/// Converts a pod that the previous agent left in the kernel's record.
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
    /// All packets are dropped at these interfaces.
    pub(super) closed: Vec<(String, String)>,
}

impl<E: Enforce> Agent<E> {
    /// Keeps a deleted pod in the index while its own interface exists. The pod is marked as terminating, so it loses
    /// its address as soon as another pod has it. Returns `false` if the pod or its interface is not known.
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

    /// Removes deleted pods whose interface is gone or belongs to another pod now.
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

    /// The interfaces to enforce and the interfaces to close, with pods as `namespace/name`.
    pub(super) fn interfaces(&self) -> Interfaces {
        let Interfaces { mut endpoints, mut closed } = Interfaces::default();
        for (pod, found) in self.places.found() {
            let of = if self.unaddressed.contains_key(pod) { &mut closed } else { &mut endpoints };
            of.push((pod.path(), found.name.clone()));
        }
        closed.extend(self.places.contested().iter().map(|(name, pod)| (pod.clone(), name.clone())));
        Interfaces { endpoints, closed }
    }

    /// The UIDs of local pods. Includes pods whose interface is not known, except those that may be at a contested
    /// interface.
    pub(super) fn uids(&self) -> BTreeMap<String, String> {
        let missing = self.places.missing().iter().filter(|(_, why)| !why.is_contested).map(|(pod, _)| pod);
        let known = self.places.found().keys().chain(missing);
        known.filter_map(|pod| Some((pod.path(), pod.uid.clone()?))).collect()
    }

    /// The pods to report as closed, each with the reason why it is not known which packets are the pod's.
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
