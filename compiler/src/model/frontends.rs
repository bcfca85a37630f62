//! Frontends: the addresses that service proxies translate, and which services claim their ports.
//!
//! Problem: any author of a Service can write any address into `externalIPs`: another service's ClusterIP, a pod's, or
//! one that a second service names too. Which claim the proxy carries out is chance, or the order of its rules.
//! Strategy: a ClusterIP belongs to its own service. Every other port that is claimed more than once, or at an address
//! that is already in use, is *contested*: the backends of every claim must be allowed, and so must the address itself.
//! Invariants: sorted by address; the ports of an address are sorted, and each of them has a claim.

use std::net::IpAddr;

use super::{Cluster, Protocol, ServiceId};

/// An address that services have or claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// The address.
    pub address: IpAddr,
    /// The services at it.
    pub at: FrontendPorts,
}

/// The services at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrontendPorts {
    /// The service that has the address as its ClusterIP: nothing is behind the other ports. `None` for an address that
    /// is only claimed, whose other ports are those of an ordinary address.
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
