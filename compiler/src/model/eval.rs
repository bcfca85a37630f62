//! The reference oracle: the text of the API, transcribed. Obviously right before anything else.
//!
//! Problem: everything to the right (classes, tables, bytecode) is clever, and needs something to be wrong against.
//! Strategy: ask, for one flow, exactly what the API documentation says, rule by rule; the sentence stands beside the
//! code as `// Spec:`. The only concession to speed is memory: which policies select a pod, and whether a selector
//! matches a label set, are asked once.
//! Invariants: shares no code with classify and lower; never looks at more than the [`Cluster`].

use std::collections::HashMap;
use std::net::IpAddr;

use super::directory::Directory;
use super::labels::Selection;
use super::{
    Backend, Cluster, Direction, Endpoint, EndpointId, HostNetworkPods, Icmp, IpBlockPods, LabelSetId, ListAction,
    ListId, NamespaceId, Peer, PolicyId, PortMatch, PortRule, Protocol, Rule, SelectorId, ServiceAddress, ServiceId,
    Standing,
};
use crate::address::Family;

/// A new connection as the pods see it: after DNAT, before SNAT, unless the destination is a service address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Who begins it.
    pub source: End,
    /// Who it goes to.
    pub destination: End,
    /// Over what.
    pub protocol: FlowProtocol,
    /// The destination port; 0 where the protocol has none.
    pub port: u16,
}

/// One end of a flow: an endpoint, an address, or both (then the address is one of the endpoint's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The endpoint; `None` for an address that is no endpoint's.
    pub endpoint: Option<EndpointId>,
    /// The address; `None` for an endpoint without addresses.
    pub address: Option<IpAddr>,
}

/// What a flow runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowProtocol {
    /// A protocol with ports.
    Transport(Protocol),
    /// ICMP or ICMPv6.
    Icmp,
}

/// Pass or drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Pass.
    Allow,
    /// Drop.
    Deny,
}

/// The verdicts at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Where the flow leaves its source.
    pub egress: Side,
    /// Where it reaches its destination.
    pub ingress: Side,
}

impl Judgement {
    /// Both ends must allow.
    pub fn verdict(&self) -> Verdict {
        self.egress.verdict.max(self.ingress.verdict)
    }

    /// One end.
    pub fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The verdict at one end, and what decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Pass or drop.
    pub verdict: Verdict,
    /// What decided.
    pub basis: Basis,
}

/// What decided a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The end is no subject: outside the cluster, on the host's network, finished or not there yet.
    NotSubject,
    /// A pod reaches itself.
    Itself,
    /// A pod and its own node reach each other.
    OwnNode,
    /// ICMP, where it is assumed to pass.
    IcmpAssumed,
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// An address list denies.
    List(ListId),
    /// The pod is isolated, and these rules allow (all of them, in policy order).
    Rules(Vec<RuleId>),
    /// The pod is isolated by these policies, and none of their rules allows.
    Isolated(Vec<PolicyId>),
    /// The destination is a service's address: what its backends say.
    Service(ServiceBasis),
}

/// A rule of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// The policy.
    pub policy: PolicyId,
    /// The index of the rule in its direction's list.
    pub rule: u32,
}

/// A service port's backends, judged one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBasis {
    /// The service.
    pub service: ServiceId,
    /// The index of its port; `None` if the service has no such port.
    pub port: Option<u32>,
    /// What each ready backend gets, in the service's order.
    pub backends: Vec<Side>,
}

/// Answers for one cluster.
#[derive(Debug)]
pub struct Oracle<'c> {
    cluster: &'c Cluster,
    directory: Directory<'c>,
    selection: Selection,
    policies_of: HashMap<NamespaceId, Vec<PolicyId>>,
    /// By endpoint, once asked.
    selecting: Vec<Option<Vec<PolicyId>>>,
    lists: Vec<Ranges>,
}

/// The ports of one question: of the flow, or of a backend behind a service.
#[derive(Clone, Copy)]
struct Target {
    protocol: FlowProtocol,
    port: u16,
}

impl<'c> Oracle<'c> {
    /// For a cluster.
    pub fn new(cluster: &'c Cluster) -> Self {
        let mut policies_of: HashMap<NamespaceId, Vec<PolicyId>> = HashMap::new();
        for (index, policy) in cluster.policies.iter().enumerate() {
            policies_of.entry(policy.namespace).or_default().push(PolicyId(index as u32));
        }
        Self {
            cluster,
            directory: Directory::new(cluster),
            selection: Selection::new(&cluster.labels),
            policies_of,
            selecting: vec![None; cluster.endpoints.len()],
            lists: cluster.lists.iter().map(Ranges::new).collect(),
        }
    }

