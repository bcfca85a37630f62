//! The single addresses of a family, in pieces that copies share.
//!
//! Problem: a cluster has a hundred thousand addresses, and a few of them change between two generations. If each
//! generation had its own list, each would copy all of them.
//! Strategy: a sorted list in pieces. A list with changes has new pieces where addresses have changed, and shares all
//! others with the list before. Whoever makes a table from the list can see which pieces are the same
//! ([`SinglePiece::is`]).
//! Invariants: addresses ascend within a piece and from piece to piece; no piece is empty. Two lists are equal if their
//! addresses are, wherever the pieces end.

use std::net::IpAddr;
use std::sync::Arc;

use crate::PeerId;

/// The length of the pieces of a list without changes; the last one can be shorter. After changes, a piece has at most
/// `2 * PIECE` addresses.
const PIECE: usize = if cfg!(test) { 4 } else { 256 };

/// A single address and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleAddress {
    /// The address.
    pub address: IpAddr,
    /// Its class.
    pub peer: PeerId,
    /// Whether it is added and removed alone, such as a pod's address; all others are from blocks and lists.
    pub moves: bool,
}

/// A piece of the list.
#[derive(Clone, Debug)]
pub struct SinglePiece {
    addresses: Arc<[SingleAddress]>,
    moving: usize,
}

impl SinglePiece {
    fn new(addresses: &[SingleAddress]) -> Self {
        Self { addresses: addresses.into(), moving: addresses.iter().filter(|it| it.moves).count() }
    }

    /// The addresses, in order.
    pub fn addresses(&self) -> &[SingleAddress] {
        &self.addresses
    }

    /// How many of them are added and removed alone.
    pub fn moving(&self) -> usize {
        self.moving
    }

    /// Whether another piece is the same memory.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.addresses, &other.addresses)
    }
}

/// The single addresses of a family.
#[derive(Clone, Debug, Default)]
pub struct SingleAddresses {
    pieces: Vec<SinglePiece>,
}

impl PartialEq for SingleAddresses {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for SingleAddresses {}

impl SingleAddresses {
    /// A list of these addresses, which are sorted.
    pub(super) fn new(sorted: &[SingleAddress]) -> Self {
        Self { pieces: sorted.chunks(PIECE).map(SinglePiece::new).collect() }
    }

    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|it| it.addresses.len()).sum()
    }

    /// Whether the list has no addresses.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The number of those that are added and removed alone.
    pub fn count_moving(&self) -> usize {
        self.pieces.iter().map(SinglePiece::moving).sum()
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[SinglePiece] {
        &self.pieces
    }

    /// All addresses, in order.
    pub fn iter(&self) -> impl Iterator<Item = &SingleAddress> {
        self.pieces.iter().flat_map(SinglePiece::addresses)
    }

    /// The entry of an address.
    pub fn get(&self, address: IpAddr) -> Option<&SingleAddress> {
        let after = self.pieces.partition_point(|it| it.addresses[0].address <= address);
        let addresses = self.pieces[after.checked_sub(1)?].addresses();
        addresses.binary_search_by_key(&address, |it| it.address).ok().map(|at| &addresses[at])
    }

    /// Whether the addresses of blocks and lists are those of another list, with the same classes.
    pub fn has_listed_of(&self, other: &Self) -> bool {
        // A piece that both lists share has the same addresses in both. So the rest must have, too.
        self.listed_beside(other).eq(other.listed_beside(self))
    }

    /// The addresses of blocks and lists in the pieces that another list does not share.
    fn listed_beside<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = &'s SingleAddress> {
        let mut others = other.pieces.iter().peekable();
        let is_own = move |it: &&SinglePiece| {
            while others.next_if(|other| other.addresses[0].address < it.addresses[0].address).is_some() {}
            others.peek().is_none_or(|other| !other.is(it))
        };
        self.pieces.iter().filter(is_own).flat_map(SinglePiece::addresses).filter(|it| !it.moves)
    }

    /// The list after changes, which are sorted: each replaces, adds or removes the entry of its address.
    pub(super) fn with(&self, changes: impl Iterator<Item = (IpAddr, Option<SingleAddress>)>) -> Self {
        let mut changes = changes.peekable();
        let mut new = NewPieces { list: Vec::with_capacity(self.pieces.len() + 1), may_join: false };
        let nothing = SinglePiece::new(&[]);
        // An empty list has room for changes, too.
        let olds = if self.is_empty() { std::slice::from_ref(&nothing) } else { &self.pieces[..] };
        for (index, old) in olds.iter().enumerate() {
            let end = olds.get(index + 1).map(|next| next.addresses[0].address);
            let mut next = || changes.next_if(|(at, _)| end.is_none_or(|end| *at < end));
            let Some(first) = next() else {
                new.keep(old);
                continue;
            };
            let (mut merged, mut rest) = (Vec::with_capacity(old.addresses.len() + 1), old.addresses());
            for (at, entry) in std::iter::once(first).chain(std::iter::from_fn(next)) {
                let before = rest.partition_point(|it| it.address < at);
                merged.extend_from_slice(&rest[..before]);
                rest = &rest[before..];
                rest = rest.split_first().filter(|(it, _)| it.address == at).map_or(rest, |(_, rest)| rest);
                merged.extend(entry);
            }
            merged.extend_from_slice(rest);
            new.add(merged);
        }
        Self { pieces: new.list }
    }
}

