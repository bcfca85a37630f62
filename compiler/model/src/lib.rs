//! The meaning of all objects together: the cluster, with every name resolved and every rule ready to be evaluated.
//!
//! Built by [`crate::resolve`]; read by [`eval`], the reference oracle, and by all later stages. Everything is sorted
//! by name, so the order of the input's objects has no effect. Label sets and selectors are interned: two pods with the
//! same labels share a [`LabelSetId`], two rules with the same selector share a [`SelectorId`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod resolve;

mod added_pod;
mod address_ranges;
pub mod controllers;
pub mod directory;
pub mod eval;
mod frontends;
mod host_ports;
mod interner;
pub mod labels;
mod tiers;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

pub use added_pod::AddedPod;
pub use address_ranges::AddressRanges;
pub use frontends::{Frontend, FrontendPort, FrontendPorts};
pub use host_ports::HostPort;
pub use interner::Interner;
pub use labels::{LabelSetId, SelectorId};
pub use tiers::{TierMatch, TierPeer, TierPolicy, TierPolicyId, TierRule, TierRuleId};

use weir_objects::address::Prefix;
use weir_objects::k8s;
pub use weir_objects::k8s::{
    ClusterPolicyKind, Direction, ListAction, ListEntry, NamedPort, PortMatch, Protocol, RuleAction, Tier,
};
use weir_objects::name::Name;
use weir_objects::origin::{FieldOrigin, FieldPath, ObjectId};

/// Defines a number that names one kind of thing, such as `id!(/// A block.\n BlockId, "b")`. It prints as letter and
/// number.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index of its list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

id!(/// A namespace. Prints as `ns3`.
    NamespaceId, "ns");
id!(/// An endpoint. Prints as `ep3`.
    EndpointId, "ep");
id!(/// A node. Prints as `node3`.
    NodeId, "node");
id!(/// A service. Prints as `svc3`.
    ServiceId, "svc");
id!(/// A policy. Prints as `pol3`.
    PolicyId, "pol");
id!(/// An address list. Prints as `list3`.
    ListId, "list");

/// Everything that a verdict can depend on.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Sorted by name.
    pub namespaces: Vec<Namespace>,
    /// Sorted by namespace, name, kind.
    pub endpoints: Vec<Endpoint>,
    /// Addresses that a pod reports but does not get, because other pods report them too. Sorted by pod.
    pub lost_addresses: Vec<(EndpointId, Vec<IpAddr>)>,
    /// Sorted by name.
    pub nodes: Vec<Node>,
    /// Sorted by namespace, name.
    pub services: Vec<Service>,
    /// The addresses that lead to services, sorted.
    pub frontends: Vec<Frontend>,
    /// The hostPorts of pods that have an address, sorted; none where node ports are only addresses.
    pub host_ports: Vec<HostPort>,
    /// In the order in which they are evaluated.
    pub lists: Vec<CidrList>,
    /// Those that are enforced. Sorted by namespace, name.
    pub policies: Vec<Policy>,
    /// Those that are only reported, sorted likewise. Their numbers follow those of the enforced ones.
    pub audit: Vec<Policy>,
    /// Cluster-wide policies, enforced and audit ones, in the order in which they are evaluated.
    pub tiers: Vec<TierPolicy>,
    /// Label sets and selectors.
    pub labels: labels::Labelling,
    /// The choices where the API text is open.
    pub assume: Assumptions,
    /// Objects of the input that are not here, because no verdict in question depends on them.
    pub left_out: LeftOut,
}

/// The numbers of objects that a cluster leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Endpoints.
    pub endpoints: usize,
    /// Enforced policies.
    pub policies: usize,
    /// Audit policies.
    pub audit: usize,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its labels, `kubernetes.io/metadata.name` always among them.
    pub labels: LabelSetId,
    /// The object, if the input has one.
    pub object: Option<ObjectId>,
}

