//! Services: policy sees the packet before it is translated, so its address represents the backends.

use std::net::IpAddr;

use super::{
    Basis, EndVerdict, FlowEnd, FlowProtocol, Judgement, Oracle, ProtocolPort, Route, ServiceBasis, ServicesBehind,
    Verdict,
};
use crate::{
    Backend, Direction, EndpointId, Icmp, NodeId, PolicyId, PortMatch, PortRule, Rule, RuleAction, ServiceAddress,
    ServiceId, Standing, Tier,
};
use weir_objects::address::Family;

impl Oracle<'_> {
    /// The services behind the destination address; `None` if it is an ordinary address.
    pub(super) fn find_behind(
        &self,
        source: FlowEnd,
        destination: FlowEnd,
        target: ProtocolPort,
    ) -> Option<ServicesBehind> {
        let address = destination.address?;
        // A host-network pod has its node's address, so a packet to it may be for a node port.
        let pod = destination.endpoint.filter(|id| self.is_member(*id));
        let is_host = pod.is_some_and(|id| self.endpoint(id).standing == Standing::HostNetwork);
        // A pod's packets to its own address do not leave the pod.
        let is_itself = source.endpoint.is_some_and(|id| self.endpoint(id).addresses.contains(&address));
        if is_host || is_itself || self.cluster.assume.service_address == ServiceAddress::Address {
            return None;
        }
        let frontend = self.cluster.frontend(address);
        let port = match target.protocol {
            FlowProtocol::Transport(protocol) => frontend.and_then(|it| it.port(protocol, target.port)),
            FlowProtocol::Icmp => None,
        };
        let mut claims = port.map_or_else(Vec::new, |port| port.claims.clone());
        let node_ports = if pod.is_some() { Vec::new() } else { self.find_node_ports(source, address, target) };
        claims.extend(node_ports);
        claims.sort_unstable();
        claims.dedup();
        let contested = pod.is_some() || claims.len() > 1 || port.is_some_and(|port| port.contested);
        let owner = frontend.and_then(|it| it.owner).filter(|_| pod.is_none());
        (owner.is_some() || !claims.is_empty()).then_some(ServicesBehind { owner, claims, contested })
    }

    /// The node where a packet begins: its pod's, or the node itself.
    pub(super) fn node_of(&self, source: FlowEnd) -> Option<NodeId> {
        let of_pod = source.endpoint.and_then(|id| self.endpoint(id).node);
        of_pod.or_else(|| self.directory.node_at(source.address?))
    }

    /// The node ports at an address. A node translates only packets to its own addresses; packets to another node are
    /// translated there.
    fn find_node_ports(&self, source: FlowEnd, address: IpAddr, target: ProtocolPort) -> Vec<(ServiceId, u32)> {
        let is_own = |node: NodeId| self.cluster.nodes[node.index()].addresses.contains(&address);
        if !self.node_of(source).is_some_and(is_own) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (id, service) in self.cluster.services.iter().enumerate() {
            for (index, port) in service.ports.iter().enumerate() {
                if port.node_port.is_some_and(|it| target.is(port.protocol, it)) {
                    found.push((ServiceId(id as u32), index as u32));
                }
            }
        }
        found
    }

    /// Judges every service behind an address. At a contested port, any of the claimants or the address itself may get
    /// the packet, so all of them must be allowed.
    pub(super) fn judge_behind(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: ProtocolPort,
        behind: &ServicesBehind,
    ) -> Judgement {
        if let Some((service, port)) = behind.single() {
            return self.judge_service(source, destination, target, (service, port));
        }
        let otherwise = match behind.owner {
            Some(owner) => self.judge_service(source, destination, target, (owner, None)),
            None => self.judge_plain(source, destination, target),
        };
        let mut judge = |claim: &(ServiceId, u32)| {
            let judged = self.judge_service(source, destination, target, (claim.0, Some(claim.1)));
            ((*claim, judged.egress), (*claim, judged.ingress))
        };
        let (egress, ingress) = behind.claims.iter().map(&mut judge).unzip();
        Judgement { egress: otherwise.egress.with_claims(egress), ingress: otherwise.ingress.with_claims(ingress) }
    }

    /// A service port is allowed if all of its backends are allowed.
    fn judge_service(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: ProtocolPort,
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
                let target = ProtocolPort { port: it.port, ..target };
                match direction {
                    Direction::Egress => self.judge_side(direction, source, it.end(), target, Route::Translated),
                    Direction::Ingress => self.judge_side(direction, it.end(), source, target, Route::Translated),
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
        source: FlowEnd,
        destination: FlowEnd,
        target: ProtocolPort,
        is_service_port: bool,
        behind: EndVerdict,
    ) -> EndVerdict {
        let Some(subject) = source.endpoint.filter(|id| self.is_member(*id)) else {
            return EndVerdict::allow(Basis::NotSubject);
        };
        if target.protocol == FlowProtocol::Icmp && self.cluster.assume.icmp == Icmp::Allow {
            return EndVerdict::allow(Basis::IcmpAssumed);
        }
        let own_node = self.is_own_node(self.endpoint(subject), destination);
        if let Some(list) = self.denying_list(Direction::Egress, subject, destination).filter(|_| !own_node) {
            return EndVerdict::deny(Basis::List(list));
        }
        if matches!(&behind.basis, Basis::Service(basis) if !basis.backends.is_empty()) {
            return behind;
        }
        self.judge_without_backends(subject, destination, target, is_service_port)
    }

    /// Judges a packet to a service address that leads to no backend: the port has none, or the service has no such
    /// port.
    fn judge_without_backends(
        &mut self,
        subject: EndpointId,
        destination: FlowEnd,
        target: ProtocolPort,
        is_service_port: bool,
    ) -> EndVerdict {
        let mut passed = Vec::new();
        let mut decide = |it: &mut Self, tier| {
            // The service port may get backends that no rule knows yet. A `Deny` rule may be about any of them, and an
            // `Accept` rule about none.
            if is_service_port {
                let denial = it.any_tier_denial(tier, Direction::Egress, subject);
                return denial.map(|rule| EndVerdict::deny(Basis::Tier(rule)));
            }
            // No backend can get a packet to another port, so the address is an address like others.
            match it.tier_decision(tier, Direction::Egress, subject, destination, target)? {
                (rule, RuleAction::Accept) => Some(EndVerdict::allow(Basis::Tier(rule))),
                (rule, RuleAction::Deny) => Some(EndVerdict::deny(Basis::Tier(rule))),
                (rule, RuleAction::Pass) => {
                    passed.push(rule);
                    None
                }
            }
        };
        if let Some(decided) = decide(self, Tier::Admin) {
            return decided;
        }
        let isolating = self.isolating(Direction::Egress, subject);
        if isolating.is_empty() {
            let decided = decide(self, Tier::Baseline);
            return decided.unwrap_or_else(|| EndVerdict::allow(Basis::NotIsolated)).after(passed);
        }
        self.judge_isolated_without_backends(isolating, subject, destination, target, is_service_port).after(passed)
    }

    // Only a rule that names no peer reaches a service address without a backend. If the ports of later backends are not
    // known, the rule must also allow all ports.
    fn judge_isolated_without_backends(
        &mut self,
        isolating: Vec<PolicyId>,
        subject: EndpointId,
        destination: FlowEnd,
        target: ProtocolPort,
        is_service_port: bool,
    ) -> EndVerdict {
        let mut rules = self.allowing_rules(Direction::Egress, &isolating, subject, destination, target);
        rules.retain(|id| {
            let policy = &self.cluster.policies[id.policy.index()];
            let rule = policy.egress.as_ref().and_then(|rules| rules.get(id.rule as usize));
            rule.is_some_and(|rule| {
                rule.peers.is_empty() && (!is_service_port || rule.allows_all_ports(target.protocol))
            })
        });
        match rules.is_empty() {
            true => EndVerdict::deny(Basis::Isolated(isolating)),
            false => EndVerdict::allow(Basis::Rules(rules)),
        }
    }
}

impl Rule {
    /// Whether the rule allows every port of a protocol.
    pub fn allows_all_ports(&self, protocol: FlowProtocol) -> bool {
        let all = |port: &PortRule| match port.port {
            PortMatch::Any => true,
            PortMatch::Range(first, last) => first <= 1 && last == u16::MAX,
            PortMatch::Named(_) => false,
        };
        let of_protocol = |port: &&PortRule| protocol == FlowProtocol::Transport(port.protocol);
        self.ports.is_empty() || self.ports.iter().filter(of_protocol).any(all)
    }
}

impl Backend {
    fn end(&self) -> FlowEnd {
        FlowEnd { endpoint: self.endpoint, address: self.address }
    }

    fn serves(&self, family: Option<Family>) -> bool {
        self.address.is_none_or(|address| family.is_none_or(|family| Family::of(address) == family))
    }
}

impl ServiceBasis {
    fn side(self) -> EndVerdict {
        let verdict = self.backends.iter().map(|side| side.verdict).max().unwrap_or(Verdict::Allow);
        EndVerdict::new(verdict, Basis::Service(self))
    }
}
