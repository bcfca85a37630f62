//! The parts that addresses play in a generation, beside their classes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::store::Objects;
use crate::Scope;
use crate::rows::is_reached;
use weir_model::Cluster;
use weir_objects::k8s::{Body, Labels};

/// The parts that addresses play, beside their classes.
#[derive(Debug)]
pub(super) struct Roles {
    /// Addresses of the own node and of services, and those that hostPorts name: never touched singly.
    pub(super) claimed: BTreeSet<IpAddr>,
    /// The addresses of every node. A pod can name its node's addresses too.
    pub(super) nodes: BTreeSet<IpAddr>,
    /// Addresses of local pods that are in scope.
    pub(super) local: BTreeSet<IpAddr>,
    /// How often an address is behind hostPorts, and behind ports of services that packets can reach.
    pub(super) backing: HashMap<IpAddr, u32>,
    /// Label selectors of services that have no slices.
    pub(super) selecting: Selecting,
    /// Whether a workload represents pods.
    pub(super) has_workloads: bool,
}

/// Label selectors of services that have no slices, by the services' namespaces and names.
pub(super) type Selecting = BTreeMap<(String, String), Labels>;

impl Roles {
    pub(super) fn new(cluster: &Cluster, scope: &Scope, selecting: Selecting) -> Self {
        Self {
            claimed: claimed_addresses(cluster, scope),
            nodes: cluster.nodes.iter().flat_map(|node| node.addresses.iter().copied()).collect(),
            local: local_addresses(cluster, scope),
            backing: backing(cluster),
            selecting,
            has_workloads: cluster.endpoints.iter().any(|it| it.kind != "Pod"),
        }
    }
}

/// The addresses of local pods.
pub(super) fn local_addresses(cluster: &Cluster, scope: &Scope) -> BTreeSet<IpAddr> {
    scope.endpoints().iter().flat_map(|id| &cluster.endpoints[id.index()].addresses).copied().collect()
}

fn claimed_addresses(cluster: &Cluster, scope: &Scope) -> BTreeSet<IpAddr> {
    let own: BTreeSet<_> = scope.endpoints().iter().filter_map(|id| cluster.endpoints[id.index()].node).collect();
    let own = own.into_iter().flat_map(|node| &cluster.nodes[node.index()].addresses);
    let services = cluster.frontends.iter().map(|frontend| &frontend.address);
    // The `hostIP` of a hostPort has a class of its own, even if no Node lists this address.
    let named = cluster.host_ports.iter().filter_map(|it| it.address.as_ref());
    own.chain(services).chain(named).copied().collect()
}

fn backing(cluster: &Cluster) -> HashMap<IpAddr, u32> {
    let services = cluster.services.iter().filter(|it| is_reached(it));
    let backends = services.flat_map(|it| &it.ports).flat_map(|port| &port.backends);
    // hostPorts lead to pods as services do, so their pods' classes decide verdicts on another address as well.
    let behind = backends.chain(cluster.host_ports.iter().map(|it| &it.backend)).filter_map(|it| it.address);
    behind.fold(HashMap::new(), |mut counts, address| {
        *counts.entry(address).or_default() += 1;
        counts
    })
}

/// Services whose backends are found by their selector, since they have no slices.
pub(super) fn selecting(objects: &Objects) -> Selecting {
    // One slice is enough: then the selector is not used at all, even if the slice is empty.
    let sliced: BTreeSet<(&str, &str)> = objects
        .iter()
        .filter_map(|object| match &object.body {
            Body::EndpointSlice(slice) => Some((object.meta.namespace.as_str(), slice.service.as_deref()?)),
            _ => None,
        })
        .collect();
    let by_selector = objects.iter().filter_map(|object| match &object.body {
        Body::Service(service) if !service.selector.is_empty() => {
            let key = (object.meta.namespace.as_str(), object.meta.name.as_str());
            let name = || (object.meta.namespace.to_string(), object.meta.name.clone());
            (!sliced.contains(&key)).then(|| (name(), service.selector.clone()))
        }
        _ => None,
    });
    by_selector.collect()
}
