//! Generations that are made by applying changes to the one in force: see [`crate::incremental`].
//!
//! The index collects the changes that the generation in force does not have. If all of them are changes of policies,
//! or are in the address table already, they are applied to the generation; otherwise the caller begins a compile from
//! scratch. A draft of changes borrows nothing from the index, which takes further changes meanwhile.
//! Invariant: whatever happens to a draft of changes, the index stays as it is, or needs a compile from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::baseline::Baseline;
use super::pods::{addresses, as_pod};
use super::roles::Roles;
use super::{Dirty, Generation, Index, Kept, Key};
use crate::incremental::{Changes, Maintained, NeedsWhole, PeerPod, PolicyChange};
use crate::{Limits, PeerId};
use weir_model::labels::matches;
use weir_model::resolve::named_ports;
use weir_objects::k8s::{Body, Object, Pod, PolicyPeer};

/// The changes that the generation in force does not have.
#[derive(Debug, Default)]
pub(super) struct Unbuilt {
    policies: BTreeSet<Key>,
    /// Remote pods whose addresses need a new class.
    pods: BTreeSet<Key>,
    /// Addresses that such pods had before.
    left: BTreeSet<IpAddr>,
    /// Whether there are other changes, which need a compile from scratch.
    is_more: bool,
}

impl Unbuilt {
    /// Records a change and the answer to it.
    pub(super) fn note(&mut self, before: Option<&Object>, after: Option<&Object>, dirty: &Dirty) {
        let Some(object) = after.or(before) else { return };
        match (&object.body, dirty) {
            // A policy that selects no local pod is not in the data, and a pod's class is in the address table.
            // The data has the local pods of the generation.
            (Body::Pod(_), Dirty::Addresses(changes)) if !changes.locals.is_empty() => self.is_more = true,
            (Body::NetworkPolicy(_) | Body::Pod(_), Dirty::Nothing | Dirty::Addresses(_)) => {}
            (Body::NetworkPolicy(_), Dirty::Everything) => _ = self.policies.insert(Key::of(object)),
            // Also if nothing has to be done now: a service that no policy asks for must be known when one does.
            _ => self.is_more = true,
        }
    }
}

impl Unbuilt {
    /// Records a change of a remote pod that needs a new class.
    pub(super) fn note_new_class(&mut self, before: Option<&Object>, after: Option<&Object>) {
        let had = before.and_then(as_pod).map_or(&[][..], |(_, pod)| addresses(pod));
        self.left.extend(had);
        self.pods.extend(after.map(Key::of));
    }
}

/// A generation in the making, from changes of the one in force.
#[derive(Debug)]
pub struct ChangeDraft {
    maintained: Box<Maintained>,
    changes: Changes,
    roles: Arc<Roles>,
}

impl ChangeDraft {
    /// Applies the changes, unless they need a compile from scratch or cost more than the limits allow.
    pub fn classify_within(self, limits: Limits) -> Result<Generation, NeedsWhole> {
        let Self { maintained, changes, roles } = self;
        let maintained = Box::new(maintained.apply(changes, limits)?);
        let (cluster, scope) = (Arc::clone(&maintained.cluster), maintained.scope.clone());
        Ok(Generation {
            cluster,
            scope,
            classes: maintained.classes.clone(),
            is_incremental: true,
            roles,
            kept: Kept::Maintained(maintained),
        })
    }
}

impl Index {
    /// Begins a generation from the changes since the one in force. Until it is adopted, changes are answered relative
    /// to the generation before. If this fails, the caller begins a compile from scratch.
    pub fn begin_changes(&mut self) -> Result<ChangeDraft, NeedsWhole> {
        let Some(baseline) = &self.baseline else { return Err(NeedsWhole::Base) };
        if self.unbuilt.is_more {
            return Err(NeedsWhole::Objects);
        }
        let maintained = self.maintained.take().ok_or(NeedsWhole::Base)?;
        let change = |key: &Key| PolicyChange {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            now: self.objects.get(key).cloned(),
        };
        let policies: Vec<_> = self.unbuilt.policies.iter().map(change).collect();
        let changes =
            Changes { pods: self.peer_pods(&maintained, &policies)?, entries: self.entries(baseline)?, policies };
        let roles = Arc::clone(&baseline.roles);
        self.since = Some(BTreeMap::new());
        Ok(ChangeDraft { maintained, changes, roles })
    }

