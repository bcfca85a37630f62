//! Finding things of a cluster by name and by address.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{Cluster, EndpointId, NodeId, ServiceId, Standing};

type ByName<'c, Id> = HashMap<&'c str, HashMap<&'c str, Vec<Id>>>;

/// Names and addresses of one cluster.
#[derive(Debug)]
pub struct Directory<'c> {
    endpoints: ByName<'c, EndpointId>,
    services: ByName<'c, ServiceId>,
    endpoint_addresses: HashMap<IpAddr, EndpointId>,
    service_addresses: HashMap<IpAddr, Vec<ServiceId>>,
    node_addresses: HashMap<IpAddr, NodeId>,
}

impl<'c> Directory<'c> {
    /// Of a cluster.
    pub fn new(cluster: &'c Cluster) -> Self {
        let mut it = Self {
            endpoints: HashMap::new(),
            services: HashMap::new(),
            endpoint_addresses: HashMap::new(),
            service_addresses: HashMap::new(),
            node_addresses: HashMap::new(),
        };
        it.add_endpoints(cluster);
        it.add_services(cluster);
        for (index, node) in cluster.nodes.iter().enumerate() {
            for address in &node.addresses {
                it.node_addresses.entry(*address).or_insert(NodeId(index as u32));
            }
        }
        it
    }

    fn add_endpoints(&mut self, cluster: &'c Cluster) {
        for (index, endpoint) in cluster.endpoints.iter().enumerate() {
            let id = EndpointId(index as u32);
            let namespace = cluster.namespaces[endpoint.namespace.index()].name.as_str();
            self.endpoints.entry(namespace).or_default().entry(&endpoint.name).or_default().push(id);
            if endpoint.standing != Standing::Member {
                continue;
            }
            for address in &endpoint.addresses {
                let holder = self.endpoint_addresses.entry(*address).or_insert(id);
                // A terminating pod counts until its address goes: if that has gone to another, it is the other's.
                if cluster.endpoints[holder.index()].terminating && !endpoint.terminating {
                    *holder = id;
                }
            }
        }
    }

    fn add_services(&mut self, cluster: &'c Cluster) {
        for (index, service) in cluster.services.iter().enumerate() {
            let id = ServiceId(index as u32);
            let namespace = cluster.namespaces[service.namespace.index()].name.as_str();
            self.services.entry(namespace).or_default().entry(&service.name).or_default().push(id);
            for address in &service.addresses {
                self.service_addresses.entry(*address).or_default().push(id);
            }
        }
    }

    /// Pods and workloads of this name, a pod first.
    pub fn endpoints_named(&self, namespace: &str, name: &str) -> &[EndpointId] {
        self.endpoints.get(namespace).and_then(|names| names.get(name)).map_or(&[], Vec::as_slice)
    }

    /// The service of this name.
    pub fn service_named(&self, namespace: &str, name: &str) -> Option<ServiceId> {
        self.services.get(namespace)?.get(name)?.first().copied()
    }

    /// The pod that has this address now. Host-network and finished pods have none of their own.
    pub fn endpoint_at(&self, address: IpAddr) -> Option<EndpointId> {
        self.endpoint_addresses.get(&address).copied()
    }

    /// The services on this address: several may share an external one, with different ports.
    pub fn services_at(&self, address: IpAddr) -> &[ServiceId] {
        self.service_addresses.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The node that has this address.
    pub fn node_at(&self, address: IpAddr) -> Option<NodeId> {
        self.node_addresses.get(&address).copied()
    }
}
