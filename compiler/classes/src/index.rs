//! The agent's picture of the cluster: it takes changes of objects, and returns the updates that they require.
//!
//! Problem: a cluster's objects change all the time, and most changes concern nothing on this node. Compiling anew for
//! each of 100 pod events a second is waste; missing one is a hole.
//! Strategy: the index holds every object and the facts of the last compile ([`baseline`]). It answers a change with
//! the least work that is enough: nothing, a few single entries of the exact address table, or a new compile. An answer
//! smaller than a compile is given only where it is *proved* to be enough: the proofs are in [`Index::pod_changes`] and
//! in [`lists`].
//! Invariants: a pure value, without a clock and without an API server; after any series of changes, applying the
//! answers gives every packet the verdict that a compile from scratch gives (`tests/index.rs` holds it).

mod baseline;
mod changes;
mod effect;
mod lists;
mod needs;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::discriminant;
use std::net::IpAddr;
use std::sync::Arc;

use crate::StageParts;
use crate::fit::{self, Fit};
use crate::incremental::Maintained;
pub use crate::incremental::NeedsWhole;
use crate::{Classes, ClassifyError, Limits, PeerId, Scope, classify_parts};
use baseline::Baseline;
pub use changes::ChangeDraft;
use changes::Unbuilt;
pub use effect::ChangeEffect;
pub use needs::Needs;
use weir_model::resolve::{named_ports, resolve};
use weir_model::{Assumptions, Cluster};
use weir_objects::k8s::{Body, Labels, Mode, Object, Phase, Pod};

/// The identity of an object: kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind; for a workload, such as `Deployment`, the workload's kind.
    pub kind: String,
    /// Its namespace; empty for kinds that have none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of an object.
    pub fn of(object: &Object) -> Self {
        let kind = object.body.kind().to_owned();
        Self { kind, namespace: object.meta.namespace.clone(), name: object.meta.name.clone() }
    }
}

/// The work that a change requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// Nothing: the change cannot affect any packet on this node.
    Nothing,
    /// A few changes: entries of the exact address table, flows to judge again, or both.
    Addresses(Changes),
    /// A new generation.
    Everything,
}

/// Changes that the generation in force can take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Entries of the exact address table; `None` takes an entry out. Empty if an address only has another owner.
    pub entries: Vec<(IpAddr, Option<PeerId>)>,
    /// Whether flows that exist already have to be judged again: the class of an address is not the one that a look-up
    /// gave before, or the pod that had the address is gone or another one. An address without a pod so far that keeps
    /// its class needs no such thing: its flows were judged with this class, and they are not another pod's.
    pub judge_again: bool,
}

impl Dirty {
    /// The answer that includes both.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Everything, _) | (_, Self::Everything) => Self::Everything,
            (Self::Nothing, it) | (it, Self::Nothing) => it,
            (Self::Addresses(mut a), Self::Addresses(b)) => {
                // In order, because an address can leave one pod and come to another within one answer: the last entry
                // for it holds.
                a.entries.extend(b.entries);
                a.judge_again |= b.judge_again;
                Self::Addresses(a)
            }
        }
    }
}

/// Objects, and the facts of the generation in force that changes are compared with.
#[derive(Debug)]
pub struct Index {
    /// The node whose pods are local; `None`: every pod is.
    node: Option<String>,
    assume: Assumptions,
    objects: BTreeMap<Key, Object>,
    /// The sets of labels that they share.
    labels: BTreeSet<Arc<Labels>>,
    /// `None` before the first compile.
    baseline: Option<Baseline>,
    /// The previous state of each object that has changed since a generation was begun; `None` if no generation is in
    /// the making.
    since: Option<BTreeMap<Key, Option<Object>>>,
    /// How many pods have an address.
    holders: HashMap<IpAddr, u32>,
    /// How many pods name an address as their node's.
    hosted: HashMap<IpAddr, u32>,
    /// The generation in force in the form that changes of policies are applied to.
    maintained: Option<Box<Maintained>>,
    /// The changes that the generation in force does not have.
    unbuilt: Unbuilt,
}

/// The result of the last compile.
#[derive(Debug)]
pub struct Generation {
    /// The cluster as it was; after changes that needed no compile from scratch, without other nodes' objects.
    pub cluster: Arc<Cluster>,
    /// The local endpoints.
    pub scope: Scope,
    /// Its classes.
    pub classes: Classes,
    /// Whether changes were applied to the generation before, instead of a compile from scratch.
    pub is_incremental: bool,
    roles: Arc<Roles>,
    kept: Kept,
}