/// Something that policies select: a pod, or a workload that represents its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: String,
    /// `Pod`, or the workload's kind.
    pub kind: Cow<'static, str>,
    /// Whether it represents several pods. Traffic from it to itself is then between two of them.
    pub is_several: bool,
    /// Its labels.
    pub labels: LabelSetId,
    /// Its role on the network.
    pub standing: Standing,
    /// Its addresses, the primary one first; none for a workload, or a pod that is only a manifest.
    pub addresses: Vec<IpAddr>,
    /// The node it runs on.
    pub node: Option<NodeId>,
    /// Named ports, in the order of the containers; several may share a name.
    pub named_ports: Arc<[NamedPort]>,
    /// The controller that owns it (`Kind/name`): verdicts never depend on it, but reports group by it.
    pub owner: Option<String>,
    /// Whether it is being deleted. It counts until its address goes.
    pub terminating: bool,
    /// `metadata.uid`
    pub uid: Option<Name>,
    /// The object.
    pub object: ObjectId,
}

/// Whether policies select an endpoint, and whether selectors find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Subject and peer.
    Member,
    /// In the node's network namespace: its address is the node's.
    HostNetwork,
    /// Succeeded or Failed: its address may belong to another pod.
    Finished,
    /// Not on the network yet.
    Pending,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// Its labels; none if only pods mention it.
    pub labels: LabelSetId,
    /// The object, if the input has one.
    pub object: Option<ObjectId>,
}

/// A service with its ports and backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: String,
    /// ClusterIPs, and the external and load-balancer addresses that a service proxy translates, sorted.
    pub addresses: Vec<IpAddr>,
    /// The ClusterIPs among them, sorted.
    pub cluster_addresses: Vec<IpAddr>,
    /// Its ports, in the order written.
    pub ports: Vec<ServicePort>,
    /// The object.
    pub object: ObjectId,
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; may be empty.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on the service's addresses.
    pub port: u16,
    /// The port on every node's addresses.
    pub node_port: Option<u16>,
    /// Every backend that a service proxy may use on some node, sorted.
    pub backends: Vec<Backend>,
}

/// A backend of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// The endpoint, if the address belongs to one.
    pub endpoint: Option<EndpointId>,
    /// The address; `None` if the endpoint has none.
    pub address: Option<IpAddr>,
    /// The port there.
    pub port: u16,
}

/// An address list, decided before policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrList {
    /// Its name.
    pub name: String,
    /// Whether its addresses are allowed or denied.
    pub action: ListAction,
    /// Its rank among the lists: lower ones decide first.
    pub order: i64,
    /// Whether it applies to packets to the pod.
    pub ingress: bool,
    /// Whether it applies to packets from the pod.
    pub egress: bool,
    /// Namespaces of the pods it applies to.
    pub namespaces: SelectorId,
    /// The pods it applies to.
    pub pods: SelectorId,
    /// Its address ranges.
    pub entries: Vec<ListEntry>,
    /// The object. A list file is an object too.
    pub object: ObjectId,
}

/// A NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: String,
    /// The pods it selects, in its namespace.
    pub subjects: SelectorId,
    /// Ingress rules; `None` if it does not isolate in this direction.
    pub ingress: Option<Vec<Rule>>,
    /// Egress rules; `None` if it does not isolate in this direction.
    pub egress: Option<Vec<Rule>>,
    /// Rules written for a direction that `policyTypes` does not name: they do nothing.
    pub inert: Option<Direction>,
    /// The object.
    pub object: ObjectId,
}

/// One rule; its position is its index in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The peers; empty means every peer.
    pub peers: Vec<Peer>,
    /// The ports; empty means all ports of every protocol.
    pub ports: Vec<PortRule>,
}

/// The other end of a rule's traffic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Pods by labels.
    Pods {
        /// Which namespaces; `None` is the policy's own.
        namespaces: Option<SelectorId>,
        /// Which pods in them.
        pods: SelectorId,
    },
    /// Addresses.
    Block {
        /// The block.
        cidr: Prefix,
        /// Blocks that are excepted from this block, and from no other.
        except: Vec<Prefix>,
    },
}