    /// Names and addresses of the cluster.
    pub fn directory(&self) -> &Directory<'c> {
        &self.directory
    }

    /// What becomes of a new connection.
    // Spec: "For a connection from a source pod to a destination pod to be allowed, both the egress policy on the
    // source pod and the ingress policy on the destination pod need to allow the connection."
    pub fn judge(&mut self, flow: &Flow) -> Judgement {
        let source = self.complete(flow.source);
        let destination = self.complete(flow.destination);
        let target = Target { protocol: flow.protocol, port: flow.port };
        if let Some(found) = self.find_service(source, destination, target) {
            return self.judge_service(source, destination, target, found);
        }
        Judgement {
            egress: self.judge_side(Direction::Egress, source, destination, target),
            ingress: self.judge_side(Direction::Ingress, destination, source, target),
        }
    }

    /// What a flow's destination is translated to, if it is a service's address: the service, and the index of its port.
    pub fn service_of(&self, flow: &Flow) -> Option<(ServiceId, Option<u32>)> {
        let target = Target { protocol: flow.protocol, port: flow.port };
        self.find_service(self.complete(flow.source), self.complete(flow.destination), target)
    }

    /// An address alone stands for the pod that has it.
    pub fn complete(&self, end: End) -> End {
        let endpoint = end.endpoint.or_else(|| self.directory.endpoint_at(end.address?));
        End { endpoint, address: end.address }
    }

    fn judge_side(&mut self, direction: Direction, subject: End, remote: End, target: Target) -> Side {
        let Some(endpoint) = subject.endpoint.filter(|id| self.is_member(*id)) else {
            return Side::allow(Basis::NotSubject);
        };
        if let Some(basis) = self.beyond_policy(endpoint, remote, target) {
            return Side::allow(basis);
        }
        if let Some(list) = self.denying_list(direction, endpoint, remote) {
            return Side { verdict: Verdict::Deny, basis: Basis::List(list) };
        }
        let isolating = self.isolating(direction, endpoint);
        // Spec: "By default, a pod is non-isolated for egress; all outbound connections are allowed." (ingress likewise)
        if isolating.is_empty() {
            return Side::allow(Basis::NotIsolated);
        }
        let rules = self.allowing_rules(direction, &isolating, endpoint, remote, target);
        match rules.is_empty() {
            true => Side { verdict: Verdict::Deny, basis: Basis::Isolated(isolating) },
            false => Side::allow(Basis::Rules(rules)),
        }
    }

    /// What no policy can forbid.
    fn beyond_policy(&self, subject: EndpointId, remote: End, target: Target) -> Option<Basis> {
        let endpoint = self.endpoint(subject);
        // Spec: "A Pod cannot block access to itself."
        if remote.endpoint == Some(subject) || remote.address.is_some_and(|at| endpoint.addresses.contains(&at)) {
            return Some(Basis::Itself);
        }
        // Spec: "Traffic to and from the node where a Pod is running is always allowed, regardless of the IP address of
        // the Pod or the node."
        if self.is_own_node(endpoint, remote) {
            return Some(Basis::OwnNode);
        }
        let passes = target.protocol == FlowProtocol::Icmp && self.cluster.assume.icmp == Icmp::Allow;
        passes.then_some(Basis::IcmpAssumed)
    }

    fn is_own_node(&self, endpoint: &Endpoint, remote: End) -> bool {
        let Some(node) = endpoint.node else { return false };
        if let Some(id) = remote.endpoint {
            let other = self.endpoint(id);
            if self.is_member(id) {
                return false;
            }
            // Other pods have the node's address, if they have one.
            if other.standing == Standing::HostNetwork && other.node == Some(node) {
                return true;
            }
        }
        remote.address.is_some_and(|at| self.cluster.nodes[node.index()].addresses.contains(&at))
    }

    /// Whether policies select the endpoint, and selectors find it.
    // Spec: "Behavior when a Pod is in hostNetwork mode is undefined"; the commonest: "hostNetwork pods are ignored when
    // matching podSelector and namespaceSelector. Traffic to/from them is treated as traffic to/from the node IP."
    fn is_member(&self, id: EndpointId) -> bool {
        match self.endpoint(id).standing {
            Standing::Member => true,
            Standing::HostNetwork => self.cluster.assume.hostnetwork_pods == HostNetworkPods::Pod,
            Standing::Finished | Standing::Pending => false,
        }
    }

    /// The first list that contains the remote address, if it denies.
    fn denying_list(&mut self, direction: Direction, subject: EndpointId, remote: End) -> Option<ListId> {
        let address = remote.address?;
        let cluster = self.cluster;
        for (index, list) in cluster.lists.iter().enumerate() {
            let asked = match direction {
                Direction::Ingress => list.ingress,
                Direction::Egress => list.egress,
            };
            if asked && self.lists[index].contains(address) && self.list_applies(list, subject) {
                return (list.action == ListAction::Deny).then_some(ListId(index as u32));
            }
        }
        None
    }

    fn list_applies(&mut self, list: &super::CidrList, subject: EndpointId) -> bool {
        let endpoint = self.endpoint(subject);
        self.selects_namespace(list.namespaces, endpoint.namespace) && self.selects(list.pods, endpoint.labels)
    }

    /// The policies that isolate the endpoint in this direction.
    // Spec: "A pod is isolated for egress if there is any NetworkPolicy that both selects the pod and has "Egress" in its
    // policyTypes" (ingress likewise).
    fn isolating(&mut self, direction: Direction, id: EndpointId) -> Vec<PolicyId> {
        let policies = &self.cluster.policies;
        let selecting = self.selecting(id);
        selecting.iter().copied().filter(|id| policies[id.index()].rules(direction).is_some()).collect()
    }

    // Spec: "podSelector selects the pods to which this NetworkPolicy object applies"; policies are namespaced.
    fn selecting(&mut self, id: EndpointId) -> &[PolicyId] {
        if self.selecting[id.index()].is_none() {
            let cluster = self.cluster;
            let endpoint = &cluster.endpoints[id.index()];
            let candidates = self.policies_of.get(&endpoint.namespace).cloned().unwrap_or_default();
            let chosen = candidates
                .into_iter()
                .filter(|policy| self.selects(cluster.policies[policy.index()].subjects, endpoint.labels))
                .collect();
            self.selecting[id.index()] = Some(chosen);
        }
        self.selecting[id.index()].as_deref().unwrap_or_default()
    }

    // Spec: "the connection is allowed if it matches at least one rule of at least one policy": additive, no order.
    fn allowing_rules(
        &mut self,
        direction: Direction,
        policies: &[PolicyId],
        subject: EndpointId,
        remote: End,
        target: Target,
    ) -> Vec<RuleId> {
        let cluster = self.cluster;
        let mut allowing = Vec::new();
        for id in policies {
            let policy = &cluster.policies[id.index()];
            for (index, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
                if self.rule_matches(direction, policy.namespace, rule, subject, remote, target) {
                    allowing.push(RuleId { policy: *id, rule: index as u32 });
                }
            }
        }
        allowing
    }

    // Spec: "Each rule allows traffic which matches both the `from` and `ports` sections."
    fn rule_matches(
        &mut self,
        direction: Direction,
        namespace: NamespaceId,
        rule: &Rule,
        subject: EndpointId,
        remote: End,
        target: Target,
    ) -> bool {
        let destination = match direction {
            Direction::Ingress => Some(subject),
            Direction::Egress => remote.endpoint.filter(|id| self.is_member(*id)),
        };
        self.ports_match(rule, destination, target) && self.peers_match(namespace, rule, remote)
    }

    // Spec: "If this field is empty or missing, this rule matches all sources (traffic not restricted by source)."
    fn peers_match(&mut self, namespace: NamespaceId, rule: &Rule, remote: End) -> bool {
        rule.peers.is_empty() || rule.peers.iter().any(|peer| self.peer_matches(namespace, peer, remote))
    }

    fn peer_matches(&mut self, own: NamespaceId, peer: &Peer, remote: End) -> bool {
        let member = remote.endpoint.filter(|id| self.is_member(*id));
        match peer {
            // Spec: "If namespaceSelector is also set, then the NetworkPolicyPeer as a whole selects the pods matching
            // podSelector in the namespaces selected by namespaceSelector. Otherwise it selects the pods matching
            // podSelector in the policy's own namespace."
            Peer::Pods { namespaces, pods } => member.is_some_and(|id| {
                let endpoint = &self.cluster.endpoints[id.index()];
                let in_namespace = match namespaces {
                    Some(selector) => self.selects_namespace(*selector, endpoint.namespace),
                    None => endpoint.namespace == own,
                };
                in_namespace && self.selects(*pods, endpoint.labels)
            }),
            // Spec: "IPBlock describes a particular CIDR that is allowed to the pods matched by a NetworkPolicySpec's
            // podSelector. The except entry describes CIDRs that should not be included within this rule."
            Peer::Block { cidr, except } => {
                let open = member.is_none() || self.cluster.assume.ipblock_pods == IpBlockPods::Match;
                open && remote
                    .address
                    .is_some_and(|address| cidr.contains(address) && !except.iter().any(|hole| hole.contains(address)))
            }
        }
    }

    // Spec: "If this field is empty or missing, this rule matches all ports (traffic not restricted by port)."
    fn ports_match(&self, rule: &Rule, destination: Option<EndpointId>, target: Target) -> bool {
        rule.ports.is_empty() || rule.ports.iter().any(|port| self.port_matches(port, destination, target))
    }

    fn port_matches(&self, port: &PortRule, destination: Option<EndpointId>, target: Target) -> bool {
        // Spec: "protocol represents the protocol (TCP, UDP, or SCTP) which traffic must match. If not specified, this
        // field defaults to TCP."
        if target.protocol != FlowProtocol::Transport(port.protocol) {
            return false;
        }
        match &port.port {
            // Spec: "If this field is not provided, this matches all port names and numbers."
            PortMatch::Any => true,
            // Spec: "endPort indicates that the range of ports from port to endPort if set, inclusive, should be
            // allowed by the policy."
            PortMatch::Range(first, last) => (*first..=*last).contains(&target.port),
            // Spec: "This can either be a numerical or named port on a pod." It is the destination's name.
            PortMatch::Named(name) => destination.is_some_and(|id| {
                self.endpoint(id)
                    .named_ports
                    .iter()
                    .any(|it| it.name == *name && it.protocol == port.protocol && it.number == target.port)
            }),
        }
    }

    fn selects(&mut self, selector: SelectorId, labels: LabelSetId) -> bool {
        self.selection.matches(&self.cluster.labels, selector, labels)
    }

    fn selects_namespace(&mut self, selector: SelectorId, namespace: NamespaceId) -> bool {
        self.selects(selector, self.cluster.namespaces[namespace.index()].labels)
    }

    fn endpoint(&self, id: EndpointId) -> &'c Endpoint {
        &self.cluster.endpoints[id.index()]
    }
}

