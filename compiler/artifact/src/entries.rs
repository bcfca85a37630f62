//! The entries of a map: one piece of memory that all copies share.
//!
//! Problem: a cluster has hundreds of thousands of addresses. Each generation copies, compares and digests its tables,
//! and after most changes nearly all tables are equal to those of the generation before.
//! Strategy: all keys and values are in one allocation, which copies share until one of them changes. Its digest is
//! computed once. Two generations whose tables are equal share them (`weir_codegen::LastArtifact`), so comparing them
//! compares two pointers.
//!
//! Invariants: all keys have one length and all values have one length; the entries are in the order in which they were
//! given, and [`MapEntries::get`] and [`MapEntries::set`] need them sorted by key.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use crate::Digest;
use crate::map_image::{MapBytes, MapEntry};

/// A key and its value.
pub type EntryRef<'a> = (&'a [u8], &'a [u8]);

/// The entries of a map.
#[derive(Clone, Default)]
pub struct MapEntries(Arc<SharedEntries>);

#[derive(Default)]
struct SharedEntries {
    key_size: usize,
    value_size: usize,
    count: usize,
    bytes: Vec<u8>,
    digest: OnceLock<Digest>,
}

impl SharedEntries {
    fn size(&self) -> usize {
        self.key_size + self.value_size
    }
}

impl Clone for SharedEntries {
    fn clone(&self) -> Self {
        let Self { key_size, value_size, count, ref bytes, .. } = *self;
        Self { key_size, value_size, count, bytes: bytes.clone(), digest: OnceLock::new() }
    }
}

impl MapEntries {
    /// The entries in this order. The first one says how long keys and values are.
    ///
    /// # Panics
    ///
    /// If another entry has a key or a value of another length: a bug in the caller.
    pub fn new<K: AsRef<[u8]>, V: AsRef<[u8]>>(entries: impl IntoIterator<Item = (K, V)>) -> Self {
        let entries = entries.into_iter();
        let (expected, _) = entries.size_hint();
        let mut all = SharedEntries::default();
        for (key, value) in entries {
            let (key, value) = (key.as_ref(), value.as_ref());
            if all.count == 0 {
                (all.key_size, all.value_size) = (key.len(), value.len());
                all.bytes.reserve_exact(expected.max(1) * all.size());
            }
            assert_eq!((key.len(), value.len()), (all.key_size, all.value_size), "entries of one map are of one size");
            all.bytes.extend_from_slice(key);
            all.bytes.extend_from_slice(value);
            all.count += 1;
        }
        Self(Arc::new(all))
    }

    /// The only entry of an array with one value.
    pub fn one(value: &[u8]) -> Self {
        Self::new([([0_u8; 4], value)])
    }

    /// `count` entries with keys and values of these lengths. `None` if `bytes` are of another length.
    pub fn from_bytes(key_size: usize, value_size: usize, count: usize, bytes: Vec<u8>) -> Option<Self> {
        if count == 0 {
            return bytes.is_empty().then(Self::default);
        }
        let is_whole = key_size.checked_add(value_size)?.checked_mul(count)? == bytes.len();
        is_whole.then(|| Self(Arc::new(SharedEntries { key_size, value_size, count, bytes, digest: OnceLock::new() })))
    }

    /// Entries whose keys and values of these lengths are written one after the other.
    ///
    /// # Panics
    ///
    /// If the last entry is not whole: a bug in the caller.
    pub fn written(key_size: usize, value_size: usize, bytes: Vec<u8>) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        let size = key_size + value_size;
        assert!(bytes.len().is_multiple_of(size), "{} bytes are no entries of {size}", bytes.len());
        let count = bytes.len() / size;
        Self(Arc::new(SharedEntries { key_size, value_size, count, bytes, digest: OnceLock::new() }))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// All keys and values, one after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The digest of [`Self::bytes`], which is computed once.
    pub fn digest(&self) -> Digest {
        *self.0.digest.get_or_init(|| Digest::of_parts(&[&self.0.bytes]))
    }

