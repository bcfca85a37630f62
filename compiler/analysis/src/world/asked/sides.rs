//! Both sides of a verdict, evaluated as `weir_model::eval` does, with diagrams for tests of unknown properties.

use std::net::IpAddr;

use super::numbers::address_diagram;
use super::{Asked, AskedEnd, NamespaceLabels, OpenQuestion};
use crate::addresses::AddressSet;
use crate::world::WorldError;
use crate::world::diagram::Diagram;
use crate::world::namespaces::name_matches;
use crate::world::variables::{FAMILY, Labelled, Role};
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, ServicesBehind};
use weir_model::labels::matches;
use weir_model::{
    Cluster, Direction, EndpointId, HostNetworkPods, Icmp, IpBlockPods, ListAction, NamedPort, Peer, Policy, PortMatch,
    PortRule, Rule, RuleAction, SelectorId, ServiceId, Standing, Tier, TierPeer, TierRule,
};
use weir_objects::address::Family;
use weir_objects::k8s::{Labels, NAMESPACE_NAME_LABEL};

/// An end of a flow, with its known properties.
#[derive(Clone, Debug)]
pub(super) struct AskedParty {
    role: Role,
    pub(super) endpoint: Option<EndpointId>,
    /// If policies select it.
    member: Option<MemberPod>,
    /// At most one of each family; `None` if the address is unknown.
    pub(super) addresses: Option<Vec<IpAddr>>,
}

#[derive(Clone, Debug)]
struct MemberPod {
    namespace: String,
    labels: Labels,
    /// `None` if the names of its ports are unknown.
    ports: Option<Vec<NamedPort>>,
}

/// Protocol and port of a flow.
#[derive(Clone, Copy)]
struct TargetPort {
    protocol: FlowProtocol,
    port: u16,
}

impl AskedParty {
    pub(super) fn new(cluster: &Cluster, directory: &Directory<'_>, role: Role, end: &AskedEnd) -> Self {
        match end {
            AskedEnd::Described(pod) => {
                let member = MemberPod {
                    namespace: pod.namespace.clone(),
                    labels: pod.labels.clone(),
                    ports: pod.ports.clone(),
                };
                Self { role, endpoint: None, member: Some(member), addresses: pod.address.map(|it| vec![it]) }
            }
            AskedEnd::Known(endpoint, addresses) => {
                let at_address = || addresses.iter().find_map(|it| directory.endpoint_at(*it));
                Self::known(cluster, role, endpoint.or_else(at_address), addresses.clone())
            }
        }
    }

    fn known(cluster: &Cluster, role: Role, id: Option<EndpointId>, addresses: Vec<IpAddr>) -> Self {
        let mut of_family: Vec<IpAddr> = Vec::new();
        for address in addresses {
            if !of_family.iter().any(|it| Family::of(*it) == Family::of(address)) {
                of_family.push(address);
            }
        }
        let member = id.map(|id| &cluster.endpoints[id.index()]).filter(|it| match it.standing {
            Standing::Member => true,
            Standing::HostNetwork => cluster.assume.hostnetwork_pods == HostNetworkPods::Pod,
            Standing::Finished | Standing::Pending => false,
        });
        let member = member.map(|it| MemberPod {
            namespace: cluster.namespaces[it.namespace.index()].name.clone(),
            labels: cluster.labels.labels(it.labels).clone(),
            ports: Some(it.named_ports.to_vec()),
        });
        Self { role, endpoint: id, member, addresses: Some(of_family) }
    }
}

impl<'c> Asked<'c> {
    /// The pods of which all flows are allowed.
    pub(super) fn allowed(&mut self, question: &OpenQuestion) -> Result<Diagram, WorldError> {
        let source = self.source.clone();
        let mut all = Diagram::ALL;
        for (destination, target) in self.targets.clone().into_iter().zip(&question.targets) {
            let target = TargetPort { protocol: target.protocol, port: target.port };
            let one = match self.services_behind(&destination, target) {
                Some(behind) => self.behind(&source, &destination, target, &behind)?,
                None => self.plain(&source, &destination, target)?,
            };
            all = self.diagrams.and(all, one)?;
        }
        Ok(all)
    }

