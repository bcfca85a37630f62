//! Classes of namespaces: every namespace that the input names, and *any other namespace*.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Cluster, Peer, TierPeer};
use weir_objects::k8s::{LabelSelector, Labels, NAMESPACE_NAME_LABEL, Operator};

/// A namespace, as far as the input knows it.
#[derive(Clone, Debug)]
pub(super) enum NamespaceClass {
    /// A Namespace object fixes its labels, in the base and in the head.
    Declared { name: String, labels: [Labels; 2] },
    /// It is only mentioned: it may have any labels.
    Mentioned(String),
    /// Any namespace that is not mentioned.
    Other,
}

impl NamespaceClass {
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Declared { name, .. } | Self::Mentioned(name) => Some(name),
            Self::Other => None,
        }
    }

    /// Whether the two sides declare different labels.
    pub(super) fn is_disputed(&self) -> bool {
        matches!(self, Self::Declared { labels: [base, head], .. } if base != head)
    }
}

/// All classes: declared namespaces, then mentioned ones, each sorted by name, then the class of all others.
pub(super) fn classes(sides: [&Cluster; 2]) -> Vec<NamespaceClass> {
    let mut declared: BTreeMap<&str, [Option<&Labels>; 2]> = BTreeMap::new();
    let mut mentioned: BTreeSet<String> = BTreeSet::new();
    for (side, cluster) in sides.into_iter().enumerate() {
        for namespace in &cluster.namespaces {
            if namespace.object.is_some() {
                declared.entry(&namespace.name).or_default()[side] = Some(cluster.labels.labels(namespace.labels));
            }
            mentioned.insert(namespace.name.clone());
        }
        for selector in namespace_selectors(cluster) {
            let named = selector.requirements().filter(|it| it.key == NAMESPACE_NAME_LABEL).flat_map(|it| it.values);
            mentioned.extend(named.filter(|it| is_namespace_name(it)));
        }
    }
    mentioned.retain(|name| !declared.contains_key(name.as_str()));
    let of_declared = declared.into_iter().map(|(name, [base, head])| {
        // If one side alone declares the namespace, its labels hold for both.
        let labels = [base.or(head), head.or(base)].map(|it| it.cloned().unwrap_or_default());
        NamespaceClass::Declared { name: name.to_owned(), labels }
    });
    of_declared.chain(mentioned.into_iter().map(NamespaceClass::Mentioned)).chain([NamespaceClass::Other]).collect()
}

fn namespace_selectors(cluster: &Cluster) -> impl Iterator<Item = &LabelSelector> {
    let rules = cluster.policies.iter().flat_map(|it| it.ingress.iter().chain(&it.egress)).flatten();
    let of_peers = rules.flat_map(|rule| &rule.peers).filter_map(|peer| match peer {
        Peer::Pods { namespaces, .. } => *namespaces,
        Peer::Block { .. } => None,
    });
    let of_tiers = cluster.tiers.iter().filter(|it| !it.is_audit).flat_map(|policy| {
        let matched = policy.ingress.iter().chain(&policy.egress).filter_map(|rule| rule.matched.as_ref());
        let peers = matched.flat_map(|it| &it.peers).filter_map(|peer| match peer {
            TierPeer::Pods { namespaces, .. } => Some(*namespaces),
            TierPeer::Networks(_) | TierPeer::Nodes(_) => None,
        });
        peers.chain([policy.namespaces])
    });
    let all = of_peers.chain(of_tiers).chain(cluster.lists.iter().map(|it| it.namespaces));
    all.map(|it| cluster.labels.selector(it))
}

/// Whether a namespace can have the name: a DNS label. A selector for another name matches no namespace.
pub(super) fn is_namespace_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let bounds = [name.bytes().next(), name.bytes().next_back()];
    name.len() <= 63 && name.bytes().all(is_inner) && bounds.iter().all(|it| it.is_some_and(|byte| byte != b'-'))
}

/// Whether a requirement on the name label holds. `None` is the name of the class of all other namespaces.
pub(super) fn name_matches(operator: Operator, values: &[String], name: Option<&str>) -> bool {
    let listed = name.is_some_and(|name| values.iter().any(|it| it == name));
    match operator {
        Operator::In => listed,
        Operator::NotIn => !listed,
        // The API server gives every namespace this label.
        Operator::Exists => true,
        Operator::DoesNotExist => false,
    }
}