    /// The entry at a place.
    ///
    /// # Panics
    ///
    /// If there is no such place.
    pub fn entry(&self, at: usize) -> EntryRef<'_> {
        assert!(at < self.len(), "there are {} entries, none has the place {at}", self.len());
        let size = self.0.size();
        self.0.bytes[at * size..(at + 1) * size].split_at(self.0.key_size)
    }

    /// The first entry.
    pub fn first(&self) -> Option<EntryRef<'_>> {
        (!self.is_empty()).then(|| self.entry(0))
    }

    /// All entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = EntryRef<'_>> + DoubleEndedIterator + Clone {
        (0..self.len()).map(|at| self.entry(at))
    }

    /// How many entries from place `at` on equal those of another map from place `other_at` on. Compares many entries at
    /// once.
    pub fn equal_run(&self, at: usize, other: &Self, other_at: usize) -> usize {
        const MANY: usize = 64;
        let size = self.0.size();
        if size == 0 || (self.0.key_size, self.0.value_size) != (other.0.key_size, other.0.value_size) {
            return 0;
        }
        let [one, two] = [(self, at), (other, other_at)].map(|(map, at)| map.0.bytes.get(at * size..).unwrap_or(&[]));
        let equal = |size: usize, from: usize| {
            let pieces = one[from..].chunks_exact(size).zip(two[from..].chunks_exact(size));
            pieces.take_while(|(one, two)| one == two).count()
        };
        let many = equal(MANY * size, 0) * MANY;
        many + equal(size, many * size)
    }

    /// The value under a key, if the entries are sorted.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.get_entry(key).map(|(_, value)| value)
    }

    /// The entry with a key, if the entries are sorted.
    pub fn get_entry(&self, key: &[u8]) -> Option<EntryRef<'_>> {
        self.place(key).ok().map(|at| self.entry(at))
    }

    fn place(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut first, mut end) = (0, self.len());
        while first < end {
            let middle = first.midpoint(end);
            match self.entry(middle).0.cmp(key) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => first = middle + 1,
                std::cmp::Ordering::Greater => end = middle,
            }
        }
        Err(first)
    }

    /// Changes, adds or removes the entry of a key, if the entries are sorted. Copies keep theirs.
    ///
    /// # Panics
    ///
    /// If the key or the value is of another length than those of the other entries.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) {
        let place = self.place(key);
        if place.is_err() && value.is_none() || place.is_ok_and(|at| Some(self.entry(at).1) == value) {
            return;
        }
        let all = Arc::make_mut(&mut self.0);
        all.digest = OnceLock::new();
        if let (0, Some(value)) = (all.count, value) {
            (all.key_size, all.value_size) = (key.len(), value.len());
        }
        let size = all.size();
        let new = value.map(|value| {
            assert_eq!((key.len(), value.len()), (all.key_size, all.value_size), "entries of one map are of one size");
            key.iter().chain(value).copied()
        });
        let (at, old) = match place {
            Ok(at) => (at, size),
            Err(at) => (at, 0),
        };
        all.count = all.count + usize::from(new.is_some()) - usize::from(old > 0);
        all.bytes.splice(at * size..at * size + old, new.into_iter().flatten());
    }

    /// Changes each value in place. Copies keep theirs.
    pub fn edit_values(&mut self, mut change: impl FnMut(&[u8], &mut [u8])) {
        let all = Arc::make_mut(&mut self.0);
        all.digest = OnceLock::new();
        let (size, key_size) = (all.size(), all.key_size);
        for entry in all.bytes.chunks_exact_mut(size.max(1)) {
            let (key, value) = entry.split_at_mut(key_size);
            change(key, value);
        }
    }

    /// The entries as a list of their own.
    pub fn to_list(&self) -> Vec<MapEntry> {
        self.iter().map(|(key, value)| (MapBytes::from_slice(key), MapBytes::from_slice(value))).collect()
    }

    /// The entries as a list that replaces them when it is dropped.
    pub fn edit(&mut self) -> EditedEntries<'_> {
        EditedEntries { list: self.to_list(), entries: self }
    }

    /// Whether all keys and values have these lengths.
    pub fn are_of(&self, key_size: u32, value_size: u32) -> bool {
        self.is_empty() || (self.0.key_size, self.0.value_size) == (key_size as usize, value_size as usize)
    }

    /// Whether both are the same memory.
    pub fn are_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl PartialEq for MapEntries {
    fn eq(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.0.count, it.0.key_size, it.0.value_size);
        self.are_shared_with(other) || of(self) == of(other) && self.0.bytes == other.0.bytes
    }
}

impl Eq for MapEntries {}

impl fmt::Debug for MapEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl From<Vec<MapEntry>> for MapEntries {
    fn from(entries: Vec<MapEntry>) -> Self {
        Self::new(entries)
    }
}

