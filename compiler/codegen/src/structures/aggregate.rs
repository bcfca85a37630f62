//! Ranges → prefixes: the smallest set of prefixes whose longest match gives every address its class.
//!
//! Strategy: optimal routing table construction (Draves, King, Venkatachary, Zill) on a sparse tree. From the leaves
//! up, it computes the classes that a subtree could have at its top. From the root down, it adds a prefix wherever the
//! inherited class is not among them. Exact by construction: no address changes its class.

use std::net::IpAddr;

use weir_classes::{ClassRange, PeerId};
use weir_objects::address::{Family, Prefix, to_address, to_number};

/// The prefixes of one family, sorted. Addresses without a prefix have class 0.
pub(super) fn aggregate(ranges: &[ClassRange], family: Family) -> Vec<(Prefix, PeerId)> {
    let of_family: Vec<(u128, u128, PeerId)> = ranges
        .iter()
        .filter(|it| Family::of(it.first) == family)
        .map(|it| (to_number(it.first).1, to_number(it.last).1, it.peer))
        .collect();
    // A tree of only those prefixes that ranges cut: one of all addresses would have 2^128 leaves.
    let tree = build(&of_family, 0, 0, family.bits());
    let mut prefixes = Vec::new();
    assign(&tree, PeerId(0), 0, 0, family, &mut prefixes);
    prefixes.sort();
    prefixes
}

enum PrefixTree {
    Leaf(PeerId),
    Node { classes: Vec<PeerId>, halves: Box<[PrefixTree; 2]> },
}

impl PrefixTree {
    fn classes(&self) -> &[PeerId] {
        match self {
            Self::Leaf(peer) => std::slice::from_ref(peer),
            Self::Node { classes, .. } => classes,
        }
    }
}

/// The tree of the prefix `first/depth`. `ranges` are the ranges that overlap it.
fn build(ranges: &[(u128, u128, PeerId)], first: u128, depth: u8, bits: u8) -> PrefixTree {
    let last = first | ones(bits - depth);
    match ranges {
        [] => return PrefixTree::Leaf(PeerId(0)),
        // One class for all of the prefix, so it is not divided further. This ends the recursion at latest at a single
        // address.
        [(start, end, peer)] if *start <= first && last <= *end => return PrefixTree::Leaf(*peer),
        _ => {}
    }
    // The highest of the bits that the prefix leaves open.
    let middle = first | (ones(bits - depth) ^ ones(bits - depth - 1));
    // A range across the middle is in both halves. They are slices, so nothing is copied on the way down.
    let low_end = ranges.partition_point(|(start, _, _)| *start < middle);
    let high_start = ranges.partition_point(|(_, end, _)| *end < middle);
    let low = build(&ranges[..low_end], first, depth + 1, bits);
    let high = build(&ranges[high_start..], middle, depth + 1, bits);
    let classes = join(low.classes(), high.classes());
    PrefixTree::Node { classes, halves: Box::new([low, high]) }
}

/// The classes that are in both lists; or, if they have none in common, all classes of the two.
fn join(a: &[PeerId], b: &[PeerId]) -> Vec<PeerId> {
    let both: Vec<PeerId> = a.iter().copied().filter(|peer| b.contains(peer)).collect();
    // A class in both halves lets one prefix above serve both, which saves entries. Without a common class, either
    // choice costs one entry, so all stay possible.
    if !both.is_empty() {
        return both;
    }
    let mut either = [a, b].concat();
    either.sort();
    either
}

fn assign(
    tree: &PrefixTree,
    inherited: PeerId,
    first: u128,
    depth: u8,
    family: Family,
    prefixes: &mut Vec<(Prefix, PeerId)>,
) {
    let mut peer = inherited;
    // If the inherited class is among the best, no entry is needed here: any other choice would cost one.
    if !tree.classes().contains(&inherited) {
        // Any of them is optimal. The first, because lists are sorted, so the same input gives the same prefixes.
        peer = tree.classes()[0];
        prefixes.push((Prefix::new(address(family, first), depth), peer));
    }
    if let PrefixTree::Node { halves, .. } = tree {
        let bits = family.bits();
        let middle = first | (ones(bits - depth) ^ ones(bits - depth - 1));
        assign(&halves[0], peer, first, depth + 1, family, prefixes);
        assign(&halves[1], peer, middle, depth + 1, family, prefixes);
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    to_address(family, number)
}

/// The lowest `count` bits.
fn ones(count: u8) -> u128 {
    // 128 of 128 bits is a shift by the whole width.
    1u128.checked_shl(u32::from(count)).map_or(u128::MAX, |bit| bit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: &str, last: &str, peer: u32) -> ClassRange {
        let parse = |text: &str| text.parse().expect("an address");
        ClassRange { first: parse(first), last: parse(last), peer: PeerId(peer) }
    }

    #[track_caller]
    fn check(ranges: &[ClassRange], family: Family, expected: &[&str]) {
        let prefixes = aggregate(ranges, family);
        let shown: Vec<String> = prefixes.iter().map(|(prefix, peer)| format!("{prefix} {peer}")).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn neighbours_of_one_class_are_one_prefix() {
        check(
            &[range("10.0.0.0", "10.0.0.127", 1), range("10.0.0.128", "10.0.0.255", 1)],
            Family::V4,
            &["10.0.0.0/24 peer1"],
        );
    }

    #[test]
    fn a_hole_is_one_more_entry_and_not_the_rest_cut_up() {
        let around = [
            range("10.0.0.0", "10.0.255.255", 1),
            range("10.1.0.0", "10.1.255.255", 2),
            range("10.2.0.0", "10.255.255.255", 1),
        ];
        check(&around, Family::V4, &["10.0.0.0/8 peer1", "10.1.0.0/16 peer2"]);
    }

    #[test]
    fn a_family_sees_only_its_own() {
        let both = [range("0.0.0.0", "255.255.255.255", 1), range("2001:db8::", "2001:db8::ffff", 2)];
        check(&both, Family::V4, &["0.0.0.0/0 peer1"]);
        check(&both, Family::V6, &["2001:db8::/112 peer2"]);
    }
}
