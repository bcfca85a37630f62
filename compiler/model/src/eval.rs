//! The reference oracle: a transcription of the API text. Being obviously correct is more important than speed.
//!
//! Problem: all later stages (classes, tables, bytecode) are optimized, and need a reference that shows their errors.
//! Strategy: evaluate one flow exactly as the API documentation describes, rule by rule; the sentence is quoted beside
//! the code as `// Spec:`. The only optimization is a cache: the policies that select a pod, and the result of a
//! selector for a label set, are computed once.
//! Invariants: shares no code with `classes` and `codegen`; never looks at more than the [`Cluster`].

mod answer;
mod host_ports;
mod service;
mod tiers;

use std::collections::HashMap;
use std::net::IpAddr;

use super::directory::Directory;
use super::labels::Selection;
use super::{
    AddressRanges, Cluster, Direction, Endpoint, EndpointId, HostNetworkPods, Icmp, IpBlockPods, LabelSetId,
    ListAction, ListId, NamespaceId, Peer, PolicyId, PortMatch, PortRule, Protocol, Rule, RuleAction, SelectorId,
    Standing, Tier, TierPolicyId,
};

pub use answer::{
    Basis, ClaimsBasis, EndVerdict, Flow, FlowEnd, HostPortBasis, Judgement, RuleId, ServiceBasis, ServicesBehind,
    Verdict,
};
pub use weir_objects::k8s::FlowProtocol;

/// The oracle for one cluster.
#[derive(Debug)]
pub struct Oracle<'c> {
    cluster: &'c Cluster,
    directory: Directory<'c>,
    selection: Selection,
    policies_of: HashMap<NamespaceId, Vec<PolicyId>>,
    /// A cache, by endpoint.
    selecting: Vec<Option<Vec<PolicyId>>>,
    /// A cache, by endpoint.
    tiers: Vec<Option<Vec<TierPolicyId>>>,
    lists: Vec<AddressRanges>,
}

/// How a packet gets from one end to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// The destination is the address that the sender wrote.
    Direct,
    /// The node translates the destination: a service address or a hostPort.
    Translated,
}

/// The protocol and port of one question: of the flow, or of a backend behind a service.
#[derive(Clone, Copy)]
struct ProtocolPort {
    protocol: FlowProtocol,
    port: u16,
}

