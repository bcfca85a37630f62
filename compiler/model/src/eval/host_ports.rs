//! hostPorts: the pod's hook sees a packet to its node's address, which the node then sends to another pod.

use super::{EndVerdict, FlowEnd, Judgement, Oracle, ProtocolPort, Route};
use crate::{Backend, Direction};

impl Oracle<'_> {
    /// Every claim of the sending pod's node on this address and port. An address of another node is an ordinary
    /// address until that node translates it, as for node ports.
    pub(super) fn find_host_ports(&self, source: FlowEnd, destination: FlowEnd, target: ProtocolPort) -> Vec<usize> {
        // A host-network pod shares its node's address, so a packet to it may be for a hostPort.
        let is_pod = destination.endpoint.is_some_and(|id| self.is_member(id));
        let Some(address) = destination.address.filter(|_| !is_pod) else { return Vec::new() };
        // A pod's packets to its own address do not leave the pod. What shares the node's network leaves through it.
        let is_itself = |id| self.is_member(id) && self.endpoint(id).addresses.contains(&address);
        if source.endpoint.is_some_and(is_itself) {
            return Vec::new();
        }
        let Some(node) = self.node_of(source) else { return Vec::new() };
        let claims = self.cluster.host_ports_of(node);
        let meant = claims.filter(|(_, it)| target.is(it.protocol, it.port) && it.is_at(self.cluster, address));
        meant.map(|(index, _)| index).collect()
    }

    // Spec: "Traffic to and from the node where a Pod is running is always allowed". That sentence is about the node,
    // but this packet is for the pod that claims the port. So the sentences about that pod decide for both ends, at its
    // own address and port. If there are several claims, any of them may get the packet, so each must be allowed. A
    // claim allows nothing by itself: pods may name any `hostIP`, and an address that no node has is not translated.
    pub(super) fn judge_host_ports(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: ProtocolPort,
        otherwise: Judgement,
    ) -> Judgement {
        let cluster = self.cluster;
        let claims = self.find_host_ports(source, destination, target);
        let mut sides = |direction| -> Vec<(usize, EndVerdict)> {
            let judge = |index: &usize| {
                let backend = &cluster.host_ports[*index].backend;
                let Backend { endpoint, address, port } = *backend;
                let (pod, target) = (FlowEnd { endpoint, address }, ProtocolPort { port, ..target });
                let side = match direction {
                    Direction::Egress => self.judge_side(direction, source, pod, target, Route::Translated),
                    Direction::Ingress => self.judge_side(direction, pod, source, target, Route::Translated),
                };
                (*index, side)
            };
            claims.iter().map(judge).collect()
        };
        let (egress, ingress) = (sides(Direction::Egress), sides(Direction::Ingress));
        Judgement {
            egress: otherwise.egress.with_host_ports(egress),
            ingress: otherwise.ingress.with_host_ports(ingress),
        }
    }
}
