//! The explanation of one flow: docs/schema/explain.json.

use std::net::IpAddr;

use super::{IgnoredKind, PodDescription};

words! {
    /// A verdict
    VerdictWord "lowercase" { Allow, Deny }
}

words! {
    /// `depends` only if an end is described, and not every pod that it describes has the same verdict
    VerdictOrDepends "lowercase" { Allow, Deny, Depends }
}

words! {
    /// The side of a flow that rules are about
    DirectionWord "lowercase" { Egress, Ingress }
}

/// The explanation of one question
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ExplainAnswer {
    /// The verdict on all packets together
    pub verdict: VerdictOrDepends,
    /// The service that was asked for, if it has no address and is judged backend by backend
    pub service: Option<String>,
    /// A service with the name of the pod or workload that was asked about: it was not asked about
    pub namesake: Option<String>,
    /// If the verdict depends, those of an example that is allowed and of one that is denied
    pub packets: Vec<ExplainedPacket>,
    /// If the verdict depends: the fields of the description that it depends on, such as `src.ip`
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub depends_on: Option<Vec<String>>,
    /// If the verdict depends: conditions under which the flow is allowed, the first ones only
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub allowed_if: Option<Vec<String>>,
    /// Policies that weir does not read and --ignore-kind ignored; absent if there are none
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub left_out: Vec<IgnoredKind>,
}

/// A packet with the judgement of both sides
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ExplainedPacket {
    /// The packet
    pub packet: ExplainedFlow,
    /// The verdict of both sides together
    pub verdict: VerdictWord,
    /// At the source
    pub egress: ExplainedSide,
    /// At the destination
    pub ingress: ExplainedSide,
    /// What the emitted programs make of it, packet by packet, in the order in which they were asked; of a service, the
    /// packets to and at its backends too
    pub witnesses: Vec<Witness>,
    /// What it would be if policies in audit mode were enforced; only where there are such policies
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub audit: Option<Audit>,
    /// Why there are none, if that is not because no policy can apply
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub no_witness: Option<String>,
}

/// The verdicts if policies in audit mode were enforced
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Audit {
    /// Of both sides together
    pub verdict: VerdictWord,
    /// At the source
    pub egress: VerdictWord,
    /// At the destination
    pub ingress: VerdictWord,
}

/// A packet
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ExplainedFlow {
    /// The source
    pub src: ExplainedEnd,
    /// The destination
    pub dst: ExplainedEnd,
    /// `TCP`, `UDP`, `SCTP` or `ICMP`
    pub proto: String,
    /// The destination port; null for ICMP
    pub port: Option<u16>,
}

/// An end of a packet
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(untagged))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum ExplainedEnd {
    /// An example of a described pod
    Possible(PodDescription),
    /// An end that the input contains, or an address
    Known(EndpointEnd),
}

/// An endpoint, an address, or both
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct EndpointEnd {
    /// `Pod`, `Deployment`, …
    pub kind: Option<String>,
    /// namespace/name
    pub endpoint: Option<String>,
    /// Its address
    pub ip: Option<IpAddr>,
}

words! {
    /// The part of the verdict that decided
    Basis "kebab-case" { NotSubject, Itself, OwnNode, IcmpAssumed, NotIsolated, List, Tier, Rules, Isolated, Service, Claims, HostPort }
}

/// The judgement of one side
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ExplainedSide {
    /// Its verdict
    pub verdict: VerdictWord,
    /// What decided
    pub basis: Basis,
    /// Rules that allow, policies that isolate, or a list
    pub because: Vec<Reason>,
    /// Rules that do not match, the nearest first
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub nearest: Option<Vec<NearestRule>>,
    /// The service whose address the destination is
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub service: Option<String>,
    /// The service's backends, and what each gets
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub backends: Option<Vec<BackendSide>>,
    /// The services that claim the port, where it is contested, and what each claim gets
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub claims: Option<Vec<ClaimSide>>,
    /// What the address itself gets, where the port is contested
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub otherwise: Option<Box<Self>>,
    /// The hostPorts that the destination is, and what the pod behind each gets
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub host_ports: Option<Vec<HostPortSide>>,
}

