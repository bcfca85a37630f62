//! The agent's picture of the cluster: it takes changes of objects, and returns the updates that they require.
//!
//! Problem: a cluster's objects change all the time, and most changes concern nothing on this node. Compiling anew for
//! each of 100 pod events a second is waste; missing one is a hole.
//! Strategy: the index holds every object and the facts of the last compile ([`baseline`]). It answers a change with
//! the least work that is enough: nothing, a few single entries of the exact address table, or a new compile. An answer
//! smaller than a compile is given only where it is *proved* to be enough: the proofs are in [`pods`], [`lists`],
//! [`namespaces`], [`nodes`] and [`services`].
//! Invariants: a pure value, without a clock and without an API server; after any series of changes, applying the
//! answers gives every packet the verdict that a compile from scratch gives (`tests/index.rs` holds it).

mod baseline;
mod changes;
mod counts;
mod effect;
mod lists;
mod local;
mod namespaces;
mod needs;
mod nodes;
mod pods;
mod roles;
mod services;
mod shared;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::discriminant;
use std::net::IpAddr;
use std::sync::Arc;

use crate::StageParts;
use crate::departed::MovedBackends;
use crate::fit::{self, Fit};
use crate::incremental::Maintained;
pub use crate::incremental::NeedsWhole;
use crate::{Classes, ClassifyError, Limits, PeerId, Scope, classify_parts};
use baseline::Baseline;
pub use changes::ChangeDraft;
use changes::{Applied, Unbuilt};
pub use effect::ChangeEffect;
pub use local::{LocalArrival, LocalChange};
pub use needs::Needs;
use nodes::NodeAnswer;
use pods::PodAnswer;
use roles::Roles;
use services::SliceNames;
use shared::Shared;
use store::Objects;
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::k8s::{Body, LabelSelector, Mode, Object};
use weir_objects::name::Name;

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
        Self { kind, namespace: object.meta.namespace.to_string(), name: object.meta.name.clone() }
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
    /// Pods of this node that come or leave, in order. Their entries are in `entries`, which are written first.
    pub locals: Vec<LocalChange>,
}

impl Dirty {
    /// Whether a pod of this node comes without a compile.
    pub fn brings_local_pod(&self) -> bool {
        matches!(self, Self::Addresses(changes) if changes.locals.iter().any(|it| matches!(it, LocalChange::Came(_))))
    }

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
                a.locals.extend(b.locals);
                Self::Addresses(a)
            }
        }
    }
}

/// Objects, and the facts of the generation in force that changes are compared with.
#[derive(Debug)]
pub struct Index {
    /// The node whose pods are local; `None`: every pod is.
    node: Option<Name>,
    assume: Assumptions,
    objects: Objects,
    /// The labels and names that they have in common.
    shared: Shared,
    /// `None` before the first compile.
    baseline: Option<Baseline>,
    /// The previous state of each object that has changed since a generation was begun; `None` if no generation is in
    /// the making.
    since: Option<BTreeMap<Key, Option<Object>>>,
    /// How many pods have an address.
    holders: HashMap<IpAddr, u32>,
    /// How many pods name an address as their node's.
    hosted: HashMap<IpAddr, u32>,
    /// How many pods that name no node do so.
    unnamed: HashMap<IpAddr, u32>,
    /// How many Node objects declare an address.
    declared: HashMap<IpAddr, u32>,
    /// The slices of each service.
    slices: SliceNames,
    /// Backends that have moved without a new generation, until [`Index::take_moved`].
    moved: Vec<MovedBackends>,
    /// The generation in force in the form that changes of policies are applied to.
    maintained: Option<Box<Maintained>>,
    /// The changes that the generation in force does not have.
    unbuilt: Unbuilt,
    /// Whether a change needs a compile that the generation in force does not have.
    is_outdated: bool,
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
    /// Backends that services have got or lost with these changes.
    moved: Vec<MovedBackends>,
}

/// The data of a generation that later changes are applied to.
#[derive(Debug)]
enum Kept {
    /// Nothing: the generation differs from its objects.
    Nothing,
    /// The data of a compile from scratch.
    Stages(Box<StageParts>),
    /// The data after changes.
    Maintained(Box<Maintained>, Box<Applied>),
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
    selecting: roles::Selecting,
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
        let Self { cluster, scope, selecting, is_altered } = self;
        let (classes, parts) = classify_parts(&cluster, &scope, limits)?;
        let roles = Roles::new(&cluster, &scope, selecting);
        let kept = if is_altered { Kept::Nothing } else { Kept::Stages(parts.into()) };
        let (cluster, roles, moved) = (cluster.into(), roles.into(), Vec::new());
        Ok(Generation { cluster, scope, classes, roles, kept, moved, is_incremental: false })
    }
}

