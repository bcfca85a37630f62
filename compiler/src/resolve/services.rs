//! Services and their ready backends.
//!
//! EndpointSlices say it best: they are what the service proxy reads. A service that has none gets its backends from
//! its selector, over pods with addresses; where there is none (manifests), over workloads and pods without.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::{Objects, Resolver, key, sorted};
use crate::k8s::{self, Body, EndpointSlice, Labels, Object, Pod, SliceEndpoint, TargetPort};
use crate::model::directory::Directory;
use crate::model::{Backend, Cluster, Endpoint, EndpointId, NamespaceId, Service, ServicePort, Standing};

type Slices<'o> = HashMap<(&'o str, &'o str), Vec<&'o EndpointSlice>>;

impl<'o> Resolver<'o> {
    pub(super) fn add_services(&mut self, objects: &Objects<'o>) {
        let services = sorted(&objects.rest, |body| match body {
            Body::Service(service) => Some(service),
            _ => None,
        });
        if services.is_empty() {
            return;
        }
        let finder = Finder {
            cluster: &self.cluster,
            directory: Directory::new(&self.cluster),
            slices: slices_by_service(&objects.rest),
            unready: unready_pods(&objects.pods),
            by_namespace: endpoints_by_namespace(&self.cluster),
        };
        let resolved = services
            .into_iter()
            .map(|(object, service)| finder.service(self.namespace(object), object, service))
            .collect();
        self.cluster.services = resolved;
    }
}

struct Finder<'c, 'o> {
    cluster: &'c Cluster,
    directory: Directory<'c>,
    slices: Slices<'o>,
    /// Namespace and name.
    unready: BTreeSet<(&'o str, &'o str)>,
    by_namespace: HashMap<NamespaceId, Vec<EndpointId>>,
}

impl Finder<'_, '_> {
    fn service(&self, namespace: NamespaceId, object: &Object, service: &k8s::Service) -> Service {
        let mut addresses = match service.external_name {
            true => Vec::new(),
            false => [service.cluster_addresses.as_slice(), &service.external_addresses].concat(),
        };
        addresses.sort();
        addresses.dedup();
        let slices = self.slices.get(&(object.meta.namespace.as_str(), object.meta.name.as_str()));
        let port = |port: &k8s::ServicePort| ServicePort {
            name: port.name.clone(),
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port,
            backends: match slices {
                Some(slices) => self.slice_backends(&object.meta.namespace, slices, port),
                None => self.selector_backends(namespace, service, port),
            },
        };
        let ports = if service.external_name { Vec::new() } else { service.ports.iter().map(port).collect() };
        Service { namespace, name: object.meta.name.clone(), addresses, ports, object: object.id }
    }

    fn slice_backends(&self, namespace: &str, slices: &[&EndpointSlice], port: &k8s::ServicePort) -> Vec<Backend> {
        let mut backends = BTreeSet::new();
        for slice in slices {
            let numbers = slice.ports.iter().filter(|it| it.name == port.name && it.protocol == port.protocol);
            for number in numbers.filter_map(|it| it.number.or_else(|| number_of(&port.target))) {
                for endpoint in slice.endpoints.iter().filter(|it| it.ready) {
                    backends.extend(self.slice_backend(namespace, endpoint, number));
                }
            }
        }
        backends.into_iter().collect()
    }

    /// The service proxy uses the first address alone.
    fn slice_backend(&self, namespace: &str, slice: &SliceEndpoint, port: u16) -> Option<Backend> {
        let address = *slice.addresses.first()?;
        let named = slice.pod.as_ref().and_then(|(pod_namespace, name)| {
            let namespace = if pod_namespace.is_empty() { namespace } else { pod_namespace };
            let mut found = self.directory.endpoints_named(namespace, name).iter().copied();
            found.find(|id| self.endpoint(*id).addresses.contains(&address))
        });
        Some(Backend { endpoint: self.holder(named, address), address: Some(address), port })
    }

