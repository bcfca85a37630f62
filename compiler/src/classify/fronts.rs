//! Service addresses: what a packet to them is judged by, since it is seen before it is translated.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::AtomId;
use super::ports::Atoms;
use super::subjects::Draft;
use crate::address::Family;
use crate::model::{Cluster, HostPort, ServiceAddress, ServiceId};

/// The services on one address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Front {
    /// Backends of another family are behind another address.
    pub family: Family,
    /// The service ports.
    pub ports: Vec<FrontPort>,
    /// What becomes of other ports.
    pub rest: Rest,
}

/// One service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontPort {
    /// The atom of the port on the address; it stands for no other port.
    pub atom: AtomId,
    /// The service.
    pub service: ServiceId,
    /// The index of its port.
    pub port: u32,
}

/// Ports of an address that no service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rest {
    /// Nothing is there: only a rule that names no peer reaches it.
    Closed,
    /// A node's own address: an address like others.
    Node,
}

/// The front of every service address, sorted by address.
pub(super) fn by_address(cluster: &Cluster, atoms: &Atoms) -> BTreeMap<IpAddr, Front> {
    if cluster.assume.service_address == ServiceAddress::Address {
        return BTreeMap::new();
    }
    let nodes: BTreeSet<IpAddr> = cluster.nodes.iter().flat_map(|node| node.addresses.iter().copied()).collect();
    let mut fronts: BTreeMap<IpAddr, Front> = BTreeMap::new();
    for (id, service) in cluster.services.iter().enumerate() {
        for address in &service.addresses {
            let rest = if nodes.contains(address) { Rest::Node } else { Rest::Closed };
            let front = fronts.entry(*address).or_insert_with(|| Front {
                family: Family::of(*address),
                ports: Vec::new(),
                rest,
            });
            for (index, port) in service.ports.iter().enumerate() {
                let atom = atoms.find(port.protocol, port.port);
                // The first service that has the port has it.
                if front.ports.iter().all(|it| it.atom != atom) {
                    front.ports.push(FrontPort { atom, service: ServiceId(id as u32), port: index as u32 });
                }
            }
        }
    }
    fronts
}

/// What a node answers for on its own addresses.
pub(super) fn node_ports(cluster: &Cluster, atoms: &Atoms) -> Vec<FrontPort> {
    let mut found: Vec<FrontPort> = Vec::new();
    if cluster.assume.service_address == ServiceAddress::Address {
        return found;
    }
    for (id, service) in cluster.services.iter().enumerate() {
        for (index, port) in service.ports.iter().enumerate() {
            let Some(number) = port.node_port else { continue };
            let atom = atoms.find(port.protocol, number);
            if found.iter().all(|it| it.atom != atom) {
                found.push(FrontPort { atom, service: ServiceId(id as u32), port: index as u32 });
            }
        }
    }
    found
}

/// The hostPorts of nodes that local endpoints run on; on other nodes' addresses nothing is known of what they lead to.
pub(super) fn host_ports<'c>(cluster: &'c Cluster, draft: &Draft) -> impl Iterator<Item = (usize, &'c HostPort)> {
    draft.nodes().into_iter().flat_map(|node| cluster.host_ports_of(node))
}
