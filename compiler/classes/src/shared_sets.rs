//! Sets of numbers. Equal sets have equal ids, and no set stores a list of its members.
//!
//! Problem: a sweep over ranges has a set at every cut, and the next set differs in one number. Listing the members of
//! every set costs the square of the number of ranges: 20,000 overlapping port ranges took gigabytes.
//! Strategy: a set is the root of a binary tree over all numbers, and equal trees are stored once (hash-consing). A
//! change of one number makes a path of new nodes and shares the others. Unlike a hash of the members, this is exact: a
//! tenant cannot choose ranges whose sets collide.

use std::collections::HashMap;

/// A set. Equal sets of one [`SharedSets`] have equal ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SharedSet(u32);

impl SharedSet {
    pub(crate) const EMPTY: Self = Self(0);
    /// The leaf of a number that is in the set.
    const PRESENT: Self = Self(1);
}

/// Sets of numbers below a bound.
#[derive(Debug)]
pub(crate) struct SharedSets {
    /// The number of levels of every tree.
    depth: u32,
    /// The children of inner nodes, by id. The first two ids are [`SharedSet::EMPTY`] and [`SharedSet::PRESENT`].
    children: Vec<[SharedSet; 2]>,
    ids: HashMap<[SharedSet; 2], SharedSet>,
}

impl SharedSets {
    /// Makes sets of numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        let depth = bound.next_power_of_two().trailing_zeros().max(1);
        // The node of `EMPTY` has itself as both children. So an empty subtree has the same id at every level, and it
        // needs no nodes. The node of `PRESENT` is a placeholder: leaves have no children, so it is never read.
        let empty = [SharedSet::EMPTY; 2];
        Self { depth, children: vec![empty; 2], ids: HashMap::from([(empty, SharedSet::EMPTY)]) }
    }

    /// Adds `number` if the set does not contain it, and removes it otherwise.
    pub(crate) fn toggle(&mut self, set: SharedSet, number: u32) -> SharedSet {
        self.toggle_below(set, number, self.depth)
    }

    fn toggle_below(&mut self, set: SharedSet, number: u32, levels: u32) -> SharedSet {
        if levels == 0 {
            return if set == SharedSet::EMPTY { SharedSet::PRESENT } else { SharedSet::EMPTY };
        }
        // The highest bit decides at the root, so neighbouring numbers share all but the last nodes of their paths:
        // such as the predicates of one policy, which are numbered one after the other.
        let side = (number >> (levels - 1) & 1) as usize;
        let mut children = self.children[set.0 as usize];
        children[side] = self.toggle_below(children[side], number, levels - 1);
        // Nodes are never changed or removed, so that the ids of earlier sets stay valid: a class may have one of them.
        let next = SharedSet(self.children.len() as u32);
        // Without this look-up, a set that the sweep reaches again on another path would get another id, and one class
        // would become two. The index is as large as the changes, not as large as the sets.
        let id = *self.ids.entry(children).or_insert(next);
        if id == next {
            self.children.push(children);
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::{SharedSet, SharedSets};

    #[test]
    fn equal_sets_have_equal_ids_and_different_sets_do_not() {
        for bound in [1, 2, 3, 8, 9] {
            let mut sets = SharedSets::new(bound);
            let (mut id, mut members) = (SharedSet::EMPTY, BTreeSet::new());
            let mut seen = HashMap::from([(BTreeSet::new(), id)]);
            // A fixed walk that reaches many sets again, on different paths.
            for step in 0..2_000_u32 {
                let number = (step * step / 3 + step / 7) % bound as u32;
                id = sets.toggle(id, number);
                if !members.remove(&number) {
                    members.insert(number);
                }
                assert_eq!(*seen.entry(members.clone()).or_insert(id), id, "{members:?}");
            }
            let distinct: BTreeSet<SharedSet> = seen.values().copied().collect();
            assert_eq!(distinct.len(), seen.len());
        }
    }
}