/// Services: the packet is seen before it is translated, so its address stands for what is behind it.
impl Oracle<'_> {
    /// The service that the destination address belongs to, and which of its ports is meant.
    fn find_service(&self, source: End, destination: End, target: Target) -> Option<(ServiceId, Option<u32>)> {
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

    /// A node translates what is sent to its own addresses; another node is an ordinary address until it does.
    fn find_node_port(&self, source: End, address: IpAddr, target: Target) -> Option<(ServiceId, Option<u32>)> {
        let of_pod = source.endpoint.and_then(|id| self.endpoint(id).node);
        let node = of_pod.or_else(|| self.directory.node_at(source.address?))?;
        if !self.cluster.nodes[node.index()].addresses.contains(&address) {
            return None;
        }
        self.cluster.services.iter().enumerate().find_map(|(id, service)| {
            let is_meant = |port: &super::ServicePort| port.node_port.is_some_and(|it| target.is(port.protocol, it));
            let index = service.ports.iter().position(is_meant)?;
            Some((ServiceId(id as u32), Some(index as u32)))
        })
    }

    /// A service port is allowed if all of its ready backends are.
    fn judge_service(
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

impl Target {
    fn is(self, protocol: Protocol, port: u16) -> bool {
        self.protocol == FlowProtocol::Transport(protocol) && self.port == port
    }
}

impl Backend {
    fn end(&self) -> End {
        End { endpoint: self.endpoint, address: self.address }
    }

    fn serves(&self, family: Option<Family>) -> bool {
        self.address.is_none_or(|address| family.is_none_or(|family| Family::of(address) == family))
    }
}

impl Side {
    fn allow(basis: Basis) -> Self {
        Self { verdict: Verdict::Allow, basis }
    }
}

impl ServiceBasis {
    fn side(self) -> Side {
        let verdict = self.backends.iter().map(|side| side.verdict).max().unwrap_or(Verdict::Allow);
        Side { verdict, basis: Basis::Service(self) }
    }
}

/// The union of a list's entries, so that a list of a million is not walked for every flow.
#[derive(Debug)]
struct Ranges {
    /// Sorted by the first address, disjoint.
    ranges: Vec<(IpAddr, IpAddr)>,
}

impl Ranges {
    fn new(list: &super::CidrList) -> Self {
        let mut entries: Vec<_> = list.entries.iter().map(|entry| (entry.first, entry.last)).collect();
        entries.sort_unstable();
        let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(entries.len());
        for (first, last) in entries {
            match ranges.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        Self { ranges }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let after = self.ranges.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).is_some_and(|index| address <= self.ranges[index].1)
    }
}
