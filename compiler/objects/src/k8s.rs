//! The objects that Weir reads, reduced to the fields that matter, after validation.
//!
//! Written by `decode` (files) and by the agent's watches (API); read by `resolve` and by lints. Lists keep the
//! positions of the source, so `ingress[2]` here is `spec.ingress[2]` there. These are not `k8s-openapi`'s types: those
//! drop positions and unknown fields, and have a hundred fields that no verdict depends on.

mod cluster_policy;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

pub use cluster_policy::{ClusterPeer, ClusterPolicy, ClusterPolicyKind, ClusterPort, ClusterRule, RuleAction, Tier};

pub use crate::labels::{LabelIter, Labels};

use crate::address::Prefix;
use crate::name::Name;
use crate::origin::ObjectId;

/// The metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// `metadata.name`, or `generateName` if the server would generate the name.
    pub name: String,
    /// `metadata.namespace`; filled with the default namespace for namespaced kinds; empty for others.
    pub namespace: Name,
    /// `metadata.uid`, where a server has set it. A compiled cluster shares it.
    pub uid: Option<Name>,
    /// `metadata.labels`. Shared: pods of one workload have the same, and there are thousands of them.
    pub labels: Arc<Labels>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// One decoded object.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its number in the input.
    pub id: ObjectId,
    /// Name, namespace, labels and UID.
    pub meta: Meta,
    /// The fields of its kind.
    pub body: Body,
}

/// The kinds that Weir reads. Those that are larger than a pod are in a box: an agent has a hundred thousand pods.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are Kubernetes' own")]
pub enum Body {
    Namespace,
    Node(Node),
    Pod(Pod),
    Workload(Workload),
    Service(Service),
    EndpointSlice(EndpointSlice),
    NetworkPolicy(NetworkPolicy),
    ClusterPolicy(Box<ClusterPolicy>),
    CidrList(Box<CidrList>),
}

impl Body {
    /// The name of the kind, as `kind` has it in a manifest.
    pub fn kind(&self) -> &str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node(_) => "Node",
            Self::Pod(_) => "Pod",
            Self::Workload(workload) => &workload.kind,
            Self::Service(_) => "Service",
            Self::EndpointSlice(_) => "EndpointSlice",
            Self::NetworkPolicy(_) => "NetworkPolicy",
            Self::ClusterPolicy(policy) => policy.kind.name(),
            Self::CidrList(_) => "CidrList",
        }
    }
}

/// A node. Its labels are in the object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `status.addresses` of the kinds that are addresses, in order.
    pub addresses: Vec<IpAddr>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `spec.nodeName`
    pub node: Option<Name>,
    /// `spec.hostNetwork`
    pub host_network: bool,
    /// `status.phase`, if there is one.
    pub phase: Option<Phase>,
    /// Whether the `Ready` condition is there and not `True`.
    pub unready: bool,
    /// `status.podIPs` (or `podIP`), the primary one first.
    pub addresses: Vec<IpAddr>,
    /// `status.hostIPs` (or `hostIP`): addresses of its node. Pods of an index share them.
    pub node_addresses: Arc<[IpAddr]>,
    /// Named container ports. Pods of an index share them.
    pub ports: Arc<[NamedPort]>,
    /// Container ports with a `hostPort`.
    pub host_ports: Vec<HostPort>,
    /// The controller that owns it: `Kind/name`.
    pub owner: Option<Name>,
    /// The annotation [`MIRROR`]: the UID of the static pod that this object shows. The container runtime knows the pod
    /// by this UID. Every user who may create pods can set it to any value that is no UID of an API server.
    pub static_uid: Option<Box<str>>,
}

/// The annotation by which the kubelet marks the API's object of a static pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// `status.phase`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Kubernetes' own")]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

/// A named port of a container: of `containers`, and of `initContainers` that keep running (`restartPolicy: Always`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedPort {
    /// Its name.
    pub name: String,
    /// Its protocol; TCP unless said otherwise.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

