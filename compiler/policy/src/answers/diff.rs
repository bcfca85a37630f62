//! The comparison of two inputs: docs/schema/diff.json. Each group of endpoints and addresses is listed once, and rows
//! refer to it by number.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_model::Protocol;

use super::{DirectionWord, FlowDescription, IgnoredKind, ShownPart};

/// A flow differs exactly if a row covers it. Never covered: a pod to itself, to or from its own node, to a service
/// that leads back to one of these (docs/diff.md)
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffAnswer {
    /// The name of the base
    pub base: String,
    /// The name of the head
    pub head: String,
    /// Counts
    pub summary: DiffSummary,
    /// Pods and workloads of both sides
    pub endpoints: DiffEndpoints,
    /// Endpoints whose isolation begins or ends
    pub isolation: Vec<IsolationAnswer>,
    /// Rows refer to them by their place, from 0
    pub groups: Vec<DiffGroup>,
    /// The differences
    pub rows: Vec<DiffRowAnswer>,
    /// Changed rules, policies and lists that no flow can observe, because the other direction denies all of their
    /// traffic; absent if there are none
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub without_effect: Vec<WithoutEffect>,
    /// The cost of enforcing each side; null if it was not measured
    pub cost: Option<Costs>,
    /// The part that is shown; absent without a filter
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub filter: Option<ShownPart>,
    /// Policies that weir does not read and --ignore-kind ignored; absent if there are none
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub left_out: Vec<IgnoredKind>,
}

/// A change that no flow can observe
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct WithoutEffect {
    /// Added or removed
    pub change: ChangeWord,
    /// The direction of the rule
    pub direction: DirectionWord,
    /// The rule, policy or list
    pub cause: Responsible,
}

/// Counts of a whole comparison
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffSummary {
    /// Rows of newly allowed traffic
    pub added: usize,
    /// Rows of traffic that is no longer allowed
    pub removed: usize,
    /// All rows
    pub rows: usize,
    /// Rows in this document: fewer with --max
    pub shown: usize,
}

/// Pods as namespace/name, workloads as kind/namespace/name; weir query takes them as they are
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffEndpoints {
    /// How many are on both sides
    pub kept: usize,
    /// Only in the head
    pub appeared: Vec<String>,
    /// Only in the base
    pub disappeared: Vec<String>,
}

/// Endpoints whose isolation begins or ends in a direction
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct IsolationAnswer {
    /// The direction
    pub direction: DirectionWord,
    /// Begins or ends
    pub change: IsolationWord,
    /// As weir query takes them
    pub endpoints: Vec<String>,
    /// In words
    pub text: String,
    /// Of the head if it begins, of the base if it ends
    pub policies: Vec<Responsible>,
    /// true if --deny or --approved refuses the change; absent otherwise
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "std::ops::Not::not"))]
    pub refused: bool,
    /// The approval in the file of --approved that accepts the change; absent if there is none
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub approved: Option<Approval>,
}

/// The approval of a change
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Approval {
    /// Why it was accepted
    pub reason: String,
    /// The last day on which the approval counts: YYYY-MM-DD
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub expires: Option<String>,
}

/// Ends of rows
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffGroup {
    /// In words
    pub text: String,
    /// Pods and workloads, as weir query takes them
    pub endpoints: Vec<String>,
    /// Outside addresses. One that is an endpoint's on either side is not meant; as a destination, one that is a service's
    /// is not either
    pub addresses: Vec<AddressSpan>,
    /// Addresses of services
    pub services: Vec<DiffService>,
    /// Possible pods: in the group if one entry selects them. endpoints has those of the input that are among them
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub pods: Vec<PodSetAnswer>,
}

/// Possible pods
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PodSetAnswer {
    /// Their namespaces
    pub namespace_selector: Selector,
    /// Their labels
    pub pod_selector: Selector,
    /// The pod's address is in one of these ranges
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub addresses: Option<Vec<AddressSpan>>,
}

/// As in a manifest; a namespace also has the label kubernetes.io/metadata.name
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Selector {
    /// Labels with these values
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub match_expressions: Vec<SelectorRequirement>,
}

/// A requirement of a selector
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct SelectorRequirement {
    /// The label's key
    pub key: String,
    /// As in a manifest
    pub operator: OperatorWord,
    /// Absent for Exists and DoesNotExist
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub values: Vec<String>,
}

/// Flows from one group to another
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffProduct {
    /// The group of sources
    pub from: usize,
    /// The group of destinations
    pub to: usize,
    /// Ports
    pub traffic: DiffTraffic,
}

/// A range of addresses
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct AddressSpan {
    /// Its first address
    pub first: IpAddr,
    /// Its last address
    pub last: IpAddr,
}

/// A service's address
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffService {
    /// The address
    pub address: IpAddr,
    /// namespace/name of the services on it
    pub base: Vec<String>,
    /// The same in the head
    pub head: Vec<String>,
}

