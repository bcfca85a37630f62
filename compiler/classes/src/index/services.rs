//! Decides which updates a change of a service or an EndpointSlice requires, while services are judged.
//!
//! A service's address is judged by the backends of its ports: each backend's peer class and target port, and, for a
//! local pod that is a backend itself, by the others (`rows/services.rs`). So a slice that exchanges a backend for one
//! of the same class and port changes no verdict. A rolling update does this: new pods have the labels of those that
//! they replace. If the first backend of a class comes or the last one goes, or a local pod does, a compile answers.
//!
//! No packet is sent to a headless service, so its changes change nothing. A service that has slices can get another
//! selector or other labels. If a service is deleted, its addresses get the class that blocks and lists give them. A
//! new service needs a generation: the address of each service has a class of its own, so that reports name the
//! service. Any other change of a service changes its address or its ports, and a generation answers.
//!
//! Everyone who may write slices of a service can add any address to it. Its class is compared as any backend's.
//! Invariants: the address of a backend counts as one from the answer on, so a change of its class requires a compile
//! ([`Baseline::is_backing`]). It may count as one for too long, until the next generation. Every move is kept for
//! [`Departed::moved`](crate::departed::Departed::moved): connections to a backend that leaves must be found when
//! policy denies the backend later.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::net::IpAddr;

use super::baseline::Baseline;
use super::pods::{addresses as pod_addresses, as_pod};
use super::store::KeyRef;
use super::{Dirty, Index, Key, MovedBackends};
use crate::PeerId;
use weir_model::resolve::{backends_of_slices, is_alike_with_slices, is_reached, resolve};
use weir_model::{Backend, Cluster};
use weir_objects::k8s::{Body, Object, Service};

/// A compile answers if more backends of ports have moved since the generation. It frees the memory that they are kept
/// in. An address that comes and goes again counts twice: it is kept, too.
const MOST_MOVED: usize = 4_096;

/// The slices of each service.
#[derive(Debug, Default)]
pub(super) struct SliceNames {
    /// By namespace and service.
    names: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

impl SliceNames {
    /// Takes a change of an object, if it is a slice.
    pub(super) fn note(&mut self, before: Option<&Object>, after: Option<&Object>) {
        if let Some((slice, service)) = before.and_then(with_service) {
            let of_namespace = self.names.entry(slice.meta.namespace.to_string()).or_default();
            if let Some(names) = of_namespace.get_mut(service) {
                names.remove(&slice.meta.name);
            }
            // Over time, many different services occur.
            if of_namespace.get(service).is_some_and(BTreeSet::is_empty) {
                of_namespace.remove(service);
            }
            if of_namespace.is_empty() {
                self.names.remove(slice.meta.namespace.as_str());
            }
        }
        if let Some((slice, service)) = after.and_then(with_service) {
            let of_namespace = self.names.entry(slice.meta.namespace.to_string()).or_default();
            of_namespace.entry(service.to_owned()).or_default().insert(slice.meta.name.clone());
        }
    }

    pub(super) fn of(&self, service: &Key) -> impl Iterator<Item = &String> {
        self.names.get(&service.namespace).and_then(|it| it.get(&service.name)).into_iter().flatten()
    }
}

/// The service of a slice.
pub(super) fn with_service(object: &Object) -> Option<(&Object, &str)> {
    match &object.body {
        Body::EndpointSlice(slice) => Some((object, slice.service.as_deref()?)),
        _ => None,
    }
}

pub(super) fn as_service(object: &Object) -> Option<(&Object, &Service)> {
    match &object.body {
        Body::Service(service) => Some((object, service)),
        _ => None,
    }
}

/// The backends that a service's port loses and gets.
struct MovedOfPort<'b> {
    left: Vec<&'b Backend>,
    came: Vec<&'b Backend>,
}

