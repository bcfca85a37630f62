//! Service addresses: programs see a packet before it is translated, so its verdict depends on the services at its
//! destination.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::AtomId;
use super::ports::Atoms;
use super::subjects::SubjectDraft;
use weir_model::{Assumptions, Cluster, Frontend, HostPort, ServiceAddress, ServiceId};
use weir_objects::address::Family;

/// The services on one address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceVip {
    /// The family of the address. Backends of the other family are reached through another address.
    pub family: Family,
    /// The service ports.
    pub ports: Vec<VipPort>,
    /// The verdict for other ports.
    pub rest: OtherPorts,
}

/// One claim of a service on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipPort {
    /// The atom of the port on the address; it covers no other port.
    pub atom: AtomId,
    /// The service.
    pub service: ServiceId,
    /// The index of its port.
    pub port: u32,
    /// Whether the claim can only deny: the address itself must be allowed, and so must every other claim on the port.
    pub contested: bool,
}

impl VipPort {
    /// The service of a claim whose service is gone. No claim of a present service is equal to it.
    const GONE: ServiceId = ServiceId(u32::MAX);

    /// Gives the service its new number.
    pub(super) fn renumber(&mut self, numbers: &[Option<ServiceId>]) {
        self.service = numbers.get(self.service.index()).copied().flatten().unwrap_or(Self::GONE);
    }
}

/// Ports of an address that no service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OtherPorts {
    /// Nothing is there: only a rule that names no peer reaches it.
    Closed,
    /// The other ports are those of an ordinary address: a node's, a pod's, or one that services only claim.
    Address,
}

/// The services on the addresses of frontends, sorted by address.
pub(super) fn by_address(
    frontends: &[Frontend],
    assume: Assumptions,
    atoms: &Atoms,
    is_pod: impl Fn(IpAddr) -> bool,
) -> BTreeMap<IpAddr, ServiceVip> {
    // With this assumption a service address is like any other address, so it must not get a class of its own.
    if assume.service_address == ServiceAddress::Address {
        return BTreeMap::new();
    }
    let vip = |Frontend { address, at }: &Frontend| {
        let is_pod = is_pod(*address);
        // A ClusterIP exists only in the service proxy's rules, so nothing answers at its other ports. Behind an
        // address that a service only claims, or that a pod has too, there can be a real host.
        let rest = if at.owner.is_some() && !is_pod { OtherPorts::Closed } else { OtherPorts::Address };
        let ports = at.ports.iter().flat_map(|port| {
            let atom = atoms.find(port.protocol, port.port);
            // Every author of a Service can name any address in `externalIPs`. At a pod's address such a claim may only
            // deny, otherwise a tenant could open another tenant's pod:
            // https://github.com/kubernetes/kubernetes/issues/97076
            let contested = port.contested || is_pod;
            port.claims.iter().map(move |(service, port)| VipPort { atom, service: *service, port: *port, contested })
        });
        (*address, ServiceVip { family: Family::of(*address), ports: ports.collect(), rest })
    };
    // If a pod has the ClusterIP of a service without ports, the address is the pod's alone.
    frontends.iter().map(vip).filter(|(_, it)| !it.ports.is_empty() || it.rest == OtherPorts::Closed).collect()
}

/// The node ports of all services, which every node claims on its own addresses.
pub(super) fn node_ports(cluster: &Cluster, atoms: &Atoms) -> Vec<VipPort> {
    let mut found: Vec<VipPort> = Vec::new();
    if cluster.assume.service_address == ServiceAddress::Address {
        return found;
    }
    for (id, service) in cluster.services.iter().enumerate() {
        for (index, port) in service.ports.iter().enumerate() {
            let Some(number) = port.node_port else { continue };
            let atom = atoms.find(port.protocol, number);
            // Alone it is not contested. `ports_at` compares it with the other claims at the address of the node.
            found.push(VipPort { atom, service: ServiceId(id as u32), port: index as u32, contested: false });
        }
    }
    found
}

/// The hostPorts of nodes that local endpoints run on. For addresses of other nodes, it is not known which pods their
/// hostPorts lead to.
pub(super) fn host_ports<'c>(
    cluster: &'c Cluster,
    draft: &SubjectDraft,
) -> impl Iterator<Item = (usize, &'c HostPort)> {
    // Only nodes of local endpoints: packets of these endpoints meet no other node's translation before they are
    // judged.
    draft.nodes().into_iter().flat_map(|node| cluster.host_ports_of(node))
}
