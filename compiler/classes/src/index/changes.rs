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
use super::{Dirty, Generation, Index, Kept, Key, Roles};
use crate::incremental::{Maintained, NeedsWhole, PolicyChange};
use crate::{Limits, PeerId};
use weir_objects::k8s::{Body, Object};

/// The changes that the generation in force does not have.
#[derive(Debug, Default)]
pub(super) struct Unbuilt {
    policies: BTreeSet<Key>,
    /// Whether there are other changes, which need a compile from scratch.
    is_more: bool,
}

impl Unbuilt {
    /// Records a change and the answer to it.
    pub(super) fn note(&mut self, before: Option<&Object>, after: Option<&Object>, dirty: &Dirty) {
        let Some(object) = after.or(before) else { return };
        match (&object.body, dirty) {
            // A policy that selects no local pod is not in the data, and a pod's class is in the address table.
            (Body::NetworkPolicy(_) | Body::Pod(_), Dirty::Nothing | Dirty::Addresses(_)) => {}
            (Body::NetworkPolicy(_), Dirty::Everything) => _ = self.policies.insert(Key::of(object)),
            // Also if nothing has to be done now: a service that no policy asks for must be known when one does.
            _ => self.is_more = true,
        }
    }
}

/// A generation in the making, from changes of the one in force.
#[derive(Debug)]
pub struct ChangeDraft {
    maintained: Box<Maintained>,
    changes: Vec<PolicyChange>,
    entries: BTreeMap<IpAddr, Option<PeerId>>,
    roles: Arc<Roles>,
}

impl ChangeDraft {
    /// Applies the changes, unless they need a compile from scratch or cost more than the limits allow.
    pub fn classify_within(self, limits: Limits) -> Result<Generation, NeedsWhole> {
        let Self { maintained, changes, entries, roles } = self;
        let maintained = Box::new(maintained.apply(changes, &entries, limits)?);
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
        let changes = self.unbuilt.policies.iter().map(change).collect();
        let (entries, roles) = (baseline.changed().clone(), Arc::clone(&baseline.roles));
        self.since = Some(BTreeMap::new());
        Ok(ChangeDraft { maintained, changes, entries, roles })
    }

    /// From here on, changes are answered relative to this generation, which has all changes so far.
    pub(super) fn take_over(&mut self, generation: &mut Generation) {
        self.unbuilt = Unbuilt::default();
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
