//! The pod predicates that hold, by namespace and labels.
//!
//! A cluster of 100,000 pods has tens of thousands of different labels, and each generation adds few of them. So
//! generations share the predicates of each namespace, and a new generation copies only those namespaces that change.

use std::collections::HashMap;
use std::sync::Arc;

use crate::predicates::{Predicate, PredicateId, RulePredicates};
use weir_model::labels::matches;
use weir_model::{Cluster, LabelSetId, NamespaceId};
use weir_objects::k8s::LabelSelector;

/// The pod predicates that hold for the labels of a namespace's pods.
pub(super) type OfNamespace = HashMap<LabelSetId, Vec<PredicateId>>;

/// The pod predicates that hold, by namespace and labels.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// By number.
    namespaces: Vec<Arc<OfNamespace>>,
}

impl Held {
    pub(super) fn new(namespaces: Vec<OfNamespace>) -> Self {
        Self { namespaces: namespaces.into_iter().map(Arc::new).collect() }
    }

    /// The predicates that hold for pods with these labels; `None` if they are not known.
    pub(super) fn get(&self, namespace: NamespaceId, labels: LabelSetId) -> Option<&Vec<PredicateId>> {
        self.namespaces.get(namespace.index())?.get(&labels)
    }

    /// Keeps the predicates that hold for pods with these labels.
    pub(super) fn keep(&mut self, (namespace, labels): (NamespaceId, LabelSetId), held: Vec<PredicateId>) {
        if self.get(namespace, labels).is_none() {
            let count = self.namespaces.len().max(namespace.index() + 1);
            self.namespaces.resize_with(count, Arc::default);
            Arc::make_mut(&mut self.namespaces[namespace.index()]).insert(labels, held);
        }
    }

    /// Forgets the predicates that hold for pods of a namespace.
    pub(super) fn forget(&mut self, namespace: NamespaceId) {
        if let Some(of_namespace) = self.namespaces.get_mut(namespace.index()) {
            *of_namespace = Arc::default();
        }
    }

    /// Adds new predicates to the labels for which they hold. Their numbers are the highest, so the lists stay sorted.
    pub(super) fn add(&mut self, cluster: &Cluster, rules: &RulePredicates, new: &[PredicateId]) {
        for (namespace, of_namespace) in (0..).map(NamespaceId).zip(&mut self.namespaces) {
            let selector = |id: &PredicateId| selector_in(cluster, &rules.predicates[id.index()], namespace);
            let new: Vec<_> = new.iter().filter_map(|id| Some((*id, selector(id)?))).collect();
            let holding = |labels: &LabelSetId| -> Vec<PredicateId> {
                let labels = cluster.labels.labels(*labels);
                new.iter().filter(|(_, pods)| matches(pods, labels)).map(|(id, _)| *id).collect()
            };
            let more = of_namespace.keys().map(|labels| (*labels, holding(labels)));
            let more: Vec<_> = more.filter(|(_, holding)| !holding.is_empty()).collect();
            if more.is_empty() {
                continue;
            }
            let of_namespace = Arc::make_mut(of_namespace);
            more.into_iter().for_each(|(labels, holding)| of_namespace.entry(labels).or_default().extend(holding));
        }
    }
}

/// The selector of the pods of a namespace for which a predicate holds; `None` if it holds for none of them.
fn selector_in<'c>(cluster: &'c Cluster, predicate: &Predicate, namespace: NamespaceId) -> Option<&'c LabelSelector> {
    let Predicate::Pods { own, namespaces, pods } = predicate else { return None };
    let it = &cluster.labels;
    let of_namespace = it.labels(cluster.namespaces[namespace.index()].labels);
    let is_in = own.is_none_or(|own| own == namespace)
        && namespaces.is_none_or(|selector| matches(it.selector(selector), of_namespace));
    is_in.then(|| it.selector(*pods))
}

/// Whether a predicate holds for pods with these labels.
pub(crate) fn holds(cluster: &Cluster, predicate: &Predicate, namespace: NamespaceId, labels: LabelSetId) -> bool {
    let pods = selector_in(cluster, predicate, namespace);
    pods.is_some_and(|pods| matches(pods, cluster.labels.labels(labels)))
}