impl<'c> Oracle<'c> {
    /// An oracle for a cluster.
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
            tiers: vec![None; cluster.endpoints.len()],
            lists: cluster.lists.iter().map(AddressRanges::of).collect(),
        }
    }

    /// Names and addresses of the cluster.
    pub fn directory(&self) -> &Directory<'c> {
        &self.directory
    }

    /// Judges a new connection.
    // Spec: "For a connection from a source pod to a destination pod to be allowed, both the egress policy on the
    // source pod and the ingress policy on the destination pod need to allow the connection."
    pub fn judge(&mut self, flow: &Flow) -> Judgement {
        let source = self.complete(flow.source);
        let destination = self.complete(flow.destination);
        let target = ProtocolPort { protocol: flow.protocol, port: flow.port };
        let judgement = match self.find_behind(source, destination, target) {
            Some(behind) => self.judge_behind(source, destination, target, &behind),
            None => self.judge_plain(source, destination, target),
        };
        self.judge_host_ports(source, destination, target, judgement)
    }

    /// Judges a flow as if no proxy translated its destination.
    fn judge_plain(&mut self, source: FlowEnd, destination: FlowEnd, target: ProtocolPort) -> Judgement {
        Judgement {
            egress: self.judge_side(Direction::Egress, source, destination, target, Route::Direct),
            ingress: self.judge_side(Direction::Ingress, destination, source, target, Route::Direct),
        }
    }

    /// The services that a flow's destination may be translated to.
    pub fn services_behind(&self, flow: &Flow) -> Option<ServicesBehind> {
        let target = ProtocolPort { protocol: flow.protocol, port: flow.port };
        self.find_behind(self.complete(flow.source), self.complete(flow.destination), target)
    }

    /// The hostPorts at a flow's destination, as indices into [`Cluster::host_ports`].
    pub fn host_ports_of(&self, flow: &Flow) -> Vec<usize> {
        let target = ProtocolPort { protocol: flow.protocol, port: flow.port };
        self.find_host_ports(self.complete(flow.source), self.complete(flow.destination), target)
    }

    /// Adds the endpoint to an end that has only an address: the pod that has it.
    pub fn complete(&self, end: FlowEnd) -> FlowEnd {
        let endpoint = end.endpoint.or_else(|| self.directory.endpoint_at(end.address?));
        FlowEnd { endpoint, address: end.address }
    }

    fn judge_side(
        &mut self,
        direction: Direction,
        subject: FlowEnd,
        remote: FlowEnd,
        target: ProtocolPort,
        route: Route,
    ) -> EndVerdict {
        let Some(endpoint) = subject.endpoint.filter(|id| self.is_member(*id)) else {
            return EndVerdict::allow(Basis::NotSubject);
        };
        let exempt = self.exempt(endpoint, subject.address, remote, target);
        let is_icmp_assumed = self.is_icmp_assumed(target);
        match &exempt {
            Some(Basis::Itself) if (direction, route) == (Direction::Egress, Route::Translated) && !is_icmp_assumed => {
                return self.judge_hairpin(endpoint, remote, target);
            }
            Some(basis) if is_icmp_assumed || !is_subject_to_tiers(basis, direction) => {
                return EndVerdict::allow(basis.clone());
            }
            Some(_) => {}
            None => {
                if let Some(list) = self.denying_list(direction, endpoint, remote) {
                    return EndVerdict::deny(Basis::List(list));
                }
            }
        }
        self.judge_tiers(direction, endpoint, remote, target, exempt)
    }

    /// Judges the packet of a pod that the node sends back to it. No NetworkPolicy and no list can forbid that.
    // Spec: "A Pod connecting to a Service IP that the service proxy load-balances back to the same Pod is subject to
    // ClusterNetworkPolicy." Both directions are judged where the packet leaves the pod: when it comes back, a service
    // proxy may have replaced its source address.
    fn judge_hairpin(&mut self, endpoint: EndpointId, remote: FlowEnd, target: ProtocolPort) -> EndVerdict {
        let leaving = self.judge_tiers(Direction::Egress, endpoint, remote, target, Some(Basis::Itself));
        if leaving.verdict == Verdict::Deny {
            return leaving;
        }
        let arriving = self.judge_tiers(Direction::Ingress, endpoint, remote, target, Some(Basis::Itself));
        if arriving.verdict == Verdict::Deny { arriving } else { leaving }
    }

    /// Judges traffic by all tiers. With `exempt`, no NetworkPolicy can forbid it.
    fn judge_tiers(
        &mut self,
        direction: Direction,
        endpoint: EndpointId,
        remote: FlowEnd,
        target: ProtocolPort,
        exempt: Option<Basis>,
    ) -> EndVerdict {
        // Spec: "Policy tiers are evaluated in the following order: Admin tier, NetworkPolicy tier, Baseline tier".
        let mut passed = Vec::new();
        match self.tier_decision(Tier::Admin, direction, endpoint, remote, target) {
            Some((rule, RuleAction::Accept)) => return EndVerdict::allow(Basis::Tier(rule)),
            Some((rule, RuleAction::Deny)) => return EndVerdict::deny(Basis::Tier(rule)),
            Some((rule, RuleAction::Pass)) => passed.push(rule),
            None => {}
        }
        let isolating = self.isolating(direction, endpoint);
        if !isolating.is_empty() {
            let judged = match exempt {
                Some(basis) => EndVerdict::allow(basis),
                None => self.judge_isolated(direction, isolating, endpoint, remote, target),
            };
            return judged.after(passed);
        }
        // Spec: "v1.NetworkPolicy always makes a final decision for selected pods. Further evaluation only happens for
        // Pods not selected by a v1.NetworkPolicy." Here a pod counts as selected in the directions in which it is
        // isolated, because the text of NetworkPolicy knows no other kind of decision.
        match self.tier_decision(Tier::Baseline, direction, endpoint, remote, target) {
            Some((rule, RuleAction::Accept)) => return EndVerdict::allow(Basis::Tier(rule)).after(passed),
            Some((rule, RuleAction::Deny)) => return EndVerdict::deny(Basis::Tier(rule)).after(passed),
            Some((rule, RuleAction::Pass)) => passed.push(rule),
            None => {}
        }
        // Spec: "By default, a pod is non-isolated for egress; all outbound connections are allowed." (ingress
        // likewise)
        EndVerdict::allow(exempt.unwrap_or(Basis::NotIsolated)).after(passed)
    }

    /// Judges the traffic of an isolated pod by the NetworkPolicies that isolate it.
    fn judge_isolated(
        &mut self,
        direction: Direction,
        isolating: Vec<PolicyId>,
        endpoint: EndpointId,
        remote: FlowEnd,
        target: ProtocolPort,
    ) -> EndVerdict {
        let rules = self.allowing_rules(direction, &isolating, endpoint, remote, target);
        match rules.is_empty() {
            true => EndVerdict::deny(Basis::Isolated(isolating)),
            false => EndVerdict::allow(Basis::Rules(rules)),
        }
    }

    /// The reason why no NetworkPolicy and no list can forbid the traffic, if there is one.
    fn exempt(
        &self,
        subject: EndpointId,
        own_address: Option<IpAddr>,
        remote: FlowEnd,
        target: ProtocolPort,
    ) -> Option<Basis> {
        let endpoint = self.endpoint(subject);
        // Spec: "A Pod cannot block access to itself." Two pods of one workload can.
        let is_itself = match endpoint.is_several {
            true => own_address.is_some() && own_address == remote.address,
            false => {
                remote.endpoint == Some(subject) || remote.address.is_some_and(|at| endpoint.addresses.contains(&at))
            }
        };
        if is_itself {
            return Some(Basis::Itself);
        }
        // Spec: "Traffic to and from the node where a Pod is running is always allowed, regardless of the IP address of
        // the Pod or the node."
        if self.is_own_node(endpoint, remote) {
            return Some(Basis::OwnNode);
        }
        self.is_icmp_assumed(target).then_some(Basis::IcmpAssumed)
    }

    fn is_icmp_assumed(&self, target: ProtocolPort) -> bool {
        target.protocol == FlowProtocol::Icmp && self.cluster.assume.icmp == Icmp::Allow
    }

    fn is_own_node(&self, endpoint: &Endpoint, remote: FlowEnd) -> bool {
        let Some(node) = endpoint.node else { return false };
        if let Some(id) = remote.endpoint {
            let other = self.endpoint(id);
            if self.is_member(id) {
                return false;
            }
            // A pod on the host's network is its node, even if the node has no address.
            if other.standing == Standing::HostNetwork && other.node == Some(node) {
                return true;
            }
        }
        remote.address.is_some_and(|at| self.cluster.nodes[node.index()].addresses.contains(&at))
    }

    /// Whether policies select the endpoint, and selectors find it.
    // Spec: "Behavior when a Pod is in hostNetwork mode is undefined"; the commonest: "hostNetwork pods are ignored
    // when matching podSelector and namespaceSelector. Traffic to/from them is treated as traffic to/from the node IP."
    fn is_member(&self, id: EndpointId) -> bool {
        match self.endpoint(id).standing {
            Standing::Member => true,
            Standing::HostNetwork => self.cluster.assume.hostnetwork_pods == HostNetworkPods::Pod,
            Standing::Finished | Standing::Pending => false,
        }
    }

    /// The first list that contains the remote address, if it denies.
    fn denying_list(&mut self, direction: Direction, subject: EndpointId, remote: FlowEnd) -> Option<ListId> {
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
    // Spec: "A pod is isolated for egress if there is any NetworkPolicy that both selects the pod and has "Egress" in
    // its policyTypes" (ingress likewise).
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
        remote: FlowEnd,
        target: ProtocolPort,
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
        remote: FlowEnd,
        target: ProtocolPort,
    ) -> bool {
        let destination = self.destination(direction, subject, remote);
        self.ports_match(&rule.ports, destination, target) && self.peers_match(namespace, rule, remote)
    }

    /// The destination of a side, if it is a pod.
    fn destination(&self, direction: Direction, subject: EndpointId, remote: FlowEnd) -> Option<EndpointId> {
        match direction {
            Direction::Ingress => Some(subject),
            Direction::Egress => remote.endpoint.filter(|id| self.is_member(*id)),
        }
    }

    // Spec: "If this field is empty or missing, this rule matches all sources (traffic not restricted by source)."
    fn peers_match(&mut self, namespace: NamespaceId, rule: &Rule, remote: FlowEnd) -> bool {
        rule.peers.is_empty() || rule.peers.iter().any(|peer| self.peer_matches(namespace, peer, remote))
    }

    fn peer_matches(&mut self, own: NamespaceId, peer: &Peer, remote: FlowEnd) -> bool {
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
    fn ports_match(&self, ports: &[PortRule], destination: Option<EndpointId>, target: ProtocolPort) -> bool {
        ports.is_empty() || ports.iter().any(|port| self.port_matches(port, destination, target))
    }

    fn port_matches(&self, port: &PortRule, destination: Option<EndpointId>, target: ProtocolPort) -> bool {
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

/// Whether cluster-wide policies apply to traffic that no NetworkPolicy and no list can forbid.
fn is_subject_to_tiers(exempt: &Basis, direction: Direction) -> bool {
    // The text does not mention the own node. No peer of an ingress rule can name its traffic to the pod (probes of the
    // kubelet); `networks` and `nodes` of an egress rule can name its address.
    // Spec: "A Pod connecting to its own Pod IP is not subject to CNP."
    *exempt == Basis::OwnNode && direction == Direction::Egress
}

impl ProtocolPort {
    fn is(self, protocol: Protocol, port: u16) -> bool {
        self.protocol == FlowProtocol::Transport(protocol) && self.port == port
    }
}