/// The data of a generation that later changes are applied to.
#[derive(Debug)]
enum Kept {
    /// Nothing: the generation differs from its objects.
    Nothing,
    /// The data of a compile from scratch.
    Stages(Box<StageParts>),
    /// The data after changes.
    Maintained(Box<Maintained>),
}

/// The parts that addresses play, beside their classes.
#[derive(Debug)]
struct Roles {
    /// Addresses of local pods, nodes and services, and those that hostPorts name: never touched singly.
    fixed: BTreeSet<IpAddr>,
    /// The addresses of every node. A pod can name its node's addresses too.
    nodes: BTreeSet<IpAddr>,
    /// Those of them that Node objects declare.
    declared: BTreeSet<IpAddr>,
    /// Addresses behind services and hostPorts.
    backing: BTreeSet<IpAddr>,
    /// Label selectors of services that have no slices: (namespace, labels).
    selecting: Vec<(String, Labels)>,
}

impl Roles {
    /// Whether a service without slices finds a pod by its labels.
    fn selects(&self, pod: &Object) -> bool {
        self.selecting.iter().any(|(namespace, selector)| {
            *namespace == pod.meta.namespace
                && selector.iter().all(|(key, value)| pod.meta.labels.get(key) == Some(value))
        })
    }
}

/// The changes that arrived while a generation was being compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Entries of the generation's exact address table; `None` takes an entry out.
    pub addresses: BTreeMap<IpAddr, Option<PeerId>>,
    /// Whether flows have to be judged again that the generation before allowed: see [`Changes::judge_again`].
    pub judge_again: bool,
    /// Whether there are further changes, which need another generation.
    pub is_more: bool,
}

/// A generation in the making. It borrows nothing from the index, which takes further changes meanwhile.
#[derive(Debug)]
pub struct Draft {
    cluster: Cluster,
    scope: Scope,
    declared: BTreeSet<IpAddr>,
    selecting: Vec<(String, Labels)>,
    /// Whether rules are missing that the objects have.
    is_altered: bool,
}

impl Draft {
    /// Removes the rules of policies that do not fit the limits: see [`fit::fit`].
    pub fn fit(&mut self, limits: Limits, highest: Option<u64>) -> Fit {
        let fit = fit::fit(&mut self.cluster, &self.scope, limits, highest);
        self.is_altered |= !fit.held.is_empty();
        fit
    }

    /// Makes the classes, without limits.
    pub fn classify(self) -> Result<Generation, ClassifyError> {
        self.classify_within(Limits::NONE)
    }

    /// Makes the classes, unless they cost more than the limits allow.
    pub fn classify_within(self, limits: Limits) -> Result<Generation, ClassifyError> {
        let Self { cluster, scope, declared, selecting, is_altered } = self;
        let (classes, parts) = classify_parts(&cluster, &scope, limits)?;
        let roles = Roles {
            fixed: fixed_addresses(&cluster, &scope),
            nodes: cluster.nodes.iter().flat_map(|node| node.addresses.iter().copied()).collect(),
            declared,
            backing: backing(&cluster),
            selecting,
        };
        let kept = if is_altered { Kept::Nothing } else { Kept::Stages(parts.into()) };
        Ok(Generation { cluster: cluster.into(), scope, classes, roles: roles.into(), kept, is_incremental: false })
    }
}

impl Index {
    /// An empty index for a node, or for all pods.
    pub fn new(node: Option<String>, assume: Assumptions) -> Self {
        Self {
            node,
            assume,
            objects: BTreeMap::new(),
            labels: BTreeSet::new(),
            baseline: None,
            since: None,
            holders: HashMap::new(),
            hosted: HashMap::new(),
            maintained: None,
            unbuilt: Unbuilt::default(),
        }
    }

    /// Handles an object that was created or changed.
    pub fn apply(&mut self, mut object: Object) -> Dirty {
        let key = Key::of(&object);
        // A deployment's pods have equal labels. Without this, the agent would keep one copy of them for each pod of
        // the cluster.
        self.share_labels(&mut object);
        // Taken out of the map, because `judge` reads the rest of the index while it compares the two states.
        let before = self.objects.remove(&key);
        let dirty = self.judge(before.as_ref(), Some(&object));
        self.remember(&key, before, Some(&object));
        self.objects.insert(key, object);
        dirty
    }

