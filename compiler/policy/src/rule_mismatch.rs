//! Why a rule does not match, part by part: what would have to change.
//!
//! The reference oracle answers yes or no. This module asks the same question for each part of a rule, to explain the
//! answer. It never decides anything: a test checks that a rule has no mismatch here exactly if the oracle says that it
//! matches.

use weir_model::eval::{Flow, FlowEnd, FlowProtocol};
use weir_model::labels::matches;
use weir_model::{
    Cluster, Direction, EndpointId, HostNetworkPods, IpBlockPods, NamespaceId, Peer, PolicyId, PortMatch, PortRule,
    Protocol, Rule, SelectorId, Standing,
};
use weir_objects::address::Prefix;
use weir_objects::k8s::{LabelSelector, Labels, Operator, Requirement};

/// Why one rule does not match a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMismatch {
    /// The policy.
    pub policy: PolicyId,
    /// The rule's position in its direction.
    pub rule: u32,
    /// The mismatch of every peer; empty if one matches, or if the rule names no peers.
    pub peers: Vec<String>,
    /// The mismatch of every port; empty if one matches, or if the rule names no ports.
    pub ports: Vec<String>,
}

/// Rules of these policies that do not match, the nearest first.
pub fn mismatches(cluster: &Cluster, policies: &[PolicyId], direction: Direction, flow: &Flow) -> Vec<RuleMismatch> {
    let mut found = Vec::new();
    for id in policies {
        let policy = &cluster.policies[id.index()];
        for (rule, index) in policy.rules(direction).unwrap_or_default().iter().zip(0u32..) {
            let asked = MismatchSearch { cluster, direction, flow, own: policy.namespace };
            found.push(RuleMismatch { policy: *id, rule: index, peers: asked.peers(rule), ports: asked.ports(rule) });
        }
    }
    // Rules with one mismatch come before rules with two, and a wrong port before a wrong peer: a rule for other
    // peers is probably about other traffic.
    found.sort_by_key(|it| (!it.peers.is_empty(), !it.ports.is_empty()));
    found
}

struct MismatchSearch<'a> {
    cluster: &'a Cluster,
    direction: Direction,
    flow: &'a Flow,
    /// The policy's namespace.
    own: NamespaceId,
}