/// The pieces of a new list. Small ones are joined, so that a list whose addresses go does not become one of many small
/// pieces.
struct NewPieces {
    list: Vec<SinglePiece>,
    /// Whether there was a change at the end of the list. Then the next piece of the old list has another neighbour.
    may_join: bool,
}

impl NewPieces {
    /// Adds a piece of the old list. If it has another neighbour than before and fits into that one, it becomes a part
    /// of it.
    fn keep(&mut self, old: &SinglePiece) {
        let fits = |last: &mut SinglePiece| last.addresses.len() + old.addresses.len() <= PIECE;
        if self.may_join && self.list.last_mut().is_some_and(fits) {
            return self.add(old.addresses.to_vec());
        }
        self.list.extend((!old.addresses.is_empty()).then(|| old.clone()));
        self.may_join = false;
    }

    /// Adds the addresses of a piece that has changed.
    fn add(&mut self, mut addresses: Vec<SingleAddress>) {
        self.may_join = true;
        if addresses.is_empty() {
            return;
        }
        if let Some(last) = self.list.pop_if(|last| last.addresses.len() + addresses.len() <= PIECE) {
            addresses.splice(0..0, last.addresses.iter().copied());
        }
        // A piece that is too long becomes pieces of nearly equal length.
        let length = addresses.len().div_ceil(addresses.len().div_ceil(2 * PIECE));
        self.list.extend(addresses.chunks(length).map(SinglePiece::new));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn single(number: u8, peer: u32) -> SingleAddress {
        let address = IpAddr::from([10, 0, 0, number]);
        SingleAddress { address, peer: PeerId(peer), moves: peer.is_multiple_of(2) }
    }

    fn list(of: &BTreeMap<u8, u32>) -> SingleAddresses {
        SingleAddresses::new(&of.iter().map(|(number, peer)| single(*number, *peer)).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn a_list_after_changes_has_what_is_left(
            steps in vec(btree_map(0_u8..60, option::of(0_u32..9), 0..40), 1..12), asked in 0_u8..60,
        ) {
            let (mut found, mut expected) = (SingleAddresses::default(), BTreeMap::new());
            for changes in steps {
                let before = found.clone();
                let entry = |(number, peer): (&u8, &Option<u32>)| {
                    (single(*number, 0).address, peer.map(|peer| single(*number, peer)))
                };
                found = found.with(changes.iter().map(entry));
                for (number, peer) in &changes {
                    match peer {
                        Some(peer) => _ = expected.insert(*number, *peer),
                        None => _ = expected.remove(number),
                    }
                }
                prop_assert_eq!(&found, &list(&expected));
                prop_assert_eq!((found.len(), found.is_empty()), (expected.len(), expected.is_empty()));
                prop_assert_eq!(found.count_moving(), expected.values().filter(|it| **it % 2 == 0).count());
                prop_assert_eq!(found.get(single(asked, 0).address).map(|it| it.peer.0), expected.get(&asked).copied());
                prop_assert!(found.pieces().iter().all(|it| (1..=2 * PIECE).contains(&it.addresses().len())));
                let listed = |of: &SingleAddresses| -> Vec<_> { of.iter().filter(|it| !it.moves).copied().collect() };
                prop_assert_eq!(found.has_listed_of(&before), listed(&found) == listed(&before));
                let is_new = |it: &SinglePiece| !before.pieces().iter().any(|old| old.is(it));
                let new = found.pieces().iter().filter(|it| is_new(it)).count();
                prop_assert!(new <= 2 * changes.len(), "{} new pieces for {} changes", new, changes.len());
                let is_small = |two: &[SinglePiece]| two.iter().map(|it| it.addresses().len()).sum::<usize>() <= PIECE;
                prop_assert!(!found.pieces().windows(2).any(is_small), "small neighbours are joined");
            }
        }

        #[test]
        fn lists_are_equal_if_their_addresses_and_classes_are(
            one in btree_map(0_u8..4, 0_u32..2, 0..4), two in btree_map(0_u8..4, 0_u32..2, 0..4),
        ) {
            prop_assert_eq!(list(&one) == list(&two), one == two);
        }
    }
}