impl<'b> MovedOfPort<'b> {
    /// From the sorted backends before and after a change.
    fn new(was: &'b [Backend], is: &'b [Backend]) -> Self {
        let without = |one: &'b [Backend], other: &[Backend]| {
            one.iter().filter(|it| other.binary_search(it).is_err()).collect::<Vec<_>>()
        };
        Self { left: without(was, is), came: without(is, was) }
    }

    /// Whether the port is judged as before. It is judged by the classes and ports of its backends, and for a local pod
    /// that is a backend itself, by the others.
    fn is_alike(&self, baseline: &Baseline, was: &[Backend], is: &[Backend]) -> bool {
        let is_local = |it: &Backend| it.address.is_some_and(|address| baseline.is_local(address));
        if self.left.iter().chain(&self.came).any(|it| is_local(it)) {
            return false;
        }
        let class = |it: &Backend| it.address.map(|at| (at.is_ipv4(), baseline.peer_at(at), it.port));
        [(&self.left, is), (&self.came, was)].into_iter().all(|(moved, others)| {
            let mut missing: BTreeSet<_> = moved.iter().filter_map(|it| class(it)).collect();
            missing.is_empty()
                || others.iter().filter(|it| !is_local(it)).any(|it| {
                    class(it).inspect(|class| _ = missing.remove(class));
                    missing.is_empty()
                })
        })
    }
}

/// A service before and after a change of its slices.
struct SliceChange<'o> {
    object: &'o Object,
    /// The slices after the change.
    slices: Vec<&'o Object>,
    /// By port.
    was: Vec<Vec<Backend>>,
    is: Vec<Vec<Backend>>,
}

/// A change of a slice that changes no verdict.
struct SliceMove {
    backends: MovedBackends,
    /// The addresses that the service's ports lose and get, each once for each such port.
    lost: Vec<IpAddr>,
    got: Vec<IpAddr>,
    /// How many backends of ports come and leave.
    moves: usize,
}

impl Index {
    /// A service was created, changed or deleted.
    pub(super) fn service_changes(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        let [old, new] = [before, after].map(|it| it.and_then(as_service));
        if [old, new].into_iter().flatten().all(|(object, service)| !is_reached(object, service)) {
            return Dirty::Nothing;
        }
        let has_slices = |object: &Object| self.slices.of(&Key::of(object)).next().is_some();
        match (old, new) {
            (Some(old), Some(new)) if has_slices(new.0) && is_alike_with_slices(old, new) => Dirty::Nothing,
            (Some((old, _)), None) => self.service_leaves(old).unwrap_or(Dirty::Everything),
            _ => Dirty::Everything,
        }
    }

    /// A service is gone, which nothing but its own addresses belonged to: they are addresses like any other now.
    /// `None` if that needs a generation.
    fn service_leaves(&mut self, object: &Object) -> Option<Dirty> {
        // While a generation is being made: flows to the backends are found in its cluster, which is older. After a
        // change that needs a generation, its backends may be others than those of the generation in force.
        if self.since.is_some() || self.is_outdated {
            return None;
        }
        let (baseline, maintained) = (self.baseline.as_ref()?, self.maintained.as_ref()?);
        let service = self.resolved_service(object).ok()??;
        // Node ports are claimed at the addresses of nodes, external addresses may be another object's.
        let has_more =
            service.ports.iter().any(|port| port.node_port.is_some()) || service.addresses != service.cluster_addresses;
        let is_own = |address: &IpAddr| {
            let is_others = self.is_of_node(*address) || self.holders.contains_key(address);
            !is_others && !baseline.is_local(*address) && maintained.is_of_one_service(*address)
        };
        if has_more || !service.addresses.iter().all(is_own) {
            return None;
        }
        let class = |address: &IpAddr| Some((*address, baseline.class_without_pod(*address)?));
        let classes: BTreeMap<IpAddr, PeerId> = service.addresses.iter().map(class).collect::<Option<_>>()?;
        let backends = service.ports.iter().flat_map(|port| &port.backends).count();
        if baseline.moves() + backends > MOST_MOVED {
            return None;
        }
        let (moved, _) = self.moved_backends(&Key::of(object), Some(&service), None).ok()?;
        let dirty = baseline.changes(classes, true);
        if let Some(baseline) = &mut self.baseline {
            // Its addresses and backends stay those of a service for the index: a change of them makes a generation.
            baseline.note_moved([].into_iter(), [].into_iter(), backends);
        }
        self.moved.push(moved);
        Some(dirty)
    }

