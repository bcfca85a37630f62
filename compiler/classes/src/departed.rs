//! Backends that services have lost, and that connections may still use.
//!
//! Problem: a flow to a service address is judged by the backends that are ready *now*, but the kernel's connection
//! tracking keeps the backend that it chose when the connection began. A pod that is taken out of its service (new
//! labels, for a quarantine) keeps the connections that clients opened through the service address, even if no policy
//! lets these clients reach the pod any more. The same connection made to the pod's own address is cut.
//! Strategy: [`Departed`] is shown the cluster of every generation. It remembers which backends each service port had
//! in earlier generations, for as long as the pod behind the address exists: a pod that is gone has no connections. The
//! reference oracle says which local endpoints may not reach such a backend; the flows of these endpoints to the
//! service port have to end. The packet does not show which backend a flow uses, so flows of the same
//! endpoint to backends that are allowed end too: their clients connect again, and get a backend that the service has
//! now.
//! Invariants: a pure value, no clock; a flow is ended at most once for each departure, because flows that begin
//! afterwards cannot use the departed backend.
//! `compiler/classes/tests/departed.rs` holds this.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use crate::{Classes, PeerId, Scope};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{
    Cluster, Direction, Endpoint, EndpointId, Established, Frontend, FrontendPort, NodeId, ServiceAddress, ServicePort,
    Standing,
};
use weir_objects::address::Family;
use weir_objects::k8s::{Body, Object, Phase, Protocol};
use weir_objects::name::Name;

/// The maximum number of departed backends without a pod that are remembered. Nothing reports when the machine behind
/// such an address is gone, so the oldest ones beyond this number are forgotten, and the flows that may use them end.
const MOST_UNOWNED: usize = 4_096;

/// Flows of a local endpoint to a service port, which have to end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedService {
    /// The local endpoint, `namespace/name`.
    pub pod: String,
    /// The address of the service, or of the endpoint's node for a node port.
    pub address: IpAddr,
    /// The port there.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

/// A port that packets are sent to before they are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VipOrNodePort {
    address: IpAddr,
    port: u16,
    protocol: Protocol,
    /// Only the pods of the node that has the address are translated by it.
    is_node_port: bool,
}

/// Where a service VIP leads, or has led.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VipBackend {
    address: IpAddr,
    port: u16,
    /// The pod that has the address, as a hash of its names and UID; `None` if no pod has it. Two pods with one hash
    /// only mean that a backend is remembered for longer than needed.
    owner: Option<u64>,
}

/// A local pod of the last cluster.
#[derive(Clone, Debug)]
struct KnownPod {
    uid: Option<Name>,
    /// Its flows are not older than this turn.
    since: u64,
    /// No other pod has it, nor one that was here before.
    number: u64,
}

/// A local endpoint whose flows may have to end.
struct FlowOwner<'c> {
    id: EndpointId,
    since: u64,
    number: Option<u64>,
    node_addresses: &'c [IpAddr],
}

/// Backends that have left, with the last turn in which each was one.
type LeftBackends = BTreeMap<VipOrNodePort, BTreeMap<VipBackend, u64>>;

/// The backends of earlier generations.
#[derive(Clone, Debug, Default)]
pub struct Departed {
    /// The number of clusters that were observed.
    turn: u64,
    /// The present backends, sorted.
    present: BTreeMap<VipOrNodePort, Vec<VipBackend>>,
    /// The backends that have left and may still be used. Apart from the present ones: a large cluster has tens of
    /// thousands of those, and a policy edit must not visit them.
    left: LeftBackends,
    /// The local pods.
    pods: BTreeMap<String, KnownPod>,
    /// The number of the last pod that was new.
    last_number: u64,
    /// The turn in which the flows of a local pod, by number, to a service VIP were ended last. Later flows do not use
    /// backends that had departed then.
    ended: BTreeMap<VipOrNodePort, BTreeMap<u64, u64>>,
    /// The addresses of the backends that have left.
    addresses: BTreeSet<IpAddr>,
    /// The addresses of the local endpoints' nodes in the last cluster.
    of_nodes: BTreeSet<IpAddr>,
}

/// Backends that a service got or lost without a new generation.
#[derive(Clone, Debug)]
pub struct MovedBackends {
    /// The service and, if there are new backends, its slices and the pods of these. Other objects are left out.
    pub service: Cluster,
    /// The addresses of new backends.
    pub came: BTreeSet<IpAddr>,
    /// The addresses of backends that the service has lost.
    pub left: BTreeSet<IpAddr>,
    /// Whether the service has the same addresses and ports as before.
    pub is_alike: bool,
}

