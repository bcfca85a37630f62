//! Decides which services have or claim which addresses: [`crate::Frontend`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::{Frontend, FrontendPort, FrontendPorts, Protocol, Service, ServiceId};

/// The claims on the ports of one address.
type Claims = BTreeMap<(Protocol, u16), Vec<(ServiceId, u32)>>;

/// The service that has an address, and the claims on it.
#[derive(Default)]
struct AddressOwner {
    owner: Option<ServiceId>,
    own: Claims,
    foreign: Claims,
}

/// Other objects that have an address, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddressUse {
    /// A pod has it.
    pub is_pod: bool,
    /// A node has it.
    pub is_node: bool,
}

/// The frontends at the addresses for which `is_wanted` holds.
pub fn frontends(
    services: &[Service],
    is_wanted: impl Fn(IpAddr) -> bool,
    use_of: impl Fn(IpAddr) -> AddressUse,
) -> Vec<Frontend> {
    let mut found: BTreeMap<IpAddr, AddressOwner> = BTreeMap::new();
    for (id, service) in (0..).map(ServiceId).zip(services) {
        for address in service.addresses.iter().filter(|address| is_wanted(**address)) {
            let at = found.entry(*address).or_default();
            if service.cluster_addresses.contains(address) {
                at.owner.get_or_insert(id);
                claim(&mut at.own, id, service);
            } else {
                claim(&mut at.foreign, id, service);
            }
        }
    }
    let frontend = |(address, found): (IpAddr, AddressOwner)| Frontend { address, at: found.resolve(use_of(address)) };
    found.into_iter().map(frontend).filter(|it| it.at != FrontendPorts::default()).collect()
}

/// Adds the claims of a service. If several of its ports have the same number, the first one counts.
fn claim(claims: &mut Claims, id: ServiceId, service: &Service) {
    for (index, port) in service.ports.iter().enumerate() {
        let of_port = claims.entry((port.protocol, port.port)).or_default();
        if of_port.last().is_none_or(|(service, _)| *service != id) {
            of_port.push((id, index as u32));
        }
    }
}

impl AddressOwner {
    fn resolve(self, AddressUse { is_pod, is_node }: AddressUse) -> FrontendPorts {
        let is_in_use = is_pod || self.owner.is_some();
        // Claims of other services do not affect the ports of the ClusterIP's own service.
        let foreign = self.foreign.into_iter().filter(|(port, _)| !self.own.contains_key(port));
        let foreign = foreign.map(|(port, claims)| (port, claims, is_in_use)).collect::<Vec<_>>();
        let own = self.own.into_iter().map(|(port, claims)| (port, claims, is_pod));
        let port = |((protocol, port), claims, is_in_use): (_, Vec<_>, bool)| FrontendPort {
            protocol,
            port,
            contested: is_in_use || claims.len() > 1,
            claims,
        };
        let mut ports: Vec<FrontendPort> = own.chain(foreign).map(port).collect();
        ports.sort_unstable_by_key(|it| (it.protocol, it.port));
        // If a node has the address, its other ports are the node's.
        FrontendPorts { owner: self.owner.filter(|_| !is_node), ports }
    }
}
