//! Pods that are added to a resolved cluster, for questions about pods that could exist.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Cluster, Endpoint, EndpointId, NamedPort, Namespace, NamespaceId, Standing};
use weir_objects::k8s::{Labels, NAMESPACE_NAME_LABEL};
use weir_objects::origin::ObjectId;

/// A pod that could exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedPod {
    /// Its namespace, which is added if the cluster does not have it.
    pub namespace: String,
    /// The labels that its namespace gets; `None` leaves those that it has.
    pub namespace_labels: Option<Labels>,
    /// Its labels.
    pub labels: Labels,
    /// Names of its ports.
    pub ports: Vec<NamedPort>,
    /// Its address; no block and no list contains a pod without one.
    pub address: Option<IpAddr>,
}

impl Cluster {
    /// Adds a pod behind all endpoints, so that the numbers of the others stay.
    pub fn add_pod(&mut self, pod: AddedPod) -> EndpointId {
        let known = self.namespaces.iter().position(|it| it.name == pod.namespace);
        if known.is_none() || pod.namespace_labels.is_some() {
            let mut labels = pod.namespace_labels.unwrap_or_default();
            labels.insert(NAMESPACE_NAME_LABEL, &pod.namespace);
            let labels = self.labels.intern_labels(&Arc::new(labels));
            match known {
                Some(known) => self.namespaces[known].labels = labels,
                None => self.namespaces.push(Namespace { name: pod.namespace, labels, object: None }),
            }
        }
        let namespace = known.unwrap_or(self.namespaces.len() - 1);
        let labels = self.labels.intern_labels(&Arc::new(pod.labels));
        self.endpoints.push(Endpoint {
            namespace: NamespaceId(namespace as u32),
            name: format!("possible-{}", self.endpoints.len()),
            kind: "Pod".into(),
            is_several: false,
            labels,
            standing: Standing::Member,
            addresses: pod.address.into_iter().collect(),
            node: None,
            named_ports: pod.ports.into(),
            owner: None,
            terminating: false,
            uid: None,
            object: ObjectId(0),
        });
        EndpointId(self.endpoints.len() as u32 - 1)
    }
}