/// A port of the node that leads to a container, of the same containers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// `hostIP`: the address of the node, if one is named.
    pub address: Option<IpAddr>,
    /// Its protocol; TCP unless said otherwise.
    pub protocol: Protocol,
    /// `hostPort`: the port on the node.
    pub port: u16,
    /// `containerPort`: the port on the pod.
    pub number: u16,
}

/// The two directions, as the pod sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// Both, in the order of the API text.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// `ingress` or `egress`, as in field paths and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// A transport protocol that policies can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the protocols' own")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Its number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// The protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowProtocol {
    /// A protocol with ports.
    Transport(Protocol),
    /// ICMP or ICMPv6.
    Icmp,
}

/// A workload: a template for pods that are not in the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// `Deployment`, `StatefulSet` …
    pub kind: String,
    /// Labels of the template.
    pub pod_labels: Labels,
    /// `hostNetwork` of the template.
    pub host_network: bool,
    /// Named container ports of the template.
    pub ports: Vec<NamedPort>,
    /// Whether at most one of its pods exists at a time.
    pub at_most_one: bool,
    /// The controller that owns it (`Deployment/shop`). If the owner is in the input too, the owner is used instead.
    pub owner: Option<String>,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// `spec.clusterIPs`. Empty if the service is headless, or in a manifest for which no server has assigned an
    /// address yet.
    pub cluster_addresses: Vec<IpAddr>,
    /// Whether `spec.clusterIP` is `None`.
    pub headless: bool,
    /// `spec.externalIPs`, and the load balancer's addresses except those with `ipMode: Proxy`: packets to these must
    /// leave the node, so no service proxy translates them.
    pub external_addresses: Vec<IpAddr>,
    /// Whether `spec.internalTrafficPolicy` or `spec.externalTrafficPolicy` is `Local`.
    pub local_traffic: bool,
    /// `spec.selector`; `None` or empty selects nothing.
    pub selector: Labels,
    /// `spec.publishNotReadyAddresses`
    pub publish_not_ready: bool,
    /// `spec.type: ExternalName`: no address, no backends.
    pub external_name: bool,
    /// `spec.ports`
    pub ports: Vec<ServicePort>,
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// `name`; empty if absent.
    pub name: String,
    /// `protocol`
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
    /// `targetPort`; `port` if absent.
    pub target: TargetPort,
    /// `nodePort`, if one is assigned.
    pub node_port: Option<u16>,
}

/// The port of the pod that a service port leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// By number.
    Number(u16),
    /// By a container port's name.
    Name(String),
}

/// A slice of a service's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Label `kubernetes.io/service-name`.
    pub service: Option<String>,
    /// The endpoints.
    pub endpoints: Vec<SliceEndpoint>,
    /// The ports, as resolved numbers.
    pub ports: Vec<SlicePort>,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// Its addresses (kube-proxy uses the first).
    pub addresses: Vec<IpAddr>,
    /// `conditions.ready`; absent counts as ready.
    pub ready: bool,
    /// `conditions.serving`; absent counts as serving.
    pub serving: bool,
    /// `conditions.terminating`; absent counts as not terminating.
    pub terminating: bool,
    /// `nodeName`
    pub node: Option<Name>,
    /// `targetRef` if it is a pod: namespace (empty: the slice's) and name.
    pub pod: Option<(Name, String)>,
}

/// One port of a slice; without a number it means all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The service port's name; empty if absent.
    pub name: String,
    /// `protocol`
    pub protocol: Protocol,
    /// `port`
    pub number: Option<u16>,
}

/// A NetworkPolicy of networking.k8s.io/v1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// `spec.podSelector`; absent is the empty selector.
    pub pod_selector: LabelSelector,
    /// Whether `spec.podSelector` was written.
    pub pod_selector_written: bool,
    /// `spec.policyTypes` as written; empty if absent.
    pub policy_types: Vec<PolicyType>,
    /// `spec.ingress`
    pub ingress: Vec<PolicyRule>,
    /// `spec.egress`
    pub egress: Vec<PolicyRule>,
    /// `metadata.annotations["weir.dev/mode"]`
    pub mode: Mode,
}

