//! hostPorts: ports of a node that lead to a pod on it.
//!
//! The CNI's `portmap` plug-in translates them like a service proxy, after a pod's own egress hook has seen the packet.
//! So that hook sees a packet to a node's address, although the packet goes to the pod behind the port.

use std::net::IpAddr;

use super::{Backend, Cluster, EndpointId, NodeId, Protocol};
use weir_objects::address::Family;

/// A hostPort that a pod on a node claims, for one of the pod's addresses. Several pods may claim the same port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// The node.
    pub node: NodeId,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the node.
    pub port: u16,
    /// The address family of the packets.
    pub family: Family,
    /// The address that the pod names (`hostIP`); `None` is every address of the node of the family.
    pub address: Option<IpAddr>,
    /// The pod that claims it.
    pub pod: EndpointId,
    /// The pod's address and port.
    pub backend: Backend,
}

impl HostPort {
    /// The node's addresses that the port is on.
    pub fn addresses<'c>(&'c self, cluster: &'c Cluster) -> impl Iterator<Item = IpAddr> + 'c {
        let node = &cluster.nodes[self.node.index()];
        let every = node.addresses.iter().filter(|_| self.address.is_none()).copied();
        every.filter(|at| Family::of(*at) == self.family).chain(self.address)
    }

    /// Whether packets from its node to this address are for this port.
    pub fn is_at(&self, cluster: &Cluster, address: IpAddr) -> bool {
        self.addresses(cluster).any(|it| it == address)
    }
}

impl Cluster {
    /// The hostPorts of a node, each with its index in [`Cluster::host_ports`].
    pub fn host_ports_of(&self, node: NodeId) -> impl Iterator<Item = (usize, &HostPort)> {
        let first = self.host_ports.partition_point(|it| it.node < node);
        let end = self.host_ports.partition_point(|it| it.node <= node);
        self.host_ports.get(first..end).unwrap_or_default().iter().enumerate().map(move |(at, it)| (first + at, it))
    }

    /// Whether a node has an address: the model lists it, or a pod on the node names it as `hostIP`.
    pub fn is_of_node(&self, node: NodeId, address: IpAddr) -> bool {
        self.nodes[node.index()].addresses.contains(&address)
            || self.host_ports_of(node).any(|(_, it)| it.address == Some(address))
    }

    /// Whether the model or a `hostIP` gives the node any address.
    pub fn has_addresses(&self, node: NodeId) -> bool {
        !self.nodes[node.index()].addresses.is_empty() || self.host_ports_of(node).next().is_some()
    }

    /// `hostPort 8080 of shop/web`
    pub fn host_port_name(&self, index: usize) -> String {
        self.host_ports.get(index).map_or_else(String::new, |it| {
            let protocol =
                if it.protocol == Protocol::Tcp { String::new() } else { format!("/{}", it.protocol.name()) };
            format!("hostPort {}{protocol} of {}", it.port, self.endpoint_name(it.pod))
        })
    }
}