impl Index {
    /// An empty index for a node, or for all pods.
    pub fn new(node: Option<String>, assume: Assumptions) -> Self {
        Self {
            node: node.map(Name::from),
            assume,
            objects: Objects::default(),
            shared: Shared::default(),
            baseline: None,
            since: None,
            holders: HashMap::new(),
            hosted: HashMap::new(),
            unnamed: HashMap::new(),
            declared: HashMap::new(),
            slices: SliceNames::default(),
            moved: Vec::new(),
            maintained: None,
            unbuilt: Unbuilt::default(),
            is_outdated: false,
        }
    }

    /// Handles an object that was created or changed.
    pub fn apply(&mut self, mut object: Object) -> Dirty {
        let key = Key::of(&object);
        self.shared.share(&mut object);
        // Taken out of the set, because `judge` reads the rest of the index while it compares the two states.
        let before = self.objects.remove(&key);
        let dirty = self.judge(before.as_ref(), Some(&object));
        self.remember(&key, before, Some(&object));
        _ = self.objects.replace(object);
        dirty
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
        let gone: Vec<Key> = self.of_kind(kind).map(Key::of).filter(|key| !listed.contains(key)).collect();
        // Deletions first. An address that moves from a deleted pod to a listed one must be free before the new pod
        // takes it, otherwise two pods would seem to hold it, and the answer would be a compile.
        let deleted = gone.iter().fold(Dirty::Nothing, |dirty, key| dirty.and(self.delete(key)));
        objects.into_iter().fold(deleted, |dirty, object| dirty.and(self.apply(object)))
    }

