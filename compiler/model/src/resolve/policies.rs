//! Policies and address lists.

use super::{Resolver, sorted};
use crate::{Audit, CidrList, Direction, Peer, Policy, PortRule, Rule};
use weir_objects::k8s::{self, Body, LabelSelector, Mode, NetworkPolicy, Object, PolicyPeer, PolicyRule, PolicyType};

impl<'o> Resolver<'o> {
    pub(super) fn add_policies(&mut self, objects: &[&'o Object]) {
        let policies = sorted(objects, |body| match body {
            Body::NetworkPolicy(policy) => Some(policy),
            _ => None,
        });
        for (object, policy) in policies {
            let is_audit = policy.mode == Mode::Audit && self.cluster.assume.audit == Audit::Report;
            let policy = self.policy(object, policy);
            if is_audit { self.cluster.audit.push(policy) } else { self.cluster.policies.push(policy) }
        }
    }

    fn policy(&mut self, object: &Object, policy: &NetworkPolicy) -> Policy {
        let (ingress, egress) = isolates(policy);
        let inert = match (ingress, egress) {
            (false, _) if !policy.ingress.is_empty() => Some(Direction::Ingress),
            (_, false) if !policy.egress.is_empty() => Some(Direction::Egress),
            _ => None,
        };
        Policy {
            namespace: self.namespace(object),
            name: object.meta.name.clone(),
            subjects: self.cluster.labels.intern_selector(&policy.pod_selector),
            ingress: ingress.then(|| self.rules(&policy.ingress)),
            egress: egress.then(|| self.rules(&policy.egress)),
            inert,
            object: object.id,
        }
    }

    fn rules(&mut self, rules: &[PolicyRule]) -> Vec<Rule> {
        rules
            .iter()
            .map(|rule| Rule {
                peers: rule.peers.iter().map(|peer| self.peer(peer)).collect(),
                ports: rule.ports.iter().map(PortRule::from).collect(),
            })
            .collect()
    }

    fn peer(&mut self, peer: &PolicyPeer) -> Peer {
        match peer {
            PolicyPeer::Pods { pods, namespaces } => Peer::Pods {
                namespaces: namespaces.as_ref().map(|selector| self.cluster.labels.intern_selector(selector)),
                pods: self.selector_or_all(pods.as_ref()),
            },
            PolicyPeer::Block { cidr, except } => Peer::Block { cidr: *cidr, except: except.clone() },
        }
    }

    // Spec: "This field follows standard label selector semantics; if present but empty, it selects all pods."
    fn selector_or_all(&mut self, selector: Option<&LabelSelector>) -> crate::SelectorId {
        let everything = LabelSelector::default();
        self.cluster.labels.intern_selector(selector.unwrap_or(&everything))
    }

    pub(super) fn add_lists(&mut self, objects: &[&'o Object]) {
        let lists = sorted(objects, |body| match body {
            Body::CidrList(list) => Some(list),
            _ => None,
        });
        for (object, list) in lists {
            let list = self.list(object, list);
            self.cluster.lists.push(list);
        }
        // The lists are already sorted by name, and the sort is stable.
        self.cluster.lists.sort_by_key(|list| (list.order, list.action));
    }

    fn list(&mut self, object: &Object, list: &k8s::CidrList) -> CidrList {
        CidrList {
            name: object.meta.name.clone(),
            action: list.action,
            order: list.order,
            ingress: list.ingress,
            egress: list.egress,
            namespaces: self.selector_or_all(list.namespaces.as_ref()),
            pods: self.selector_or_all(list.pods.as_ref()),
            entries: list.entries.clone(),
            object: object.id,
        }
    }
}

/// Whether a policy isolates for ingress, and for egress.
// Spec: "If this field is not specified, it will default based on the existence of ingress or egress rules; policies
// that contain an egress section are assumed to affect egress, and all policies (whether or not they contain an ingress
// section) are assumed to affect ingress." The server looks at the rules: `egress: []` has none.
fn isolates(policy: &NetworkPolicy) -> (bool, bool) {
    if policy.policy_types.is_empty() {
        return (true, !policy.egress.is_empty());
    }
    (policy.policy_types.contains(&PolicyType::Ingress), policy.policy_types.contains(&PolicyType::Egress))
}