impl MismatchSearch<'_> {
    fn remote(&self) -> FlowEnd {
        match self.direction {
            Direction::Egress => self.flow.destination,
            Direction::Ingress => self.flow.source,
        }
    }

    /// The pod at the other end, if selectors find it.
    fn member(&self) -> Option<EndpointId> {
        self.remote().endpoint.filter(|id| match self.cluster.endpoints[id.index()].standing {
            Standing::Member => true,
            Standing::HostNetwork => self.cluster.assume.hostnetwork_pods == HostNetworkPods::Pod,
            Standing::Finished | Standing::Pending => false,
        })
    }

    fn peers(&self, rule: &Rule) -> Vec<String> {
        all_wrong(rule.peers.iter().map(|peer| self.peer(peer)))
    }

    fn peer(&self, peer: &Peer) -> Option<String> {
        match peer {
            Peer::Pods { namespaces, pods } => self.pods(*namespaces, *pods),
            Peer::Block { cidr, except } => self.block(*cidr, except),
        }
    }

    fn pods(&self, namespaces: Option<SelectorId>, pods: SelectorId) -> Option<String> {
        let Some(id) = self.member() else {
            return Some(match self.remote().endpoint {
                Some(id) => format!("{} is not selected as a pod", self.cluster.endpoint_name(id)),
                None => "selectors match only pods, and the other end is not a pod".to_owned(),
            });
        };
        let endpoint = &self.cluster.endpoints[id.index()];
        let namespace = &self.cluster.namespaces[endpoint.namespace.index()];
        let labelling = &self.cluster.labels;
        let mut wrong = Vec::new();
        match namespaces {
            Some(selector) => {
                let found = unmet(labelling.selector(selector), labelling.labels(namespace.labels));
                wrong.extend(found.into_iter().map(|it| format!("namespace {}: {it}", namespace.name)));
            }
            None if endpoint.namespace != self.own => {
                let own = &self.cluster.namespaces[self.own.index()].name;
                wrong.push(format!("without namespaceSelector only pods of {own} match, not of {}", namespace.name));
            }
            None => {}
        }
        let name = self.cluster.endpoint_name(id);
        let found = unmet(labelling.selector(pods), labelling.labels(endpoint.labels));
        wrong.extend(found.into_iter().map(|it| format!("{name}: {it}")));
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    fn block(&self, cidr: Prefix, except: &[Prefix]) -> Option<String> {
        if self.member().is_some() && self.cluster.assume.ipblock_pods == IpBlockPods::Ignore {
            return Some("ipBlock is assumed not to match pods".to_owned());
        }
        let Some(address) = self.remote().address else {
            return Some(format!("the other end has no address that {cidr} could contain"));
        };
        if !cidr.contains(address) {
            return Some(format!("{address} is not in {cidr}"));
        }
        let hole = except.iter().find(|hole| hole.contains(address))?;
        Some(format!("{address} is in {cidr}, but in its exception {hole}"))
    }

    fn ports(&self, rule: &Rule) -> Vec<String> {
        all_wrong(rule.ports.iter().map(|port| self.port(port)))
    }

    fn port(&self, wanted: &PortRule) -> Option<String> {
        let FlowProtocol::Transport(protocol) = self.flow.protocol else {
            return Some("ICMP is matched only by rules without ports".to_owned());
        };
        let (number, name) = (self.flow.port, protocol_name(wanted.protocol));
        let asked = format!("port {number}/{}", protocol_name(protocol));
        let mismatch = wanted.protocol != protocol;
        match &wanted.port {
            PortMatch::Any => mismatch.then(|| format!("{asked} is not {name}")),
            PortMatch::Range(first, last) => {
                let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
                let outside = mismatch || !(*first..=*last).contains(&number);
                outside.then(|| format!("{asked} is not {range}/{name}"))
            }
            PortMatch::Named(port_name) => self.named_port(port_name, wanted.protocol, &asked),
        }
    }

    /// The port's number. Port names are those of the destination pod.
    fn named_port(&self, name: &str, protocol: Protocol, asked: &str) -> Option<String> {
        let Some(id) = self.flow.destination.endpoint else {
            return Some(format!("an address outside the cluster has no port named `{name}`"));
        };
        let ports = self.cluster.endpoints[id.index()].named_ports.iter();
        let found: Vec<u16> =
            ports.filter(|it| it.name == name && it.protocol == protocol).map(|it| it.number).collect();
        let owner = self.cluster.endpoint_name(id);
        let protocol_name = protocol_name(protocol);
        if found.is_empty() {
            return Some(format!("{owner} has no {protocol_name} port named `{name}`"));
        }
        if self.flow.protocol == FlowProtocol::Transport(protocol) && found.contains(&self.flow.port) {
            return None;
        }
        let numbers: Vec<String> = found.iter().map(u16::to_string).collect();
        Some(format!("{asked} is not `{name}`, which is {}/{protocol_name} on {owner}", numbers.join(" and ")))
    }
}

/// The mismatch of each part; empty if one part matches or if there are no parts.
fn all_wrong(parts: impl Iterator<Item = Option<String>>) -> Vec<String> {
    parts.collect::<Option<Vec<_>>>().unwrap_or_default()
}

fn unmet(selector: &LabelSelector, labels: &Labels) -> Vec<String> {
    if matches(selector, labels) {
        return Vec::new();
    }
    let equal = selector.match_labels.iter().filter_map(|(key, value)| match labels.get(key) {
        None => Some(format!("label {key}={value} is missing")),
        Some(found) if found != value => Some(format!("label {key} is `{found}`, not `{value}`")),
        Some(_) => None,
    });
    equal.chain(selector.match_expressions.iter().filter_map(|it| unmet_requirement(it, labels))).collect()
}

fn unmet_requirement(requirement: &Requirement, labels: &Labels) -> Option<String> {
    let Requirement { key, operator, values } = requirement;
    let values = values.join(", ");
    let is_listed = |found: &str| requirement.values.iter().any(|it| it == found);
    match (operator, labels.get(key)) {
        (Operator::In, None) => Some(format!("label {key} is missing (In {values})")),
        (Operator::In, Some(found)) if !is_listed(found) => {
            Some(format!("label {key} is `{found}`, not one of {values}"))
        }
        (Operator::NotIn, Some(found)) if is_listed(found) => {
            Some(format!("label {key} is `{found}`, but must not be one of {values}"))
        }
        (Operator::Exists, None) => Some(format!("label {key} is missing")),
        (Operator::DoesNotExist, Some(_)) => Some(format!("label {key} is set, but must not be")),
        _ => None,
    }
}

/// `tcp`, `udp`, `sctp`
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}
