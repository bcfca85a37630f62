//! The pods of this node: in a generation, at their interfaces, and leaving them.
//!
//! Invariants: a pod is identified by its UID. A deleted pod keeps its rules at its own interface until that interface
//! is gone, and nowhere else: its address may belong to another pod by then. Each interface is either enforced or
//! closed in a generation, never both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use weir_classes::index::{ChangeEffect, Generation, Index, Key};
use weir_model::{Cluster, EndpointId, Standing};

use super::absent::AbsentPods;
use super::{NodeAgent, shown};
use crate::watch::discover::{FoundInterface, InterfaceSource, Inventory};
use crate::watch::enforce::{Enforce, PodAtInterface, PodFailure, RecordedPod};
use crate::watch::interfaces::{InterfaceChanges, LocalPod, PodInterfaces, ReadHost};
use crate::watch::pod_uids::PodUids;

/// Local pods and their interfaces.
pub(super) struct LocalPods {
    interfaces: PodInterfaces,
    pub(super) absent: AbsentPods,
    /// Deleted pods whose interface still exists.
    leaving: BTreeMap<Key, LeavingPod>,
    /// Local pods all of whose addresses other pods claim too. All packets at their interfaces are dropped.
    unaddressed: BTreeMap<LocalPod, LostAddress>,
}

/// A deleted pod, and the interface that it still has.
#[derive(Debug)]
struct LeavingPod {
    pod: LocalPod,
    interface: FoundInterface,
}

/// Why a pod has no address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostAddress {
    /// The pod is terminating. A new pod commonly gets the address of a pod that is being deleted, so it is not
    /// reported.
    Terminating,
    /// Another pod claims the address of a pod that should keep it. This is reported.
    Disputed,
}

/// The local pods of a generation, including those whose addresses other pods claim too.
fn pods(generation: &Generation, node: &str, index: &Index) -> BTreeSet<LocalPod> {
    let cluster = &generation.cluster;
    let in_scope = generation.scope.endpoints().iter().map(|id| pod(cluster, *id, &[], index));
    in_scope.chain(unaddressed(generation, node, index).into_keys()).collect()
}

/// Local pods all of whose addresses other pods claim too.
fn unaddressed(generation: &Generation, node: &str, index: &Index) -> BTreeMap<LocalPod, LostAddress> {
    let cluster = &generation.cluster;
    let is_here = |id: EndpointId| {
        let it = &cluster.endpoints[id.index()];
        let is_local = it.node.is_some_and(|of| cluster.nodes[of.index()].name == node);
        is_local && it.addresses.is_empty() && it.standing == Standing::Member
    };
    let lost = cluster.lost_addresses.iter().filter(|(id, _)| is_here(*id));
    let why = |id: EndpointId| match cluster.endpoints[id.index()].terminating {
        true => LostAddress::Terminating,
        false => LostAddress::Disputed,
    };
    lost.map(|(id, addresses)| (pod(cluster, *id, addresses, index), why(*id))).collect()
}

fn pod(cluster: &Cluster, id: EndpointId, lost: &[IpAddr], index: &Index) -> LocalPod {
    let endpoint = &cluster.endpoints[id.index()];
    let namespace = &cluster.namespaces[endpoint.namespace.index()].name;
    let addresses: Arc<[IpAddr]> = endpoint.addresses.iter().chain(lost).copied().collect();
    with_static_uid(LocalPod::new(namespace, &endpoint.name, endpoint.uid.as_deref(), addresses), index)
}

/// Adds the UID of the static pod if the pod is a mirror. Classes do not have it, because verdicts do not depend on it.
pub(super) fn with_static_uid(pod: LocalPod, index: &Index) -> LocalPod {
    if !index.has_mirror_pods() {
        return pod;
    }
    let object = index.get(&pod.key()).filter(|it| it.meta.uid.as_deref() == pod.uid.as_deref());
    let static_uid = object.and_then(|it| PodUids::of(it).of_static_pod).map(Arc::from);
    LocalPod { static_uid, ..pod }
}

/// A pod of the kernel's record, at its interface.
fn recorded(record: RecordedPod) -> Option<(LocalPod, FoundInterface)> {
    let (namespace, name) = record.pod.split_once('/')?;
    let pod = LocalPod::new(namespace, name, Some(&record.uid), []);
    let (ifindex, name, by) = (record.ifindex, record.interface.into(), InterfaceSource::Record);
    Some((pod, FoundInterface { ifindex, name, by, attached_at: None }))
}

