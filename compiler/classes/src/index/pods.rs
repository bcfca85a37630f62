//! Decides which updates a change of a pod requires.
//!
//! A pod that is not local and backs no service is only ever a peer: its addresses have a class, and nothing else in
//! the tables depends on it. If that class exists already, it is enough to update the entries of its addresses. Of a
//! local pod, only those changes are answered without a compile that classification does not read, and the changes in
//! [`super::local`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::baseline::Baseline;
use super::nodes::{NodeAnswer, addresses_of_unnamed_node};
use super::{Dirty, Index, counts};
use crate::PeerId;
use weir_model::resolve::{addresses_of_node, named_ports, standing};
use weir_objects::k8s::{Body, Object, Phase, Pod};

impl Index {
    pub(super) fn count_holders(&mut self, before: Option<&Object>, after: Option<&Object>) {
        if let Some((_, pod)) = before.and_then(as_pod) {
            // The addresses that were counted for the same object, so the counts return to zero exactly.
            addresses(pod).iter().for_each(|address| counts::less(&mut self.holders, *address));
            addresses_of_node(pod).for_each(|address| counts::less(&mut self.hosted, address));
            addresses_of_unnamed_node(pod).for_each(|address| counts::less(&mut self.unnamed, address));
        }
        if let Some((_, pod)) = after.and_then(as_pod) {
            addresses(pod).iter().for_each(|address| counts::more(&mut self.holders, *address));
            addresses_of_node(pod).for_each(|address| counts::more(&mut self.hosted, address));
            addresses_of_unnamed_node(pod).for_each(|address| counts::more(&mut self.unnamed, address));
        }
    }

    /// A pod changed.
    pub(super) fn pod_changes(&self, before: Option<&Object>, after: Option<&Object>) -> PodAnswer {
        const EVERYTHING: PodAnswer = PodAnswer::Known(Dirty::Everything);
        let Some(baseline) = &self.baseline else { return EVERYTHING };
        if self.is_unread(baseline, before, after) {
            return PodAnswer::Known(Dirty::Nothing);
        }
        if let Some(dirty) = self.local_pod_changes(baseline, before, after) {
            return PodAnswer::Known(dirty);
        }
        let states = || [before, after].into_iter().flatten().filter_map(as_pod);
        let roles = || states().map(|(object, pod)| self.role(baseline, object, pod, after));
        if roles().any(|role| role.is_none()) {
            return EVERYTHING;
        }
        let is_local = roles().any(|role| role == Some(PodRole::Local));
        let services = || match baseline.judges_egress {
            true => states().flat_map(|(object, _)| baseline.selecting(object).cloned()).collect::<Vec<_>>(),
            false => Vec::new(),
        };
        let services = services();
        // A pod's status names addresses of its node, and the model reads them.
        let nodes = states().map(|(_, pod)| self.pod_names_nodes(baseline, pod)).max();
        let moves_nodes = nodes == Some(NodeAnswer::Peers);
        if nodes == Some(NodeAnswer::Whole) {
            return EVERYTHING;
        }
        if is_local || moves_nodes || !services.is_empty() {
            return PodAnswer::Generation { is_local, moves_nodes, services };
        }
        self.peer_changes(baseline, before, after)
    }

    /// A pod changed that is only a peer.
    fn peer_changes(&self, baseline: &Baseline, before: Option<&Object>, after: Option<&Object>) -> PodAnswer {
        let mut has_new_class = false;
        let mut classes: BTreeMap<IpAddr, PeerId> = BTreeMap::new();
        // The old state first: an address that the pod keeps gets its class from the new state, which overwrites the
        // old one.
        for (object, is_now) in [(before, false), (after, true)] {
            let Some((object, pod)) = object.and_then(as_pod) else { continue };
            let ports = named_ports(&pod.ports, self.assume);
            for address in addresses(pod) {
                let peer = match is_now {
                    true => baseline.class_of(object, &ports, *address),
                    // Without the pod, only blocks and lists hold for the address.
                    false => baseline.class_without_pod(*address),
                };
                match peer {
                    Some(peer) => _ = classes.insert(*address, peer),
                    // A set of predicates that no address had when the classes were made: no row has verdicts for it.
                    None if is_now => has_new_class = true,
                    None => return PodAnswer::Known(Dirty::Everything),
                }
            }
        }
        let changes = |(address, peer): (&IpAddr, &PeerId)| baseline.peer_at(*address) != *peer;
        // Verdicts on the address of a service depend on the classes of its backends.
        let moves_backend = classes.iter().any(|it| changes(it) && is_behind(baseline, *it.0));
        match has_new_class || moves_backend {
            true => PodAnswer::Generation { is_local: false, moves_nodes: false, services: Vec::new() },
            false => PodAnswer::Known(baseline.changes(classes, loses_owner(before, after))),
        }
    }

