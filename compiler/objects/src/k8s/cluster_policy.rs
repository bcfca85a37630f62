//! Cluster-wide policies: ClusterNetworkPolicy, and the two kinds that came before it.
//!
//! All three are one type here. They differ only in spelling: `v1alpha1` has `Allow` for `Accept`, `ports` for
//! `protocols`, and one kind for each tier.

use super::{LabelSelector, Mode, PolicyPort};
use crate::address::Prefix;

/// A ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPolicy {
    /// The kind of the object.
    pub kind: ClusterPolicyKind,
    /// `spec.tier`, or the tier of the kind.
    pub tier: Tier,
    /// `spec.priority`, from 0 to 1000: smaller is evaluated first. 0 for a BaselineAdminNetworkPolicy.
    pub priority: u16,
    /// Namespaces of the pods that the policy applies to.
    pub subject_namespaces: LabelSelector,
    /// The pods in them that the policy applies to; empty where `subject` is `namespaces`.
    pub subject_pods: LabelSelector,
    /// `spec.ingress`
    pub ingress: Vec<ClusterRule>,
    /// `spec.egress`
    pub egress: Vec<ClusterRule>,
    /// `metadata.annotations["weir.dev/mode"]`
    pub mode: Mode,
}

/// The kinds of cluster-wide policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterPolicyKind {
    /// policy.networking.k8s.io/v1alpha1, tier Admin.
    AdminNetworkPolicy,
    /// policy.networking.k8s.io/v1alpha1, tier Baseline.
    BaselineAdminNetworkPolicy,
    /// policy.networking.k8s.io/v1alpha2, either tier.
    ClusterNetworkPolicy,
}

impl ClusterPolicyKind {
    /// As in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
        }
    }

    /// The field of a rule that has its ports.
    pub fn ports_field(self) -> &'static str {
        match self {
            Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy => "ports",
            Self::ClusterNetworkPolicy => "protocols",
        }
    }
}

/// A tier of cluster-wide policies. NetworkPolicy is between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Evaluated before NetworkPolicy.
    Admin,
    /// Evaluated after NetworkPolicy, for pods that no NetworkPolicy isolates in the direction.
    Baseline,
}

impl Tier {
    /// Both, in the order in which they are evaluated.
    pub const ALL: [Self; 2] = [Self::Admin, Self::Baseline];

    /// As in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "Admin",
            Self::Baseline => "Baseline",
        }
    }
}

/// A rule of a cluster-wide policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRule {
    /// `name`, if it has one.
    pub name: Option<String>,
    /// `action`
    pub action: RuleAction,
    /// `from` or `to`. Never empty in an object that the API server accepts.
    pub peers: Vec<ClusterPeer>,
    /// `protocols` (or `ports`); empty means all traffic.
    pub ports: Vec<ClusterPort>,
}

/// The effect of a rule on the traffic that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleAction {
    /// Allowed: no later rule, tier or NetworkPolicy is evaluated for this direction. `Allow` in `v1alpha1`.
    Accept,
    /// Dropped: no later rule, tier or NetworkPolicy is evaluated.
    Deny,
    /// No later rule of this tier is evaluated; the next tier decides.
    Pass,
}

impl RuleAction {
    /// As in a ClusterNetworkPolicy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        }
    }
}

/// A peer of a rule: one element of `from` or `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterPeer {
    /// `namespaces` (then `pods` is empty) or `pods`.
    Pods {
        /// The namespaces of the pods.
        namespaces: LabelSelector,
        /// The pods in them.
        pods: LabelSelector,
    },
    /// `nodes`: the addresses of the Node objects with these labels.
    Nodes(LabelSelector),
    /// `networks`, masked.
    Networks(Vec<Prefix>),
    /// `domainNames`
    DomainNames(Vec<String>),
    /// A peer without a field that Weir knows: a newer API may have written it.
    Unknown,
}

/// One element of `protocols` (or `ports`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterPort {
    /// A protocol, with all its ports or a range of them. Never a named port.
    Transport(PolicyPort),
    /// A port name, of any protocol, on the destination pod.
    Named(String),
}