    /// Makes objects with equal sets of labels share one set.
    fn share_labels(&mut self, object: &mut Object) {
        match self.labels.get(&object.meta.labels) {
            Some(known) => object.meta.labels = Arc::clone(known),
            None => _ = self.labels.insert(Arc::clone(&object.meta.labels)),
        }
    }

    /// Handles the deletion of an object.
    pub fn delete(&mut self, key: &Key) -> Dirty {
        let before = self.objects.remove(key);
        let dirty = self.judge(before.as_ref(), None);
        self.remember(key, before, None);
        dirty
    }

    /// Keeps the previous state of an object for the generation that was begun before this change.
    fn remember(&mut self, key: &Key, before: Option<Object>, after: Option<&Object>) {
        if let Some(since) = &mut self.since
            && !is_same(before.as_ref(), after)
        {
            // Only the first previous state: this is the state that the draft was made from.
            since.entry(key.clone()).or_insert(before);
        }
    }

    /// Replaces all objects of a kind, after a new list from the API server. Objects that are not in the list were
    /// deleted.
    pub fn reset(&mut self, kind: &str, objects: Vec<Object>) -> Dirty {
        let listed: BTreeSet<Key> = objects.iter().map(Key::of).collect();
        let gone: Vec<Key> =
            self.objects.keys().filter(|key| key.kind == kind && !listed.contains(key)).cloned().collect();
        // Deletions first. An address that moves from a deleted pod to a listed one must be free before the new pod
        // takes it, otherwise two pods would seem to hold it, and the answer would be a compile.
        let deleted = gone.iter().fold(Dirty::Nothing, |dirty, key| dirty.and(self.delete(key)));
        objects.into_iter().fold(deleted, |dirty, object| dirty.and(self.apply(object)))
    }

    /// An object as it is now.
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    /// The objects of a kind.
    pub fn keys(&self, kind: &str) -> impl Iterator<Item = &Key> {
        self.objects.keys().filter(move |key| key.kind == kind)
    }

    /// How many policies are in audit mode.
    pub fn audited(&self) -> usize {
        let is_audited = |object: &&Object| match &object.body {
            Body::NetworkPolicy(policy) => policy.mode == Mode::Audit,
            Body::ClusterPolicy(policy) => policy.mode == Mode::Audit,
            _ => false,
        };
        self.objects.values().filter(is_audited).count()
    }

    /// Whether a generation was compiled or adopted.
    pub fn has_generation(&self) -> bool {
        self.baseline.is_some()
    }

    /// The present class of an address: the generation's, with the changes since.
    pub fn peer_at(&self, address: IpAddr) -> Option<PeerId> {
        self.baseline.as_ref().map(|baseline| baseline.peer_at(address))
    }

    /// Compiles the objects as they are now. From here on, changes are answered relative to the result.
    pub fn compile(&mut self) -> Result<Generation, ClassifyError> {
        // Without `?` here: after an error, too, no generation is in the making. If `since` stayed, it would grow with
        // every change.
        let generation = self.begin().classify();
        self.since = None;
        let mut generation = generation?;
        self.take_over(&mut generation);
        Ok(generation)
    }

    /// Begins a generation of the objects as they are now. Until it is adopted, changes are answered relative to the
    /// generation before.
    pub fn begin(&mut self) -> Draft {
        let (cluster, _) = resolve(self.objects.values(), self.assume);
        let scope = match &self.node {
            // A node that no object names yet has no pods. That is no error: its agent may start before its Node object
            // is there.
            Some(node) => Scope::node(&cluster, node).unwrap_or_else(Scope::nothing),
            None => Scope::everything(&cluster),
        };
        self.since = Some(BTreeMap::new());
        // A compile from scratch replaces it. Both at the same time would need twice the memory.
        self.maintained = None;
        // Sets that no object has any more. Here, because a compile visits all objects anyway; a search at each
        // deletion would not.
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        let declared = self.objects.values().flat_map(node_addresses).copied().collect();
        Draft { cluster, scope, declared, selecting: selecting(&self.objects), is_altered: false }
    }

