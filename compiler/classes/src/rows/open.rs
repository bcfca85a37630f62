//! Rows that are still built: sets of atoms by peer class, before the sets are numbered.

use super::facts::PeerSpan;
use crate::PeerId;
use crate::ports::AtomSet;

/// A row before its sets are numbered. Only classes in `entries` differ from `default`.
pub(super) struct OpenRow {
    pub(super) default: AtomSet,
    /// Sorted.
    pub(super) entries: Vec<(PeerId, AtomSet)>,
}

impl OpenRow {
    pub(super) fn get(&self, peer: PeerId) -> &AtomSet {
        let found = self.entries.binary_search_by_key(&peer, |(id, _)| *id);
        found.map_or(&self.default, |index| &self.entries[index].1)
    }

    /// Adds entries. A new entry replaces the old entry of the same class.
    pub(super) fn overlay(&mut self, mut entries: Vec<(PeerId, AtomSet)>) {
        entries.append(&mut self.entries);
        // The sort is stable: of two entries for one class, the new one comes first.
        entries.sort_by_key(|(peer, _)| *peer);
        entries.dedup_by_key(|(peer, _)| *peer);
        self.entries = entries;
    }

    /// Bytes that the meter counts for this row.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.len() as u64 * entry_bytes(&self.default)
    }
}

/// Bytes of an entry of an [`OpenRow`] whose sets are as long as `like`.
pub(super) fn entry_bytes(like: &AtomSet) -> u64 {
    (size_of::<(PeerId, AtomSet)>() + size_of_val(like.words())) as u64
}

/// The entries of a row that is not finished. Every rule of a subject adds to the entries of its peers, so entries must
/// be found quickly.
pub(super) struct Entries<'s> {
    pub(super) list: Vec<(PeerId, AtomSet)>,
    peers: &'s PeerSpan,
    /// The position in `list`, by the position of the peer class among `peers`.
    pub(super) positions: Vec<u32>,
    pub(super) default: AtomSet,
}

impl<'s> Entries<'s> {
    /// For these peer classes.
    pub(super) fn new(peers: &'s PeerSpan, default: AtomSet) -> Self {
        // An array over these classes instead of a map, because `of` is the innermost step: it runs once for each class
        // that each rule matches. Sets are only made for classes that some rule matches.
        Self { list: Vec::new(), peers, positions: vec![u32::MAX; peers.len()], default }
    }

    /// The set of a class, which starts as the default.
    pub(super) fn of(&mut self, peer: PeerId) -> &mut AtomSet {
        let position = &mut self.positions[self.peers.position(peer)];
        if *position == u32::MAX {
            *position = self.list.len() as u32;
            // A copy of the default, since rules without peers allow this class too.
            self.list.push((peer, self.default.clone()));
        }
        &mut self.list[*position as usize].1
    }

    pub(super) fn sorted(self) -> OpenRow {
        let Self { mut list, default, .. } = self;
        // Each class is in the list once, so the order of equal keys does not matter.
        list.sort_unstable_by_key(|(peer, _)| *peer);
        OpenRow { default, entries: list }
    }
}
