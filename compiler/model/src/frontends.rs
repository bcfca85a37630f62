//! Frontends: the addresses that service proxies translate, and which services claim their ports.
//!
//! Problem: any author of a Service can write any address into `externalIPs`: another service's ClusterIP, a pod's
//! address, or an address that a second service names too. Which claim the proxy follows depends on chance or on the
//! order of its rules.
//! Strategy: a ClusterIP belongs to its own service. Every other port is *contested* if it is claimed more than once,
//! or if its address is already in use. At a contested port, the backends of every claim must be allowed, and so must
//! the address itself.
//! Invariants: frontends are sorted by address. The ports of an address are sorted, and each port has a claim.

use std::net::IpAddr;

use super::{Cluster, Protocol, ServiceId};

/// An address that services have or claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// The address.
    pub address: IpAddr,
    /// The services at this address.
    pub at: FrontendPorts,
}

/// The services at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrontendPorts {
    /// The service that has the address as its ClusterIP: nothing is behind the other ports. `None` if services only
    /// claim the address: its other ports are those of an ordinary address.
    pub owner: Option<ServiceId>,
    /// The ports that lead to services, sorted.
    pub ports: Vec<FrontendPort>,
}

/// One port of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FrontendPort {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// The services that claim it, each with the index of its port.
    pub claims: Vec<(ServiceId, u32)>,
    /// Whether the address itself must be allowed too, as if no service claimed the port.
    pub contested: bool,
}

impl FrontendPorts {
    /// The claims on a port.
    pub fn port(&self, protocol: Protocol, port: u16) -> Option<&FrontendPort> {
        let found = self.ports.binary_search_by_key(&(protocol, port), |it| (it.protocol, it.port)).ok()?;
        self.ports.get(found)
    }

    /// The service that has the address, and then those that claim ports of it, sorted.
    pub fn services(&self) -> Vec<ServiceId> {
        let claims = self.ports.iter().flat_map(|port| &port.claims).map(|(service, _)| *service);
        let mut claimants: Vec<ServiceId> = claims.filter(|service| Some(*service) != self.owner).collect();
        claimants.sort_unstable();
        claimants.dedup();
        self.owner.into_iter().chain(claimants).collect()
    }
}

impl Cluster {
    /// The services at an address.
    pub fn frontend(&self, address: IpAddr) -> Option<&FrontendPorts> {
        let found = self.frontends.binary_search_by_key(&address, |it| it.address).ok()?;
        self.frontends.get(found).map(|it| &it.at)
    }
}
