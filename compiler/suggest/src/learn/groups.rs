//! Pods grouped by the labels that their workload gives them, and a selector for exactly each group.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Cluster, EndpointId};
use weir_objects::k8s::{LabelSelector, Labels, Operator, Requirement};

use super::names::PolicyNames;
use crate::allow::is_selectable;
use crate::labels;

/// A group. Groups are sorted by namespace and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupId(usize);

/// Every group of a cluster.
pub(crate) struct Groups {
    groups: Vec<Group>,
    by_endpoint: BTreeMap<u32, GroupId>,
    /// By namespace: the name of the policy that denies the rest.
    default_deny: BTreeMap<String, String>,
}

struct Group {
    namespace: String,
    labels: Labels,
    name: String,
    selector: LabelSelector,
    members: Vec<EndpointId>,
}

impl Groups {
    /// Groups the pods and workloads that policies can select.
    pub(crate) fn of(cluster: &Cluster, mut names: PolicyNames) -> Self {
        let mut found: BTreeMap<(String, Labels), Vec<EndpointId>> = BTreeMap::new();
        for (index, endpoint) in cluster.endpoints.iter().enumerate() {
            let id = EndpointId(index as u32);
            if is_selectable(cluster, id) {
                let namespace = cluster.namespaces[endpoint.namespace.index()].name.clone();
                let labels = labels::lasting(cluster.labels.labels(endpoint.labels));
                found.entry((namespace, labels)).or_default().push(id);
            }
        }
        let keys: Vec<(String, Labels)> = found.keys().cloned().collect();
        let namespaces: BTreeSet<&String> = keys.iter().map(|(namespace, _)| namespace).collect();
        let named = |namespace: &String| (namespace.clone(), names.free(namespace, "default-deny"));
        let default_deny = namespaces.into_iter().map(named).collect();
        let mut groups = Vec::with_capacity(found.len());
        let mut by_endpoint = BTreeMap::new();
        for ((namespace, labels), members) in found {
            by_endpoint.extend(members.iter().map(|it| (it.0, GroupId(groups.len()))));
            let name = names.free(&namespace, &workload(cluster, &labels, members[0]));
            let others = keys.iter().filter(|(other, _)| *other == namespace).map(|(_, labels)| labels);
            let selector = selector(&labels, others);
            groups.push(Group { namespace, labels, name, selector, members });
        }
        Self { groups, by_endpoint, default_deny }
    }

    /// The group of an endpoint.
    pub(crate) fn group(&self, endpoint: EndpointId) -> Option<GroupId> {
        self.by_endpoint.get(&endpoint.0).copied()
    }

    pub(crate) fn members(&self, group: GroupId) -> &[EndpointId] {
        &self.groups[group.0].members
    }

    pub(crate) fn namespace(&self, group: GroupId) -> &str {
        &self.groups[group.0].namespace
    }

    /// The name of its policy.
    pub(crate) fn name(&self, group: GroupId) -> &str {
        &self.groups[group.0].name
    }

    /// The name of the policy that denies the rest of a namespace.
    pub(crate) fn default_deny_name(&self, namespace: &str) -> &str {
        self.default_deny.get(namespace).map_or("", String::as_str)
    }

    pub(crate) fn selector(&self, group: GroupId) -> LabelSelector {
        self.groups[group.0].selector.clone()
    }

    /// Whether pods of the group have labels; a selector without labels is written differently.
    pub(crate) fn has_labels(&self, group: GroupId) -> bool {
        !self.groups[group.0].labels.is_empty()
    }
}

/// The name of the workload: of the owner, of a usual label, or of the pod.
fn workload(cluster: &Cluster, labels: &Labels, member: EndpointId) -> String {
    let endpoint = &cluster.endpoints[member.index()];
    let owner = endpoint.owner.as_deref().and_then(|it| it.split_once('/')).map(|(_, name)| name.to_owned());
    let label = ["app.kubernetes.io/name", "app", "k8s-app"].into_iter().find_map(|key| labels.get(key));
    let is_name = |it: &&str| weir_objects::decode::names::dns_label(it).is_ok();
    label.filter(is_name).map(str::to_owned).or(owner).unwrap_or_else(|| endpoint.name.clone())
}

/// A selector of these labels that leaves out pods of other groups, which may have the same labels and more.
fn selector<'l>(own: &Labels, others: impl Iterator<Item = &'l Labels>) -> LabelSelector {
    let has_all = |it: &&Labels| *it != own && own.iter().all(|(key, value)| it.get(key) == Some(value));
    let mut absent: BTreeSet<&str> = BTreeSet::new();
    for other in others.filter(has_all) {
        if !other.keys().any(|key| absent.contains(key)) {
            absent.extend(other.keys().find(|key| !own.contains_key(key)));
        }
    }
    let expression =
        |key: &str| Requirement { key: key.to_owned(), operator: Operator::DoesNotExist, values: Vec::new() };
    LabelSelector { match_labels: own.clone(), match_expressions: absent.into_iter().map(expression).collect() }
}