    /// The services at a destination's address. A described pod is on no known node, and has no service's address.
    fn services_behind(&self, destination: &AskedParty, target: TargetPort) -> Option<ServicesBehind> {
        let address =
            destination.addresses.iter().flatten().copied().find(|it| self.cluster.frontend(*it).is_some())?;
        let source = FlowEnd { endpoint: None, address: None };
        let destination = FlowEnd { endpoint: destination.endpoint, address: Some(address) };
        let flow = Flow { source, destination, protocol: target.protocol, port: target.port };
        Oracle::new(self.cluster).services_behind(&flow)
    }

    fn plain(
        &mut self,
        source: &AskedParty,
        destination: &AskedParty,
        target: TargetPort,
    ) -> Result<Diagram, WorldError> {
        let egress = self.side(Direction::Egress, source, destination, target)?;
        let ingress = self.side(Direction::Ingress, destination, source, target)?;
        self.diagrams.and(egress, ingress)
    }

    fn behind(
        &mut self,
        source: &AskedParty,
        destination: &AskedParty,
        target: TargetPort,
        behind: &ServicesBehind,
    ) -> Result<Diagram, WorldError> {
        if let Some((service, port)) = behind.single() {
            return self.service(source, destination, target, service, port);
        }
        let mut all = match behind.owner {
            Some(owner) => self.service(source, destination, target, owner, None)?,
            None => self.plain(source, destination, target)?,
        };
        for (service, port) in &behind.claims {
            let claim = self.service(source, destination, target, *service, Some(*port))?;
            all = self.diagrams.and(all, claim)?;
        }
        Ok(all)
    }