/// The annotation with a policy's mode.
pub const MODE: &str = "weir.dev/mode";

/// How the verdicts of a policy are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are enforced.
    #[default]
    Enforce,
    /// They are reported where they would change anything.
    Audit,
}

/// `spec.policyTypes[]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Kubernetes' own")]
pub enum PolicyType {
    Ingress,
    Egress,
}

/// An ingress or egress rule: `from` / `to` and `ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRule {
    /// `from` or `to`; empty means every peer.
    pub peers: Vec<PolicyPeer>,
    /// `ports`; empty means every port and protocol.
    pub ports: Vec<PolicyPort>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyPeer {
    /// By selectors; at least one is there.
    Pods {
        /// `podSelector`
        pods: Option<LabelSelector>,
        /// `namespaceSelector`
        namespaces: Option<LabelSelector>,
    },
    /// `ipBlock`
    Block {
        /// `cidr`, masked.
        cidr: Prefix,
        /// `except`, masked.
        except: Vec<Prefix>,
    },
}

/// One entry of `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPort {
    /// `protocol`; TCP unless said otherwise.
    pub protocol: Protocol,
    /// `port` and `endPort`.
    pub port: PortMatch,
}

/// A rule's ports of one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortMatch {
    /// All of them.
    Any,
    /// First to last, both inclusive.
    Range(u16, u16),
    /// By name, on the destination pod.
    Named(String),
}

/// The label that the API server gives every namespace: its name.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A label selector. Empty selects everything. Prints as kubectl prints it: `app=web,tier in (a,b)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelSelector {
    /// `matchLabels`
    pub match_labels: Labels,
    /// `matchExpressions`
    pub match_expressions: Vec<Requirement>,
}

impl LabelSelector {
    /// The number of labels and values that the selector names, plus one: the cost of evaluating it.
    pub fn size(&self) -> u64 {
        let values: usize = self.match_expressions.iter().map(|it| 1 + it.values.len()).sum();
        (1 + self.match_labels.len() + values) as u64
    }

    /// The labels and the expressions, as one list of requirements.
    pub fn requirements(&self) -> impl Iterator<Item = Requirement> + '_ {
        let equal = |(key, value): (&str, &str)| Requirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: vec![value.to_owned()],
        };
        self.match_labels.iter().map(equal).chain(self.match_expressions.iter().cloned())
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let parts: Vec<String> = labels.chain(self.match_expressions.iter().map(ToString::to_string)).collect();
        f.write_str(&parts.join(","))
    }
}

/// One of `matchExpressions`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// Its values; empty for Exists and DoesNotExist.
    pub values: Vec<String>,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        let values = values.join(",");
        match operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

/// `operator`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are Kubernetes' own")]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Operator {
    /// As in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        }
    }
}

/// Weir's own kind: a list of addresses that is evaluated before NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrList {
    /// `spec.action`
    pub action: ListAction,
    /// `spec.order`; smaller is decided first.
    pub order: i64,
    /// Applies to packets that come to the pod.
    pub ingress: bool,
    /// Applies to packets that leave the pod.
    pub egress: bool,
    /// `spec.appliesTo.namespaceSelector`; `None` is every namespace.
    pub namespaces: Option<LabelSelector>,
    /// `spec.appliesTo.podSelector`; `None` is every pod.
    pub pods: Option<LabelSelector>,
    /// `spec.cidrs`, or the lines of a list file.
    pub entries: Vec<ListEntry>,
}

/// The effect of a list on the addresses that it contains. `Deny` sorts first, as it decides first among lists of the
/// same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListAction {
    /// The packet is dropped.
    Deny,
    /// Later lists do not apply; NetworkPolicy decides.
    Allow,
}

/// One entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// First address.
    pub first: IpAddr,
    /// Last address, of the same family; not before the first.
    pub last: IpAddr,
    /// Its position: the index in `spec.cidrs`, or the line of a list file (from 1).
    pub position: u32,
}

impl ListEntry {
    /// Whether the entry contains the address, which may be of either family.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.first <= address && address <= self.last
    }
}