    fn selector_backends(
        &self,
        namespace: NamespaceId,
        service: &k8s::Service,
        port: &k8s::ServicePort,
    ) -> Vec<Backend> {
        // Spec: a service without a selector has no endpoints but those that somebody writes by hand.
        if service.selector.is_empty() {
            return Vec::new();
        }
        let candidates = self.by_namespace.get(&namespace).map_or(&[][..], Vec::as_slice);
        let selected = candidates.iter().copied().filter(|id| self.is_selected(*id, &service.selector));
        // What only a manifest speaks of stands for pods as long as none is there.
        let (pods, manifests): (Vec<_>, Vec<_>) = selected.partition(|id| !self.endpoint(*id).addresses.is_empty());
        let mut backends = BTreeSet::new();
        for id in if pods.is_empty() { manifests } else { pods } {
            if self.is_ready(id, service.publish_not_ready) {
                backends.extend(self.selected_backends(id, port));
            }
        }
        backends.into_iter().collect()
    }

    fn is_selected(&self, id: EndpointId, selector: &Labels) -> bool {
        let labels = self.cluster.labels.labels(self.endpoint(id).labels);
        selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// A pod that has finished is no backend of anything, whatever its service publishes.
    fn is_ready(&self, id: EndpointId, publish_not_ready: bool) -> bool {
        let endpoint = self.endpoint(id);
        let there = matches!(endpoint.standing, Standing::Member | Standing::HostNetwork);
        there && (publish_not_ready || !endpoint.terminating && !self.is_unready(endpoint))
    }

    /// By its name: not every pod's object has a number of its own.
    fn is_unready(&self, endpoint: &Endpoint) -> bool {
        let namespace = &self.cluster.namespaces[endpoint.namespace.index()].name;
        endpoint.kind == "Pod" && self.unready.contains(&(namespace.as_str(), endpoint.name.as_str()))
    }

    fn selected_backends(&self, id: EndpointId, port: &k8s::ServicePort) -> Vec<Backend> {
        let endpoint = self.endpoint(id);
        let Some(number) = target_number(endpoint, port) else { return Vec::new() };
        let at = |address: &IpAddr| Backend {
            endpoint: self.holder(Some(id), *address),
            address: Some(*address),
            port: number,
        };
        match endpoint.addresses.is_empty() {
            true => vec![Backend { endpoint: Some(id), address: None, port: number }],
            false => endpoint.addresses.iter().map(at).collect(),
        }
    }

    /// A packet goes to whoever has the address now, whatever pod it was written down for.
    fn holder(&self, named: Option<EndpointId>, address: IpAddr) -> Option<EndpointId> {
        self.directory.endpoint_at(address).or(named)
    }

    fn endpoint(&self, id: EndpointId) -> &Endpoint {
        &self.cluster.endpoints[id.index()]
    }
}

fn number_of(target: &TargetPort) -> Option<u16> {
    match target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(_) => None,
    }
}

/// A pod without a port of the target's name is no backend of this port.
fn target_number(endpoint: &Endpoint, port: &k8s::ServicePort) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => {
            let found = endpoint.named_ports.iter().find(|it| it.name == *name && it.protocol == port.protocol);
            found.map(|it| it.number)
        }
    }
}

fn slices_by_service<'o>(objects: &[&'o Object]) -> Slices<'o> {
    let mut slices = Slices::new();
    for object in objects {
        if let Body::EndpointSlice(slice) = &object.body
            && let Some(service) = &slice.service
        {
            slices.entry((&object.meta.namespace, service)).or_default().push(slice);
        }
    }
    slices
}

fn unready_pods<'o>(pods: &[(&'o Object, &'o Pod)]) -> BTreeSet<(&'o str, &'o str)> {
    pods.iter().filter(|(_, pod)| pod.unready).map(|(object, _)| key(object)).collect()
}

fn endpoints_by_namespace(cluster: &Cluster) -> HashMap<NamespaceId, Vec<EndpointId>> {
    let mut by_namespace: HashMap<_, Vec<_>> = HashMap::new();
    for (index, endpoint) in cluster.endpoints.iter().enumerate() {
        by_namespace.entry(endpoint.namespace).or_default().push(EndpointId(index as u32));
    }
    by_namespace
}
