//! Cluster-wide policies.

use super::{Resolver, sorted};
use crate::{Audit, PortRule, TierMatch, TierPeer, TierPolicy, TierRule};
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
            let policy = self.tier_policy(object, policy);
            self.cluster.tiers.push(policy);
        }
        // Spec: "the implementation can apply any of the matching policies" of equal priority. By name, so that the
        // order of the input has no effect.
        self.cluster
            .tiers
            .sort_by(|a, b| (a.tier, a.priority, &a.name, a.kind).cmp(&(b.tier, b.priority, &b.name, b.kind)));
    }

    fn tier_policy(&mut self, object: &Object, policy: &ClusterPolicy) -> TierPolicy {
        TierPolicy {
            kind: policy.kind,
            name: object.meta.name.clone(),
            tier: policy.tier,
            priority: policy.priority,
            namespaces: self.cluster.labels.intern_selector(&policy.subject_namespaces),
            pods: self.cluster.labels.intern_selector(&policy.subject_pods),
            ingress: policy.ingress.iter().map(|rule| self.tier_rule(rule)).collect(),
            egress: policy.egress.iter().map(|rule| self.tier_rule(rule)).collect(),
            is_audit: policy.mode == Mode::Audit && self.cluster.assume.audit == Audit::Report,
            object: object.id,
        }
    }

    // Spec: "For "Accept" rules, "fail closed" means: "treat the rule as matching no traffic". For "Deny" and "Pass"
    // rules, "fail closed" means: "treat the rule as a 'Deny all' rule"."
    fn tier_rule(&mut self, rule: &ClusterRule) -> TierRule {
        let unsupported = rule.peers.iter().position(|peer| !is_supported(peer));
        let (action, matched) = match (unsupported, rule.action) {
            (None, action) => (action, Some(self.supported(rule))),
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

    fn supported(&mut self, rule: &ClusterRule) -> TierMatch {
        TierMatch {
            peers: rule.peers.iter().filter_map(|peer| self.tier_peer(peer)).collect(),
            ports: rule.ports.iter().flat_map(tier_ports).collect(),
        }
    }

    fn tier_peer(&mut self, peer: &ClusterPeer) -> Option<TierPeer> {
        let mut intern = |selector: &LabelSelector| self.cluster.labels.intern_selector(selector);
        Some(match peer {
            ClusterPeer::Pods { namespaces, pods } => {
                TierPeer::Pods { namespaces: intern(namespaces), pods: intern(pods) }
            }
            ClusterPeer::Nodes(nodes) => TierPeer::Nodes(intern(nodes)),
            ClusterPeer::Networks(networks) => TierPeer::Networks(networks.clone()),
            // The caller has found that it has no such peer.
            ClusterPeer::DomainNames(_) | ClusterPeer::Unknown => return None,
        })
    }
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
