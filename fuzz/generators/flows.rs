//! Random flows for the clusters that [`cluster`](super::cluster) makes, between ends that exist in the cluster and
//! ends that do not.

use weir_model::eval::{Flow, FlowEnd, FlowProtocol};
use weir_model::{Cluster, EndpointId, Protocol};

use super::Random;
use super::cluster::{PORTS, address};

/// Both ends are mostly of one family.
pub fn flows(cluster: &Cluster, count: usize, random: &mut Random) -> Vec<Flow> {
    (0..count)
        .map(|_| {
            let v6 = random.once_in(3);
            Flow {
                source: end(cluster, v6, random),
                destination: end(cluster, v6, random),
                protocol: match random.below(8) {
                    0 => FlowProtocol::Icmp,
                    1 => FlowProtocol::Transport(Protocol::Sctp),
                    2 | 3 => FlowProtocol::Transport(Protocol::Udp),
                    _ => FlowProtocol::Transport(Protocol::Tcp),
                },
                port: random.pick(&PORTS) - u16::from(random.once_in(6)),
            }
        })
        .map(|flow| Flow { port: if flow.protocol == FlowProtocol::Icmp { 0 } else { flow.port }, ..flow })
        .collect()
}

fn end(cluster: &Cluster, v6: bool, random: &mut Random) -> FlowEnd {
    if random.once_in(3) || cluster.endpoints.is_empty() {
        return FlowEnd { endpoint: None, address: Some(address(v6, random)) };
    }
    let index = random.below(cluster.endpoints.len());
    let addresses = &cluster.endpoints[index].addresses;
    let address = addresses.iter().copied().find(|it| it.is_ipv6() == v6).or(addresses.first().copied());
    // The address alone also identifies the pod.
    let named = address.is_none() || !random.once_in(3);
    FlowEnd { endpoint: named.then_some(EndpointId(index as u32)), address }
}