    fn service(
        &mut self,
        source: &AskedParty,
        destination: &AskedParty,
        target: TargetPort,
        service: ServiceId,
        port: Option<u32>,
    ) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        let family = destination.addresses.iter().flatten().next().map(|it| Family::of(*it));
        let ports = &cluster.services[service.index()].ports;
        let backends = port.and_then(|port| ports.get(port as usize)).map_or(&[][..], |port| &port.backends);
        let serving = backends
            .iter()
            .filter(|it| it.address.is_none_or(|it| family.is_none_or(|family| Family::of(it) == family)));
        let mut all = Diagram::ALL;
        let mut has_backend = false;
        for backend in serving {
            has_backend = true;
            let addresses = backend.address.into_iter().collect();
            let end = AskedParty::known(cluster, Role::Destination, backend.endpoint, addresses);
            let one = self.plain(source, &end, TargetPort { port: backend.port, ..target })?;
            all = self.diagrams.and(all, one)?;
        }
        let is_free = target.protocol == FlowProtocol::Icmp && cluster.assume.icmp == Icmp::Allow;
        if is_free || source.member.is_none() {
            return Ok(all);
        }
        let denied = self.denied(Direction::Egress, source, destination)?;
        all = self.diagrams.and_not(all, denied)?;
        if has_backend {
            return Ok(all);
        }
        // Without a backend only a rule that names no peer reaches the port, as the reference says.
        let isolating = self.isolating(Direction::Egress, source);
        let reaches = |rule: &Rule| rule.peers.is_empty() && (port.is_none() || rule.allows_all_ports(target.protocol));
        let mut rules = isolating.iter().flat_map(|it| it.egress.iter().flatten()).filter(|rule| reaches(rule));
        let is_allowed = isolating.is_empty()
            || rules.any(|rule| {
                let known = |it: &PortRule| match &it.port {
                    PortMatch::Any => target.protocol == FlowProtocol::Transport(it.protocol),
                    PortMatch::Range(first, last) => {
                        target.protocol == FlowProtocol::Transport(it.protocol)
                            && (*first..=*last).contains(&target.port)
                    }
                    PortMatch::Named(_) => false,
                };
                rule.ports.is_empty() || rule.ports.iter().any(known)
            });
        let mut allowed = if is_allowed { Diagram::ALL } else { Diagram::NONE };
        let tiers = if isolating.is_empty() { &[Tier::Baseline, Tier::Admin][..] } else { &[Tier::Admin] };
        for tier in tiers {
            allowed = match port {
                // A `Deny` rule may be about any backend that the port gets, and an `Accept` rule about none.
                Some(_) => {
                    let denied = self.any_tier_denial(*tier, Direction::Egress, source)?;
                    self.diagrams.and_not(allowed, denied)?
                }
                // No backend can get a packet to another port, so the address is one like others.
                None => self.fold_tier(*tier, Direction::Egress, source, destination, target, allowed)?,
            };
        }
        self.diagrams.and(all, allowed)
    }

    /// The flows of a subject that any rule of a tier denies, whatever their other end is.
    fn any_tier_denial(
        &mut self,
        tier: Tier,
        direction: Direction,
        subject: &AskedParty,
    ) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        let Some(pod) = subject.member.clone() else { return Ok(Diagram::NONE) };
        let mut denied = Diagram::NONE;
        let denies = |rule: &TierRule| rule.action == RuleAction::Deny;
        for policy in cluster.tiers.iter().filter(|it| it.tier == tier && !it.is_audit) {
            let labels = cluster.labels.selector(policy.pods);
            if policy.rules(direction).iter().any(denies) && matches(labels, &pod.labels) {
                let applies = self.in_namespaces(policy.namespaces, &pod.namespace)?;
                denied = self.diagrams.or(denied, applies)?;
            }
        }
        Ok(denied)
    }

    /// The flows that one side allows.
    fn side(
        &mut self,
        direction: Direction,
        subject: &AskedParty,
        remote: &AskedParty,
        target: TargetPort,
    ) -> Result<Diagram, WorldError> {
        let is_free = target.protocol == FlowProtocol::Icmp && self.cluster.assume.icmp == Icmp::Allow;
        if subject.member.is_none() || is_free {
            return Ok(Diagram::ALL);
        }
        let denied = self.denied(direction, subject, remote)?;
        let isolating = self.isolating(direction, subject);
        let isolated = !isolating.is_empty();
        let mut allowed = if isolated { Diagram::NONE } else { Diagram::ALL };
        for policy in isolating {
            for rule in policy.rules(direction).unwrap_or_default() {
                let destination = if direction == Direction::Ingress { subject } else { remote };
                let ports = self.ports(&rule.ports, destination, target)?;
                let peers = self.peers(policy, rule, remote)?;
                let one = self.diagrams.and(ports, peers)?;
                allowed = self.diagrams.or(allowed, one)?;
            }
        }
        if isolated {
            allowed = self.fold_tier(Tier::Admin, direction, subject, remote, target, allowed)?;
        } else {
            allowed = self.fold_tier(Tier::Baseline, direction, subject, remote, target, allowed)?;
            allowed = self.fold_tier(Tier::Admin, direction, subject, remote, target, allowed)?;
        }
        self.diagrams.and_not(allowed, denied)
    }

    /// Applies a tier to the flows that the later tiers allow: the rules in reverse order, so that the first one that matches
    /// decides.
    fn fold_tier(
        &mut self,
        tier: Tier,
        direction: Direction,
        subject: &AskedParty,
        remote: &AskedParty,
        target: TargetPort,
        below: Diagram,
    ) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        let Some(pod) = subject.member.clone() else { return Ok(below) };
        let destination = if direction == Direction::Ingress { subject } else { remote };
        let mut allowed = below;
        let in_tier = cluster.tiers.iter().rev().filter(|it| it.tier == tier && !it.is_audit);
        for policy in in_tier.filter(|it| matches(cluster.labels.selector(it.pods), &pod.labels)) {
            let applies = self.in_namespaces(policy.namespaces, &pod.namespace)?;
            for rule in policy.rules(direction).iter().rev() {
                let Some(matched) = &rule.matched else { continue };
                let ports = self.ports(&matched.ports, destination, target)?;
                let peers = self.tier_peers(&matched.peers, remote)?;
                let both = self.diagrams.and(ports, peers)?;
                let decided = self.diagrams.and(applies, both)?;
                allowed = match rule.action {
                    RuleAction::Accept => self.diagrams.or(allowed, decided)?,
                    RuleAction::Deny => self.diagrams.and_not(allowed, decided)?,
                    RuleAction::Pass => {
                        let others = self.diagrams.and_not(allowed, decided)?;
                        let passed = self.diagrams.and(below, decided)?;
                        self.diagrams.or(others, passed)?
                    }
                };
            }
        }
        Ok(allowed)
    }

    fn tier_peers(&mut self, peers: &[TierPeer], remote: &AskedParty) -> Result<Diagram, WorldError> {
        if peers.is_empty() {
            return Ok(Diagram::ALL);
        }
        let mut all = Diagram::NONE;
        for peer in peers {
            let one = self.tier_peer(peer, remote)?;
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    fn tier_peer(&mut self, peer: &TierPeer, remote: &AskedParty) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        match peer {
            TierPeer::Pods { namespaces, pods } => match &remote.member {
                Some(pod) if matches(cluster.labels.selector(*pods), &pod.labels) => {
                    self.in_namespaces(*namespaces, &pod.namespace.clone())
                }
                _ => Ok(Diagram::NONE),
            },
            TierPeer::Networks(networks) => self.address_in(remote, &AddressSet::of_networks(networks)),
            // A possible pod is no node.
            TierPeer::Nodes(_) if remote.member.is_some() => Ok(Diagram::NONE),
            TierPeer::Nodes(nodes) => self.address_in(remote, &AddressSet::of_nodes(cluster, *nodes)),
        }
    }

    /// The policies that isolate an end. Pods' labels are always known.
    fn isolating(&self, direction: Direction, subject: &AskedParty) -> Vec<&'c Policy> {
        let cluster = self.cluster;
        let Some(pod) = &subject.member else { return Vec::new() };
        let selects = |policy: &&Policy| {
            policy.rules(direction).is_some()
                && cluster.namespaces[policy.namespace.index()].name == pod.namespace
                && matches(cluster.labels.selector(policy.subjects), &pod.labels)
        };
        cluster.policies.iter().filter(selects).collect()
    }

    /// The flows that lists deny: the first list that contains the address and applies to the pod decides.
    fn denied(
        &mut self,
        direction: Direction,
        subject: &AskedParty,
        remote: &AskedParty,
    ) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        let Some(pod) = &subject.member else { return Ok(Diagram::NONE) };
        let (mut denied, mut undecided) = (Diagram::NONE, Diagram::ALL);
        for (index, list) in cluster.lists.iter().enumerate() {
            let is_asked = match direction {
                Direction::Ingress => list.ingress,
                Direction::Egress => list.egress,
            };
            if !is_asked || !matches(cluster.labels.selector(list.pods), &pod.labels) {
                continue;
            }
            let applies = self.in_namespaces(list.namespaces, &pod.namespace)?;
            let addresses = self.lists[index].clone();
            let contains = self.address_in(remote, &addresses)?;
            let decided = self.diagrams.and(applies, contains)?;
            if list.action == ListAction::Deny {
                let here = self.diagrams.and(undecided, decided)?;
                denied = self.diagrams.or(denied, here)?;
            }
            undecided = self.diagrams.and_not(undecided, decided)?;
        }
        Ok(denied)
    }

    fn peers(&mut self, policy: &Policy, rule: &Rule, remote: &AskedParty) -> Result<Diagram, WorldError> {
        if rule.peers.is_empty() {
            return Ok(Diagram::ALL);
        }
        let mut all = Diagram::NONE;
        for peer in &rule.peers {
            let one = self.peer(policy, peer, remote)?;
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    fn peer(&mut self, policy: &Policy, peer: &Peer, remote: &AskedParty) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        match peer {
            Peer::Pods { namespaces, pods } => {
                let Some(pod) = &remote.member else { return Ok(Diagram::NONE) };
                if !matches(cluster.labels.selector(*pods), &pod.labels) {
                    return Ok(Diagram::NONE);
                }
                match namespaces {
                    Some(selector) => self.in_namespaces(*selector, &pod.namespace),
                    None if cluster.namespaces[policy.namespace.index()].name == pod.namespace => Ok(Diagram::ALL),
                    None => Ok(Diagram::NONE),
                }
            }
            Peer::Block { cidr, except } => {
                if remote.member.is_some() && cluster.assume.ipblock_pods == IpBlockPods::Ignore {
                    return Ok(Diagram::NONE);
                }
                self.address_in(remote, &AddressSet::of_block(*cidr, except))
            }
        }
    }

    /// Whether a namespace selector matches a namespace: all flows, none, or those with matching labels.
    fn in_namespaces(&mut self, selector: SelectorId, namespace: &str) -> Result<Diagram, WorldError> {
        let cluster = self.cluster;
        let selector = cluster.labels.selector(selector);
        let constant = |is: bool| if is { Diagram::ALL } else { Diagram::NONE };
        let role = match self.namespaces.get(namespace) {
            Some(NamespaceLabels::Known(labels)) => return Ok(constant(matches(selector, labels))),
            Some(NamespaceLabels::Unknown(role)) => *role,
            None => {
                let known = cluster.namespaces.iter().find(|it| it.name == namespace);
                let labels = known.map(|it| cluster.labels.labels(it.labels));
                return Ok(constant(labels.is_some_and(|it| matches(selector, it))));
            }
        };
        let mut all = Diagram::ALL;
        for requirement in selector.requirements() {
            if requirement.key == NAMESPACE_NAME_LABEL {
                if !name_matches(requirement.operator, &requirement.values, Some(namespace)) {
                    return Ok(Diagram::NONE);
                }
                continue;
            }
            let accepted = self.variables.accepted(Labelled::Namespace, &requirement);
            let Some(var) = self.variables.label(role, Labelled::Namespace, &requirement.key) else { continue };
            let one = self.diagrams.within(var, &accepted)?;
            all = self.diagrams.and(all, one)?;
        }
        Ok(all)
    }

    /// Whether an end's address is in one of the ranges, which are sorted and disjoint.
    fn address_in(&mut self, end: &AskedParty, ranges: &AddressSet) -> Result<Diagram, WorldError> {
        let Some(known) = &end.addresses else {
            return address_diagram(&mut self.diagrams, &self.variables, ranges, end.role);
        };
        let contains = |address: &IpAddr| ranges.contains(*address);
        let of = |family| {
            let is_in = known.iter().filter(|it| Family::of(**it) == family).any(contains);
            if is_in { Diagram::ALL } else { Diagram::NONE }
        };
        self.diagrams.node(FAMILY, [(Family::V4 as u128, of(Family::V4)), (Family::V6 as u128, of(Family::V6))])
    }

    fn ports(
        &mut self,
        ports: &[PortRule],
        destination: &AskedParty,
        target: TargetPort,
    ) -> Result<Diagram, WorldError> {
        if ports.is_empty() {
            return Ok(Diagram::ALL);
        }
        let mut all = Diagram::NONE;
        for port in ports {
            let one = self.port(port, destination, target)?;
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    fn port(&mut self, port: &PortRule, destination: &AskedParty, target: TargetPort) -> Result<Diagram, WorldError> {
        if target.protocol != FlowProtocol::Transport(port.protocol) {
            return Ok(Diagram::NONE);
        }
        let is_matched = match (&port.port, &destination.member) {
            (PortMatch::Any, _) => true,
            (PortMatch::Range(first, last), _) => (*first..=*last).contains(&target.port),
            (PortMatch::Named(_), None) => false,
            (PortMatch::Named(name), Some(pod)) => match (&pod.ports, self.variables.port_name(name)) {
                (None, Some(var)) => return self.diagrams.within(var, &[(1, u128::MAX)]),
                (None, None) => false,
                (Some(ports), _) => {
                    ports.iter().any(|it| it.name == *name && it.protocol == port.protocol && it.number == target.port)
                }
            },
        };
        Ok(if is_matched { Diagram::ALL } else { Diagram::NONE })
    }
}