/// Flows that are allowed on one side alone
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffRowAnswer {
    /// Whether all of its endpoints are on both sides, or one of each pair is on one side alone
    pub presence: PresenceWord,
    /// Newly allowed, or no longer allowed
    pub change: ChangeWord,
    /// Whose end did not allow it on the side that does not
    pub decides: DecidesWord,
    /// The group of sources
    pub from: usize,
    /// The group of destinations
    pub to: usize,
    /// Ports
    pub traffic: DiffTraffic,
    /// Set if endpoints that have both families differ in this one alone
    pub family: Option<FamilyWord>,
    /// Reasons at the source
    pub egress: Option<DiffSides>,
    /// Reasons at the destination
    pub ingress: Option<DiffSides>,
    /// Flows of the row that do not change
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub except: Vec<DiffProduct>,
    /// Only flows that this direction allows: of the head if added, of the base if removed
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub given: Option<DirectionWord>,
    /// true if --deny or --approved refuses the change; absent otherwise
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "std::ops::Not::not"))]
    pub refused: bool,
    /// The approval in the file of --approved that accepts the change; absent if there is none
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub approved: Option<Approval>,
    /// One flow of the row
    pub witness: DiffWitness,
}

/// Ports and protocols
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffTraffic {
    /// In words
    pub text: String,
    /// Ranges of ports
    pub ports: Vec<PortRange>,
    /// ICMP, and every protocol but TCP, UDP and SCTP
    pub portless: bool,
}

/// A range of ports
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PortRange {
    /// The protocol
    pub protocol: ProtocolWord,
    /// Its first port
    pub first: u16,
    /// Its last port
    pub last: u16,
    /// The destination gives the port each of these names
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub named: Vec<String>,
}

/// The reasons on both sides
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffSides {
    /// In the base
    pub base: DiffAccount,
    /// In the head
    pub head: DiffAccount,
}

/// The reasons for the verdict at one end
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffAccount {
    /// What decides there
    pub state: EndStateWord,
    /// That allow it; only on the side that does
    pub rules: Vec<Responsible>,
    /// Rules of cluster-wide policies that decide; absent if none does
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub tiers: Vec<Responsible>,
    /// Only on the side that does not allow it; those that the other side lacks or has otherwise, if there are any
    pub isolated_by: Vec<Responsible>,
    /// The list that denies it
    pub list: Option<Responsible>,
}

/// A rule, a policy or a list
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Responsible {
    /// namespace/name of the policy; name of the list
    pub name: String,
    /// spec.ingress[0]
    pub rule: Option<String>,
    /// The file that contains it
    pub file: Option<String>,
    /// Its line, from 1
    pub line: Option<usize>,
}

/// A line for weir query; headFlow is there if the head has to be asked with other addresses
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DiffWitness {
    /// The flow
    pub flow: Option<FlowDescription>,
    /// The flow in the head
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub head_flow: Option<FlowDescription>,
    /// Its verdict in the base
    pub base: WitnessWord,
    /// Its verdict in the head
    pub head: WitnessWord,
}

/// The cost of enforcing each side
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Costs {
    /// null if it cannot be compiled
    pub base: Option<Cost>,
    /// The head's
    pub head: Cost,
    /// Bytes are told for so many
    pub cpus: u64,
    /// Whether each workload was taken for one pod, since no pod has an address
    pub assumed_pods: bool,
    /// Whose pods are local; null for all of them
    pub node: Option<String>,
}

/// The cost of enforcing policies
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Cost {
    /// Local pods
    pub endpoints: u64,
    /// Classes of pods
    pub subject_classes: u64,
    /// Classes of other ends
    pub peer_classes: u64,
    /// Classes of protocol and port
    pub port_atoms: u64,
    /// Of all programs
    pub instructions: u64,
    /// Of all maps
    pub entries: u64,
    /// Without what comes once for every CPU: the budget map-bytes
    pub map_bytes: u64,
    /// With it
    pub memory: u64,
    /// By the name of the map
    pub maps: BTreeMap<String, MapCost>,
}

/// The cost of a map
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MapCost {
    /// Its entries
    pub entries: u64,
    /// Their bytes
    pub bytes: u64,
}

words! {
    /// Newly allowed, or no longer allowed
    ChangeWord "lowercase" { Added, Removed }
}

words! {
    /// Whether isolation begins or ends
    IsolationWord "lowercase" { Begins, Ends }
}

words! {
    /// On which sides the endpoints are
    PresenceWord "lowercase" { Kept, Appeared, Disappeared }
}

words! {
    /// The end that did not allow it
    DecidesWord "lowercase" { Egress, Ingress, Both }
}

words! {
    /// What decides at an end
    EndStateWord "kebab-case" { Absent, NoSubject, NotIsolated, Isolated, List, Tier, Service }
}

words! {
    /// A verdict; absent if the side lacks an end
    WitnessWord "lowercase" { Allow, Deny, Absent }
}

words! {
    /// A protocol with ports
    ProtocolWord "UPPERCASE" { Tcp, Udp, Sctp }
}

words! {
    /// An operator of a selector
    OperatorWord "PascalCase" { In, NotIn, Exists, DoesNotExist }
}

/// An address family
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it; a comment would make each a schema of its own")]
pub enum FamilyWord {
    #[cfg_attr(feature = "serde", serde(rename = "IPv4"))]
    V4,
    #[cfg_attr(feature = "serde", serde(rename = "IPv6"))]
    V6,
}

impl From<Protocol> for ProtocolWord {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }
}