    /// An object as it is now.
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    /// The objects of a kind, by namespace and name.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Object> {
        self.objects.of_kind(kind)
    }

    /// Whether any pod names the UID of a static pod.
    pub fn has_mirror_pods(&self) -> bool {
        self.objects.has_mirrors()
    }

    /// How many objects of a kind there are.
    pub fn count(&self, kind: &str) -> usize {
        self.objects.count(kind)
    }

    /// How many policies are in audit mode.
    pub fn audited(&self) -> usize {
        let is_audited = |object: &&Object| match &object.body {
            Body::NetworkPolicy(policy) => policy.mode == Mode::Audit,
            Body::ClusterPolicy(policy) => policy.mode == Mode::Audit,
            _ => false,
        };
        self.objects.iter().filter(is_audited).count()
    }

    /// Whether a generation was compiled or adopted.
    pub fn has_generation(&self) -> bool {
        self.baseline.is_some()
    }

    /// The present class of an address: the generation's, with the changes since.
    pub fn peer_at(&self, address: IpAddr) -> Option<PeerId> {
        self.baseline.as_ref().map(|baseline| baseline.peer_at(address))
    }

    /// Whether a pod or a node may have an address.
    pub fn has_holder(&self, address: IpAddr) -> bool {
        let is_taken = self.baseline.as_ref().is_none_or(|baseline| self.is_taken(baseline, address));
        is_taken || self.holders.contains_key(&address)
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
        let (cluster, _) = resolve(self.objects.iter(), self.assume);
        let scope = self.scope_of(&cluster);
        self.since = Some(BTreeMap::new());
        // A compile from scratch replaces it. Both at the same time would need twice the memory.
        self.maintained = None;
        // Here, because a compile visits all objects anyway.
        self.shared.sweep();
        Draft { cluster, scope, selecting: roles::selecting(&self.objects), is_altered: false }
    }

    /// The local pods of a cluster.
    fn scope_of(&self, cluster: &Cluster) -> Scope {
        match &self.node {
            // A node that no object names yet has no pods. That is no error: its agent may start before its Node object
            // is there.
            Some(node) => Scope::node(cluster, node).unwrap_or_else(Scope::nothing),
            None => Scope::everything(cluster),
        }
    }

    /// From here on, changes are answered relative to this generation. Returns the changes that arrived since it was
    /// begun.
    pub fn adopt(&mut self, generation: &mut Generation) -> Late {
        // First the generation, then the changes since it was begun: they must be answered relative to its classes.
        self.take_over(generation);
        let mut late = Late::default();
        // Until all changes are answered, no local pod comes singly: the rest may have a policy for it.
        self.is_outdated = true;
        for (key, before) in self.since.take().unwrap_or_default() {
            // Taken out and put back, because `answer` needs the whole index. `answer` and not `judge`: the pods'
            // addresses were counted when the change arrived.
            let after = self.objects.remove(&key);
            // The small answer for a slice compares it beside the other slices of its service as they are now, and not
            // as they were in the draft. The agent changes no slices meanwhile; other users of the index may.
            if key.kind == "EndpointSlice" && self.judges_services() {
                late.is_more = true;
                // The next generation finds the backends that have left: moves from here are not passed on.
                self.unbuilt.note_slices([before.as_ref(), after.as_ref()]);
            }
            match self.answer(before.as_ref(), after.as_ref()) {
                Dirty::Nothing => {}
                Dirty::Addresses(changes) => {
                    late.addresses.extend(changes.entries);
                    late.judge_again |= changes.judge_again;
                }
                Dirty::Everything => late.is_more = true,
            }
            if let Some(after) = after {
                _ = self.objects.replace(after);
            }
        }
        self.is_outdated = late.is_more;
        // Moves since the generation was begun are changes of the next one.
        self.moved = std::mem::take(&mut generation.moved);
        late
    }

    /// Takes the backends that have moved without a new generation since the last call. The caller passes them on to
    /// [`Departed::moved`](crate::departed::Departed::moved).
    pub fn take_moved(&mut self) -> Vec<MovedBackends> {
        std::mem::take(&mut self.moved)
    }

    /// Makes the next compile start from scratch, because the generation that was adopted last may not be in force.
    /// From each generation in force, the caller learns the changes since the one before, such as backends of services.
    /// An incremental generation would lack the changes that the last one contained.
    pub fn distrust(&mut self) {
        self.maintained = None;
    }

    /// Whether a generation was begun that is neither adopted nor dropped. A slice that changes until then needs
    /// another generation, so a caller that keeps it until then saves one.
    pub fn is_making_generation(&self) -> bool {
        self.since.is_some()
    }

    /// Drops the generation that was begun.
    pub fn abandon(&mut self) {
        self.since = None;
    }

    fn judge(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        self.count_holders(before, after);
        self.count_declared(before, after);
        self.slices.note(before, after);
        self.answer(before, after)
    }

    fn answer(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        let dirty = self.required_work(before, after);
        self.is_outdated |= dirty == Dirty::Everything;
        dirty
    }

    fn required_work(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
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
                PodAnswer::Generation { is_local, moves_nodes, services } => {
                    self.unbuilt.note_pod(before, after, is_local);
                    self.unbuilt.note_services(services);
                    self.unbuilt.note_nodes(moves_nodes);
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
            (None | Some(Body::Namespace), None | Some(Body::Namespace)) => self.namespace_changes(before, after),
            // Safe because classification then makes no class for services (`Classifier::exact_keys`). As soon as a
            // policy for egress appears, that policy's change is a compile of all services.
            (
                None | Some(Body::Service(_) | Body::EndpointSlice(_)),
                None | Some(Body::Service(_) | Body::EndpointSlice(_)),
            ) if !self.judges_services() => Dirty::Nothing,
            (None | Some(Body::Service(_)), None | Some(Body::Service(_))) => self.service_changes(before, after),
            (None | Some(Body::EndpointSlice(_)), None | Some(Body::EndpointSlice(_))) => {
                self.slice_changes(before, after)
            }
            (None | Some(Body::CidrList(_)), None | Some(Body::CidrList(_))) => self.list_changes(before, after),
            (None | Some(Body::Node(_)), None | Some(Body::Node(_))) => match self.node_changes(before, after) {
                NodeAnswer::Nothing => Dirty::Nothing,
                NodeAnswer::Peers => {
                    self.unbuilt.note_nodes(true);
                    return Dirty::Everything;
                }
                NodeAnswer::Whole => Dirty::Everything,
            },
            // Workloads, and anything that a later version adds: a needless compile costs time, a
            // missed one would leave a wrong verdict in force.
            _ => Dirty::Everything,
        };
        if let (Dirty::Addresses(changes), Some(baseline)) = (&dirty, &mut self.baseline) {
            // Recorded as written, so that the next change is compared with the table as it is then.
            baseline.note_entries(&changes.entries);
            baseline.note_locals(&changes.locals, before);
        }
        let (judges_services, baseline) = (self.judges_services(), &self.baseline);
        let knows = |name: &str| baseline.as_ref().is_some_and(|it| it.has_namespace(name));
        self.unbuilt.note(before, after, &dirty, judges_services, knows);
        dirty
    }

    /// Whether services can affect verdicts: only if a policy or list applies to egress of a local pod.
    pub fn judges_services(&self) -> bool {
        self.baseline.as_ref().is_none_or(|baseline| baseline.judges_egress)
    }

    /// Whether a policy or list selects a local pod, as the last compile knew them.
    fn concerns_local(&self, object: &Object) -> bool {
        let Some(baseline) = &self.baseline else { return true };
        // The labels of local pods as of the last compile are enough: a local pod with other labels makes a new compile
        // by itself.
        match &object.body {
            Body::NetworkPolicy(policy) => baseline.selects_local(&object.meta.namespace, &policy.pod_selector),
            Body::ClusterPolicy(policy) => {
                baseline.selects_local_anywhere(&policy.subject_namespaces, &policy.subject_pods)
            }
            Body::CidrList(list) => {
                let all = LabelSelector::default();
                let [namespaces, pods] = [&list.namespaces, &list.pods].map(|it| it.as_ref().unwrap_or(&all));
                baseline.selects_local_anywhere(namespaces, pods)
            }
            _ => true,
        }
    }
}

/// Whether nothing has changed that the index reads. The object's number in the input does not count.
fn is_same(before: Option<&Object>, after: Option<&Object>) -> bool {
    match (before, after) {
        (Some(a), Some(b)) => discriminant(&a.body) == discriminant(&b.body) && a.meta == b.meta && a.body == b.body,
        (None, None) => true,
        _ => false,
    }
}
