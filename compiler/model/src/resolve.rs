//! Objects → [`Cluster`]: every name becomes a number, everything is sorted.
//!
//! Problem: objects name each other (policies their namespace, slices their service, pods their node), may name objects
//! that are not in the input, and come in any order.
//! Strategy: namespaces first, since all other objects are in one; then endpoints; then the objects that refer to
//! endpoints (services, hostPorts); policies and lists need only namespaces. Each is sorted by name before it gets its
//! number.
//! Invariants: the same objects in another order give the same cluster; every policy of the input is in the cluster,
//! complete; missing namespaces are added as the API defines them (with their name as a label).

mod backends;
mod codes;
mod endpoints;
mod frontends;
mod host_ports;
mod policies;
mod services;
mod tiers;

pub use endpoints::{FoundNode, addresses_of_node, endpoint_of_pod, named_ports, nodes, standing};
pub use frontends::{AddressUse, frontends};
pub use policies::{cidr_list, is_audit, isolates, list_order, network_policy};
pub use services::{backends_of_slices, is_alike_with_slices, is_reached};
pub use tiers::{tier_order, tier_policy};

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::{Assumptions, Cluster, LabelSetId, Namespace, NamespaceId};
use weir_objects::diagnostic::{Code, Diagnostics};
use weir_objects::k8s::{Body, Labels, NAMESPACE_NAME_LABEL, NamedPort, Object, Pod};

/// The codes of this stage.
pub const CODES: &[&Code] = &[&codes::duplicate_address::CODE];

/// Builds the cluster from all objects. Findings are reported, and never stop the process.
pub fn resolve<'o>(objects: impl IntoIterator<Item = &'o Object>, assume: Assumptions) -> (Cluster, Diagnostics) {
    let objects = Objects::new(objects);
    let mut resolver = Resolver {
        cluster: Cluster { assume, ..Cluster::default() },
        namespace_ids: HashMap::new(),
        known_labels: HashMap::new(),
        known_ports: HashMap::new(),
        diagnostics: Diagnostics::new(),
    };
    resolver.add_namespaces(&objects);
    resolver.add_nodes(&objects);
    resolver.add_endpoints(&objects);
    resolver.add_services(&objects);
    resolver.add_host_ports(&objects);
    resolver.add_policies(&objects.rest);
    resolver.add_tiers(&objects.rest);
    resolver.add_lists(&objects.rest);
    (resolver.cluster, resolver.diagnostics)
}

/// The objects, with pods apart: most objects are pods, and most searches are for other kinds.
struct Objects<'o> {
    pods: Vec<(&'o Object, &'o Pod)>,
    rest: Vec<&'o Object>,
}

impl<'o> Objects<'o> {
    fn new(objects: impl IntoIterator<Item = &'o Object>) -> Self {
        let (mut pods, mut rest) = (Vec::new(), Vec::new());
        for object in objects {
            match &object.body {
                Body::Pod(pod) => pods.push((object, pod)),
                _ => rest.push(object),
            }
        }
        Self { pods, rest }
    }
}

struct Resolver<'o> {
    cluster: Cluster,
    namespace_ids: HashMap<&'o str, NamespaceId>,
    /// By the address in memory: objects share sets of labels, which are long, so comparing pointers is faster.
    known_labels: HashMap<*const Labels, LabelSetId>,
    /// The named ports for each list of container ports: most pods have the same ports as a thousand others.
    known_ports: HashMap<&'o [NamedPort], Arc<[NamedPort]>>,
    diagnostics: Diagnostics,
}

impl<'o> Resolver<'o> {
    /// Adds the namespaces that are declared, and those that objects mention.
    fn add_namespaces(&mut self, objects: &Objects<'o>) {
        let mut found: BTreeMap<&str, Option<&Object>> = BTreeMap::new();
        // Pods of one namespace often follow each other.
        for pods in objects.pods.chunk_by(|(a, _), (b, _)| a.meta.namespace == b.meta.namespace) {
            pods.first().into_iter().for_each(|(pod, _)| _ = found.insert(&pod.meta.namespace, None));
        }
        for object in &objects.rest {
            match object.body {
                Body::Namespace => _ = found.insert(&object.meta.name, Some(object)),
                Body::Node(_) | Body::CidrList(_) | Body::ClusterPolicy(_) => {}
                _ => _ = found.entry(&object.meta.namespace).or_insert(None),
            }
        }
        for (index, (name, declared)) in found.into_iter().enumerate() {
            let labels = self.cluster.labels.intern_labels(&namespace_labels(name, declared).into());
            let object = declared.map(|object| object.id);
            self.cluster.namespaces.push(Namespace { name: name.to_owned(), labels, object });
            self.namespace_ids.insert(name, NamespaceId(index as u32));
        }
    }

    fn labels(&mut self, labels: &'o Arc<Labels>) -> LabelSetId {
        let Self { known_labels, cluster, .. } = self;
        *known_labels.entry(Arc::as_ptr(labels)).or_insert_with(|| cluster.labels.intern_labels(labels))
    }

    fn ports(&mut self, ports: &'o [NamedPort]) -> Arc<[NamedPort]> {
        let assume = self.cluster.assume;
        Arc::clone(self.known_ports.entry(ports).or_insert_with(|| named_ports(ports, assume).into()))
    }

    /// The number of an object's namespace; every namespace that an object mentions has one.
    fn namespace(&self, object: &Object) -> NamespaceId {
        self.namespace_ids.get(object.meta.namespace.as_str()).copied().unwrap_or(NamespaceId(0))
    }
}

/// The labels of a namespace; `None` if objects mention it and none declares it.
pub fn namespace_labels(name: &str, declared: Option<&Object>) -> Labels {
    let mut labels = declared.map_or_else(Labels::new, |object| Labels::clone(&object.meta.labels));
    // Spec: "The Kubernetes control plane sets an immutable label kubernetes.io/metadata.name on all namespaces; the
    // value of the label is the namespace name."
    labels.insert(NAMESPACE_NAME_LABEL, name);
    labels
}

/// The objects for which `pick` returns a value, sorted by namespace and name.
fn sorted<'o, T>(objects: &[&'o Object], pick: impl Fn(&'o Body) -> Option<T>) -> Vec<(&'o Object, T)> {
    let mut picked: Vec<_> =
        objects.iter().filter_map(|object| pick(&object.body).map(|body| (*object, body))).collect();
    picked.sort_by(|(a, _), (b, _)| key(a).cmp(&key(b)));
    picked
}

fn key(object: &Object) -> (&str, &str) {
    (&object.meta.namespace, &object.meta.name)
}
