//! Services, their addresses, and their endpoints.
//!
//! EndpointSlices are the best source, because the service proxy reads them too. A service without slices gets its
//! endpoints from its selector: pods with addresses or, if the selector finds none (manifests), workloads and pods
//! without addresses.
//! [`super::backends`] decides which endpoints are used, [`super::frontends`] decides which claims on addresses count.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::backends::{BackendCandidate, backends};
use super::frontends::AddressUse;
use super::{Objects, Resolver, frontends, key, sorted};
use crate::directory::Directory;
use crate::{Backend, Cluster, Endpoint, EndpointId, NamespaceId, Service, ServicePort, Standing};
use weir_objects::address::Family;
use weir_objects::k8s::{self, Body, EndpointSlice, Labels, Object, Pod, SliceEndpoint, TargetPort};

/// The slices of each service, by its namespace and name.
type Slices<'o> = HashMap<(&'o str, &'o str), Vec<Slice<'o>>>;

struct Slice<'o> {
    slice: &'o EndpointSlice,
    has_other_proxy: bool,
}

/// kube-proxy does not list services and slices with either of these labels.
const NOT_PROXIED: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

impl<'o> Resolver<'o> {
    pub(super) fn add_services(&mut self, objects: &Objects<'o>) {
        let services = sorted(&objects.rest, |body| match body {
            Body::Service(service) => Some(service),
            _ => None,
        });
        if services.is_empty() {
            return;
        }
        let finder = ServiceResolver {
            cluster: &self.cluster,
            directory: Directory::new(&self.cluster),
            slices: slices_by_service(&objects.rest),
            unready: unready_pods(&objects.pods),
            by_namespace: endpoints_by_namespace(&self.cluster),
        };
        let resolved: Vec<Service> = services
            .into_iter()
            .map(|(object, service)| finder.service(self.namespace(object), object, service))
            .collect();
        let directory = &finder.directory;
        let use_of = |address| AddressUse {
            is_pod: directory.endpoint_at(address).is_some(),
            is_node: directory.node_at(address).is_some(),
        };
        let frontends = frontends::frontends(&resolved, |_| true, use_of);
        self.cluster.services = resolved;
        self.cluster.frontends = frontends;
    }
}

struct ServiceResolver<'c, 'o> {
    cluster: &'c Cluster,
    directory: Directory<'c>,
    slices: Slices<'o>,
    /// The pods that are not ready, by namespace and name.
    unready: BTreeSet<(&'o str, &'o str)>,
    by_namespace: HashMap<NamespaceId, Vec<EndpointId>>,
}

impl<'c, 'o> ServiceResolver<'c, 'o> {
    fn service(&self, namespace: NamespaceId, object: &Object, service: &'o k8s::Service) -> Service {
        let cluster_addresses = sorted_once(own(service).to_vec());
        let addresses = sorted_once(cluster_addresses.iter().copied().chain(claimed(object, service)).collect());
        let slices = self.slices.get(&(object.meta.namespace.as_str(), object.meta.name.as_str()));
        let port = |port: &k8s::ServicePort| ServicePort {
            name: port.name.clone(),
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port,
            backends: match slices {
                Some(slices) => {
                    let owner =
                        |endpoint: &SliceEndpoint, at| self.owner_in_slice(&object.meta.namespace, endpoint, at);
                    backends_in_slices(object, service, port, slices, owner)
                }
                None => backends(self.selector_candidates(namespace, service, port), service.local_traffic),
            },
        };
        let ports = if service.external_name { Vec::new() } else { service.ports.iter().map(port).collect() };
        let name = object.meta.name.clone();
        Service { namespace, name, addresses, cluster_addresses, ports, object: object.id }
    }

    /// The endpoint that gets packets to an address of a slice.
    fn owner_in_slice(&self, namespace: &str, slice: &SliceEndpoint, address: IpAddr) -> Option<EndpointId> {
        let named = slice.pod.as_ref().and_then(|(pod_namespace, name)| {
            let namespace = if pod_namespace.is_empty() { namespace } else { pod_namespace };
            let mut found = self.directory.endpoints_named(namespace, name).iter().copied();
            found.find(|id| self.endpoint(*id).addresses.contains(&address))
        });
        self.holder(named, address)
    }