/// The interfaces of a generation, with their pods.
#[derive(Debug, Default)]
pub(super) struct GenerationInterfaces {
    pub(super) endpoints: Vec<PodAtInterface>,
    /// All packets are dropped at these interfaces.
    pub(super) closed: Vec<PodAtInterface>,
}

impl LocalPods {
    /// `recorded` are the pods that the previous agent left in the kernel's record.
    pub(super) fn new(read_host: Box<ReadHost>, records: Vec<RecordedPod>) -> Self {
        let mut interfaces = PodInterfaces::new(read_host);
        interfaces.remember(records.into_iter().filter_map(recorded));
        Self { interfaces, absent: AbsentPods::default(), leaving: BTreeMap::new(), unaddressed: BTreeMap::new() }
    }

    pub(super) fn interfaces(&self) -> &PodInterfaces {
        &self.interfaces
    }

    pub(super) fn interfaces_mut(&mut self) -> &mut PodInterfaces {
        &mut self.interfaces
    }

    /// Whether other pods claim all addresses of the pod.
    pub(super) fn is_unaddressed(&self, pod: &LocalPod) -> bool {
        self.unaddressed.contains_key(pod)
    }

    /// Whether a deleted pod still has its interface.
    #[cfg(test)]
    pub(super) fn is_any_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Notes that the API has this pod (again).
    pub(super) fn exists(&mut self, key: &Key) {
        self.leaving.remove(key);
    }

    /// Takes the pods whose interface is not among those of the host any more.
    fn take_left(&mut self, host: &Inventory) -> Vec<Key> {
        self.leaving.extract_if(.., |_, it| !host.has(&it.interface)).map(|(key, _)| key).collect()
    }

    /// Takes the pods that were not found at their interface in the last search.
    fn take_displaced(&mut self) -> Vec<Key> {
        let interfaces = &self.interfaces;
        let is_gone = |_: &Key, it: &mut LeavingPod| !interfaces.is_at(&it.pod, &it.interface);
        self.leaving.extract_if(.., is_gone).map(|(key, _)| key).collect()
    }

    /// The interfaces to enforce and the interfaces to close.
    pub(super) fn of_generation(&self) -> GenerationInterfaces {
        let GenerationInterfaces { mut endpoints, mut closed } = GenerationInterfaces::default();
        for (pod, found) in self.interfaces.found() {
            let of = if self.is_unaddressed(pod) { &mut closed } else { &mut endpoints };
            of.push(PodAtInterface { pod: pod.path(), interface: found.name.to_string() });
        }
        let contested = self.interfaces.contested().iter();
        closed.extend(contested.map(|(name, pod)| PodAtInterface { pod: pod.clone(), interface: name.clone() }));
        GenerationInterfaces { endpoints, closed }
    }

    /// The UIDs of local pods. Includes pods whose interface is not known, except those that may be at a contested
    /// interface.
    pub(super) fn uids(&self) -> BTreeMap<String, String> {
        let missing = self.interfaces.missing().iter().filter(|(_, why)| !why.is_contested).map(|(pod, _)| pod);
        let known = self.interfaces.found().keys().chain(missing);
        known.filter_map(|pod| Some((pod.path(), pod.uid.as_deref()?.to_owned()))).collect()
    }

    /// The pods to report as closed, each with the reason why it is not known which packets are the pod's.
    pub(super) fn closed(&self) -> impl Iterator<Item = PodFailure> {
        self.contested().chain(self.disputed())
    }

    /// The pods that may be at an interface that may also belong to another pod.
    pub(super) fn contested(&self) -> impl Iterator<Item = PodFailure> {
        let missing = self.interfaces.missing().iter().filter(|(_, why)| why.is_contested);
        missing.map(|(pod, why)| PodFailure {
            pod: pod.path(),
            why: format!("all packets at its interface are dropped: {why}"),
        })
    }