/// A generation that changes were applied to, and the present state of addresses.
#[derive(Clone, Copy)]
pub struct AppliedChanges<'g> {
    /// The generation's part of the cluster.
    pub cluster: &'g Cluster,
    /// Its local endpoints.
    pub scope: &'g Scope,
    /// Its classes.
    pub classes: &'g Classes,
    /// Whether a pod or a node may have an address.
    pub has_holder: &'g dyn Fn(IpAddr) -> bool,
    /// The present class of an address.
    pub peer_at: &'g dyn Fn(IpAddr) -> PeerId,
}

impl Departed {
    /// The cluster of a generation that came into force: remembers its backends, and returns the flows that have to
    /// end.
    pub fn observe(&mut self, cluster: &Cluster, scope: &Scope) -> Vec<EndedService> {
        self.turn += 1;
        self.of_nodes = addresses_of_nodes(cluster, scope);
        self.replace(present(cluster, &self.of_nodes));
        self.meet(cluster, scope);
        self.forget_gone(cluster);
        let assume = cluster.assume;
        if assume.established == Established::Keep || assume.service_address == ServiceAddress::Address {
            return Vec::new();
        }
        let mut ended = self.forget_oldest(cluster, scope);
        ended.extend(self.denied(cluster, scope));
        self.end(ended)
    }

    /// A generation that changes were applied to has come into force: returns the flows that have to end. Only rows of
    /// the generation are asked, because its cluster lacks the pods behind services. They decide about egress; ingress is
    /// enforced on the backend's node.
    pub fn observe_changes(&mut self, after: &AppliedChanges<'_>) -> Vec<EndedService> {
        if self.addresses.is_empty() {
            return Vec::new();
        }
        self.turn += 1;
        let (cluster, scope) = (after.cluster, after.scope);
        self.forget_without_holder(after.has_holder);
        self.meet(cluster, scope);
        if cluster.assume.established == Established::Keep || cluster.assume.service_address == ServiceAddress::Address
        {
            return Vec::new();
        }
        let ended = self.denied_by_rows(after);
        self.end(ended)
    }

    /// Takes the backends of a new cluster. Those that are missing were backends until the turn before.
    fn replace(&mut self, present: BTreeMap<VipOrNodePort, Vec<VipBackend>>) {
        for (vip, behind) in std::mem::replace(&mut self.present, present) {
            let now = self.present.get(&vip).map_or(&[][..], Vec::as_slice);
            let missing: Vec<_> = behind.into_iter().filter(|it| now.binary_search(it).is_err()).collect();
            if !missing.is_empty() {
                self.left.entry(vip).or_default().extend(missing.into_iter().map(|it| (it, self.turn - 1)));
            }
        }
        let present = &self.present;
        retain_left(&mut self.left, &|vip, it| present.get(vip).is_none_or(|now| now.binary_search(it).is_err()));
    }

    /// Forgets backends that have left and that no pod or node has any more.
    fn forget_without_holder(&mut self, has_holder: &dyn Fn(IpAddr) -> bool) {
        retain_left(&mut self.left, &|_, it| it.owner.is_none() || has_holder(it.address));
        self.addresses = addresses_of(&self.left);
    }

    /// The local pods and service VIPs with a departed backend to which the rows of a generation allow no packet.
    fn denied_by_rows(&self, after: &AppliedChanges<'_>) -> BTreeSet<(String, VipOrNodePort)> {
        let AppliedChanges { cluster, classes, .. } = *after;
        let owners = self.flow_owners(cluster, classes.subject_of.iter().map(|(id, _)| *id));
        let mut ended = BTreeSet::new();
        for (vip, behind) in &self.left {
            let ended_before = self.ended.get(vip);
            for (backend, last) in behind {
                let peer = (after.peer_at)(backend.address);
                let atom = classes.atoms.find(vip.protocol, backend.port);
                let denied = owners.iter().zip(&classes.subject_of).filter(|(owner, (_, subject))| {
                    owner.may_use(vip, *last, ended_before)
                        && !classes.allowed(Direction::Egress, *subject, peer).contains(atom)
                });
                ended.extend(denied.map(|(owner, _)| (cluster.endpoint_name(owner.id), *vip)));
            }
        }
        ended
    }

