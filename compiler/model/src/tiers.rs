//! Cluster-wide policies: the tiers before and after NetworkPolicy.

use super::{Cluster, Direction, PortRule, SelectorId, id, rule_path};
use weir_objects::address::Prefix;
use weir_objects::k8s::{ClusterPolicyKind, RuleAction, Tier};
use weir_objects::origin::{FieldOrigin, ObjectId};

id!(/// A cluster-wide policy. Prints as `tier3`. Smaller numbers are evaluated first.
    TierPolicyId, "tier");

/// A cluster-wide policy: a ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierPolicy {
    /// The kind of the object.
    pub kind: ClusterPolicyKind,
    /// Its name.
    pub name: String,
    /// Its tier.
    pub tier: Tier,
    /// Its rank in the tier: smaller is evaluated first.
    pub priority: u16,
    /// Namespaces of the pods that it applies to.
    pub namespaces: SelectorId,
    /// The pods that it applies to.
    pub pods: SelectorId,
    /// Ingress rules, in the order in which they are evaluated.
    pub ingress: Vec<TierRule>,
    /// Egress rules, in the order in which they are evaluated.
    pub egress: Vec<TierRule>,
    /// Whether it is only reported.
    pub is_audit: bool,
    /// The object.
    pub object: ObjectId,
}

/// A rule of a cluster-wide policy; its position is its index in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRule {
    /// Its name.
    pub name: Option<String>,
    /// The effect on the traffic that it matches. `Deny` for a rule that fails closed.
    pub action: RuleAction,
    /// The traffic that it matches; `None` if it matches nothing, because it fails closed.
    pub matched: Option<TierMatch>,
    /// For each port in `matched`, the index of the field that it comes from: a named port is one field, and a port for
    /// each protocol here.
    pub port_fields: Vec<u32>,
    /// The index of the first peer that Weir cannot enforce, so that the rule fails closed.
    pub unsupported: Option<u32>,
}

/// The traffic that a rule of a cluster-wide policy matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierMatch {
    /// The peers. Empty means every peer: so does a `Deny` that fails closed.
    pub peers: Vec<TierPeer>,
    /// The ports; empty means all traffic.
    pub ports: Vec<PortRule>,
}

/// The other end of the traffic of a cluster-wide policy's rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TierPeer {
    /// Pods by labels.
    Pods {
        /// The namespaces of the pods.
        namespaces: SelectorId,
        /// The pods in them.
        pods: SelectorId,
    },
    /// The addresses in these networks, those of pods too.
    Networks(Vec<Prefix>),
    /// The addresses of the nodes with these labels.
    Nodes(SelectorId),
}

/// A rule of a cluster-wide policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierRuleId {
    /// The policy.
    pub policy: TierPolicyId,
    /// The direction.
    pub direction: Direction,
    /// The index of the rule in its direction's list.
    pub rule: u32,
}

impl TierPolicy {
    /// The rules of a direction.
    pub fn rules(&self, direction: Direction) -> &[TierRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Whether it can decide about packets that leave a pod: by egress rules, or because an ingress rule denies packets
    /// that the node sends back to the pod itself.
    pub fn judges_leaving(&self) -> bool {
        !self.egress.is_empty() || self.ingress.iter().any(|rule| rule.action == RuleAction::Deny)
    }

    /// The position of a rule in its object.
    pub fn rule_origin(&self, direction: Direction, rule: usize) -> FieldOrigin {
        FieldOrigin::new(self.object, rule_path(direction, rule))
    }
}

impl Cluster {
    /// A cluster-wide policy.
    pub fn tier_policy(&self, id: TierPolicyId) -> &TierPolicy {
        &self.tiers[id.index()]
    }

    /// `Kind name` of a cluster-wide policy.
    pub fn tier_policy_name(&self, id: TierPolicyId) -> String {
        let policy = self.tier_policy(id);
        format!("{} {}", policy.kind.name(), policy.name)
    }

    /// The position of a rule with its name, if it has one: `spec.egress[0] "deny-metadata"`.
    pub fn tier_rule_name(&self, id: TierRuleId) -> String {
        let place = rule_path(id.direction, id.rule as usize);
        match &self.tier_rule(id).name {
            Some(name) => format!("{place} {name:?}"),
            None => place.to_string(),
        }
    }

    /// A rule of a cluster-wide policy.
    pub fn tier_rule(&self, id: TierRuleId) -> &TierRule {
        &self.tier_policy(id.policy).rules(id.direction)[id.rule as usize]
    }
}