    /// The pods whose address another pod reports too.
    pub(super) fn disputed(&self) -> impl Iterator<Item = PodFailure> {
        let why = "all packets at its interface are dropped: another pod reports the same address";
        let disputed = self.unaddressed.iter().filter(|(_, why)| **why == LostAddress::Disputed);
        disputed.map(|(pod, _)| PodFailure { pod: pod.path(), why: why.to_owned() })
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Finds the interfaces of the local pods of the index's generation. Returns whether the result has changed.
    fn find_interfaces_again(&mut self, now: Instant) -> bool {
        // From the last search and not from the generation, which exists only until it is in force.
        let last = self.local.interfaces();
        let pods = last.found().keys().chain(last.missing().keys()).cloned().collect();
        self.objects.index().has_generation() && self.find_pods(&pods, now)
    }

    /// Finds the interfaces of the local pods of a generation that is being made.
    pub(super) fn find_interfaces(&mut self, generation: &Generation, now: Instant) {
        self.find_pods(&pods(generation, &self.node, self.objects.index()), now);
        self.local.unaddressed = unaddressed(generation, &self.node, self.objects.index());
        for key in self.local.take_displaced() {
            self.reports.log.info("a deleted pod has no interface any more", &[("pod", shown(&key))]);
            self.delete_pod(&key, now);
        }
    }

    /// Finds the interface of a pod that comes. `None` if it is not found, or if other interfaces have changed.
    pub(super) fn find_also(&mut self, pod: &LocalPod, now: Instant) -> Option<FoundInterface> {
        let found_before: BTreeSet<LocalPod> = self.local.interfaces.found().keys().cloned().collect();
        let found = self.local.interfaces.find_also(pod, now);
        self.note_absent(&found_before, now);
        found
    }

    fn find_pods(&mut self, pods: &BTreeSet<LocalPod>, now: Instant) -> bool {
        if self.local.interfaces.are_settled(pods) {
            return false;
        }
        let found_before: BTreeSet<LocalPod> = self.local.interfaces.found().keys().cloned().collect();
        let changed = self.local.interfaces.find(pods, now);
        self.note_absent(&found_before, now);
        changed
    }

    /// Checks which interfaces still exist. A deleted pod stays enforced until its interface is gone. Any other pod
    /// that lost its interface may come back at another one, so it is searched for.
    pub(super) fn check_interfaces(&mut self, now: Instant) {
        let host = self.local.interfaces.host();
        for key in self.local.take_left(&host) {
            self.delete_pod(&key, now);
        }
        // Otherwise the changes of these pods would wait for the next call.
        self.write_entries(now);
        if !self.local.interfaces.is_any_lost(&host) || self.pending.isolates_soon() {
            return;
        }
        self.search_again(now);
    }

    /// Searches the interfaces of the local pods again, and puts the changes in force.
    fn search_again(&mut self, now: Instant) {
        let before = self.local.interfaces.result();
        if !self.find_interfaces_again(now) {
            return;
        }
        match self.local.interfaces.changes_since(&before) {
            InterfaceChanges::None => {}
            InterfaceChanges::Lost(lost) => self.remove_lost(&lost, now),
            InterfaceChanges::Others => {
                let message = "interfaces of pods were found, or are contested; compiling a new generation";
                self.reports.log.debug(message, &[]);
                self.pending.need_generation(now);
            }
        }
    }

    /// Retries pods whose interface was missing, and pods that the kernel refused.
    pub(super) fn retry_pods(&mut self, now: Instant) {
        if self.local.interfaces.due().is_some_and(|due| due <= now) {
            self.search_again(now);
        }
        if self.enforcement.retry_due().is_some_and(|due| due <= now) {
            self.reports.log.debug("the kernel refused pods before; compiling a new generation", &[]);
            self.pending.need_generation(now);
        }
    }

    /// Keeps a deleted pod in the index while its own interface exists. The pod is marked as terminating, so it loses
    /// its address as soon as another pod has it. Returns `false` if the pod or its interface is not known.
    pub(super) fn keep_while_attached(&mut self, key: &Key, at: Instant) -> bool {
        let Some(object) = self.objects.index().get(key) else { return false };
        let pod = LocalPod::of(object);
        let Some(interface) = self.local.interfaces.interface_of(&pod) else { return false };
        let mut object = object.clone();
        object.meta.deleting = true;
        let dirty = self.objects.index_mut().apply(object);
        self.note(dirty, ChangeEffect::Isolating, true, at);
        self.local.leaving.insert(key.clone(), LeavingPod { pod, interface });
        true
    }

    pub(super) fn delete_pod(&mut self, key: &Key, now: Instant) {
        let dirty = self.objects.index_mut().delete(key);
        self.log_first_cause(key, &dirty);
        self.note(dirty, ChangeEffect::Isolating, true, now);
    }

    /// Records how long new pods were on their networks without policy. The pods of the first generation are left
    /// out: they may have been there before the agent.
    pub(super) fn time_new_pods(&mut self) {
        let attached = self.local.interfaces.take_new();
        if self.enforcement.is_any() {
            for at in attached {
                // This is an error if the clock was set back. Then no time is recorded.
                let open = SystemTime::now().duration_since(at);
                let record = |open| self.reports.metrics.observe("weir_interface_enforced_seconds", open);
                open.into_iter().for_each(record);
            }
        }
    }
}
