//! Selectors that no possible pod or namespace matches: their requirements contradict each other or a Namespace object.
//!
//! Requirements on different keys are independent, so each key is tested alone. A requirement observes a value only by
//! the values that it lists: it is enough to try the listed values, one value that is not listed, and no label.

use std::collections::{BTreeMap, BTreeSet};

use super::namespaces::is_namespace_name;
use crate::addresses::AddressSet;
use weir_model::labels::matches;
use weir_model::{Cluster, NamespaceId, SelectorId};
use weir_objects::address::Prefix;
use weir_objects::k8s::{LabelSelector, Labels, NAMESPACE_NAME_LABEL, Operator, Requirement};

/// Why a selector can match nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorConflict {
    /// A smallest set of the selector's requirements that cannot hold together.
    pub requirements: Vec<Requirement>,
    /// The declared namespace that the requirements name but whose labels contradict them.
    pub namespace: Option<NamespaceId>,
}

/// Finds selectors that can match nothing. A selector of namespaces is tested against the namespaces that the input
/// declares and against every namespace that it does not declare.
pub struct SelectorConflicts<'c> {
    cluster: &'c Cluster,
    declared: BTreeMap<&'c str, NamespaceId>,
}

impl<'c> SelectorConflicts<'c> {
    /// Prepares the test for a cluster.
    pub fn new(cluster: &'c Cluster) -> Self {
        let ids = cluster.namespaces.iter().zip((0..).map(NamespaceId));
        let declared = ids.filter(|(it, _)| it.object.is_some()).map(|(it, id)| (it.name.as_str(), id)).collect();
        Self { cluster, declared }
    }

    /// Why no pod can have labels that the selector matches.
    pub fn of_pods(&self, selector: SelectorId) -> Option<SelectorConflict> {
        let selector = self.cluster.labels.selector(selector);
        // Equal labels alone have different keys.
        if selector.match_expressions.is_empty() {
            return None;
        }
        conflict(selector, can_have_labels)
    }

    /// Why no namespace can have a name and labels that the selector matches.
    pub fn of_namespaces(&self, selector: SelectorId) -> Option<SelectorConflict> {
        let selector = self.cluster.labels.selector(selector);
        let has_name = selector.requirements().any(|it| it.key == NAMESPACE_NAME_LABEL);
        if selector.match_expressions.is_empty() && !has_name {
            return None;
        }
        let mut found = conflict(selector, |it| self.can_be_namespace(it))?;
        let named: BTreeSet<&String> = found
            .requirements
            .iter()
            .filter(|it| it.key == NAMESPACE_NAME_LABEL && it.operator == Operator::In)
            .flat_map(|it| &it.values)
            .collect();
        if found.requirements.len() > 1
            && let [name] = *named.into_iter().collect::<Vec<_>>()
        {
            found.namespace = self.declared.get(name.as_str()).copied();
        }
        Some(found)
    }

    fn can_be_namespace(&self, requirements: &[&Requirement]) -> bool {
        let selector = selector(requirements);
        let labels = |id: &NamespaceId| self.cluster.labels.labels(self.cluster.namespaces[id.index()].labels);
        if self.declared.values().any(|id| matches(&selector, labels(id))) {
            return true;
        }
        let (of_name, of_labels): (Vec<&Requirement>, Vec<&Requirement>) =
            requirements.iter().partition(|it| it.key == NAMESPACE_NAME_LABEL);
        let is_free = |name: &str| is_namespace_name(name) && !self.declared.contains_key(name);
        can_have_labels(&of_labels) && can_have_value(&of_name, NAMESPACE_NAME_LABEL, Some(&is_free))
    }
}

/// A smallest set of requirements that are impossible together, if all of them are.
fn conflict(selector: &LabelSelector, is_possible: impl Fn(&[&Requirement]) -> bool) -> Option<SelectorConflict> {
    let all: Vec<Requirement> = selector.requirements().collect();
    let mut needed: Vec<&Requirement> = all.iter().collect();
    if is_possible(&needed) {
        return None;
    }
    for index in (0..needed.len()).rev() {
        let left_out = needed.remove(index);
        if is_possible(&needed) {
            needed.insert(index, left_out);
        }
    }
    Some(SelectorConflict { requirements: needed.into_iter().cloned().collect(), namespace: None })
}

fn can_have_labels(requirements: &[&Requirement]) -> bool {
    let keys: BTreeSet<&str> = requirements.iter().map(|it| it.key.as_str()).collect();
    keys.into_iter().all(|key| can_have_value(requirements, key, None))
}

/// Whether one value of a key, or its absence, satisfies all requirements on the key. With `is_free`, the key is the name
/// of a namespace: it is never absent, and a listed value must be free.
fn can_have_value(requirements: &[&Requirement], key: &str, is_free: Option<&dyn Fn(&str) -> bool>) -> bool {
    let own: Vec<&Requirement> = requirements.iter().copied().filter(|it| it.key == key).collect();
    let selector = selector(&own);
    let has = |value: &str| matches(&selector, &Labels::from([(key.to_owned(), value.to_owned())]));
    let listed = || own.iter().flat_map(|it| &it.values).filter(|it| is_free.is_none_or(|is_free| is_free(it)));
    // No label has this value, so it represents all values that are not listed.
    let unlisted = "\0";
    (is_free.is_none() && matches(&selector, &Labels::new())) || has(unlisted) || listed().any(|it| has(it))
}

fn selector(requirements: &[&Requirement]) -> LabelSelector {
    let match_expressions = requirements.iter().map(|it| (*it).clone()).collect();
    LabelSelector { match_expressions, ..LabelSelector::default() }
}

/// Whether the exceptions of a block leave no address of it.
pub fn block_is_empty(cidr: Prefix, except: &[Prefix]) -> bool {
    AddressSet::of_block(cidr, except).is_empty()
}
