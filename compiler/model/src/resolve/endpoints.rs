//! Nodes, pods and workloads.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Objects, Resolver, codes};
use crate::{Assumptions, Endpoint, EndpointId, LabelSetId, NamedPortTwice, NamespaceId, Node, NodeId, Standing};
use weir_objects::k8s::{Body, NamedPort, Object, Phase, Pod, Workload};

impl<'o> Resolver<'o> {
    /// Adds the nodes of the input, and the nodes that only pods mention (`spec.nodeName`, `status.hostIPs`).
    pub(super) fn add_nodes(&mut self, objects: &Objects<'o>) {
        for (name, FoundNode { addresses, object }) in found_nodes(objects) {
            let labels = object.map_or_else(Arc::default, |it| Arc::clone(&it.meta.labels));
            self.cluster.nodes.push(Node {
                name: name.into_owned(),
                addresses: addresses.into_iter().collect(),
                labels: self.cluster.labels.intern_labels(&labels),
                object: object.map(|it| it.id),
            });
        }
    }

    pub(super) fn add_endpoints(&mut self, objects: &Objects<'o>) {
        let nodes = std::mem::take(&mut self.cluster.nodes);
        let declared = declared_nodes(objects);
        let workloads: HashSet<(String, String)> =
            objects.rest.iter().filter_map(|object| workload_key(object)).collect();
        let mut endpoints = Vec::with_capacity(objects.pods.len());
        for (object, pod) in &objects.pods {
            let node = node_name(pod, &declared).and_then(|name| numbered(&nodes, &name));
            endpoints.push(self.pod_endpoint(object, pod, node));
        }
        for object in &objects.rest {
            if let Body::Workload(workload) = &object.body
                && !is_owned(object, workload, &workloads)
            {
                endpoints.push(self.workload_endpoint(object, workload));
            }
        }
        // A pod comes before a workload of the same name.
        endpoints.sort_by(|a, b| {
            let key = |it: &Endpoint| (it.namespace, it.kind != "Pod");
            (key(a).0, &a.name, key(a).1, &a.kind).cmp(&(key(b).0, &b.name, key(b).1, &b.kind))
        });
        (self.cluster.endpoints, self.cluster.nodes) = (endpoints, nodes);
        self.resolve_shared_addresses();
    }

    fn pod_endpoint(&mut self, object: &'o Object, pod: &'o Pod, node: Option<NodeId>) -> Endpoint {
        let (namespace, labels) = (self.namespace(object), self.labels(&object.meta.labels));
        endpoint_of_pod((object, pod), namespace, labels, node, self.ports(&pod.ports))
    }

    fn workload_endpoint(&mut self, object: &Object, workload: &'o Workload) -> Endpoint {
        Endpoint {
            namespace: self.namespace(object),
            name: object.meta.name.clone(),
            kind: workload.kind.clone().into(),
            is_several: !workload.at_most_one,
            labels: self.cluster.labels.intern_labels(&workload.pod_labels.clone().into()),
            standing: if workload.host_network { Standing::HostNetwork } else { Standing::Member },
            addresses: Vec::new(),
            node: None,
            named_ports: self.ports(&workload.ports),
            owner: workload.owner.clone(),
            terminating: object.meta.deleting,
            uid: object.meta.uid.clone(),
            object: object.id,
        }
    }

    /// Removes an address from every pod that may not be its owner. A terminating pod loses the address to a pod that
    /// is not terminating. If that does not decide, no pod keeps the address: packets from it must not get what only
    /// one of the pods is allowed.
    fn resolve_shared_addresses(&mut self) {
        let holders = self.holders();
        if holders.values().all(|holder| !holder.is_shared) {
            return;
        }
        for (index, endpoint) in self.cluster.endpoints.iter_mut().enumerate() {
            let id = EndpointId(index as u32);
            let is_own =
                |address: &IpAddr| holders.get(address).is_none_or(|it| !it.is_shared || it.winner == Some(id));
            let lost: Vec<IpAddr> = endpoint.addresses.iter().copied().filter(|address| !is_own(address)).collect();
            if is_at_its_addresses(endpoint) && !lost.is_empty() {
                endpoint.addresses.retain(is_own);
                self.cluster.lost_addresses.push((id, lost));
            }
        }
    }

    /// Finds the owner of each address. Two pods with one address that are not terminating are reported, because the
    /// input does not show one moment of the cluster.
    fn holders(&mut self) -> HashMap<IpAddr, ReportingPods> {
        let mut holders: HashMap<IpAddr, ReportingPods> = HashMap::with_capacity(self.cluster.endpoints.len());
        for (index, endpoint) in self.cluster.endpoints.iter().enumerate().filter(|(_, it)| is_at_its_addresses(it)) {
            let id = EndpointId(index as u32);
            for address in &endpoint.addresses {
                let holder = holders.entry(*address).or_insert_with(|| ReportingPods::new(id, endpoint.terminating));
                if holder.first != id && !holder.terminating && !endpoint.terminating {
                    let found = codes::duplicate_address::found(&self.cluster, holder.first, id, *address);
                    self.diagnostics.push(found);
                }
                holder.meet(id, endpoint.terminating);
            }
        }
        holders
    }
}

/// The pods that report an address.
struct ReportingPods {
    /// The first pod that counts. Terminating pods count only if there are no others.
    first: EndpointId,
    terminating: bool,
    /// The owner of the address; `None` if several pods may be.
    winner: Option<EndpointId>,
    is_shared: bool,
}

impl ReportingPods {
    fn new(first: EndpointId, terminating: bool) -> Self {
        Self { first, terminating, winner: Some(first), is_shared: false }
    }

