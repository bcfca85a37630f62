//! This host's own addresses, which may always send to the pods of this node.
//!
//! Problem: a Node object lists one or two addresses, but a host also sends to its pods from others, such as the
//! address of the pods' bridge; kubelet's probes come from there. Strategy: the maps `nodes4` and `nodes6` hold the
//! artifact's addresses, and this network namespace's own addresses under the node of every endpoint. Programs look
//! there only for traffic that began on this host, so no other sender gains access. Loopback and IPv6 link-local
//! addresses are left out: nothing is routed from there.

use std::collections::{BTreeSet, HashSet};
use std::iter::repeat_n;
use std::net::IpAddr;

use weir_artifact::NamedEndpoint;
use weir_artifact::layout::{MapName, address_bytes, endpoint};

use super::Runtime;
use super::endpoint_entries::KeptKeys;
use super::endpoint_table::EndpointTable;
use super::reconcile::Reconciled;
use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::record::EnforcedEndpoint;

/// The value of every entry of the two maps.
pub(crate) const OWN: [u8; 4] = [1, 0, 0, 0];

/// Entries for this host's addresses, by map.
pub(crate) type OwnAddresses = BTreeSet<(MapName, Vec<u8>)>;

impl Runtime {
    /// This host's addresses as entries: under the node of each endpoint.
    pub(crate) fn own_addresses(
        &self,
        named: &[NamedEndpoint],
        endpoints: &[EnforcedEndpoint],
    ) -> Result<OwnAddresses, Error> {
        let addresses = self.system.addresses().doing("list this host's addresses")?;
        let pods: HashSet<(&str, &str)> = endpoints.iter().filter_map(|it| it.pod.split_once('/')).collect();
        let is_here = |it: &&NamedEndpoint| pods.contains(&(it.namespace.as_str(), it.name.as_str()));
        let nodes: BTreeSet<[u8; 4]> = named.iter().filter(is_here).filter_map(node_of).collect();
        let under = |node: [u8; 4], address: IpAddr| {
            let map = if address.is_ipv4() { MapName::Nodes4 } else { MapName::Nodes6 };
            (map, [node.as_slice(), &address_bytes(address)].concat())
        };
        let routed = addresses.into_iter().filter(|it| is_routed(*it));
        Ok(routed.flat_map(|address| nodes.iter().map(move |node| under(*node, address))).collect())
    }

    /// Adds this host's new addresses to the generation in force, and removes those that the host no longer has.
    pub(crate) fn keep_addresses(
        &self,
        loaded: &LoadedGeneration,
        table: &EndpointTable,
        endpoints: &[EnforcedEndpoint],
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let own = self.own_addresses(&table.endpoints, endpoints)?;
        self.keep_family::<8>(MapName::Nodes4, loaded, table, &own, reconciled)?;
        self.keep_family::<20>(MapName::Nodes6, loaded, table, &own, reconciled)
    }

    fn keep_family<const N: usize>(
        &self,
        name: MapName,
        loaded: &LoadedGeneration,
        table: &EndpointTable,
        own: &OwnAddresses,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let Some(image) = table.map(name) else { return Ok(()) };
        let wanted = image.entries.iter().map(|(key, _)| key).chain(of(own, name));
        let wanted = wanted.filter_map(|key| key.first_chunk().copied()).collect();
        // If the map is full, the other addresses are judged like any peer until the next generation makes room, and
        // the status reports them.
        let KeptKeys { removed, written, .. } = self.keep_keys::<N>(loaded, name, &wanted, OWN)?;
        let other = repeat_n(format!("an address in {} that is not this node's", name.name()), removed);
        reconciled.repaired.extend(other);
        reconciled.repaired.extend(repeat_n(format!("an address of this node in {}", name.name()), written));
        Ok(())
    }
}

/// The keys of one map.
pub(crate) fn of(own: &OwnAddresses, name: MapName) -> impl Iterator<Item = &[u8]> {
    own.iter().filter(move |(map, _)| *map == name).map(|(_, key)| key.as_slice())
}

/// The number of an endpoint's node, as its value has it.
fn node_of(named: &NamedEndpoint) -> Option<[u8; 4]> {
    named.value.get(endpoint::NODE as usize..).and_then(|rest| rest.first_chunk()).copied()
}

fn is_routed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}