    /// Notes that flows end.
    fn end(&mut self, ended: BTreeSet<(String, VipOrNodePort)>) -> Vec<EndedService> {
        for (pod, vip) in &ended {
            let number = self.pods.get(pod).map(|pod| pod.number);
            self.ended.entry(*vip).or_default().extend(number.map(|number| (number, self.turn)));
        }
        let service =
            |(pod, VipOrNodePort { address, port, protocol, .. })| EndedService { pod, address, port, protocol };
        ended.into_iter().map(service).collect()
    }

    /// Takes backends that a service got or lost since the last cluster. Without this, a backend that comes and goes
    /// between two generations would stay unknown, and with it the flows that use it.
    pub fn moved(&mut self, moved: &MovedBackends) {
        for (vip, behind) in present(&moved.service, &self.of_nodes) {
            behind.iter().filter(|it| moved.came.contains(&it.address)).for_each(|it| self.come(vip, *it));
        }
        // Otherwise it is not known which addresses the service had. A backend that another service still has then
        // counts as departed for both. This ends no flow that may continue: the other service is denied as a whole if
        // policy denies the backend.
        let vips = if moved.is_alike {
            vips_of(&moved.service, &self.of_nodes)
        } else {
            self.present.keys().chain(self.left.keys()).copied().collect()
        };
        vips.into_iter().for_each(|vip| self.lose(vip, &moved.left));
        // A change of such a pod's class then makes a generation, which finds the flows that have to end.
        self.addresses.extend(&moved.left);
    }

    fn come(&mut self, vip: VipOrNodePort, backend: VipBackend) {
        let behind = self.present.entry(vip).or_default();
        if let Err(place) = behind.binary_search(&backend) {
            behind.insert(place, backend);
        }
        self.forget(vip, backend);
        let address = backend.address;
        if self.addresses.contains(&address) && !self.left.values().flatten().any(|(it, _)| it.address == address) {
            self.addresses.remove(&address);
        }
    }

    /// Forgets a backend that has left.
    fn forget(&mut self, vip: VipOrNodePort, backend: VipBackend) {
        if let Entry::Occupied(mut behind) = self.left.entry(vip) {
            behind.get_mut().remove(&backend);
            if behind.get().is_empty() {
                behind.remove();
            }
        }
    }

    /// The backends with these addresses leave a service VIP. Those that had left before may have been backends until
    /// now: another service's change can count them as departed too early.
    fn lose(&mut self, vip: VipOrNodePort, addresses: &BTreeSet<IpAddr>) {
        let is_of = |it: &VipBackend| addresses.contains(&it.address);
        let before = self.left.get(&vip).into_iter().flatten().map(|(it, _)| *it);
        let mut leaving: Vec<_> = before.filter(is_of).collect();
        if let Entry::Occupied(mut behind) = self.present.entry(vip) {
            leaving.extend(behind.get_mut().extract_if(.., |it| is_of(it)));
            if behind.get().is_empty() {
                behind.remove();
            }
        }
        if !leaving.is_empty() {
            self.left.entry(vip).or_default().extend(leaving.into_iter().map(|it| (it, self.turn)));
        }
    }

    /// Whether a pod, as it is now, has the address of a departed backend: if its class changes, flows through the
    /// service that it has left may have to end.
    pub fn concerns(&self, object: &Object) -> bool {
        let Body::Pod(pod) = &object.body else { return false };
        let has_ended = matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
        !has_ended && pod.addresses.iter().any(|address| self.has_left(*address))
    }