/// The ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRule {
    /// The protocol.
    pub protocol: Protocol,
    /// The port, range of ports or port name.
    pub port: PortMatch,
}

impl Policy {
    /// The rules of a direction; `None` if the policy does not isolate in it.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// The position of a rule in its object.
    pub fn rule_origin(&self, direction: Direction, rule: usize) -> FieldOrigin {
        FieldOrigin::new(self.object, rule_path(direction, rule))
    }
}

/// `spec.ingress[3]`
pub fn rule_path(direction: Direction, rule: usize) -> FieldPath {
    FieldPath::root().field("spec").field(direction.name()).index(rule)
}

impl Cluster {
    /// `namespace/name` of an endpoint.
    pub fn endpoint_name(&self, id: EndpointId) -> String {
        let endpoint = &self.endpoints[id.index()];
        format!("{}/{}", self.namespaces[endpoint.namespace.index()].name, endpoint.name)
    }

    /// The first entry of a list that contains an address.
    pub fn list_entry(&self, list: ListId, address: IpAddr) -> Option<usize> {
        self.lists.get(list.index())?.entries.iter().position(|entry| entry.contains(address))
    }

    /// `namespace/name` of a service.
    pub fn service_name(&self, id: ServiceId) -> String {
        let service = &self.services[id.index()];
        [self.namespaces[service.namespace.index()].name.as_str(), "/", service.name.as_str()].concat()
    }

    /// A policy, enforced or in audit mode.
    pub fn policy(&self, id: PolicyId) -> &Policy {
        let audit = || &self.audit[id.index() - self.policies.len()];
        self.policies.get(id.index()).unwrap_or_else(audit)
    }

    /// Whether a policy is only reported.
    pub fn is_audit(&self, id: PolicyId) -> bool {
        id.index() >= self.policies.len()
    }

    /// Whether any policy is only reported.
    pub fn has_audit(&self) -> bool {
        !self.audit.is_empty() || self.tiers.iter().any(|policy| policy.is_audit)
    }

    /// The same cluster, with its audit policies enforced. Policies keep their numbers.
    #[must_use]
    pub fn with_audit_enforced(&self) -> Self {
        let policies = self.policies.iter().chain(&self.audit).cloned().collect();
        let tiers = self.tiers.iter().map(|it| TierPolicy { is_audit: false, ..it.clone() }).collect();
        Self { policies, audit: Vec::new(), tiers, ..self.clone() }
    }

    /// `namespace/name` of a policy.
    pub fn policy_name(&self, id: PolicyId) -> String {
        let policy = self.policy(id);
        format!("{}/{}", self.namespaces[policy.namespace.index()].name, policy.name)
    }
}

/// Choices where the API text is open (`--assume KEY=VALUE`). The defaults are in docs/semantics.md, with reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Assumptions {
    /// `ipblock-pods`: does `ipBlock` match pods' addresses?
    pub ipblock_pods: IpBlockPods,
    /// `hostnetwork-pods`: do these pods count as their node, or as pods like others?
    pub hostnetwork_pods: HostNetworkPods,
    /// `icmp`: which rules apply to it?
    pub icmp: Icmp,
    /// `named-port-twice`: which port is meant if a pod has several of one name?
    pub named_port_twice: NamedPortTwice,
    /// `service-address`: how is a packet to a service address judged?
    pub service_address: ServiceAddress,
    /// `established`: what happens to connections that policy no longer allows?
    pub established: Established,
    /// `audit`: how do policies in audit mode count?
    pub audit: Audit,
}

