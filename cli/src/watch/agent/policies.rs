//! State of policies that other objects do not have: lasting numbers, and policies that are kept after their deletion.

use std::collections::{BTreeMap, BTreeSet};

use weir_classes::index::{Index, Key};
use weir_objects::origin::ObjectId;

use crate::watch::resources::has_rules;

/// The state of all objects with rules.
/// Invariant: an object keeps its number as long as the index has it. A kept policy has a number.
#[derive(Debug, Default)]
pub(super) struct PolicyRecords {
    numbers: BTreeMap<Key, ObjectId>,
    /// The last number that was given.
    last: u32,
    /// Deleted together with their namespaces, whose pods may still run.
    kept: BTreeSet<Key>,
}

impl PolicyRecords {
    /// The object's number in origins. Kinds without rules need no number: no verdict names them.
    pub(super) fn number(&mut self, key: &Key) -> ObjectId {
        if !has_rules(&key.kind) {
            return ObjectId(u32::MAX);
        }
        let last = &mut self.last;
        *self.numbers.entry(key.clone()).or_insert_with(|| {
            *last = last.wrapping_add(1);
            ObjectId(*last)
        })
    }

    /// A deleted policy stays in force while its namespace is being deleted: the namespace's pods may run longer than
    /// its policies exist, and would be open. Returns whether the policy is kept.
    pub(super) fn keep_after_deletion(&mut self, key: &Key, index: &Index) -> bool {
        if key.kind != "NetworkPolicy" || index.get(key).is_none() {
            self.numbers.remove(key);
            return false;
        }
        let namespace = Key { kind: "Namespace".to_owned(), namespace: String::new(), name: key.namespace.clone() };
        let is_kept = index.get(&namespace).is_some_and(|it| it.meta.deleting);
        match is_kept {
            true => _ = self.kept.insert(key.clone()),
            false => _ = self.numbers.remove(key),
        }
        is_kept
    }

    /// Forgets that a policy was kept: it exists again.
    pub(super) fn exists(&mut self, key: &Key) {
        self.kept.remove(key);
    }

    /// Removes the policies that were kept for a namespace that is gone now, and returns them.
    pub(super) fn take_kept(&mut self, namespace: &str) -> Vec<Key> {
        let of_it: Vec<Key> = self.kept.iter().filter(|key| key.namespace == namespace).cloned().collect();
        for key in &of_it {
            self.kept.remove(key);
            self.numbers.remove(key);
        }
        of_it
    }
}
