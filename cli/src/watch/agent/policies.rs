//! State of policies that other objects do not have: lasting numbers, and policies that are kept after their deletion.

use std::collections::{BTreeMap, BTreeSet};

use weir_classes::index::{Index, Key};
use weir_objects::origin::ObjectId;

/// The state of all objects with rules.
#[derive(Debug, Default)]
pub(super) struct Policies {
    numbers: BTreeMap<Key, ObjectId>,
    next: u32,
    /// Deleted together with their namespaces, whose pods may still run.
    kept: BTreeSet<Key>,
}

impl Policies {
    /// The object's number in origins. Kinds without rules need no number: no verdict names them.
    pub(super) fn number(&mut self, key: &Key) -> ObjectId {
        if !matches!(key.kind.as_str(), "NetworkPolicy" | "CidrList") {
            return ObjectId(u32::MAX);
        }
        let next = &mut self.next;
        *self.numbers.entry(key.clone()).or_insert_with(|| {
            *next = next.wrapping_add(1);
            ObjectId(*next)
        })
    }

    /// A deleted policy stays in force while its namespace is being deleted: the namespace's pods may run longer than
    /// its policies exist, and would be open.
    pub(super) fn outlives(&mut self, key: &Key, index: &Index) -> bool {
        if key.kind != "NetworkPolicy" || index.get(key).is_none() {
            self.numbers.remove(key);
            return false;
        }
        let namespace = Key { kind: "Namespace".to_owned(), namespace: String::new(), name: key.namespace.clone() };
        let outlives = index.get(&namespace).is_some_and(|it| it.meta.deleting);
        match outlives {
            true => _ = self.kept.insert(key.clone()),
            false => _ = self.numbers.remove(key),
        }
        outlives
    }

    /// Forgets that a policy was kept: it exists again.
    pub(super) fn keep_no_longer(&mut self, key: &Key) {
        self.kept.remove(key);
    }

    /// Removes the policies that were kept for a namespace that is gone now, and returns them.
    pub(super) fn kept_for(&mut self, namespace: &str) -> Vec<Key> {
        let of_it: Vec<Key> = self.kept.iter().filter(|key| key.namespace == namespace).cloned().collect();
        for key in &of_it {
            self.kept.remove(key);
            self.numbers.remove(key);
        }
        of_it
    }
}
