//! Finds the objects of a cluster by name and by address.
//!
//! Names are found by binary search in the cluster's sorted lists; only addresses need an index of their own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::OnceLock;

use super::controllers::{ControllerName, controller_of};
use super::{Cluster, EndpointId, NamespaceId, NodeId, ServiceId, Standing};

/// Names and addresses of one cluster.
#[derive(Debug)]
pub struct Directory<'c> {
    cluster: &'c Cluster,
    /// All endpoints, in order: the endpoints of one name are a part of this list.
    endpoints: Vec<EndpointId>,
    endpoint_addresses: HashMap<IpAddr, EndpointId>,
    service_addresses: HashMap<IpAddr, Vec<ServiceId>>,
    node_addresses: HashMap<IpAddr, NodeId>,
    /// The pods of each workload, in the order of their names. Built when it is first asked for; names are owned,
    /// because references in a `OnceLock` would make a directory's lifetime invariant.
    controlled: OnceLock<HashMap<NamespaceId, HashMap<String, Vec<EndpointId>>>>,
}

impl<'c> Directory<'c> {
    /// The directory of a cluster.
    pub fn new(cluster: &'c Cluster) -> Self {
        let mut it = Self {
            cluster,
            endpoints: (0..cluster.endpoints.len() as u32).map(EndpointId).collect(),
            endpoint_addresses: HashMap::with_capacity(cluster.endpoints.len()),
            service_addresses: HashMap::with_capacity(cluster.frontends.len()),
            node_addresses: HashMap::with_capacity(cluster.nodes.len()),
            controlled: OnceLock::new(),
        };
        it.add_endpoints();
        it.service_addresses.extend(cluster.frontends.iter().map(|it| (it.address, it.at.services())));
        for (index, node) in cluster.nodes.iter().enumerate() {
            for address in &node.addresses {
                it.node_addresses.entry(*address).or_insert(NodeId(index as u32));
            }
        }
        it
    }

    fn add_endpoints(&mut self) {
        let endpoints = &self.cluster.endpoints;
        for (index, endpoint) in endpoints.iter().enumerate().filter(|(_, it)| it.standing == Standing::Member) {
            let id = EndpointId(index as u32);
            for address in &endpoint.addresses {
                let holder = self.endpoint_addresses.entry(*address).or_insert(id);
                // A terminating pod has its address until another pod that is not terminating gets it.
                if endpoints[holder.index()].terminating && !endpoint.terminating {
                    *holder = id;
                }
            }
        }
    }

    fn namespace(&self, name: &str) -> Option<NamespaceId> {
        let found = self.cluster.namespaces.binary_search_by(|it| it.name.as_str().cmp(name)).ok()?;
        Some(NamespaceId(found as u32))
    }

    /// The pods and workloads with this name, a pod first.
    pub fn endpoints_named(&self, namespace: &str, name: &str) -> &[EndpointId] {
        let Some(namespace) = self.namespace(namespace) else { return &[] };
        let key = |id: &EndpointId| {
            let endpoint = &self.cluster.endpoints[id.index()];
            (endpoint.namespace, endpoint.name.as_str())
        };
        let first = self.endpoints.partition_point(|id| key(id) < (namespace, name));
        let named = &self.endpoints[first..];
        &named[..named.partition_point(|id| key(id) == (namespace, name))]
    }

    /// The pods of the workloads with this name, which the input need not contain.
    pub fn controlled_by(&self, namespace: &str, name: &str) -> &[EndpointId] {
        let Some(namespace) = self.namespace(namespace) else { return &[] };
        let controlled = self.controlled.get_or_init(|| {
            let mut found: HashMap<_, HashMap<_, Vec<EndpointId>>> = HashMap::new();
            for (index, endpoint) in self.cluster.endpoints.iter().enumerate() {
                if let Some(ControllerName { name, .. }) = controller_of(self.cluster, endpoint) {
                    found
                        .entry(endpoint.namespace)
                        .or_default()
                        .entry(name.to_owned())
                        .or_default()
                        .push(EndpointId(index as u32));
                }
            }
            found
        });
        controlled.get(&namespace).and_then(|it| it.get(name)).map_or(&[], Vec::as_slice)
    }

    /// The service with this name.
    pub fn service_named(&self, namespace: &str, name: &str) -> Option<ServiceId> {
        let namespace = self.namespace(namespace)?;
        let services = &self.cluster.services;
        let first = services.partition_point(|it| (it.namespace, it.name.as_str()) < (namespace, name));
        let found = services.get(first).filter(|it| (it.namespace, it.name.as_str()) == (namespace, name));
        found.map(|_| ServiceId(first as u32))
    }

    /// The pod that has this address now. Host-network and finished pods have none of their own.
    pub fn endpoint_at(&self, address: IpAddr) -> Option<EndpointId> {
        self.endpoint_addresses.get(&address).copied()
    }

    /// The services that have or claim this address. Several services may share an external address, with different
    /// ports.
    pub fn services_at(&self, address: IpAddr) -> &[ServiceId] {
        self.service_addresses.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The node that has this address.
    pub fn node_at(&self, address: IpAddr) -> Option<NodeId> {
        self.node_addresses.get(&address).copied()
    }
}
