//! Two peers that look like the two halves of one.

use std::collections::HashMap;

use super::context::LintContext;
use super::cover::selects_all;
use super::words;
use weir_model::{Direction, Peer, Policy};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::k8s::{Body, LabelSelector, NetworkPolicy, PolicyPeer};
use weir_objects::origin::{FieldOrigin, ObjectId};

pub(super) static CODE: Code = Code::lint("and-or-peers", Severity::Note, include_str!("and_or_peers.diff"))
    .what("A namespaceSelector and a podSelector are two list items, but were probably meant to be one.")
    .why(
        "Two items are alternatives: every pod of the selected namespaces, and the selected pods of the policy's \
         own namespace. One item with both is a condition: the selected pods in the selected namespaces. One dash \
         makes the difference. The lint reports rules that have exactly these two peers if no known pod of the \
         policy's own namespace matches.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let written: HashMap<ObjectId, &NetworkPolicy> = context
        .objects
        .iter()
        .filter_map(|object| match &object.body {
            Body::NetworkPolicy(policy) => Some((object.id, policy)),
            _ => None,
        })
        .collect();
    for policy in &context.cluster.policies {
        let Some(written) = written.get(&policy.object) else { continue };
        for (direction, rules) in [(Direction::Ingress, &written.ingress), (Direction::Egress, &written.egress)] {
            for (index, rule) in rules.iter().enumerate() {
                if context.is_spent(policy.object) {
                    return;
                }
                if looks_split(&rule.peers) && !is_meant(context, policy, direction, index) {
                    found.push(describe(context, policy, direction, index));
                }
            }
        }
    }
}

/// Whether the two peers are a selector of namespaces alone and one of pods alone.
fn looks_split(peers: &[PolicyPeer]) -> bool {
    let [
        PolicyPeer::Pods { pods: None, namespaces: Some(namespaces) },
        PolicyPeer::Pods { pods: Some(pods), namespaces: None },
    ] = peers
    else {
        return false;
    };
    let everything = LabelSelector::default();
    *namespaces != everything && *pods != everything
}

/// Whether the policy's own namespace has pods that the second peer matches.
fn is_meant(context: &LintContext<'_>, policy: &Policy, direction: Direction, index: usize) -> bool {
    let rule = policy.rules(direction).and_then(|rules| rules.get(index));
    match rule.and_then(|rule| rule.peers.last()) {
        Some(peer @ Peer::Pods { pods, .. }) if !selects_all(&context.cluster.labels, *pods) => {
            !context.peer_groups(policy.namespace, peer).is_empty()
        }
        _ => true,
    }
}

fn describe(context: &LintContext<'_>, policy: &Policy, direction: Direction, index: usize) -> Diagnostic {
    let field = words::peers_field(direction);
    let name = words::policy(context.cluster, policy);
    let origin = |peer| FieldOrigin::new(policy.object, words::peer_path(direction, index, peer));
    let namespace = &context.cluster.namespaces[policy.namespace.index()].name;
    Diagnostic::at(&CODE, origin(1), format!("two peers of policy {name} were probably meant to be one"))
        .label(format!("pods of namespace `{namespace}`; no known pod matches"))
        .also(origin(0), "every pod of these namespaces")
        .note(format!("two items of `{field}` are alternatives; two selectors in one item are both conditions"))
        .help("if those pods in those namespaces are meant, remove the dash before podSelector")
}
