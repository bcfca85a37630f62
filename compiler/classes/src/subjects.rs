//! Local endpoints with the policies and lists that apply to them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::Scope;
use weir_model::labels::Selection;
use weir_model::{
    Cluster, Endpoint, EndpointId, LabelSetId, ListId, NamespaceId, NodeId, PolicyId, Standing, TierPolicyId,
};
use weir_objects::k8s::LabelSelector;

/// Local endpoints with the policies and lists that apply, before they are divided further by ports and services.
#[derive(Clone, Debug)]
pub(crate) struct SubjectDraft {
    /// By endpoint, in the order of the scope.
    pub(crate) local: Vec<LocalEndpoint>,
    /// The policies that select any of them, audit ones too, sorted.
    pub(crate) policies: Vec<PolicyId>,
    /// The cluster-wide policies that select any of them, audit ones too, in the order they are evaluated.
    pub(crate) tiers: Vec<TierPolicyId>,
    /// The lists that apply to any of them, in the order they are decided.
    pub(crate) lists: Vec<ListId>,
    /// Placeholder addresses for endpoints that have none.
    pub(crate) stand_ins: BTreeMap<IpAddr, EndpointId>,
}

impl SubjectDraft {
    /// The nodes that local endpoints run on, sorted.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.local.iter().filter_map(|local| local.node).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// One local endpoint.
#[derive(Clone, Debug)]
pub(crate) struct LocalEndpoint {
    pub(crate) endpoint: EndpointId,
    pub(crate) policies: Vec<PolicyId>,
    pub(crate) audit: Vec<PolicyId>,
    pub(crate) tiers: Vec<TierPolicyId>,
    pub(crate) audit_tiers: Vec<TierPolicyId>,
    pub(crate) lists: Vec<ListId>,
    pub(crate) node: Option<NodeId>,
}

pub(crate) fn draft(cluster: &Cluster, scope: &Scope) -> SubjectDraft {
    let mut finder = SubjectFinder {
        cluster,
        selection: Selection::new(&cluster.labels),
        policies: index_policies(cluster),
        known: HashMap::new(),
    };
    let hosts = nodes_of_hosts_without_address(cluster);
    let mut local = Vec::with_capacity(scope.endpoints().len());
    for id in scope.endpoints() {
        let endpoint = &cluster.endpoints[id.index()];
        let InForce { mut policies, tiers, lists } = finder.in_force(endpoint).clone();
        // Audit policies are numbered after all enforced ones, so the sorted list is cut at one place.
        let audit = policies.split_off(policies.partition_point(|policy| !cluster.is_audit(*policy)));
        // No packet can carry the address of a node that has none, so the node matters only if services may lead to a
        // pod on its network. Kept in any case, it would give each such node's pods classes of their own.
        let node = endpoint.node.filter(|node| cluster.has_addresses(*node) || hosts.contains(node));
        let (audit_tiers, tiers) = tiers.into_iter().partition(|id| cluster.tier_policy(*id).is_audit);
        local.push(LocalEndpoint { endpoint: *id, policies, audit, tiers, audit_tiers, lists, node });
    }
    let policies: BTreeSet<_> = local.iter().flat_map(|it| it.policies.iter().chain(&it.audit)).copied().collect();
    let tiers: BTreeSet<_> = local.iter().flat_map(|it| it.tiers.iter().chain(&it.audit_tiers)).copied().collect();
    let lists: BTreeSet<_> = local.iter().flat_map(|it| &it.lists).copied().collect();
    SubjectDraft {
        local,
        policies: policies.into_iter().collect(),
        tiers: tiers.into_iter().collect(),
        lists: lists.into_iter().collect(),
        stand_ins: scope.stand_ins.clone(),
    }
}

/// The nodes of host-network pods that have no address.
// Spec: "Traffic to and from the node where a Pod is running is always allowed, regardless of the IP address of the Pod
// or the node." Such a pod is its node as a backend too.
fn nodes_of_hosts_without_address(cluster: &Cluster) -> HashSet<NodeId> {
    let is_host = |it: &&Endpoint| it.standing == Standing::HostNetwork && it.addresses.is_empty();
    cluster.endpoints.iter().filter(is_host).filter_map(|it| it.node).collect()
}

/// The policies of a namespace, by one label that they need.
#[derive(Default)]
struct NamespacePolicies<'c> {
    /// Those that need a label with a certain value.
    by_label: HashMap<(&'c str, &'c str), Vec<PolicyId>>,
    /// The others.
    rest: Vec<PolicyId>,
}

