//! Namespaces that are new or have other labels.
//!
//! A new namespace gets the highest number, so that the numbers of the others stay: predicates, keys and objects contain
//! them. Its pods and policies are changes of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Maintained, NeedsWhole};
use crate::Predicate;
use weir_model::labels::matches;
use weir_model::{Namespace, NamespaceId, SelectorId};
use weir_objects::k8s::Labels;
use weir_objects::origin::ObjectId;

/// The most namespaces that are kept. A tenant may create and delete namespaces, and none is forgotten before the next
/// compile from scratch.
const MOST_NAMESPACES: usize = 65_536;

/// A namespace as it is now.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceChange {
    pub(crate) name: String,
    pub(crate) labels: Arc<Labels>,
    /// `None` if only other objects mention it.
    pub(crate) object: Option<ObjectId>,
}

impl Maintained {
    /// Whether objects of this namespace were seen.
    pub(crate) fn knows_namespace(&self, name: &str) -> bool {
        self.names.find(name).is_some()
    }

    /// Whether a namespace has these labels in the generation.
    pub(crate) fn has_labels(&self, name: &str, labels: &Labels) -> bool {
        let found = self.names.find(name);
        found.is_some_and(|id| self.cluster.labels.labels(self.cluster.namespaces[id.index()].labels) == labels)
    }

    /// Whether a predicate depends on the labels of namespaces, and other ones hold for these labels of a namespace than
    /// before. New namespaces have no pods in the generation.
    pub(crate) fn tells_apart(&self, name: &str, labels: &Labels) -> bool {
        let Some(id) = self.names.find(name) else { return false };
        let it = &self.cluster.labels;
        let before = it.labels(self.cluster.namespaces[id.index()].labels);
        let selectors: BTreeSet<SelectorId> = self.classes.rules.predicates.iter().filter_map(of_namespaces).collect();
        let mut selectors = selectors.into_iter().map(|id| it.selector(id));
        selectors.any(|selector| matches(selector, before) != matches(selector, labels))
    }

    pub(super) fn change_namespaces(&mut self, changes: Vec<NamespaceChange>) -> Result<(), NeedsWhole> {
        for NamespaceChange { name, labels, object } in changes {
            if self.tells_apart(&name, &labels) {
                // Backends without an address are found by the labels at the last compile from scratch.
                if !self.peers.without_address.is_empty() {
                    return Err(NeedsWhole::Backends);
                }
                // The pods in it get their keys again.
                let id = self.names.find(&name);
                id.into_iter().for_each(|id| Arc::make_mut(&mut self.peers.lookup).forget_namespace(id));
            }
            let cluster = Arc::make_mut(&mut self.cluster);
            let labels = cluster.labels.intern_labels(&labels);
            match self.names.find(&name) {
                Some(id) => {
                    let it = &mut cluster.namespaces[id.index()];
                    (it.labels, it.object) = (labels, object);
                }
                None => {
                    let id = NamespaceId(cluster.namespaces.len() as u32);
                    self.names.add(&name, id);
                    cluster.namespaces.push(Namespace { name, labels, object });
                }
            }
        }
        if self.cluster.namespaces.len() > MOST_NAMESPACES { Err(NeedsWhole::Unused) } else { Ok(()) }
    }
}

fn of_namespaces(predicate: &Predicate) -> Option<SelectorId> {
    match predicate {
        Predicate::Pods { namespaces, .. } => *namespaces,
        _ => None,
    }
}