    /// Whether classification reads nothing of a pod's change: the pod is no peer and no subject before and after it,
    /// or only its phase, its readiness or its deletion differ. Most changes of a local pod are of this kind: from its
    /// scheduling until the kubelet reports it as ready, only its address counts.
    fn is_unread(&self, baseline: &Baseline, before: Option<&Object>, after: Option<&Object>) -> bool {
        let [old, new] = [before, after].map(|it| it.and_then(as_pod));
        if [old, new].into_iter().flatten().all(|(object, pod)| self.has_no_part(baseline, object, pod)) {
            return true;
        }
        let (Some((old, old_pod)), Some((new, new_pod))) = (old, new) else { return false };
        if !is_alike(old_pod, new_pod) || (&old.meta.uid, &old.meta.labels) != (&new.meta.uid, &new.meta.labels) {
            return false;
        }
        let stays_there = old_pod.node_addresses == new_pod.node_addresses
            || [old_pod, new_pod].into_iter().all(|pod| self.is_at_a_declared_node(pod));
        // Services without slices take ready pods, and terminating ones only if no other is ready.
        let selected = baseline.judges_egress && baseline.selecting(new).next().is_some();
        let is_shared = |address: &IpAddr| self.holders.get(address).is_some_and(|count| *count > 1);
        // A terminating pod loses a shared address to its successor.
        let is_disputed = old.meta.deleting != new.meta.deleting && addresses(new_pod).iter().any(is_shared);
        stays_there && !selected && !is_disputed
    }

    /// Whether a pod is in no table: it has no address in packets, and no service finds it by its labels.
    pub(super) fn has_no_part(&self, baseline: &Baseline, object: &Object, pod: &Pod) -> bool {
        // A pod on the host's network has its node's address.
        !pod.host_network
            && addresses(pod).is_empty()
            && !(baseline.judges_egress && baseline.selecting(object).next().is_some())
            && self.is_at_a_declared_node(pod)
    }

    /// The role of a pod; `None` if more than its own classes can depend on it.
    fn role(&self, baseline: &Baseline, object: &Object, pod: &Pod, after: Option<&Object>) -> Option<PodRole> {
        let now = after.and_then(as_pod).map_or(&[][..], |(_, pod)| addresses(pod));
        let shares = |address: &IpAddr| {
            // If another pod lists the address too, the one that counts depends on both (`Directory::endpoint_at`), and
            // this event is about one of them only.
            let own = u32::from(now.contains(address));
            self.is_fixed(baseline, *address) || self.holders.get(address).is_some_and(|count| *count > own)
        };
        if addresses(pod).iter().any(shares) {
            return None;
        }
        match &pod.node {
            _ if self.node.is_none() => None,
            // A pod that names no node, but has node addresses, may be on this node.
            None if !pod.node_addresses.is_empty() => None,
            // The addresses of a pod on the host's network are its node's, and its hostPorts are at them.
            node if *node == self.node => {
                // The addresses that its status names are the own node's from then on, unless they are already.
                let is_plain = !pod.host_network && pod.host_ports.is_empty() && self.is_at_a_declared_node(pod);
                (is_plain && !object.meta.namespace.is_empty()).then_some(PodRole::Local)
            }
            // The address was a local pod's, which has lost it since the generation.
            _ if addresses(pod).iter().any(|address| baseline.is_local(*address)) => Some(PodRole::Local),
            _ => Some(PodRole::Peer),
        }
    }
}

/// The answer to a change of a pod.
pub(super) enum PodAnswer {
    Known(Dirty),
    /// A new generation, in which the pod's addresses get their classes again.
    Generation {
        /// Whether it was or is a subject.
        is_local: bool,
        /// Whether nodes have other addresses with it, and rules in force have `nodes` peers.
        moves_nodes: bool,
        /// The services without slices that find it by its labels.
        services: Vec<(String, String)>,
    },
}

/// The part that a pod plays in classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodRole {
    /// Only a peer.
    Peer,
    /// A subject, too; or the address of a pod that was one.
    Local,
}

/// Whether services are judged by the class that an address had when the generation was compiled.
pub(super) fn is_behind(baseline: &Baseline, address: IpAddr) -> bool {
    baseline.is_backing(address) && baseline.judges_egress
}

pub(super) fn as_pod(object: &Object) -> Option<(&Object, &Pod)> {
    match &object.body {
        Body::Pod(pod) => Some((object, pod)),
        _ => None,
    }
}

/// Whether the previous pod loses one of its addresses: the pod or the address is gone, or another pod has taken
/// its name. If an address moves between pods of different names, one of them loses it first.
fn loses_owner(before: Option<&Object>, after: Option<&Object>) -> bool {
    let Some((old, pod)) = before.and_then(as_pod) else { return false };
    // By UID: a StatefulSet's pod comes back with the same name, and often with the same address, as another pod.
    let kept = after.and_then(as_pod).filter(|(new, _)| new.meta.uid == old.meta.uid);
    let kept = kept.map_or(&[][..], |(_, pod)| addresses(pod));
    addresses(pod).iter().any(|address| !kept.contains(address))
}

/// The addresses that identify the pod in packets: none if it is on the host's network or has finished.
pub(super) fn addresses(pod: &Pod) -> &[IpAddr] {
    let away = pod.host_network || matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
    // The status of a finished pod still lists an address that another pod may have meanwhile:
    // https://github.com/antrea-io/antrea/issues/6507
    if away { &[] } else { &pod.addresses }
}

/// Whether two states of a pod differ at most in fields that classification does not read while the pod's role on the
/// network stays, and in the addresses of its node.
fn is_alike(old: &Pod, new: &Pod) -> bool {
    // Field by field: if a field is added, this does not compile until it is decided whether classification reads it.
    let Pod {
        node,
        host_network,
        addresses,
        node_addresses: _,
        ports,
        host_ports,
        owner,
        phase: _,
        unready: _,
        // Only the agent reads it.
        static_uid: _,
    } = old;
    standing(old) == standing(new)
        && (node, host_network, addresses) == (&new.node, &new.host_network, &new.addresses)
        // Reports group by the owner.
        && (ports, host_ports, owner) == (&new.ports, &new.host_ports, &new.owner)
}
