//! The objects of the API, as far as the agent knows them.
//!
//! Invariants: nothing is compiled before every kind has been listed ([`KnownObjects::is_complete`]). An object that
//! cannot be read is recorded with its error until it can be read, is deleted, or is missing from a list.

use std::collections::{BTreeMap, BTreeSet};

use weir_classes::index::{Index, Key};
use weir_model::Assumptions;
use weir_objects::k8s::Object;

use super::RelistKind;
use super::policies::PolicyRecords;
use crate::watch::listed::ListedNames;

/// The index and the state of objects that the index does not keep.
pub(super) struct KnownObjects {
    index: Index,
    /// Kinds whose first list is not complete yet.
    unlisted: BTreeSet<&'static str>,
    /// Objects that cannot be read, and why.
    unreadable: BTreeMap<Key, UnreadableObject>,
    pub(super) policies: PolicyRecords,
    relist: Box<RelistKind>,
}

/// An object that cannot be read as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnreadableObject {
    pub(super) error: String,
    /// It prevents that policy or a change comes into force on this node: see [`super::reports`].
    pub(super) is_node_fault: bool,
}

impl KnownObjects {
    pub(super) fn new(node: String, assume: Assumptions, kinds: Vec<&'static str>, relist: Box<RelistKind>) -> Self {
        Self {
            index: Index::new(Some(node), assume),
            unlisted: kinds.into_iter().collect(),
            unreadable: BTreeMap::new(),
            policies: PolicyRecords::default(),
            relist,
        }
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Whether every kind has been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// The known objects of a kind that its list does not name.
    pub(super) fn missing_from(&self, kind: &str, listed: &ListedNames) -> Vec<Key> {
        let is_missing = |object: &&Object| !listed.contains(&object.meta.namespace, &object.meta.name);
        self.index.of_kind(kind).filter(is_missing).map(Key::of).collect()
    }

    /// Notes that a kind's list is complete. Returns whether it was the last list that was missing.
    pub(super) fn listed(&mut self, kind: &str, names: &ListedNames) -> bool {
        self.unreadable.retain(|key, _| key.kind != kind || names.contains(&key.namespace, &key.name));
        self.unlisted.remove(kind) && self.unlisted.is_empty()
    }

    /// Forgets the objects of a kind that is not followed any more. No verdict may depend on them.
    pub(super) fn forget_kind(&mut self, kind: &str) {
        self.unreadable.retain(|key, _| key.kind != kind);
        _ = self.index.reset(kind, Vec::new());
    }

    /// Whether a deleted object stays in force: see [`PolicyRecords::keep_after_deletion`].
    pub(super) fn keep_after_deletion(&mut self, key: &Key) -> bool {
        self.policies.keep_after_deletion(key, &self.index)
    }

    /// Asks the API server for new lists of these kinds.
    pub(super) fn relist(&self, kinds: &[&'static str]) {
        kinds.iter().for_each(|kind| (self.relist)(kind));
    }

    /// Records that an object cannot be read. Returns whether this error is new.
    pub(super) fn set_unreadable(&mut self, key: Key, object: UnreadableObject) -> bool {
        let is_new = self.unreadable.get(&key).is_none_or(|known| known.error != object.error);
        self.unreadable.insert(key, object);
        is_new
    }

    /// Forgets that an object could not be read. Returns the known facts about it.
    pub(super) fn take_unreadable(&mut self, key: &Key) -> Option<UnreadableObject> {
        self.unreadable.remove(key)
    }

    /// The objects that cannot be read.
    pub(super) fn unreadable(&self) -> &BTreeMap<Key, UnreadableObject> {
        &self.unreadable
    }

    /// The UID of an object, if it is known.
    pub(super) fn uid(&self, key: &Key) -> Option<String> {
        self.index.get(key).and_then(|it| it.meta.uid.as_ref().map(String::from))
    }
}