    /// Whether an address is that of a departed backend.
    pub fn has_left(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Local pods that are new may have begun flows since the last turn.
    fn meet(&mut self, cluster: &Cluster, scope: &Scope) {
        let mut known = std::mem::take(&mut self.pods);
        for id in scope.endpoints() {
            let (name, uid) = (cluster.endpoint_name(*id), &cluster.endpoints[id.index()].uid);
            let pod = match known.remove_entry(&name) {
                Some((_, pod)) if pod.uid == *uid => pod,
                other => {
                    known.extend(other);
                    self.last_number += 1;
                    KnownPod { uid: uid.clone(), since: self.turn - 1, number: self.last_number }
                }
            };
            self.pods.insert(name, pod);
        }
        let gone: BTreeSet<u64> = known.into_values().map(|pod| pod.number).collect();
        self.ended.retain(|vip, _| self.present.contains_key(vip) || self.left.contains_key(vip));
        if !gone.is_empty() {
            self.ended.values_mut().for_each(|ended| ended.retain(|number, _| !gone.contains(number)));
        }
    }

    /// Forgets departed backends whose pod is gone, or whose address is another pod's.
    fn forget_gone(&mut self, cluster: &Cluster) {
        let there = owners(cluster, &addresses_of(&self.left));
        retain_left(&mut self.left, &|_, it| match it.owner {
            Some(owner) => there.contains(&(it.address, owner)),
            None => there.range((it.address, 0)..=(it.address, u64::MAX)).next().is_none(),
        });
        self.addresses = addresses_of(&self.left);
    }

    /// Forgets the oldest departed backends that are no pod's, if there are too many; returns the flows that may use
    /// them.
    fn forget_oldest(&mut self, cluster: &Cluster, scope: &Scope) -> BTreeSet<(String, VipOrNodePort)> {
        let mut unowned: Vec<(u64, VipOrNodePort, VipBackend)> = Vec::new();
        for (vip, behind) in &self.left {
            let departed = behind.iter().filter(|(it, _)| it.owner.is_none());
            unowned.extend(departed.map(|(it, last)| (*last, *vip, *it)));
        }
        unowned.sort();
        unowned.truncate(unowned.len().saturating_sub(MOST_UNOWNED));
        let owners = self.flow_owners(cluster, scope.endpoints().iter().copied());
        let mut ended = BTreeSet::new();
        for (last, vip, it) in unowned {
            let users = owners.iter().filter(|owner| owner.may_use(&vip, last, self.ended.get(&vip)));
            ended.extend(users.map(|owner| (cluster.endpoint_name(owner.id), vip)));
            self.forget(vip, it);
        }
        ended
    }

    /// The local pods and service VIPs with a departed backend that the pod may no longer reach, and that its flows may
    /// use.
    fn denied(&self, cluster: &Cluster, scope: &Scope) -> BTreeSet<(String, VipOrNodePort)> {
        let mut ended = BTreeSet::new();
        if self.addresses.is_empty() {
            return ended;
        }
        let owners = self.flow_owners(cluster, scope.endpoints().iter().copied());
        let mut oracle = Oracle::new(cluster);
        for (vip, behind) in &self.left {
            for owner in &owners {
                let mut used = behind.iter().filter(|(_, last)| owner.may_use(vip, **last, self.ended.get(vip)));
                if used.any(|(it, _)| is_denied(&mut oracle, cluster, owner.id, vip, it)) {
                    ended.insert((cluster.endpoint_name(owner.id), *vip));
                }
            }
        }
        ended
    }

    /// The local endpoints with what is known of their flows.
    fn flow_owners<'c>(&self, cluster: &'c Cluster, ids: impl Iterator<Item = EndpointId>) -> Vec<FlowOwner<'c>> {
        let owner = |id: EndpointId| {
            let known = self.pods.get(&cluster.endpoint_name(id));
            FlowOwner {
                id,
                since: known.map_or(0, |pod| pod.since),
                number: known.map(|pod| pod.number),
                node_addresses: node_addresses(cluster, cluster.endpoints[id.index()].node),
            }
        };
        ids.map(owner).collect()
    }
}

impl FlowOwner<'_> {
    /// Whether its flows to a service VIP may be as old as the turn in which a backend was one last. `ended` has the
    /// turns in which flows to this VIP were ended.
    fn may_use(&self, vip: &VipOrNodePort, last: u64, ended: Option<&BTreeMap<u64, u64>>) -> bool {
        let is_here = !vip.is_node_port || self.node_addresses.contains(&vip.address);
        let ended = || self.number.and_then(|number| ended?.get(&number)).copied().unwrap_or(0);
        is_here && last >= self.since && last >= ended()
    }
}

/// The addresses of the nodes that local endpoints run on.
fn addresses_of_nodes(cluster: &Cluster, scope: &Scope) -> BTreeSet<IpAddr> {
    let nodes: BTreeSet<NodeId> =
        scope.endpoints().iter().filter_map(|id| cluster.endpoints[id.index()].node).collect();
    nodes.into_iter().flat_map(|node| node_addresses(cluster, Some(node))).copied().collect()
}

