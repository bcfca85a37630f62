//! The single addresses of a family, in pieces that copies share.
//!
//! Problem: a cluster has a hundred thousand addresses, and between two generations a few of them change. A list of its
//! own for each generation is copied for each.
//! Strategy: a sorted list in pieces. A list with changes has new pieces where addresses have changed, and shares all
//! others with the list before. Tables made from the list are made again only for new pieces ([`SinglePiece::is`]).
//! Invariants: addresses ascend within a piece and from piece to piece; no piece is empty. Two lists are equal if their
//! addresses are, wherever the pieces end.

use std::net::IpAddr;
use std::sync::Arc;

use crate::PeerId;

/// A list without changes has pieces of this length. With changes, they have up to twice as many addresses.
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

    /// Whether there are none.
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

    /// The list after changes, which are sorted: each replaces, adds or removes the entry of its address.
    pub(super) fn with(&self, changes: impl Iterator<Item = (IpAddr, Option<SingleAddress>)>) -> Self {
        let mut changes = changes.peekable();
        let mut pieces: Vec<SinglePiece> = Vec::with_capacity(self.pieces.len() + 1);
        let nothing = SinglePiece::new(&[]);
        // An empty list has room for changes, too.
        let olds = if self.is_empty() { std::slice::from_ref(&nothing) } else { &self.pieces[..] };
        for (index, old) in olds.iter().enumerate() {
            let end = olds.get(index + 1).map(|next| next.addresses[0].address);
            let mut next = || changes.next_if(|(at, _)| end.is_none_or(|end| *at < end));
            let Some(mut change) = next() else {
                pieces.push(old.clone());
                continue;
            };
            let mut merged: Vec<SingleAddress> = Vec::with_capacity(old.addresses.len() + 1);
            let mut rest = old.addresses();
            loop {
                let (at, new) = change;
                let before = rest.partition_point(|it| it.address < at);
                merged.extend_from_slice(&rest[..before]);
                rest = &rest[before..];
                rest = rest.split_first().filter(|(it, _)| it.address == at).map_or(rest, |(_, rest)| rest);
                merged.extend(new);
                match next() {
                    Some(more) => change = more,
                    None => break,
                }
            }
            merged.extend_from_slice(rest);
            // Small pieces are joined, so that a list does not become one of many pieces when addresses go.
            if let Some(last) = pieces.pop_if(|last| last.addresses.len() + merged.len() <= PIECE) {
                merged.splice(0..0, last.addresses.iter().copied());
            }
            let length = if merged.len() > 2 * PIECE { PIECE } else { 2 * PIECE };
            pieces.extend(merged.chunks(length).map(SinglePiece::new));
        }
        Self { pieces: pieces.into_iter().filter(|it| !it.addresses.is_empty()).collect() }
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
                let is_new = |it: &&SinglePiece| !before.pieces().iter().any(|old| old.is(it));
                let new = found.pieces().iter().filter(is_new).count();
                prop_assert!(new <= 2 * changes.len(), "{} new pieces for {} changes", new, changes.len());
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
