//! hostPorts: to the pod's own hook a packet to its node, behind which the node puts another pod.

use super::{End, Judgement, Oracle, Side, Target};
use crate::model::{Backend, Direction};

impl Oracle<'_> {
    /// Every claim of the node's pods on this address and port. Another node's are an ordinary address until that
    /// node translates them, as its node ports are.
    pub(super) fn find_host_ports(&self, source: End, destination: End, target: Target) -> Vec<usize> {
        // A host-network pod is its node: what is sent to its address may be a hostPort.
        let is_pod = destination.endpoint.is_some_and(|id| self.is_member(id));
        let Some(address) = destination.address.filter(|_| !is_pod) else { return Vec::new() };
        let Some(node) = self.node_of(source) else { return Vec::new() };
        let claims = self.cluster.host_ports_of(node);
        let meant = claims.filter(|(_, it)| target.is(it.protocol, it.port) && it.is_at(self.cluster, address));
        meant.map(|(index, _)| index).collect()
    }

    // Spec: "Traffic to and from the node where a Pod is running is always allowed": that is about the node, and this
    // packet is for the pod that claims the port. The sentences about that pod decide, at its own address and port,
    // for both ends; of several claims any may get the packet, so each must be allowed. A claim opens nothing: pods
    // may name any `hostIP`, and an address that is no node's is not translated.
    pub(super) fn judge_host_ports(
        &mut self,
        source: End,
        destination: End,
        target: Target,
        otherwise: Judgement,
    ) -> Judgement {
        let cluster = self.cluster;
        let claims = self.find_host_ports(source, destination, target);
        let mut sides = |direction| -> Vec<(usize, Side)> {
            let judge = |index: &usize| {
                let backend = &cluster.host_ports[*index].backend;
                let Backend { endpoint, address, port } = *backend;
                let (pod, target) = (End { endpoint, address }, Target { port, ..target });
                let side = match direction {
                    Direction::Egress => self.judge_side(direction, source, pod, target),
                    Direction::Ingress => self.judge_side(direction, pod, source, target),
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
