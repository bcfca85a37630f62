//! Cluster-wide policies.

use std::cmp::Ordering;

use super::{Resolver, sorted};
use crate::labels::Labelling;
use crate::{Assumptions, Audit, PortRule, TierMatch, TierPeer, TierPolicy, TierRule};
use weir_objects::k8s::{
    Body, ClusterPeer, ClusterPolicy, ClusterPort, ClusterRule, LabelSelector, Mode, Object, PortMatch, Protocol,
    RuleAction,
};

impl<'o> Resolver<'o> {
    pub(super) fn add_tiers(&mut self, objects: &[&'o Object]) {
        let policies = sorted(objects, |body| match body {
            Body::ClusterPolicy(policy) => Some(policy),
            _ => None,
        });
        for (object, policy) in policies {
            let policy = tier_policy(&mut self.cluster.labels, object, policy, self.cluster.assume);
            self.cluster.tiers.push(policy);
        }
        self.cluster.tiers.sort_by(tier_order);
    }
}

/// The order in which policies are evaluated.
pub fn tier_order(a: &TierPolicy, b: &TierPolicy) -> Ordering {
    // Spec: "the implementation can apply any of the matching policies" of equal priority. By name, so that the order
    // of the input has no effect.
    (a.tier, a.priority, &a.name, a.kind).cmp(&(b.tier, b.priority, &b.name, b.kind))
}

/// Resolves a cluster-wide policy. Its selectors are added to `labels`.
pub fn tier_policy(labels: &mut Labelling, object: &Object, policy: &ClusterPolicy, assume: Assumptions) -> TierPolicy {
    TierPolicy {
        kind: policy.kind,
        name: object.meta.name.clone(),
        tier: policy.tier,
        priority: policy.priority,
        namespaces: labels.intern_selector(&policy.subject_namespaces),
        pods: labels.intern_selector(&policy.subject_pods),
        ingress: policy.ingress.iter().map(|rule| tier_rule(labels, rule)).collect(),
        egress: policy.egress.iter().map(|rule| tier_rule(labels, rule)).collect(),
        is_audit: policy.mode == Mode::Audit && assume.audit == Audit::Report,
        object: object.id,
    }
}

// Spec: "For "Accept" rules, "fail closed" means: "treat the rule as matching no traffic". For "Deny" and "Pass"
// rules, "fail closed" means: "treat the rule as a 'Deny all' rule"."
fn tier_rule(labels: &mut Labelling, rule: &ClusterRule) -> TierRule {
    let unsupported = rule.peers.iter().position(|peer| !is_supported(peer));
    let (action, matched) = match (unsupported, rule.action) {
        (None, action) => (action, Some(supported(labels, rule))),
        (Some(_), RuleAction::Accept) => (RuleAction::Accept, None),
        (Some(_), _) => (RuleAction::Deny, Some(TierMatch::default())),
    };
    let fields = (0u32..).zip(&rule.ports).flat_map(|(index, port)| vec![index; tier_ports(port).len()]);
    TierRule {
        name: rule.name.clone(),
        action,
        matched,
        port_fields: fields.collect(),
        unsupported: unsupported.map(|index| index as u32),
    }
}

fn supported(labels: &mut Labelling, rule: &ClusterRule) -> TierMatch {
    TierMatch {
        peers: rule.peers.iter().filter_map(|peer| tier_peer(labels, peer)).collect(),
        ports: rule.ports.iter().flat_map(tier_ports).collect(),
    }
}

fn tier_peer(labels: &mut Labelling, peer: &ClusterPeer) -> Option<TierPeer> {
    let mut intern = |selector: &LabelSelector| labels.intern_selector(selector);
    Some(match peer {
        ClusterPeer::Pods { namespaces, pods } => TierPeer::Pods { namespaces: intern(namespaces), pods: intern(pods) },
        ClusterPeer::Nodes(nodes) => TierPeer::Nodes(intern(nodes)),
        ClusterPeer::Networks(networks) => TierPeer::Networks(networks.clone()),
        // The caller has found that it has no such peer.
        ClusterPeer::DomainNames(_) | ClusterPeer::Unknown => return None,
    })
}

fn is_supported(peer: &ClusterPeer) -> bool {
    match peer {
        ClusterPeer::Pods { .. } | ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) => true,
        ClusterPeer::DomainNames(_) | ClusterPeer::Unknown => false,
    }
}

fn tier_ports(port: &ClusterPort) -> Vec<PortRule> {
    match port {
        ClusterPort::Transport(port) => vec![PortRule::from(port)],
        // Spec: "selects a destination port on a pod based on the ContainerPort name". The name has no protocol: the
        // container's port gives it.
        ClusterPort::Named(name) => [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| PortRule { protocol, port: PortMatch::Named(name.clone()) })
            .into(),
    }
}
