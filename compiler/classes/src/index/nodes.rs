//! Decides which updates a change of nodes requires: of Node objects, and of the addresses that pods name as their
//! node's.
//!
//! The address of another node is an address like any other, with two exceptions: a service that claims the address of
//! a node does not own it, and rules with `nodes` peers match it. So an address that nothing else has comes and goes
//! without any work, unless a rule has such a peer; then the ranges of those peers are made again.
//! Invariant: for addresses of the own node, and for addresses that a pod, service or hostPort has, a compile answers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::baseline::Baseline;
use super::store::KeyRef;
use super::{Index, counts};
use weir_model::resolve::addresses_of_node;
use weir_objects::k8s::{Body, Object, Pod};

/// The answer to a change of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeAnswer {
    Nothing,
    /// A new generation, in which `nodes` peers get their addresses again.
    Peers,
    /// A compile from scratch.
    Whole,
}

impl Index {
    pub(super) fn count_declared(&mut self, before: Option<&Object>, after: Option<&Object>) {
        before.map_or(&[][..], declared).iter().for_each(|address| counts::less(&mut self.declared, *address));
        after.map_or(&[][..], declared).iter().for_each(|address| counts::more(&mut self.declared, *address));
    }

    /// Whether an address is a node's: a Node object declares it, or a pod names it.
    pub(super) fn is_of_node(&self, address: IpAddr) -> bool {
        self.declared.contains_key(&address) || self.hosted.contains_key(&address)
    }

    /// Whether an address is a node's or a service's, or a hostPort names it.
    pub(super) fn is_fixed(&self, baseline: &Baseline, address: IpAddr) -> bool {
        baseline.is_claimed(address) || baseline.roles.nodes.contains(&address) || self.is_of_node(address)
    }

    /// Whether an address is a local pod's, a node's, a service's, or named by a hostPort.
    pub(super) fn is_taken(&self, baseline: &Baseline, address: IpAddr) -> bool {
        baseline.is_local(address) || self.is_fixed(baseline, address)
    }

    /// A Node object was created, changed or deleted.
    pub(super) fn node_changes(&self, before: Option<&Object>, after: Option<&Object>) -> NodeAnswer {
        let (Some(baseline), Some(object)) = (&self.baseline, after.or(before)) else { return NodeAnswer::Whole };
        let [old, new]: [BTreeSet<IpAddr>; 2] =
            [before, after].map(|it| it.map_or(&[][..], declared).iter().copied().collect());
        let is_own = self.node.as_ref().is_none_or(|own| **own == *object.meta.name);
        let stays = before.is_some() && after.is_some() && old == new;
        if is_own && !stays {
            return NodeAnswer::Whole;
        }
        self.moved(baseline, old.symmetric_difference(&new).copied())
    }

    /// Whether the nodes of a pod's status are the same with and without the pod.
    pub(super) fn pod_names_nodes(&self, baseline: &Baseline, pod: &Pod) -> NodeAnswer {
        if self.is_at_a_declared_node(pod) {
            return NodeAnswer::Nothing;
        }
        // The address of a node that other pods name, too.
        let is_known = |address: &IpAddr| {
            baseline.roles.nodes.contains(address) && self.is_of_node(*address) && !baseline.is_claimed(*address)
        };
        if !baseline.has_node_peers && addresses_of_node(pod).all(|address| is_known(&address)) {
            return NodeAnswer::Nothing;
        }
        match &pod.node {
            Some(name) if self.node.as_ref().is_some_and(|own| own != name) => {
                self.moved(baseline, addresses_of_node(pod).filter(|address| !is_known(address)))
            }
            _ => NodeAnswer::Whole,
        }
    }

    /// The work if other nodes get or lose these addresses.
    fn moved(&self, baseline: &Baseline, addresses: impl IntoIterator<Item = IpAddr>) -> NodeAnswer {
        let is_free = |address: IpAddr| {
            let is_used = baseline.is_claimed(address) || baseline.is_local(address);
            // A pod that names no node is on a node that declares one of its addresses, which can be the own one.
            !is_used && !self.holders.contains_key(&address) && !self.unnamed.contains_key(&address)
        };
        match addresses.into_iter().all(is_free) {
            false => NodeAnswer::Whole,
            true if baseline.has_node_peers => NodeAnswer::Peers,
            true => NodeAnswer::Nothing,
        }
    }

    /// Whether the pod's node declares the addresses that the pod's status names as the node's. Then they change
    /// nothing: the kubelet reports them together with the pod's own address, later than the pod's network has it.
    pub(super) fn is_at_a_declared_node(&self, pod: &Pod) -> bool {
        let node = pod.node.as_deref().and_then(|name| self.objects.get(&KeyRef { kind: "Node", namespace: "", name }));
        let declared = node.map_or(&[][..], declared);
        addresses_of_node(pod).all(|address| declared.contains(&address))
    }
}

/// The addresses that a pod names as those of its node, if it does not name the node.
pub(super) fn addresses_of_unnamed_node(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    addresses_of_node(pod).filter(|_| pod.node.is_none())
}

fn declared(object: &Object) -> &[IpAddr] {
    match &object.body {
        Body::Node(node) => &node.addresses,
        _ => &[],
    }
}
