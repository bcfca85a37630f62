//! Finds the prefixes that contain a given one.

use std::collections::{BTreeSet, HashMap};

use weir_objects::address::Prefix;

/// Numbers of objects, by prefix.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    by_prefix: HashMap<Prefix, Vec<u32>>,
    lengths: BTreeSet<u8>,
}

impl PrefixIndex {
    pub(super) fn insert(&mut self, prefix: Prefix, thing: u32) {
        self.lengths.insert(prefix.len());
        self.by_prefix.entry(prefix).or_default().push(thing);
    }

    /// The objects whose prefix covers this one, the widest first.
    pub(super) fn covering(&self, prefix: Prefix) -> impl Iterator<Item = u32> {
        let widths = self.lengths.range(..=prefix.len()).map(move |len| Prefix::new(prefix.address(), *len));
        widths.filter_map(|wide| self.by_prefix.get(&wide)).flatten().copied()
    }
}