    /// The endpoints that the EndpointSlice controller would write.
    fn selector_candidates(
        &self,
        namespace: NamespaceId,
        service: &k8s::Service,
        port: &k8s::ServicePort,
    ) -> Vec<BackendCandidate<'c>> {
        // Spec: a service without a selector has no endpoints but those that a user writes by hand.
        if service.selector.is_empty() {
            return Vec::new();
        }
        let candidates = self.by_namespace.get(&namespace).map_or(&[][..], Vec::as_slice);
        let selected = candidates.iter().copied().filter(|id| self.is_selected(*id, &service.selector));
        let selected = selected.filter(|id| !self.has_lost_its_address(*id));
        // Endpoints that are only in manifests represent future pods, so they count only if no pod has an address.
        let (pods, manifests): (Vec<_>, Vec<_>) = selected.partition(|id| !self.endpoint(*id).addresses.is_empty());
        let mut found = Vec::new();
        for id in if pods.is_empty() { manifests } else { pods } {
            let endpoint = self.endpoint(id);
            // A finished pod is never a backend, even if its service publishes pods that are not ready.
            if !matches!(endpoint.standing, Standing::Member | Standing::HostNetwork) {
                continue;
            }
            let serving = !self.is_unready(endpoint);
            found.extend(self.selected_backends(id, port).into_iter().map(|backend| BackendCandidate {
                backend,
                node: endpoint.node.map(|node| self.cluster.nodes[node.index()].name.as_str()),
                ready: service.publish_not_ready || serving && !endpoint.terminating,
                is_fallback: serving && endpoint.terminating,
                is_certain: true,
            }));
        }
        found
    }

    fn is_selected(&self, id: EndpointId, selector: &Labels) -> bool {
        let labels = self.cluster.labels.labels(self.endpoint(id).labels);
        selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Whether another endpoint got the address that this one reported. Unlike a manifest, this endpoint does not
    /// represent future pods.
    fn has_lost_its_address(&self, id: EndpointId) -> bool {
        self.endpoint(id).addresses.is_empty() && self.cluster.lost_addresses.iter().any(|(lost, _)| *lost == id)
    }

    /// Whether a pod is not ready. Looked up by name: not every pod's object has a number of its own.
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

    /// The endpoint that gets packets to an address: the present owner of the address, even if the slice names another
    /// pod.
    fn holder(&self, named: Option<EndpointId>, address: IpAddr) -> Option<EndpointId> {
        self.directory.endpoint_at(address).or(named)
    }

    fn endpoint(&self, id: EndpointId) -> &'c Endpoint {
        &self.cluster.endpoints[id.index()]
    }
}

/// The backends of each port of a service that has these slices, without the endpoints behind their addresses. For
/// callers that compare two states of one service and have no cluster.
pub fn backends_of_slices<'o>(
    object: &Object,
    service: &'o k8s::Service,
    slices: impl IntoIterator<Item = &'o Object>,
) -> Vec<Vec<Backend>> {
    if service.external_name {
        return Vec::new();
    }
    let slices: Vec<Slice<'o>> = slices.into_iter().filter_map(slice_of).collect();
    service.ports.iter().map(|port| backends_in_slices(object, service, port, &slices, |_, _| None)).collect()
}

/// The backends of a service's port in slices. `owner` finds the endpoint behind an address.
fn backends_in_slices<'o>(
    object: &Object,
    service: &'o k8s::Service,
    port: &'o k8s::ServicePort,
    slices: &[Slice<'o>],
    owner: impl Fn(&SliceEndpoint, IpAddr) -> Option<EndpointId>,
) -> Vec<Backend> {
    let is_read = |it: &&Slice<'o>| has_other_proxy(&object.meta.labels) || !it.has_other_proxy;
    let candidates = slices.iter().filter(is_read).flat_map(|it| slice_candidates(it.slice, port, &owner));
    backends(candidates, service.local_traffic)
}

