//! Services: the packet is seen before it is translated, so its address stands for what is behind it.

use std::net::IpAddr;

use super::{Basis, End, FlowProtocol, Judgement, Oracle, ServiceBasis, Side, Target, Verdict};
use crate::address::Family;
use crate::model::{
    Backend, Direction, Icmp, NodeId, PortMatch, PortRule, Rule, ServiceAddress, ServiceId, ServicePort,
};

impl Oracle<'_> {
    /// The service that the destination address belongs to, and which of its ports is meant.
    pub(super) fn find_service(
        &self,
        source: End,
        destination: End,
        target: Target,
    ) -> Option<(ServiceId, Option<u32>)> {
        // A host-network pod is its node: what is sent to its address may be a node port.
        let is_pod = destination.endpoint.is_some_and(|id| self.is_member(id));
        if is_pod || self.cluster.assume.service_address == ServiceAddress::Address {
            return None;
        }
        let address = destination.address?;
        let services = self.directory.services_at(address);
        let by_port = services.iter().find_map(|id| {
            let ports = &self.cluster.services[id.index()].ports;
            let index = ports.iter().position(|port| target.is(port.protocol, port.port))?;
            Some((*id, Some(index as u32)))
        });
        // A load balancer may use a node's own address: there, only its service ports are the service's.
        let rest = services.first().filter(|_| self.directory.node_at(address).is_none());
        by_port.or_else(|| self.find_node_port(source, address, target)).or(rest.map(|id| (*id, None)))
    }

    /// The node where a packet begins: its pod's, or the node itself.
    pub(super) fn node_of(&self, source: End) -> Option<NodeId> {
        let of_pod = source.endpoint.and_then(|id| self.endpoint(id).node);
        of_pod.or_else(|| self.directory.node_at(source.address?))
    }

    /// A node translates what is sent to its own addresses; another node is an ordinary address until it does.
    fn find_node_port(&self, source: End, address: IpAddr, target: Target) -> Option<(ServiceId, Option<u32>)> {
        let node = self.node_of(source)?;
        if !self.cluster.nodes[node.index()].addresses.contains(&address) {
            return None;
        }
        self.cluster.services.iter().enumerate().find_map(|(id, service)| {
            let is_meant = |port: &ServicePort| port.node_port.is_some_and(|it| target.is(port.protocol, it));
            let index = service.ports.iter().position(is_meant)?;
            Some((ServiceId(id as u32), Some(index as u32)))
        })
    }

    /// A service port is allowed if all of its ready backends are.
    pub(super) fn judge_service(
        &mut self,
        source: End,
        destination: End,
        target: Target,
        (service, port): (ServiceId, Option<u32>),
    ) -> Judgement {
        let cluster = self.cluster;
        let family = destination.address.map(Family::of);
        let backends: Vec<&Backend> = port
            .and_then(|port| cluster.services[service.index()].ports.get(port as usize))
            .map(|port| port.backends.iter().filter(|it| it.serves(family)).collect())
            .unwrap_or_default();
        let mut sides = |direction| {
            let judge = |it: &&Backend| {
                let target = Target { port: it.port, ..target };
                match direction {
                    Direction::Egress => self.judge_side(direction, source, it.end(), target),
                    Direction::Ingress => self.judge_side(direction, it.end(), source, target),
                }
            };
            ServiceBasis { service, port, backends: backends.iter().map(judge).collect() }.side()
        };
        let ingress = sides(Direction::Ingress);
        let behind = sides(Direction::Egress);
        Judgement { egress: self.judge_service_egress(source, destination, target, port.is_some(), behind), ingress }
    }

    fn judge_service_egress(
        &mut self,
        source: End,
        destination: End,
        target: Target,
        is_service_port: bool,
        behind: Side,
    ) -> Side {
        let Some(subject) = source.endpoint.filter(|id| self.is_member(*id)) else {
            return Side::allow(Basis::NotSubject);
        };
        if target.protocol == FlowProtocol::Icmp && self.cluster.assume.icmp == Icmp::Allow {
            return Side::allow(Basis::IcmpAssumed);
        }
        let own_node = self.is_own_node(self.endpoint(subject), destination);
        if let Some(list) = self.denying_list(Direction::Egress, subject, destination).filter(|_| !own_node) {
            return Side { verdict: Verdict::Deny, basis: Basis::List(list) };
        }
        if matches!(&behind.basis, Basis::Service(basis) if !basis.backends.is_empty()) {
            return behind;
        }
        // Nothing is behind it: only a rule that names no peer reaches it; and while nothing is known of the ports to
        // come behind a service port, only one that allows them all.
        let isolating = self.isolating(Direction::Egress, subject);
        if isolating.is_empty() {
            return Side::allow(Basis::NotIsolated);
        }
        let mut rules = self.allowing_rules(Direction::Egress, &isolating, subject, destination, target);
        rules.retain(|id| {
            let policy = &self.cluster.policies[id.policy.index()];
            let rule = policy.egress.as_ref().and_then(|rules| rules.get(id.rule as usize));
            rule.is_some_and(|rule| rule.peers.is_empty() && (!is_service_port || allows_all_ports(rule, target)))
        });
        match rules.is_empty() {
            true => Side { verdict: Verdict::Deny, basis: Basis::Isolated(isolating) },
            false => Side::allow(Basis::Rules(rules)),
        }
    }
}

/// Whether a rule allows every port of the protocol.
fn allows_all_ports(rule: &Rule, target: Target) -> bool {
    let all = |port: &PortRule| match port.port {
        PortMatch::Any => true,
        PortMatch::Range(first, last) => first <= 1 && last == u16::MAX,
        PortMatch::Named(_) => false,
    };
    let of_protocol = |port: &&PortRule| target.protocol == FlowProtocol::Transport(port.protocol);
    rule.ports.is_empty() || rule.ports.iter().filter(of_protocol).any(all)
}

impl Backend {
    fn end(&self) -> End {
        End { endpoint: self.endpoint, address: self.address }
    }

    fn serves(&self, family: Option<Family>) -> bool {
        self.address.is_none_or(|address| family.is_none_or(|family| Family::of(address) == family))
    }
}

impl ServiceBasis {
    fn side(self) -> Side {
        let verdict = self.backends.iter().map(|side| side.verdict).max().unwrap_or(Verdict::Allow);
        Side { verdict, basis: Basis::Service(self) }
    }
}