    /// The entries of the address table that differ from the generation's.
    fn entries(&self, baseline: &Baseline) -> Result<BTreeMap<IpAddr, Option<PeerId>>, NeedsWhole> {
        let mut entries = baseline.changed().clone();
        // An address that another pod has now was written when that pod got it.
        for address in self.unbuilt.left.iter().filter(|it| !self.holders.contains_key(it)) {
            let peer = baseline.class_without_pod(*address).ok_or(NeedsWhole::Objects)?;
            entries.insert(*address, baseline.entry_for(*address, peer));
        }
        Ok(entries)
    }

    /// The pods whose class may be a new one.
    fn peer_pods(&self, maintained: &Maintained, policies: &[PolicyChange]) -> Result<Vec<PeerPod>, NeedsWhole> {
        let mut found: BTreeSet<&Key> = self.unbuilt.pods.iter().collect();
        for change in policies {
            let Some(Body::NetworkPolicy(policy)) = change.now.as_ref().map(|it| &it.body) else { continue };
            let peers = policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers);
            for peer in peers.filter(|peer| !maintained.knows(&change.namespace, peer)) {
                let namespaces = maintained.namespaces_of(&change.namespace, peer);
                found.extend(namespaces.into_iter().flat_map(|it| self.selected(it, peer)));
            }
        }
        let pods = found.into_iter().filter_map(|key| as_pod(self.objects.get(key)?));
        pods.map(|(object, pod)| self.peer_pod(object, pod)).collect()
    }

    /// The pods of a namespace that a peer selects.
    fn selected<'s>(&'s self, namespace: &str, peer: &'s PolicyPeer) -> impl Iterator<Item = &'s Key> + use<'s> {
        let first = Key { kind: "Pod".to_owned(), namespace: namespace.to_owned(), name: String::new() };
        let of_namespace = namespace.to_owned();
        let pods = self.objects.range(first..);
        let pods = pods.take_while(move |(key, _)| key.kind == "Pod" && key.namespace == of_namespace);
        let is_selected = move |object: &Object| match peer {
            PolicyPeer::Pods { pods: Some(selector), .. } => matches(selector, &object.meta.labels),
            PolicyPeer::Pods { pods: None, .. } => true,
            PolicyPeer::Block { .. } => false,
        };
        pods.filter(move |(_, object)| is_selected(object)).map(|(key, _)| key)
    }

    fn peer_pod(&self, object: &Object, pod: &Pod) -> Result<PeerPod, NeedsWhole> {
        let addresses = addresses(pod).to_vec();
        // Which of several pods has an address is decided when all objects are resolved.
        if addresses.iter().any(|address| self.holders.get(address).is_some_and(|count| *count > 1)) {
            return Err(NeedsWhole::Objects);
        }
        let (namespace, labels) = (object.meta.namespace.clone(), Arc::clone(&object.meta.labels));
        Ok(PeerPod { namespace, labels, ports: named_ports(&pod.ports, self.assume), addresses })
    }

    /// From here on, changes are answered relative to this generation, which has all changes so far.
    pub(super) fn take_over(&mut self, generation: &mut Generation) {
        self.unbuilt = Unbuilt::default();
        self.is_outdated = false;
        let kept = std::mem::replace(&mut generation.kept, Kept::Nothing);
        let before = self.baseline.take();
        self.baseline = Some(match (&kept, before) {
            (Kept::Maintained(_), Some(before)) => before.with_changes(generation),
            _ => Baseline::new(generation),
        });
        self.maintained = match kept {
            Kept::Nothing => None,
            Kept::Stages(parts) => {
                let Generation { cluster, scope, classes, .. } = &*generation;
                Some(Maintained::new(cluster, scope, classes.clone(), *parts).into())
            }
            Kept::Maintained(maintained) => Some(maintained),
        };
    }
}
