//! Cluster-wide policies: the tiers before and after NetworkPolicy.

use super::{FlowEnd, Oracle, ProtocolPort};
use crate::{
    Direction, EndpointId, NodeId, RuleAction, SelectorId, Standing, Tier, TierPeer, TierPolicyId, TierRule, TierRuleId,
};

impl Oracle<'_> {
    /// The first rule of a tier that matches, and its action.
    // Spec: "Policies with lower priority values have higher precedence, and are checked before policies with higher
    // priority values in the same tier." "a rule that appears at the top of the ingress rules would take the highest
    // precedence" (egress likewise). A policy without rules for a direction does not affect it.
    pub(super) fn tier_decision(
        &mut self,
        tier: Tier,
        direction: Direction,
        subject: EndpointId,
        remote: FlowEnd,
        target: ProtocolPort,
    ) -> Option<(TierRuleId, RuleAction)> {
        let cluster = self.cluster;
        for policy in self.tiers_of(subject) {
            let of_policy = &cluster.tiers[policy.index()];
            if of_policy.tier != tier {
                continue;
            }
            for (index, rule) in of_policy.rules(direction).iter().enumerate() {
                if self.tier_rule_matches(direction, rule, subject, remote, target) {
                    return Some((TierRuleId { policy, direction, rule: index as u32 }, rule.action));
                }
            }
        }
        None
    }

    /// The first `Deny` rule of a tier, with any peers and protocols.
    pub(super) fn any_tier_denial(
        &mut self,
        tier: Tier,
        direction: Direction,
        subject: EndpointId,
    ) -> Option<TierRuleId> {
        let cluster = self.cluster;
        self.tiers_of(subject).into_iter().find_map(|policy| {
            let of_policy = &cluster.tiers[policy.index()];
            let rules = of_policy.rules(direction).iter();
            let denying = rules.filter(|_| of_policy.tier == tier).position(|rule| rule.action == RuleAction::Deny)?;
            Some(TierRuleId { policy, direction, rule: denying as u32 })
        })
    }

    /// The enforced policies that apply to an endpoint, in the order in which they are evaluated.
    // Spec: "Namespaces is used to select pods via namespace selectors. Pods is used to select pods via namespace AND
    // pod selectors." "host-networked pods are not included in subject selection": the caller has checked that.
    fn tiers_of(&mut self, subject: EndpointId) -> Vec<TierPolicyId> {
        let cluster = self.cluster;
        if self.tiers[subject.index()].is_none() {
            let endpoint = self.endpoint(subject);
            let mut selecting = Vec::new();
            for (index, policy) in cluster.tiers.iter().enumerate().filter(|(_, policy)| !policy.is_audit) {
                if self.selects_namespace(policy.namespaces, endpoint.namespace)
                    && self.selects(policy.pods, endpoint.labels)
                {
                    selecting.push(TierPolicyId(index as u32));
                }
            }
            self.tiers[subject.index()] = Some(selecting);
        }
        self.tiers[subject.index()].clone().unwrap_or_default()
    }

    // Spec: "If any element matches the source of incoming traffic then the specified action is applied." "If
    // unspecified, protocol-specific attributes will not be used to match traffic."
    fn tier_rule_matches(
        &mut self,
        direction: Direction,
        rule: &TierRule,
        subject: EndpointId,
        remote: FlowEnd,
        target: ProtocolPort,
    ) -> bool {
        // A rule that fails closed matches nothing, or everything.
        let Some(matched) = &rule.matched else { return false };
        let destination = self.destination(direction, subject, remote);
        self.ports_match(&matched.ports, destination, target)
            && (matched.peers.is_empty() || matched.peers.iter().any(|peer| self.tier_peer_matches(peer, remote)))
    }

    fn tier_peer_matches(&mut self, peer: &TierPeer, remote: FlowEnd) -> bool {
        match peer {
            // Spec: "Namespaces defines a way to select all pods within a set of Namespaces." "Pods defines a way to
            // select a set of pods in a set of namespaces. Note that host-networked pods are not included in this type
            // of peer."
            TierPeer::Pods { namespaces, pods } => {
                let Some(id) = remote.endpoint.filter(|id| self.is_member(*id)) else { return false };
                let endpoint = self.endpoint(id);
                self.selects_namespace(*namespaces, endpoint.namespace) && self.selects(*pods, endpoint.labels)
            }
            // Spec: "cluster-internal traffic will be checked against the rule as well."
            TierPeer::Networks(networks) => {
                remote.address.is_some_and(|address| networks.iter().any(|network| network.contains(address)))
            }
            TierPeer::Nodes(nodes) => self.is_node(*nodes, remote),
        }
    }

    /// Whether the remote end is one of the nodes with these labels.
    // Spec: "It selects the nodeIPs as the peer type by matching on the IPs present in the node.Status.Addresses field
    // of the node."
    fn is_node(&mut self, selector: SelectorId, remote: FlowEnd) -> bool {
        let cluster = self.cluster;
        if remote.endpoint.is_some_and(|id| self.is_member(id)) {
            return false;
        }
        // A pod on the host's network is its node, even if the node has no address.
        let host = remote.endpoint.map(|id| self.endpoint(id)).filter(|it| it.standing == Standing::HostNetwork);
        let host = host.and_then(|it| it.node);
        (0..).map(NodeId).zip(&cluster.nodes).any(|(id, node)| {
            let is_it = host == Some(id) || remote.address.is_some_and(|at| node.addresses.contains(&at));
            is_it && self.selects(selector, node.labels)
        })
    }
}
