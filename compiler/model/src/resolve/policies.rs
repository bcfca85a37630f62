//! Policies and address lists.

use std::cmp::Ordering;

use super::{Resolver, sorted};
use crate::labels::Labelling;
use crate::{Assumptions, Audit, CidrList, Direction, NamespaceId, Peer, Policy, PortRule, Rule, SelectorId};
use weir_objects::k8s::{self, Body, LabelSelector, Mode, NetworkPolicy, Object, PolicyPeer, PolicyRule, PolicyType};

impl<'o> Resolver<'o> {
    pub(super) fn add_policies(&mut self, objects: &[&'o Object]) {
        let policies = sorted(objects, |body| match body {
            Body::NetworkPolicy(policy) => Some(policy),
            _ => None,
        });
        for (object, policy) in policies {
            let namespace = self.namespace(object);
            let is_audit = is_audit(policy, self.cluster.assume);
            let policy = network_policy(&mut self.cluster.labels, namespace, object, policy);
            if is_audit { self.cluster.audit.push(policy) } else { self.cluster.policies.push(policy) }
        }
    }

    pub(super) fn add_lists(&mut self, objects: &[&'o Object]) {
        let lists = sorted(objects, |body| match body {
            Body::CidrList(list) => Some(list),
            _ => None,
        });
        for (object, list) in lists {
            let list = cidr_list(&mut self.cluster.labels, object, list);
            self.cluster.lists.push(list);
        }
        self.cluster.lists.sort_by(list_order);
    }
}

/// The order in which lists decide.
pub fn list_order(a: &CidrList, b: &CidrList) -> Ordering {
    // By name at the end, so that the order of the input has no effect.
    (a.order, a.action, &a.name).cmp(&(b.order, b.action, &b.name))
}

/// Resolves a list. Its selectors are added to `labels`.
pub fn cidr_list(labels: &mut Labelling, object: &Object, list: &k8s::CidrList) -> CidrList {
    CidrList {
        name: object.meta.name.clone(),
        action: list.action,
        order: list.order,
        ingress: list.ingress,
        egress: list.egress,
        namespaces: selector_or_all(labels, list.namespaces.as_ref()),
        pods: selector_or_all(labels, list.pods.as_ref()),
        entries: list.entries.clone(),
        object: object.id,
    }
}

/// Whether a policy is only reported.
pub fn is_audit(policy: &NetworkPolicy, assume: Assumptions) -> bool {
    policy.mode == Mode::Audit && assume.audit == Audit::Report
}

/// Resolves a policy whose namespace is known. Its selectors are added to `labels`.
pub fn network_policy(
    labels: &mut Labelling,
    namespace: NamespaceId,
    object: &Object,
    policy: &NetworkPolicy,
) -> Policy {
    let (ingress, egress) = isolates(policy);
    let inert = match (ingress, egress) {
        (false, _) if !policy.ingress.is_empty() => Some(Direction::Ingress),
        (_, false) if !policy.egress.is_empty() => Some(Direction::Egress),
        _ => None,
    };
    Policy {
        namespace,
        name: object.meta.name.clone(),
        subjects: labels.intern_selector(&policy.pod_selector),
        ingress: ingress.then(|| rules(labels, &policy.ingress)),
        egress: egress.then(|| rules(labels, &policy.egress)),
        inert,
        object: object.id,
    }
}

fn rules(labels: &mut Labelling, rules: &[PolicyRule]) -> Vec<Rule> {
    let mut rule = |rule: &PolicyRule| Rule {
        peers: rule.peers.iter().map(|it| peer(labels, it)).collect(),
        ports: rule.ports.iter().map(PortRule::from).collect(),
    };
    rules.iter().map(&mut rule).collect()
}

fn peer(labels: &mut Labelling, peer: &PolicyPeer) -> Peer {
    match peer {
        PolicyPeer::Pods { pods, namespaces } => Peer::Pods {
            namespaces: namespaces.as_ref().map(|selector| labels.intern_selector(selector)),
            pods: selector_or_all(labels, pods.as_ref()),
        },
        PolicyPeer::Block { cidr, except } => Peer::Block { cidr: *cidr, except: except.clone() },
    }
}

// Spec: "This field follows standard label selector semantics; if present but empty, it selects all pods."
fn selector_or_all(labels: &mut Labelling, selector: Option<&LabelSelector>) -> SelectorId {
    let everything = LabelSelector::default();
    labels.intern_selector(selector.unwrap_or(&everything))
}

/// Whether a policy isolates for ingress, and for egress.
// Spec: "If this field is not specified, it will default based on the existence of ingress or egress rules; policies
// that contain an egress section are assumed to affect egress, and all policies (whether or not they contain an ingress
// section) are assumed to affect ingress." The server looks at the rules: `egress: []` has none.
pub fn isolates(policy: &NetworkPolicy) -> (bool, bool) {
    if policy.policy_types.is_empty() {
        return (true, !policy.egress.is_empty());
    }
    (policy.policy_types.contains(&PolicyType::Ingress), policy.policy_types.contains(&PolicyType::Egress))
}