/// The policies and lists that apply to an endpoint, audit policies too.
#[derive(Clone)]
struct InForce {
    policies: Vec<PolicyId>,
    tiers: Vec<TierPolicyId>,
    lists: Vec<ListId>,
}

struct SubjectFinder<'c> {
    cluster: &'c Cluster,
    selection: Selection,
    policies: HashMap<NamespaceId, NamespacePolicies<'c>>,
    known: HashMap<(NamespaceId, LabelSetId), InForce>,
}

impl SubjectFinder<'_> {
    /// The policies and lists that apply to an endpoint. Endpoints of one namespace with the same labels share the
    /// result.
    fn in_force(&mut self, endpoint: &Endpoint) -> &InForce {
        let key = (endpoint.namespace, endpoint.labels);
        // Not `entry`, because computing the answer borrows all of `self`.
        if !self.known.contains_key(&key) {
            let answer = InForce { policies: self.policies(key), tiers: self.tiers(key), lists: self.lists(key) };
            self.known.insert(key, answer);
        }
        &self.known[&key]
    }

    fn policies(&mut self, (namespace, labels): (NamespaceId, LabelSetId)) -> Vec<PolicyId> {
        let Some(index) = self.policies.get(&namespace) else { return Vec::new() };
        let mut candidates = index.rest.clone();
        // Each policy is in one list, so no candidate is found twice. The cost depends on the pod's labels, and not on
        // the policies of its namespace that need other labels.
        for label in self.cluster.labels.labels(labels) {
            candidates.extend(index.by_label.get(&label).into_iter().flatten());
        }
        // They were found label by label. Their order is part of the subject class: unsorted, equal sets would be two
        // classes.
        candidates.sort();
        let selects = |id: &PolicyId| {
            let subjects = self.cluster.policy(*id).subjects;
            self.selection.matches(&self.cluster.labels, subjects, labels)
        };
        candidates.into_iter().filter(selects).collect()
    }

    fn tiers(&mut self, (namespace, labels): (NamespaceId, LabelSetId)) -> Vec<TierPolicyId> {
        let namespace_labels = self.cluster.namespaces[namespace.index()].labels;
        let mut found = Vec::new();
        // Without an index, as for lists. They are numbered in the order in which they are evaluated.
        for (index, policy) in self.cluster.tiers.iter().enumerate() {
            if self.selection.matches(&self.cluster.labels, policy.namespaces, namespace_labels)
                && self.selection.matches(&self.cluster.labels, policy.pods, labels)
            {
                found.push(TierPolicyId(index as u32));
            }
        }
        found
    }

    fn lists(&mut self, (namespace, labels): (NamespaceId, LabelSetId)) -> Vec<ListId> {
        let namespace_labels = self.cluster.namespaces[namespace.index()].labels;
        let applies = |(_, list): &(usize, &weir_model::CidrList)| {
            self.selection.matches(&self.cluster.labels, list.namespaces, namespace_labels)
                && self.selection.matches(&self.cluster.labels, list.pods, labels)
        };
        // Without an index: lists belong to the administrator and are few. They are numbered in the order in which they
        // decide.
        self.cluster.lists.iter().enumerate().filter(applies).map(|(id, _)| ListId(id as u32)).collect()
    }
}

fn index_policies(cluster: &Cluster) -> HashMap<NamespaceId, NamespacePolicies<'_>> {
    let mut index: HashMap<NamespaceId, NamespacePolicies<'_>> = HashMap::new();
    // One numbering for both kinds of policies: see [`Cluster::policy`].
    for (id, policy) in cluster.policies.iter().chain(&cluster.audit).enumerate() {
        let id = PolicyId(id as u32);
        let of_namespace = index.entry(policy.namespace).or_default();
        match needed_label(cluster.labels.selector(policy.subjects)) {
            Some(label) => of_namespace.by_label.entry(label).or_default().push(id),
            None => of_namespace.rest.push(id),
        }
    }
    index
}

/// A label without which the selector matches nothing.
pub(crate) fn needed_label(selector: &LabelSelector) -> Option<(&str, &str)> {
    // Expressions are not used: `NotIn` and `DoesNotExist` hold for objects without the label, and `In` for several
    // values. One label is enough, because it only narrows down the candidates; the whole selector is evaluated for
    // each of them.
    selector.match_labels.first()
}