    /// A slice was created, changed or deleted while services are judged.
    pub(super) fn slice_changes(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        let [was, is] = [before, after].map(|it| it.and_then(with_service).map(|(_, service)| service));
        let (Some(slice), Some(service)) = (after.or(before), was.or(is)) else { return Dirty::Nothing };
        // The slice of another service than before changes two services.
        if was.is_some_and(|was| is.is_some_and(|is| was != is)) {
            return Dirty::Everything;
        }
        let (namespace, name) = (slice.meta.namespace.to_string(), service.to_owned());
        let service = Key { kind: "Service".to_owned(), namespace, name };
        // A slice without its service is not read, and no packet is sent to a service without an address.
        let object = self.objects.get(&service).and_then(as_service);
        let Some((object, _)) = object.filter(|(object, it)| is_reached(object, it)) else { return Dirty::Nothing };
        // While a generation is being made: flows to departed backends are found in its cluster, which is older.
        if self.since.is_some() {
            return Dirty::Everything;
        }
        match self.moved_by(object, &service, before, after) {
            None => Dirty::Everything,
            Some(SliceMove { backends, mut lost, got, moves }) => {
                // A backend that came with a change that needs a generation was not counted. If it were subtracted now,
                // the address would not count as a backend of other services.
                if self.unbuilt.has_service(&service) {
                    lost.clear();
                }
                if let Some(baseline) = &mut self.baseline {
                    baseline.note_moved(lost.into_iter(), got.into_iter(), moves);
                }
                self.moved.push(backends);
                Dirty::Nothing
            }
        }
    }

    /// The backends that move with a change of a slice. `None` if it can change a verdict.
    fn moved_by(
        &self,
        object: &Object,
        key: &Key,
        before: Option<&Object>,
        after: Option<&Object>,
    ) -> Option<SliceMove> {
        let baseline = self.baseline.as_ref()?;
        let change = self.slice_change(object, key, before, after)?;
        let ports = || change.was.iter().zip(&change.is);
        let moved: Vec<MovedOfPort<'_>> = ports().map(|(was, is)| MovedOfPort::new(was, is)).collect();
        if !moved.iter().zip(ports()).all(|(moved, (was, is))| moved.is_alike(baseline, was, is)) {
            return None;
        }
        let lost: Vec<IpAddr> = moved.iter().flat_map(|it| &it.left).filter_map(|it| it.address).collect();
        let got: Vec<IpAddr> = moved.iter().flat_map(|it| &it.came).filter_map(|it| it.address).collect();
        // An address may stay behind another port.
        let came: BTreeSet<IpAddr> = got.iter().copied().filter(|at| !is_behind(&change.was, *at)).collect();
        let left: BTreeSet<IpAddr> = lost.iter().copied().filter(|at| !is_behind(&change.is, *at)).collect();
        let moves = (came.len() + left.len()) * change.is.len().max(1);
        if baseline.moves() + moves > MOST_MOVED {
            return None;
        }
        let service = self.with_pods(&change, &came)?;
        Some(SliceMove { backends: MovedBackends { service, came, left, is_alike: true }, lost, got, moves })
    }