/// A backend of a service
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct BackendSide {
    /// The packet to it
    pub packet: ExplainedFlow,
    /// Its judgement
    pub side: ExplainedSide,
}

/// A service that claims a contested port
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ClaimSide {
    /// namespace/name
    pub service: String,
    /// Its judgement
    pub side: ExplainedSide,
}

/// A hostPort that the destination is
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct HostPortSide {
    /// hostPort 8080 of shop/web
    pub name: String,
    /// The packet to its pod
    pub packet: ExplainedFlow,
    /// Its judgement
    pub side: ExplainedSide,
}

/// A list, a rule of a cluster-wide policy, or a NetworkPolicy and its rule
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(untagged))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum Reason {
    /// A list that denies
    List(ListReason),
    /// A rule of a cluster-wide policy
    Tier(TierReason),
    /// A NetworkPolicy that isolates, or its rule that allows
    Policy(PolicyReason),
}

/// A list that denies
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ListReason {
    /// The direction that it decides
    pub direction: DirectionWord,
    /// Its name
    pub policy: String,
    /// `CidrList`
    pub kind: String,
    /// The list in its file
    pub location: Option<SourceLocation>,
}

/// A rule of a cluster-wide policy
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct TierReason {
    /// The direction that it decides
    pub direction: DirectionWord,
    /// The policy's name
    pub policy: String,
    /// `ClusterNetworkPolicy`, `AdminNetworkPolicy` or `BaselineAdminNetworkPolicy`
    pub kind: String,
    /// `Admin` or `Baseline`
    pub tier: String,
    /// spec.egress[0]
    pub rule: String,
    /// `Accept`, `Deny` or `Pass`
    pub action: String,
    /// The rule in its file
    pub location: Option<SourceLocation>,
    /// The rule's name, if it has one
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub rule_name: Option<String>,
}

/// A NetworkPolicy that isolates, or its rule that allows
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PolicyReason {
    /// The direction that it decides
    pub direction: DirectionWord,
    /// namespace/name
    pub policy: String,
    /// The policy or its rule in the file
    pub location: Option<SourceLocation>,
    /// spec.egress[0]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub rule: Option<String>,
}

/// A rule that does not match
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct NearestRule {
    /// The direction that it is about
    pub direction: DirectionWord,
    /// namespace/name
    pub policy: String,
    /// The rule in its file
    pub location: Option<SourceLocation>,
    /// spec.egress[0]
    pub rule: String,
    /// What is wrong with each peer; empty if one matches
    pub peers: Vec<String>,
    /// What is wrong with each port; empty if one matches
    pub ports: Vec<String>,
}

/// A place in a file
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct SourceLocation {
    /// As named on the command line; `-` is standard input
    pub file: String,
    /// From 1
    pub line: usize,
    /// From 1; counts characters
    pub column: usize,
}

/// A packet at an endpoint, as the emitted programs judge it
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Witness {
    /// `from_pod` or `to_pod`
    pub program: String,
    /// At whose interface: namespace/name
    pub endpoint: String,
    /// The program's, for a new flow
    pub verdict: VerdictWord,
    /// The endpoint's class
    pub subject: ClassWords,
    /// The class of the other end's address
    pub peer: ClassWords,
    /// The class of protocol and port
    pub atom: ClassWords,
    /// The packet
    pub packet: WitnessBytes,
}

/// A class
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ClassWords {
    /// Its number in a compile for the endpoints in question alone
    pub name: String,
    /// The properties that distinguish it; empty if no rule mentions it
    pub is: Vec<String>,
}

/// A packet's bytes
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct WitnessBytes {
    /// In one line
    pub summary: String,
    /// From the Ethernet header on
    pub hex: String,
}
