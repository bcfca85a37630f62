//! Addresses for endpoints that have none: workloads, and pods that are only manifests.
//!
//! Such endpoints get addresses from ranges that no host uses (0.64.0.0/10, and 100::/64, the discard prefix). As peers
//! they are classified by labels alone ([`super::Scope::with_stand_ins`]), because the exact table has precedence over
//! prefixes. So no `ipBlock` or list ever contains them, just as it contains no endpoint without an address.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_model::{Cluster, Endpoint, EndpointId, Standing};

/// Gives an address of each family to every endpoint that has none. A cluster without such endpoints stays unchanged.
pub fn stand_ins(cluster: &mut Cow<'_, Cluster>) -> Vec<(EndpointId, IpAddr)> {
    let without = |(_, it): &(usize, &Endpoint)| it.addresses.is_empty();
    let without: Vec<usize> = cluster.endpoints.iter().enumerate().filter(without).map(|(index, _)| index).collect();
    let mut given = Vec::with_capacity(2 * without.len());
    for (number, index) in (0u32..).zip(without) {
        // Inside 0.0.0.0/8, which no packet may have as its destination
        // (https://www.rfc-editor.org/rfc/rfc1122#section-3.2.1.3), and in the discard prefix
        // (https://www.rfc-editor.org/rfc/rfc6666). With addresses of private networks, real hosts could have them.
        let v4 = Ipv4Addr::from_bits((64 << 16) + number);
        let v6 = Ipv6Addr::from_bits((0x100 << 112) + (1 << 32) + u128::from(number));
        // Copies the cluster at the first such endpoint only: where all pods have addresses, nothing is copied.
        let cluster = cluster.to_mut();
        let endpoint = &mut cluster.endpoints[index];
        let addresses = [IpAddr::V4(v4), IpAddr::V6(v6)];
        match (endpoint.standing, endpoint.node) {
            (Standing::Member, _) => endpoint.addresses.extend(addresses),
            // The addresses of such pods are those of their node.
            (Standing::HostNetwork, Some(node)) => cluster.nodes[node.index()].addresses.extend(addresses),
            // Finished and pending pods are no peers, so nothing can match their addresses.
            _ => {}
        }
        given.extend(addresses.map(|address| (EndpointId(index as u32), address)));
    }
    given
}
