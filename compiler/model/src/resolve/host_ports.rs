//! hostPorts of pods that have an address. Those of other pods lead to no pod.

use std::net::IpAddr;

use super::{Objects, Resolver};
use weir_objects::address::Family;
use weir_objects::k8s;
use crate::directory::Directory;
use crate::{Backend, Cluster, EndpointId, HostPort, ServiceAddress, Standing};

impl Resolver<'_> {
    /// Adds the claims of all pods. The assumption about service addresses applies here too, because node ports and
    /// hostPorts are translated in the same way.
    pub(super) fn add_host_ports(&mut self, objects: &Objects<'_>) {
        let mut claiming = objects.pods.iter().filter(|(_, pod)| !pod.host_ports.is_empty()).peekable();
        if self.cluster.assume.service_address == ServiceAddress::Address || claiming.peek().is_none() {
            return;
        }
        let directory = Directory::new(&self.cluster);
        let mut found: Vec<HostPort> = Vec::new();
        for (object, pod) in claiming {
            // Pods are found by name, because not every pod object has an endpoint of its own.
            let named = directory.endpoints_named(&object.meta.namespace, &object.meta.name);
            let id = named.iter().copied().find(|id| self.cluster.endpoints[id.index()].kind == "Pod");
            let Some(id) = id else { continue };
            found.extend(pod.host_ports.iter().flat_map(|port| claims(&self.cluster, &directory, id, port)));
        }
        found.sort();
        found.dedup();
        self.cluster.host_ports = found;
    }
}

/// The claims of a hostPort, one for each address of its pod. The `portmap` plug-in translates within a family;
/// `0.0.0.0` means every IPv4 address of the node, `::` every IPv6 address. A hostPort on the node's loopback address
/// is left out, because no pod can send packets to it.
fn claims(cluster: &Cluster, directory: &Directory<'_>, pod: EndpointId, port: &k8s::HostPort) -> Vec<HostPort> {
    let endpoint = &cluster.endpoints[pod.index()];
    let Some(node) = endpoint.node.filter(|_| endpoint.standing == Standing::Member) else { return Vec::new() };
    if port.address.is_some_and(|it| it.is_loopback()) {
        return Vec::new();
    }
    let serving = endpoint.addresses.iter().filter(|at| port.address.is_none_or(|it| it.is_ipv4() == at.is_ipv4()));
    let claim = |address: &IpAddr| HostPort {
        node,
        protocol: port.protocol,
        port: port.port,
        family: Family::of(*address),
        address: port.address.filter(|it| !it.is_unspecified()),
        pod,
        backend: Backend {
            // A packet goes to the pod that has the address now.
            endpoint: directory.endpoint_at(*address).or(Some(pod)),
            address: Some(*address),
            port: port.number,
        },
    };
    serving.map(claim).collect()
}