    /// From here on, changes are answered relative to this generation. Returns the changes that arrived since it was
    /// begun.
    pub fn adopt(&mut self, generation: &mut Generation) -> Late {
        // First the generation, then the changes since it was begun: they must be answered relative to its classes.
        self.take_over(generation);
        let mut late = Late::default();
        for (key, before) in self.since.take().unwrap_or_default() {
            // Taken out and put back, because `answer` needs the whole index. `answer` and not `judge`: the pods'
            // addresses were counted when the change arrived.
            let after = self.objects.remove(&key);
            match self.answer(before.as_ref(), after.as_ref()) {
                Dirty::Nothing => {}
                Dirty::Addresses(changes) => {
                    late.addresses.extend(changes.entries);
                    late.judge_again |= changes.judge_again;
                }
                Dirty::Everything => late.is_more = true,
            }
            self.objects.extend(after.map(|after| (key, after)));
        }
        late
    }

    /// Drops the generation that was begun.
    pub fn abandon(&mut self) {
        self.since = None;
    }

    fn judge(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        self.count_holders(before, after);
        self.answer(before, after)
    }

    fn answer(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        // There are no classes yet to which a smaller answer could refer.
        if self.baseline.is_none() {
            return if before.is_none() && after.is_none() { Dirty::Nothing } else { Dirty::Everything };
        }
        if is_same(before, after) {
            return Dirty::Nothing;
        }
        let dirty = match (before.map(|it| &it.body), after.map(|it| &it.body)) {
            (None | Some(Body::Pod(_)), None | Some(Body::Pod(_))) => match self.pod_changes(before, after) {
                PodAnswer::Known(dirty) => dirty,
                PodAnswer::NewClass => {
                    self.unbuilt.note_new_class(before, after);
                    return Dirty::Everything;
                }
            },
            (None | Some(Body::NetworkPolicy(_)), None | Some(Body::NetworkPolicy(_))) => {
                // Both states: a policy that stops selecting a local pod changes as much as one that begins to.
                let concerns = [before, after].into_iter().flatten().any(|policy| self.concerns_local(policy));
                if concerns { Dirty::Everything } else { Dirty::Nothing }
            }
            (None | Some(Body::ClusterPolicy(_)), None | Some(Body::ClusterPolicy(_))) => {
                let concerns = [before, after].into_iter().flatten().any(|policy| self.concerns_local(policy));
                if concerns { Dirty::Everything } else { Dirty::Nothing }
            }
            // Safe because classification then makes no class for services (`Classifier::exact_keys`). As soon as a
            // policy for egress appears, that policy's change is a compile of all services.
            (
                None | Some(Body::Service(_) | Body::EndpointSlice(_)),
                None | Some(Body::Service(_) | Body::EndpointSlice(_)),
            ) if !self.judges_services() => Dirty::Nothing,
            // Only changed lists. A new or deleted list adds or removes a predicate, and so changes the classes
            // themselves.
            (Some(Body::CidrList(old)), Some(Body::CidrList(new))) => {
                self.list_changes(before.map_or("", |it| &it.meta.name), old, new)
            }
            // Nodes, namespaces, workloads, and anything that a later version adds: a needless compile costs time, a
            // missed one would leave a wrong verdict in force.
            _ => Dirty::Everything,
        };
        if let (Dirty::Addresses(changes), Some(baseline)) = (&dirty, &mut self.baseline) {
            // Recorded as written, so that the next change is compared with the table as it is then.
            baseline.note_entries(&changes.entries);
        }
        self.unbuilt.note(before, after, &dirty);
        dirty
    }

    /// Whether services can affect verdicts: only if a policy or list applies to egress of a local pod.
    pub fn judges_services(&self) -> bool {
        self.baseline.as_ref().is_none_or(|baseline| baseline.judges_egress)
    }

    fn count_holders(&mut self, before: Option<&Object>, after: Option<&Object>) {
        if let Some((_, pod)) = before.and_then(as_pod) {
            let less = |counts: &mut HashMap<IpAddr, u32>, addresses: &[IpAddr]| {
                for address in addresses {
                    // Over time, many different addresses occur, so counts of zero are removed.
                    if let Entry::Occupied(mut count) = counts.entry(*address) {
                        *count.get_mut() -= 1;
                        if *count.get() == 0 {
                            count.remove();
                        }
                    }
                }
            };
            // Only what `addresses` returned for the same object before: so the counts return to zero exactly.
            less(&mut self.holders, addresses(pod));
            less(&mut self.hosted, &pod.node_addresses);
        }
        if let Some((_, pod)) = after.and_then(as_pod) {
            let more = |counts: &mut HashMap<IpAddr, u32>, addresses: &[IpAddr]| {
                addresses.iter().for_each(|address| *counts.entry(*address).or_default() += 1);
            };
            more(&mut self.holders, addresses(pod));
            more(&mut self.hosted, &pod.node_addresses);
        }
    }