/// The service VIPs of a cluster and their backends, sorted. `of_nodes` are the addresses at which node ports are
/// reached.
fn present(cluster: &Cluster, of_nodes: &BTreeSet<IpAddr>) -> BTreeMap<VipOrNodePort, Vec<VipBackend>> {
    let mut found: BTreeMap<VipOrNodePort, Vec<VipBackend>> = BTreeMap::new();
    each_vip(cluster, of_nodes, &mut |vip, port| {
        let backends = port.backends.iter().filter_map(|backend| {
            let at = backend.address.filter(|at| Family::of(*at) == Family::of(vip.address))?;
            let owner = backend.endpoint.map(|id| owner(cluster, &cluster.endpoints[id.index()]));
            Some(VipBackend { address: at, port: backend.port, owner })
        });
        found.entry(vip).or_default().extend(backends);
    });
    for behind in found.values_mut() {
        behind.sort_unstable();
        behind.dedup();
        behind.shrink_to_fit();
    }
    found.retain(|_, behind| !behind.is_empty());
    found
}

/// Keeps the backends for which `is_kept` holds.
fn retain_left(left: &mut LeftBackends, is_kept: &dyn Fn(&VipOrNodePort, &VipBackend) -> bool) {
    left.retain(|vip, behind| {
        behind.retain(|it, _| is_kept(vip, it));
        !behind.is_empty()
    });
}

fn addresses_of(left: &LeftBackends) -> BTreeSet<IpAddr> {
    left.values().flat_map(BTreeMap::keys).map(|it| it.address).collect()
}

/// The same without backends, so also those that have none.
fn vips_of(cluster: &Cluster, of_nodes: &BTreeSet<IpAddr>) -> BTreeSet<VipOrNodePort> {
    let mut found = BTreeSet::new();
    each_vip(cluster, of_nodes, &mut |vip, _| _ = found.insert(vip));
    found
}

fn each_vip(cluster: &Cluster, of_nodes: &BTreeSet<IpAddr>, found: &mut dyn FnMut(VipOrNodePort, &ServicePort)) {
    for Frontend { address, at } in &cluster.frontends {
        for FrontendPort { protocol, port, claims, .. } in &at.ports {
            let vip = VipOrNodePort { address: *address, port: *port, protocol: *protocol, is_node_port: false };
            claims.iter().for_each(|(id, index)| found(vip, &cluster.services[id.index()].ports[*index as usize]));
        }
    }
    for port in cluster.services.iter().flat_map(|service| &service.ports) {
        for (number, address) in port.node_port.into_iter().flat_map(|it| of_nodes.iter().map(move |at| (it, at))) {
            let vip = VipOrNodePort { address: *address, port: number, protocol: port.protocol, is_node_port: true };
            found(vip, port);
        }
    }
}

fn node_addresses(cluster: &Cluster, node: Option<NodeId>) -> &[IpAddr] {
    node.and_then(|node| cluster.nodes.get(node.index())).map_or(&[], |node| &node.addresses)
}

/// Distinguishes a pod from another one at the same address.
fn owner(cluster: &Cluster, endpoint: &Endpoint) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&cluster.namespaces[endpoint.namespace.index()].name, &endpoint.name, &endpoint.uid).hash(&mut hasher);
    hasher.finish()
}

/// The pods that have these addresses and may have connections.
fn owners(cluster: &Cluster, addresses: &BTreeSet<IpAddr>) -> BTreeSet<(IpAddr, u64)> {
    let mut found = BTreeSet::new();
    if addresses.is_empty() {
        return found;
    }
    let is_up = |it: &&Endpoint| matches!(it.standing, Standing::Member | Standing::HostNetwork);
    for endpoint in cluster.endpoints.iter().filter(is_up) {
        let theirs = endpoint.addresses.iter().filter(|address| addresses.contains(address));
        found.extend(theirs.map(|address| (*address, owner(cluster, endpoint))));
    }
    found
}

/// Whether the endpoint may not reach a backend of its address's family.
fn is_denied(oracle: &mut Oracle<'_>, cluster: &Cluster, id: EndpointId, vip: &VipOrNodePort, to: &VipBackend) -> bool {
    let is_of_family = |address: &&IpAddr| Family::of(**address) == Family::of(vip.address);
    let Some(address) = cluster.endpoints[id.index()].addresses.iter().find(is_of_family) else { return false };
    let flow = Flow {
        source: FlowEnd { endpoint: Some(id), address: Some(*address) },
        destination: FlowEnd { endpoint: None, address: Some(to.address) },
        protocol: FlowProtocol::Transport(vip.protocol),
        port: to.port,
    };
    oracle.judge(&flow).verdict() == Verdict::Deny
}
