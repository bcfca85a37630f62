//! The kinds of objects that the policies in force need, beside namespaces, pods and policies.
//!
//! Problem: after pods, services, their slices and nodes are most of the bytes that an API server sends to an agent. For
//! most policies they change nothing.
//! Strategy: a draft of a generation says which of them its verdicts depend on. The agent follows only these. The
//! function that decides about services is the one that classification uses ([`ports::judges_egress`]), so a generation
//! cannot need services that [`Draft::needs`] does not name.
//! Invariant: an object that is not known is never taken for one that does not exist. A draft whose needs are not met
//! waits, or first loses everything that could allow a packet because an object is missing ([`Draft::close_egress`],
//! [`Draft::close_node_rules`]).

use super::{Draft, Generation, Index};
use crate::{Scope, ports, subjects};
use weir_model::resolve::resolve;
use weir_model::{Cluster, RuleAction, TierPeer, TierPolicy, TierRule};
use weir_objects::k8s::{Body, ListAction, Object};

/// The kinds of objects that verdicts depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Services and EndpointSlices: a policy or list applies to egress of a local pod.
    pub services: bool,
    /// The nodes beside the own one: a rule of a cluster-wide policy has a `nodes` peer.
    pub nodes: bool,
}

impl Index {
    /// The kinds of objects that the verdicts of a draft of the present objects will depend on, or more: a local pod
    /// counts here even if another pod has its address. Made without a draft, whose cluster has every pod: while lists
    /// are missing, this is asked again and again.
    pub fn likely_needs(&self) -> Needs {
        let is_read = |object: &&Object| match &object.body {
            Body::Pod(pod) => self.node.is_none() || pod.node == self.node,
            Body::Service(_) | Body::EndpointSlice(_) => false,
            _ => true,
        };
        let (cluster, _) = resolve(self.objects.iter().filter(is_read), self.assume);
        needs_of(&cluster, &self.scope_of(&cluster))
    }
}

fn needs_of(cluster: &Cluster, scope: &Scope) -> Needs {
    let services = ports::judges_egress(cluster, &subjects::draft(cluster, scope));
    Needs { services, nodes: has_node_peers(cluster) }
}

fn has_node_peers(cluster: &Cluster) -> bool {
    cluster.tiers.iter().flat_map(rules).any(names_nodes)
}

impl Generation {
    /// The kinds of objects that its verdicts depend on.
    pub fn needs(&self) -> Needs {
        Needs { services: self.classes.judges_egress(&self.cluster), nodes: has_node_peers(&self.cluster) }
    }
}

impl Draft {
    /// The kinds of objects that the verdicts of this draft depend on.
    pub fn needs(&self) -> Needs {
        needs_of(&self.cluster, &self.scope)
    }

    /// Removes everything from the draft that allows local pods to send packets where policy isolates them. For a short
    /// time in which services are needed and not known: a rule for a service's address must not allow a packet before
    /// the pods behind the address are known. Rules and lists that deny stay. Packets to the own node pass, as always.
    pub fn close_egress(&mut self) {
        self.is_altered = true;
        for policy in &mut self.cluster.policies {
            // `None` stays: the policy does not isolate in this direction.
            policy.egress.iter_mut().for_each(Vec::clear);
        }
        for policy in self.cluster.tiers.iter_mut().filter(|policy| !policy.is_audit) {
            // The rule keeps its place, so that the later rules keep their positions in the object.
            let allowing = policy.egress.iter_mut().filter(|rule| rule.action != RuleAction::Deny);
            allowing.for_each(|rule| rule.matched = None);
        }
        for list in self.cluster.lists.iter_mut().filter(|list| list.action == ListAction::Allow) {
            list.egress = false;
        }
    }

    /// Makes every rule with a `nodes` peer fail closed, as if the peer could not be read: an `Accept` rule matches
    /// nothing, a `Deny` or `Pass` rule denies its ports to every peer.
    pub fn close_node_rules(&mut self) {
        self.is_altered = true;
        for policy in self.cluster.tiers.iter_mut().filter(|policy| !policy.is_audit) {
            for rule in policy.ingress.iter_mut().chain(&mut policy.egress).filter(|rule| names_nodes(rule)) {
                match rule.action {
                    RuleAction::Accept => rule.matched = None,
                    RuleAction::Deny | RuleAction::Pass => {
                        rule.action = RuleAction::Deny;
                        rule.matched.iter_mut().for_each(|it| it.peers.clear());
                    }
                }
            }
        }
    }
}

fn rules(policy: &TierPolicy) -> impl Iterator<Item = &TierRule> {
    policy.ingress.iter().chain(&policy.egress)
}

fn names_nodes(rule: &TierRule) -> bool {
    let mut peers = rule.matched.iter().flat_map(|it| &it.peers);
    peers.any(|peer| matches!(peer, TierPeer::Nodes(_)))
}
