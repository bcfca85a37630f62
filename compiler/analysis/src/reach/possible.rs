//! Pods that could exist as parties: pods that policies select although the input has none of them, any other pod of
//! each namespace, and any pod of all other namespaces.
//!
//! Such a pod has only the labels that it is shown with, and none of the others that policies and lists mention, so
//! policies treat all such pods alike. Its address is not known: no block and no list contains it.

use std::collections::BTreeSet;

use super::Party;
use weir_model::labels::matches;
use weir_model::{AddedPod, Cluster, NamespaceId, Peer, SelectorId};
use weir_objects::k8s::{LabelSelector, Labels, Operator};

/// The kind of parties that are pods that could exist.
pub const KIND: &str = "possible";
/// The namespace of pods of namespaces that the input does not mention. No namespace can have this name.
const ELSEWHERE: &str = "(other namespaces)";

/// The cluster with endpoints for pods that could exist.
pub fn with_possible_pods(cluster: &Cluster) -> Cluster {
    let mut with = cluster.clone();
    let mut add = |namespace: &str, labels: Labels, name: String| {
        let (namespace, ports) = (namespace.to_owned(), Vec::new());
        let id = with.add_pod(AddedPod { namespace, namespace_labels: None, labels, ports, address: None });
        let endpoint = &mut with.endpoints[id.index()];
        endpoint.name = name;
        endpoint.kind = KIND.into();
        endpoint.is_several = true;
    };
    for (namespace, labels) in selected_pods(cluster) {
        let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        add(&cluster.namespaces[namespace.index()].name, labels, format!("(pods with {})", pairs.join(",")));
    }
    for namespace in &cluster.namespaces {
        add(&namespace.name, Labels::new(), "(any other pod)".to_owned());
    }
    add(ELSEWHERE, Labels::new(), "(any pod)".to_owned());
    with
}

/// The labels of pods that policies name in their own namespace, where the input has no such pod.
fn selected_pods(cluster: &Cluster) -> BTreeSet<(NamespaceId, Labels)> {
    let mut found = BTreeSet::new();
    for policy in &cluster.policies {
        let rules = policy.ingress.iter().chain(&policy.egress).flatten();
        let peers = rules.flat_map(|rule| &rule.peers).filter_map(|peer| match peer {
            Peer::Pods { namespaces: None, pods } => Some(*pods),
            Peer::Pods { .. } | Peer::Block { .. } => None,
        });
        let has_pods = |selector: SelectorId| {
            let selector = cluster.labels.selector(selector);
            let mut endpoints = cluster.endpoints.iter().filter(|it| it.namespace == policy.namespace);
            endpoints.any(|it| matches(selector, cluster.labels.labels(it.labels)))
        };
        let selectors = peers.chain([policy.subjects]).filter(|it| !has_pods(*it));
        let labels = selectors.filter_map(|it| fewest_labels(cluster.labels.selector(it)));
        found.extend(labels.filter(|it| !it.is_empty()).map(|labels| (policy.namespace, labels)));
    }
    found
}

/// The fewest labels that a selector matches; `None` if it contradicts itself.
fn fewest_labels(selector: &LabelSelector) -> Option<Labels> {
    let mut labels = Labels::new();
    for requirement in selector.requirements() {
        let value = match requirement.operator {
            Operator::In => requirement.values.into_iter().next(),
            Operator::Exists => Some("any".to_owned()),
            Operator::NotIn | Operator::DoesNotExist => None,
        };
        if let Some(value) = value {
            // The first value, if several requirements name the key.
            if !labels.contains_key(&requirement.key) {
                labels.insert(requirement.key, value);
            }
        }
    }
    matches(selector, &labels).then_some(labels)
}

/// Removes possible pods that are nothing new: policies treat them like pods of the input in their namespace, or like
/// those of namespaces that the input does not mention.
pub(super) fn remove_repeated(cluster: &Cluster, parties: &mut Vec<Party>) {
    let is_elsewhere = |it: &Party| cluster.namespaces[it.namespace.index()].name == ELSEWHERE;
    let class = |it: &Party, family: usize| Some((it.subject, it.peers[family]?));
    let of_input: BTreeSet<_> = parties
        .iter()
        .filter(|it| it.kind != KIND)
        .flat_map(|it| [0, 1].map(|family| (it.namespace, family, class(it, family))))
        .collect();
    let elsewhere = parties.iter().find(|it| is_elsewhere(it)).map(|it| (it.subject, it.peers));
    parties.retain(|it| {
        let is_known = [0, 1].into_iter().any(|family| of_input.contains(&(it.namespace, family, class(it, family))));
        let is_like_elsewhere = !is_elsewhere(it) && Some((it.subject, it.peers)) == elsewhere;
        it.kind != KIND || !is_known && !is_like_elsewhere
    });
}