fn slice_candidates<'o>(
    slice: &'o EndpointSlice,
    port: &k8s::ServicePort,
    owner: impl Fn(&SliceEndpoint, IpAddr) -> Option<EndpointId>,
) -> Vec<BackendCandidate<'o>> {
    let mut found = Vec::new();
    for of_slice in slice.ports.iter().filter(|it| it.name == port.name && it.protocol == port.protocol) {
        let Some(number) = of_slice.number.or_else(|| number_of(&port.target)) else { continue };
        for endpoint in &slice.endpoints {
            // The service proxy uses only the first address.
            let Some(address) = endpoint.addresses.first().copied() else { continue };
            found.push(BackendCandidate {
                backend: Backend { endpoint: owner(endpoint, address), address: Some(address), port: number },
                node: endpoint.node.as_deref(),
                ready: endpoint.ready,
                is_fallback: endpoint.serving && endpoint.terminating,
                is_certain: of_slice.number.is_some(),
            });
        }
    }
    found
}

/// Whether two states of a service that has slices give it the same ports, addresses and backends.
pub fn is_alike_with_slices(old: (&Object, &k8s::Service), new: (&Object, &k8s::Service)) -> bool {
    let ((old, old_service), (new, new_service)) = (old, new);
    // Field by field: if a field is added, this does not compile until it is decided whether it is read beside slices.
    let k8s::Service {
        cluster_addresses,
        headless,
        external_addresses,
        local_traffic,
        external_name,
        ports,
        // Only a service without slices finds pods by these.
        selector: _,
        publish_not_ready: _,
    } = old_service;
    has_other_proxy(&old.meta.labels) == has_other_proxy(&new.meta.labels)
        && (cluster_addresses, headless) == (&new_service.cluster_addresses, &new_service.headless)
        && (external_addresses, local_traffic) == (&new_service.external_addresses, &new_service.local_traffic)
        && (external_name, ports) == (&new_service.external_name, &new_service.ports)
}

fn has_other_proxy(labels: &Labels) -> bool {
    NOT_PROXIED.iter().any(|label| labels.contains_key(label))
}

/// The ClusterIPs of a service. A headless service only has names.
fn own(service: &k8s::Service) -> &[IpAddr] {
    if service.external_name || service.headless { &[] } else { &service.cluster_addresses }
}

/// The external addresses that kube-proxy translates for a service. It translates none for services that it skips, and
/// none of a family in which the service has no ClusterIP: those are ordinary addresses.
fn claimed<'o>(object: &Object, service: &'o k8s::Service) -> impl Iterator<Item = IpAddr> + use<'o> {
    let has_none = service.external_name || service.headless || has_other_proxy(&object.meta.labels);
    let own = &service.cluster_addresses;
    // Only a manifest has no ClusterIP: the server has not assigned one yet.
    let is_of_family = |at: &IpAddr| own.is_empty() || own.iter().any(|it| Family::of(*it) == Family::of(*at));
    let external = if has_none { &[][..] } else { &service.external_addresses };
    external.iter().copied().filter(is_of_family)
}

/// Whether packets can be sent to an address of the service, or to one of its node ports. Verdicts depend on no other
/// service.
pub fn is_reached(object: &Object, service: &k8s::Service) -> bool {
    let has_node_port = !service.external_name && service.ports.iter().any(|port| port.node_port.is_some());
    has_node_port || !own(service).is_empty() || claimed(object, service).next().is_some()
}

fn sorted_once(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses
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
        if let Some(slice) = slice_of(object)
            && let Some(service) = &slice.slice.service
        {
            slices.entry((&object.meta.namespace, service)).or_default().push(slice);
        }
    }
    slices
}

fn slice_of(object: &Object) -> Option<Slice<'_>> {
    let Body::EndpointSlice(slice) = &object.body else { return None };
    Some(Slice { slice, has_other_proxy: has_other_proxy(&object.meta.labels) })
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