    /// The service before and after the change; `None` if its backends were or will be found by its selector.
    fn slice_change<'o>(
        &'o self,
        object: &'o Object,
        key: &Key,
        before: Option<&'o Object>,
        after: Option<&'o Object>,
    ) -> Option<SliceChange<'o>> {
        let (_, service) = as_service(object)?;
        // The changed slice itself is not among the objects now.
        let others: Vec<&Object> = self.slices.of(key).filter_map(|name| self.slice(&key.namespace, name)).collect();
        let with = |slice: Option<&'o Object>| -> Vec<&'o Object> {
            others.iter().copied().chain(slice.filter(|it| with_service(it).is_some())).collect()
        };
        let (was, slices) = (with(before), with(after));
        // One slice is enough for the selector not to count.
        if was.is_empty() != slices.is_empty() && !service.selector.is_empty() {
            return None;
        }
        let is = backends_of_slices(object, service, slices.iter().copied());
        Some(SliceChange { object, slices, was: backends_of_slices(object, service, was), is })
    }

    pub(super) fn slice(&self, namespace: &str, name: &str) -> Option<&Object> {
        self.objects.get(&KeyRef { kind: "EndpointSlice", namespace, name })
    }

    /// A cluster of the service, its slices, and the pods of these backends; `None` if the pod of an address is not
    /// found.
    pub(super) fn service_with_pods(&self, key: &Key, backends: &BTreeSet<IpAddr>) -> Option<Cluster> {
        let Some(object) = self.objects.get(key) else { return Some(Cluster::default()) };
        let slices: Vec<&Object> = self.slices.of(key).filter_map(|name| self.slice(&key.namespace, name)).collect();
        let mut pods = self.pods_behind(object, &slices, backends);
        if slices.is_empty() {
            let all = self.objects.of_namespace("Pod", &key.namespace);
            let addresses = |pod| as_pod(pod).map_or(&[][..], |(_, pod)| pod_addresses(pod));
            let owned = all.flat_map(|pod| addresses(pod).iter().map(move |address| (*address, pod)));
            pods.extend(owned.filter(|(address, _)| backends.contains(address)));
        }
        if backends.iter().any(|address| self.holders.contains_key(address) && !pods.contains_key(address)) {
            return None;
        }
        Some(resolve(once(object).chain(slices).chain(pods.into_values()), self.assume).0)
    }

    /// A cluster of the service and the pods of new backends; `None` if an address is a pod's that its slice does not
    /// name.
    fn with_pods(&self, change: &SliceChange<'_>, came: &BTreeSet<IpAddr>) -> Option<Cluster> {
        if came.is_empty() {
            // The addresses and ports that lose backends.
            return Some(resolve(once(change.object), self.assume).0);
        }
        let pods = self.pods_behind(change.object, &change.slices, came);
        if came.iter().any(|address| self.holders.contains_key(address) && !pods.contains_key(address)) {
            return None;
        }
        let objects = once(change.object).chain(change.slices.iter().copied()).chain(pods.into_values());
        Some(resolve(objects, self.assume).0)
    }

    /// The pods that slices name for these addresses, and that have them.
    fn pods_behind<'o>(
        &'o self,
        service: &Object,
        slices: &[&Object],
        addresses: &BTreeSet<IpAddr>,
    ) -> BTreeMap<IpAddr, &'o Object> {
        let mut pods: BTreeMap<IpAddr, &Object> = BTreeMap::new();
        let endpoints = slices.iter().filter_map(|slice| match &slice.body {
            Body::EndpointSlice(body) => Some(body.endpoints.iter()),
            _ => None,
        });
        for endpoint in endpoints.flatten() {
            let Some(address) = endpoint.addresses.first().filter(|at| addresses.contains(at)) else { continue };
            let Some((namespace, name)) = &endpoint.pod else { continue };
            let namespace = if namespace.is_empty() { &service.meta.namespace } else { namespace };
            if let Some(pod) = self.objects.get(&KeyRef { kind: "Pod", namespace, name })
                // Finished pods have no address any more, although their status names one.
                && matches!(&pod.body, Body::Pod(pod) if pod_addresses(pod).contains(address))
                && self.holders.get(address) == Some(&1)
            {
                pods.insert(*address, pod);
            }
        }
        pods
    }
}

/// Whether an address is behind a port. The backends are those of slices, so they are sorted by their addresses.
fn is_behind(ports: &[Vec<Backend>], address: IpAddr) -> bool {
    ports.iter().any(|backends| backends.binary_search_by_key(&Some(address), |it| it.address).is_ok())
}