    /// Adds a pod that reports the address.
    fn meet(&mut self, id: EndpointId, terminating: bool) {
        if id == self.first {
            return;
        }
        match (self.terminating, terminating) {
            (true, false) => *self = Self::new(id, false),
            (false, true) => {}
            _ => self.winner = None,
        }
        self.is_shared = true;
    }
}

fn is_at_its_addresses(endpoint: &Endpoint) -> bool {
    endpoint.standing == Standing::Member
}

/// The named ports, in the order of the containers. If several ports have one name and protocol, only those that the
/// assumption selects.
pub fn named_ports(ports: &[NamedPort], assume: Assumptions) -> Vec<NamedPort> {
    let all = assume.named_port_twice == NamedPortTwice::All;
    let mut kept: Vec<NamedPort> = Vec::with_capacity(ports.len());
    for port in ports {
        let same_name = |it: &NamedPort| it.name == port.name && it.protocol == port.protocol;
        if !kept.contains(port) && (all || !kept.iter().any(same_name)) {
            kept.push(port.clone());
        }
    }
    kept
}

/// A node of the input.
#[derive(Clone, Debug, Default)]
pub struct FoundNode<'o> {
    /// The addresses that its object declares, and those that its pods name.
    pub addresses: BTreeSet<IpAddr>,
    /// `None` if only pods mention the node.
    pub object: Option<&'o Object>,
}

/// The nodes of the input by name, with those that only pods mention (`spec.nodeName`, `status.hostIPs`).
pub fn nodes<'o>(objects: impl IntoIterator<Item = &'o Object>) -> BTreeMap<Cow<'o, str>, FoundNode<'o>> {
    found_nodes(&Objects::new(objects))
}

fn found_nodes<'o>(objects: &Objects<'o>) -> BTreeMap<Cow<'o, str>, FoundNode<'o>> {
    let mut found: BTreeMap<Cow<'o, str>, FoundNode<'o>> = BTreeMap::new();
    let declared = declared_nodes(objects);
    for object in &objects.rest {
        if let Body::Node(node) = &object.body {
            let entry = found.entry(object.meta.name.as_str().into()).or_default();
            entry.addresses.extend(&node.addresses);
            entry.object = Some(object);
        }
    }
    for (_, pod) in &objects.pods {
        if let Some(name) = node_name(pod, &declared) {
            found.entry(name).or_default().addresses.extend(addresses_of_node(pod));
        }
    }
    found
}

/// The addresses of its node that a pod names. The own addresses of a pod on the host's network are its node's.
pub fn addresses_of_node(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let has_node = pod.node.is_some() || !pod.node_addresses.is_empty();
    let own = pod.addresses.iter().filter(move |_| has_node && standing(pod) == Standing::HostNetwork);
    pod.node_addresses.iter().chain(own).copied()
}

/// The names of the input's nodes, by address.
fn declared_nodes<'o>(objects: &Objects<'o>) -> HashMap<IpAddr, &'o str> {
    let mut names: HashMap<IpAddr, &str> = HashMap::new();
    for object in &objects.rest {
        if let Body::Node(node) = &object.body {
            for address in &node.addresses {
                let name = names.entry(*address).or_insert(&object.meta.name);
                // The smallest name, so that the order of the input has no effect.
                *name = object.meta.name.as_str().min(name);
            }
        }
    }
    names
}

/// The node of a pod. A pod that names no node but has a node's address is on that node, declared or not.
fn node_name<'o>(pod: &'o Pod, declared: &HashMap<IpAddr, &'o str>) -> Option<Cow<'o, str>> {
    let by_address = || {
        let known = pod.node_addresses.iter().find_map(|address| declared.get(address));
        known.map(|name| (*name).into()).or_else(|| pod.node_addresses.first().map(|it| it.to_string().into()))
    };
    pod.node.as_deref().map(Cow::from).or_else(by_address)
}

/// The number of a node among all of them, which are sorted.
fn numbered(nodes: &[Node], name: &str) -> Option<NodeId> {
    nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok().map(|index| NodeId(index as u32))
}

/// The endpoint of a pod.
pub fn endpoint_of_pod(
    (object, pod): (&Object, &Pod),
    namespace: NamespaceId,
    labels: LabelSetId,
    node: Option<NodeId>,
    named_ports: Arc<[NamedPort]>,
) -> Endpoint {
    Endpoint {
        namespace,
        name: object.meta.name.clone(),
        kind: "Pod".into(),
        is_several: false,
        labels,
        standing: standing(pod),
        addresses: pod.addresses.clone(),
        node,
        named_ports,
        owner: pod.owner.as_ref().map(String::from),
        terminating: object.meta.deleting,
        uid: object.meta.uid.clone(),
        object: object.id,
    }
}

/// The role of a pod on the network.
pub fn standing(pod: &Pod) -> Standing {
    match pod.phase {
        Some(Phase::Succeeded | Phase::Failed) => Standing::Finished,
        _ if pod.host_network => Standing::HostNetwork,
        Some(Phase::Pending) if pod.addresses.is_empty() => Standing::Pending,
        _ => Standing::Member,
    }
}

fn workload_key(object: &Object) -> Option<(String, String)> {
    match &object.body {
        Body::Workload(workload) => {
            Some((object.meta.namespace.to_string(), format!("{}/{}", workload.kind, object.meta.name)))
        }
        _ => None,
    }
}

/// Whether its controller is in the input and replaces it.
fn is_owned(object: &Object, workload: &Workload, workloads: &HashSet<(String, String)>) -> bool {
    let owner = workload.owner.clone().map(|owner| (object.meta.namespace.to_string(), owner));
    owner.is_some_and(|owner| workloads.contains(&owner))
}