/// Entries that are being changed: see [`MapEntries::edit`].
#[derive(Debug)]
pub struct EditedEntries<'e> {
    entries: &'e mut MapEntries,
    list: Vec<MapEntry>,
}

impl Deref for EditedEntries<'_> {
    type Target = Vec<MapEntry>;

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

impl DerefMut for EditedEntries<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.list
    }
}

impl Drop for EditedEntries<'_> {
    fn drop(&mut self) {
        *self.entries = mem::take(&mut self.list).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: impl IntoIterator<Item = u8>) -> MapEntries {
        MapEntries::new(numbers.into_iter().map(|it| ([it], [it, 0])))
    }

    #[test]
    fn entries_are_set_added_and_removed_in_order() {
        let mut entries = numbers([1, 3, 5]);
        entries.set(&[3], Some(&[9, 9]));
        entries.set(&[4], Some(&[4, 0]));
        entries.set(&[1], None);
        entries.set(&[7], None);
        entries.set(&[6], Some(&[6, 0]));
        let expected: [EntryRef<'_>; 4] = [(&[3], &[9, 9]), (&[4], &[4, 0]), (&[5], &[5, 0]), (&[6], &[6, 0])];
        assert_eq!(entries.iter().collect::<Vec<_>>(), expected);
        assert_eq!((entries.get(&[5]), entries.get(&[1])), (Some(&[5, 0][..]), None));
        (3..=6).for_each(|key| entries.set(&[key], None));
        assert!(entries.is_empty() && entries.bytes().is_empty());
        entries.set(&[2], Some(&[2, 0]));
        assert_eq!(entries, numbers([2]));
    }

    #[test]
    fn equal_entries_are_counted_up_to_the_first_other_one() {
        for count in [0, 1, 63, 64, 65, 130, 200] {
            let all = numbers(0..count);
            assert_eq!(all.equal_run(0, &all.clone(), 0), count.into());
            for other in 0..count {
                let mut changed = all.clone();
                changed.set(&[other], Some(&[other, 7]));
                let mut shorter = all.clone();
                shorter.set(&[other], None);
                assert_eq!(all.equal_run(0, &changed, 0), other.into());
                assert_eq!(all.equal_run(0, &shorter, 0), other.into());
                let rest = usize::from(count - other - 1);
                assert_eq!(all.equal_run(usize::from(other) + 1, &changed, usize::from(other) + 1), rest);
                assert_eq!(all.equal_run(usize::from(other) + 1, &shorter, other.into()), rest);
            }
        }
        let wider = MapEntries::new([([0_u8], [0_u8; 3])]);
        assert_eq!(numbers(0..9).equal_run(0, &wider, 0), 0);
        assert_eq!(numbers(0..9).equal_run(9, &numbers(0..9), 0), 0);
        assert_eq!(MapEntries::default().equal_run(0, &wider, 0), 0);
    }

    #[test]
    fn a_change_does_not_reach_copies_and_their_digest() {
        let first = numbers([1, 2]);
        let digest = first.digest();
        for change in [
            |it: &mut MapEntries| it.set(&[1], Some(&[7, 7])),
            |it: &mut MapEntries| it.edit_values(|_, value| value[1] = 7),
            |it: &mut MapEntries| it.set(&[1], None),
        ] {
            let mut second = first.clone();
            assert!(second.are_shared_with(&first) && second.digest() == digest);
            change(&mut second);
            assert!(!second.are_shared_with(&first) && second != first && second.digest() != digest);
            assert_eq!((&first, first.digest()), (&numbers([1, 2]), digest));
        }
    }

    #[test]
    fn a_change_to_the_same_value_keeps_the_memory() {
        let first = numbers([1, 2]);
        let mut second = first.clone();
        second.set(&[2], Some(&[2, 0]));
        second.set(&[3], None);
        assert!(second.are_shared_with(&first));
    }

    #[test]
    fn bytes_that_are_no_whole_entries_are_refused() {
        assert!(MapEntries::from_bytes(4, 4, 2, vec![0; 15]).is_none());
        assert!(MapEntries::from_bytes(4, 4, 0, vec![0; 8]).is_none());
        assert!(MapEntries::from_bytes(usize::MAX, 1, 2, vec![0; 16]).is_none());
        assert_eq!(MapEntries::from_bytes(1, 2, 1, vec![5, 5, 0]), Some(numbers([5])));
    }
}