    /// Whether a policy selects a local pod, as the last compile knew them.
    fn concerns_local(&self, object: &Object) -> bool {
        let Some(baseline) = &self.baseline else { return true };
        // The labels of the last compile are enough: a local pod with other labels makes a new compile by itself, and so
        // does a namespace with other labels.
        match &object.body {
            Body::NetworkPolicy(policy) => baseline.selects_local(&object.meta.namespace, &policy.pod_selector),
            Body::ClusterPolicy(policy) => {
                baseline.selects_local_anywhere(&policy.subject_namespaces, &policy.subject_pods)
            }
            _ => true,
        }
    }

    /// A pod that is not local and backs no service is only ever a peer: its addresses have a class, and nothing else
    /// in the tables depends on it. If that class exists already, it is enough to update the entries of its addresses.
    fn pod_changes(&self, before: Option<&Object>, after: Option<&Object>) -> PodAnswer {
        const EVERYTHING: PodAnswer = PodAnswer::Known(Dirty::Everything);
        let Some(baseline) = &self.baseline else { return EVERYTHING };
        let mut has_new_class = false;
        let mut classes: BTreeMap<IpAddr, PeerId> = BTreeMap::new();
        // The old state first: an address that the pod keeps gets its class from the new state, which overwrites the
        // old one.
        for (object, is_now) in [(before, false), (after, true)] {
            let Some((object, pod)) = object.and_then(as_pod) else { continue };
            // For both states: a pod that was local, or backed a service, is still in the tables as that.
            if !self.is_only_a_peer(&baseline.roles, object, pod, after) {
                return EVERYTHING;
            }
            let ports = named_ports(&pod.ports, self.assume);
            for address in addresses(pod) {
                let peer = match is_now {
                    true => baseline.class_of(object, &ports, *address),
                    // Without the pod, only blocks and lists hold for the address.
                    false => baseline.class_without_pod(*address),
                };
                match peer {
                    Some(peer) => _ = classes.insert(*address, peer),
                    // A set of predicates that no address had when the classes were made: no row has verdicts for it.
                    None if is_now && !self.is_behind(baseline, *address) => has_new_class = true,
                    None => return EVERYTHING,
                }
            }
        }
        let changes = |(address, peer): (&IpAddr, &PeerId)| baseline.peer_at(*address) != *peer;
        if classes.iter().any(|it| changes(it) && self.is_behind(baseline, *it.0)) {
            return EVERYTHING;
        }
        match has_new_class {
            true => PodAnswer::NewClass,
            false => PodAnswer::Known(baseline.changes(classes, loses_owner(before, after))),
        }
    }

    /// Whether services are judged by the class that an address had when the generation was compiled.
    fn is_behind(&self, baseline: &Baseline, address: IpAddr) -> bool {
        baseline.roles.backing.contains(&address) && baseline.judges_egress
    }

    fn is_only_a_peer(&self, roles: &Roles, object: &Object, pod: &Pod, after: Option<&Object>) -> bool {
        // A pod that names no node, but has node addresses, may be on this node.
        let is_placed = pod.node.is_some() || pod.node_addresses.is_empty();
        let local = self.node.is_none() || pod.node == self.node || !is_placed;
        // Services without slices find backends by labels, so a pod can become one without any other object changing.
        // With slices, the slice changes too and is answered by itself.
        let backs = roles.selects(object);
        let now = after.and_then(as_pod).map_or(&[][..], |(_, pod)| addresses(pod));
        let shares = |address: &IpAddr| {
            // If another pod lists the address too, the one that counts depends on both (`Directory::endpoint_at`), and
            // this event is about one of them only.
            let own = u32::from(now.contains(address));
            roles.fixed.contains(address) || self.holders.get(address).is_some_and(|count| *count > own)
        };
        !local
            && !backs
            // A pod's status names addresses of its node, and the model reads them. A new one would change the own node
            // of local pods.
            && pod.node_addresses.iter().all(|address| self.stays_a_nodes(roles, address))
            && !addresses(pod).iter().any(shares)
    }