macro_rules! assumption {
    ($(#[$doc:meta])* $name:ident, $key:literal, $($(#[$vdoc:meta])* $variant:ident = $value:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The key on the command line.
            pub const KEY: &'static str = $key;
            /// The values on the command line, the default first.
            pub const VALUES: &'static [&'static str] = &[$($value),+];

            fn parse(text: &str) -> Option<Self> {
                match text { $($value => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

assumption!(/// Does `ipBlock` match pods' addresses?
    IpBlockPods, "ipblock-pods",
    /// Yes: the block matches addresses, also those of pods.
    #[default] Match = "match",
    /// No: only addresses outside the cluster's pods.
    Ignore = "ignore");
assumption!(/// What are hostNetwork pods?
    HostNetworkPods, "hostnetwork-pods",
    /// Their node: neither subjects nor pod peers.
    #[default] Node = "node",
    /// Pods like others, as far as a flow names them.
    Pod = "pod");
assumption!(/// What is ICMP subject to?
    Icmp, "icmp",
    /// To rules without ports.
    #[default] Policy = "policy",
    /// To nothing: it always passes.
    Allow = "allow");
assumption!(/// Which of several ports of one name and protocol in one pod?
    NamedPortTwice, "named-port-twice",
    /// All of them.
    #[default] All = "all",
    /// The one of the first container, as Services resolve it.
    First = "first");
assumption!(/// How is a packet to a service address judged?
    ServiceAddress, "service-address",
    /// By all ready backends: every one must be allowed.
    #[default] Backends = "backends",
    /// Like any other address, by `ipBlock` alone.
    Address = "address");
assumption!(/// What becomes of connections that policy no longer allows?
    Established, "established",
    /// They are cut.
    #[default] Cut = "cut",
    /// They continue until they end.
    Keep = "keep");

assumption!(/// What are policies in audit mode?
    Audit, "audit",
    /// They decide nothing; where they would, that is reported.
    #[default] Report = "report",
    /// They are policies like others.
    Enforce = "enforce");

/// An assumption that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssumptionError {
    /// No such key.
    #[error("no assumption is called `{key}`; there are: {known}")]
    Key {
        /// As given.
        key: String,
        /// All there are.
        known: String,
    },
    /// No such value.
    #[error("`{key}` cannot be `{value}`; it is one of: {known}")]
    Value {
        /// The key.
        key: String,
        /// As given.
        value: String,
        /// All there are.
        known: String,
    },
}

impl Assumptions {
    /// Every key with its values, the default first.
    pub const KEYS: &'static [(&'static str, &'static [&'static str])] = &[
        (IpBlockPods::KEY, IpBlockPods::VALUES),
        (HostNetworkPods::KEY, HostNetworkPods::VALUES),
        (Icmp::KEY, Icmp::VALUES),
        (NamedPortTwice::KEY, NamedPortTwice::VALUES),
        (ServiceAddress::KEY, ServiceAddress::VALUES),
        (Established::KEY, Established::VALUES),
        (Audit::KEY, Audit::VALUES),
    ];

    /// Sets one assumption.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), AssumptionError> {
        let done = match key {
            IpBlockPods::KEY => IpBlockPods::parse(value).map(|it| self.ipblock_pods = it),
            HostNetworkPods::KEY => HostNetworkPods::parse(value).map(|it| self.hostnetwork_pods = it),
            Icmp::KEY => Icmp::parse(value).map(|it| self.icmp = it),
            NamedPortTwice::KEY => NamedPortTwice::parse(value).map(|it| self.named_port_twice = it),
            ServiceAddress::KEY => ServiceAddress::parse(value).map(|it| self.service_address = it),
            Established::KEY => Established::parse(value).map(|it| self.established = it),
            Audit::KEY => Audit::parse(value).map(|it| self.audit = it),
            _ => {
                let known = Self::KEYS.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
                return Err(AssumptionError::Key { key: key.to_owned(), known });
            }
        };
        done.ok_or_else(|| {
            let values = Self::KEYS.iter().find(|(known, _)| *known == key).map_or(&[][..], |(_, values)| values);
            AssumptionError::Value { key: key.to_owned(), value: value.to_owned(), known: values.join(", ") }
        })
    }
}

// Types that the model takes from objects unchanged.
impl From<&k8s::PolicyPort> for PortRule {
    fn from(port: &k8s::PolicyPort) -> Self {
        Self { protocol: port.protocol, port: port.port.clone() }
    }
}
