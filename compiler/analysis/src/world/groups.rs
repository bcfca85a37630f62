//! Groups of possible ends, traffic, and products of them, in the policies' own selectors.

use std::collections::BTreeSet;

use crate::addresses::AddressSet;
use weir_model::{Cluster, PolicyId, Protocol};
use weir_objects::address::Family;
use weir_objects::k8s::{LabelSelector, Labels, NAMESPACE_NAME_LABEL, Operator, Requirement};

/// Possible pods: by their namespace's labels, their own labels, and their address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodSet {
    /// Selects by the namespace's labels, `kubernetes.io/metadata.name` among them.
    pub namespaces: LabelSelector,
    /// Selects by the pod's labels.
    pub pods: LabelSelector,
    /// The pod's address is one of these; `None` if it does not matter.
    pub addresses: Option<AddressSet>,
}

impl PodSet {
    /// The pods that a policy selects.
    pub fn selected_by(cluster: &Cluster, policy: PolicyId) -> Self {
        let policy = cluster.policy(policy);
        let namespaces = named_namespace(&cluster.namespaces[policy.namespace.index()].name);
        Self { namespaces, pods: cluster.labels.selector(policy.subjects).clone(), addresses: None }
    }

    /// The name of the namespace, if all pods are in one.
    pub fn only_namespace(&self) -> Option<&str> {
        let Self { namespaces: LabelSelector { match_labels, match_expressions }, .. } = self;
        let by_expression = match_expressions.iter().find_map(|it| match (&it.operator, &it.values[..]) {
            (Operator::In, [only]) if it.key == NAMESPACE_NAME_LABEL => Some(only.as_str()),
            _ => None,
        });
        match_labels.get(NAMESPACE_NAME_LABEL).or(by_expression)
    }

    /// The pods in both sets; `None` if their address ranges have no address in common.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let addresses = match (&self.addresses, &other.addresses) {
            (Some(some), Some(others)) => {
                let common = some.and(others);
                if common.is_empty() {
                    return None;
                }
                Some(common)
            }
            (one, other) => one.clone().or_else(|| other.clone()),
        };
        let (namespaces, pods) = (both(&self.namespaces, &other.namespaces), both(&self.pods, &other.pods));
        Some(Self { namespaces, pods, addresses })
    }
}

/// Possible sources or destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndSet {
    /// Pods in any of these sets.
    pub pods: Vec<PodSet>,
    /// Addresses outside the cluster's pods and services.
    pub ranges: AddressSet,
}

impl EndSet {
    /// Every pod, and every address outside.
    pub(super) fn everything() -> Self {
        Self { pods: vec![PodSet::default()], ranges: AddressSet::all() }
    }

    pub(super) fn pods(pods: PodSet) -> Self {
        Self { pods: vec![pods], ranges: AddressSet::default() }
    }

    /// Pods and outside addresses at these addresses.
    pub(super) fn at(ranges: AddressSet) -> Self {
        Self { pods: vec![PodSet { addresses: Some(ranges.clone()), ..PodSet::default() }], ranges }
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let pods = self.pods.iter().flat_map(|it| other.pods.iter().filter_map(|other| it.and(other))).collect();
        Self { pods, ranges: self.ranges.and(&other.ranges) }
    }

    pub(super) fn extend(&mut self, other: Self) {
        for set in other.pods {
            if !self.pods.contains(&set) {
                self.pods.push(set);
            }
        }
        self.ranges = self.ranges.or(&other.ranges);
    }
}

/// Ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSet {
    /// The protocol.
    pub protocol: Protocol,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
    /// The destination must give the port each of these names, which are sorted.
    pub names: Vec<String>,
}

/// Traffic: ports, and whether traffic without ports is included.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrafficSet {
    /// ICMP and every other traffic that is neither TCP, UDP nor SCTP.
    pub portless: bool,
    /// Ports, in any order.
    pub ports: Vec<PortSet>,
}

impl TrafficSet {
    pub(super) fn everything() -> Self {
        let all = |protocol| PortSet { protocol, first: 1, last: u16::MAX, names: Vec::new() };
        Self { portless: true, ports: [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(all).into() }
    }
}

/// All traffic of a kind from all of the sources to all of the destinations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowProduct {
    /// The sources.
    pub source: EndSet,
    /// The destinations.
    pub destination: EndSet,
    /// The traffic.
    pub traffic: TrafficSet,
}

impl TrafficSet {
    /// The traffic of both sets. `None` if they have no traffic in common.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let mut both = Self { portless: self.portless && other.portless, ports: Vec::new() };
        for one in &self.ports {
            for other in other.ports.iter().filter(|it| it.protocol == one.protocol) {
                let (first, last) = (one.first.max(other.first), one.last.min(other.last));
                if first > last {
                    continue;
                }
                let names: BTreeSet<&String> = one.names.iter().chain(&other.names).collect();
                let names = names.into_iter().cloned().collect();
                both.ports.push(PortSet { protocol: one.protocol, first, last, names });
            }
        }
        (both.portless || !both.ports.is_empty()).then_some(both)
    }
}

impl FlowProduct {
    /// Leaves only addresses of a family. Pods without ranges stay as they are.
    pub(super) fn keep_family(&mut self, family: Family) {
        for end in [&mut self.source, &mut self.destination] {
            end.ranges = end.ranges.of_family(family);
            end.pods.iter_mut().filter_map(|it| it.addresses.as_mut()).for_each(|it| *it = it.of_family(family));
            end.pods.retain(|it| it.addresses.as_ref().is_none_or(|it| !it.is_empty()));
        }
    }
}

/// The selector of one namespace, by its name.
pub(super) fn named_namespace(name: &str) -> LabelSelector {
    LabelSelector { match_labels: Labels::from([(NAMESPACE_NAME_LABEL, name)]), ..LabelSelector::default() }
}

/// The requirement that a namespace has none of these names.
pub(super) fn not_named(names: &[String]) -> LabelSelector {
    let values = names.to_vec();
    let requirement = Requirement { key: NAMESPACE_NAME_LABEL.to_owned(), operator: Operator::NotIn, values };
    LabelSelector { match_expressions: vec![requirement], ..LabelSelector::default() }
}

/// The selector for objects that both selectors match.
pub(super) fn both(one: &LabelSelector, other: &LabelSelector) -> LabelSelector {
    let mut joined = one.clone();
    for requirement in other.requirements() {
        let is_equal = matches!(requirement.operator, Operator::In) && requirement.values.len() == 1;
        match joined.match_labels.get(&requirement.key) {
            Some(value) if is_equal && value == requirement.values[0] => {}
            None if is_equal => {
                let value = requirement.values.into_iter().next().unwrap_or_default();
                joined.match_labels.insert(requirement.key, value);
            }
            _ if joined.match_expressions.contains(&requirement) => {}
            _ => joined.match_expressions.push(requirement),
        }
    }
    joined
}

/// The objects that a selector does not match, as a union of selectors.
pub(super) fn negated(selector: &LabelSelector) -> Vec<LabelSelector> {
    let opposite = |requirement: Requirement| {
        let operator = match requirement.operator {
            Operator::In => Operator::NotIn,
            Operator::NotIn => Operator::In,
            Operator::Exists => Operator::DoesNotExist,
            Operator::DoesNotExist => Operator::Exists,
        };
        LabelSelector { match_expressions: vec![Requirement { operator, ..requirement }], ..LabelSelector::default() }
    };
    selector.requirements().map(opposite).collect()
}