    /// Whether an address was a node's when the generation was compiled, and a pod or a Node object still says so.
    fn stays_a_nodes(&self, roles: &Roles, address: &IpAddr) -> bool {
        // When the last pod that names the address goes, the address may be no node's any more.
        let is_said = self.hosted.get(address).is_some_and(|count| *count > 0);
        roles.nodes.contains(address) && (is_said || roles.declared.contains(address))
    }
}

/// The answer to a change of a pod.
enum PodAnswer {
    Known(Dirty),
    /// A new generation, whose only difference is a class for the pod's addresses.
    NewClass,
}

fn as_pod(object: &Object) -> Option<(&Object, &Pod)> {
    match &object.body {
        Body::Pod(pod) => Some((object, pod)),
        _ => None,
    }
}

/// Whether the previous pod loses one of its addresses: the pod or the address is gone, or another pod has taken
/// its name. If an address moves between pods of different names, one of them loses it first.
fn loses_owner(before: Option<&Object>, after: Option<&Object>) -> bool {
    let Some((old, pod)) = before.and_then(as_pod) else { return false };
    // By UID: a StatefulSet's pod comes back with the same name, and often with the same address, as another pod.
    let kept = after.and_then(as_pod).filter(|(new, _)| new.meta.uid == old.meta.uid);
    let kept = kept.map_or(&[][..], |(_, pod)| addresses(pod));
    addresses(pod).iter().any(|address| !kept.contains(address))
}

/// The addresses that identify the pod in packets: none if it is on the host's network or has finished.
fn addresses(pod: &Pod) -> &[IpAddr] {
    let away = pod.host_network || matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
    // The status of a finished pod still lists an address that another pod may have meanwhile:
    // https://github.com/antrea-io/antrea/issues/6507
    if away { &[] } else { &pod.addresses }
}

/// Whether nothing has changed that the index reads. The object's number in the input does not count.
fn is_same(before: Option<&Object>, after: Option<&Object>) -> bool {
    match (before, after) {
        (Some(a), Some(b)) => discriminant(&a.body) == discriminant(&b.body) && a.meta == b.meta && a.body == b.body,
        (None, None) => true,
        _ => false,
    }
}

fn fixed_addresses(cluster: &Cluster, scope: &Scope) -> BTreeSet<IpAddr> {
    let local = scope.endpoints().iter().flat_map(|id| &cluster.endpoints[id.index()].addresses);
    let nodes = cluster.nodes.iter().flat_map(|node| &node.addresses);
    let services = cluster.frontends.iter().map(|frontend| &frontend.address);
    // The `hostIP` of a hostPort has a class of its own, even if no Node lists this address.
    let named = cluster.host_ports.iter().filter_map(|it| it.address.as_ref());
    local.chain(nodes).chain(services).chain(named).copied().collect()
}

fn node_addresses(object: &Object) -> &[IpAddr] {
    match &object.body {
        Body::Node(node) => &node.addresses,
        _ => &[],
    }
}

fn backing(cluster: &Cluster) -> BTreeSet<IpAddr> {
    let backends = cluster.services.iter().flat_map(|it| &it.ports).flat_map(|port| &port.backends);
    // hostPorts lead to pods as services do, so their pods' classes decide verdicts on another address as well.
    backends.chain(cluster.host_ports.iter().map(|it| &it.backend)).filter_map(|it| it.address).collect()
}

/// Services whose backends are found by their selector, since they have no slices.
fn selecting(objects: &BTreeMap<Key, Object>) -> Vec<(String, Labels)> {
    // One slice is enough: then the selector is not used at all, even if the slice is empty.
    let sliced: BTreeSet<(&str, &str)> = objects
        .values()
        .filter_map(|object| match &object.body {
            Body::EndpointSlice(slice) => Some((object.meta.namespace.as_str(), slice.service.as_deref()?)),
            _ => None,
        })
        .collect();
    let by_selector = objects.values().filter_map(|object| match &object.body {
        Body::Service(service) if !service.selector.is_empty() => {
            let key = (object.meta.namespace.as_str(), object.meta.name.as_str());
            (!sliced.contains(&key)).then(|| (object.meta.namespace.clone(), service.selector.clone()))
        }
        _ => None,
    });
    by_selector.collect()
}
