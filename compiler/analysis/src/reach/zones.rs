//! Addresses outside of the cluster → zones.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Zone;
use weir_classes::{Classes, PeerId};
use weir_objects::address::{Family, to_address, to_number};

/// Every address that belongs to no pod, by class.
pub(super) fn zones(classes: &Classes, is_pod: impl Fn(IpAddr) -> bool) -> Vec<Zone> {
    let mut found = Vec::new();
    for family in [Family::V4, Family::V6] {
        let mut zones: BTreeMap<PeerId, Vec<(u128, u128)>> = BTreeMap::new();
        let is_pod = |at: u128| is_pod(to_address(family, at));
        for (first, last, peer) in ranges(classes, family, is_pod) {
            let ranges = zones.entry(peer).or_default();
            match ranges.last_mut() {
                // A single address can touch a range of its own class, because they come from different tables.
                Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
                _ => ranges.push((first, last)),
            }
        }
        found.extend(zones.into_iter().map(|(peer, ranges)| {
            let address = |(first, last)| (to_address(family, first), to_address(family, last));
            Zone { family, peer, ranges: ranges.into_iter().map(address).collect() }
        }));
    }
    found.sort_by(|a, b| (a.family, a.ranges.first()).cmp(&(b.family, b.ranges.first())));
    found
}

/// The whole address space, cut where the class changes. A pod's address does not cut the range around it.
fn ranges(classes: &Classes, family: Family, is_pod: impl Fn(u128) -> bool) -> Vec<(u128, u128, PeerId)> {
    let most = if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX };
    let of_family = |address: IpAddr| Some(to_number(address)).filter(|it| it.0 == family).map(|it| it.1);
    let mut base: Vec<(u128, u128, PeerId)> = Vec::new();
    let mut next = Some(0);
    for it in classes.addresses.ranges.iter() {
        let (Some(first), Some(last), Some(at)) = (of_family(it.first), of_family(it.last), next) else { continue };
        // Addresses between ranges are of class 0. They are a zone too: rules without peers allow them.
        if at < first {
            base.push((at, first - 1, PeerId(0)));
        }
        base.push((first, last, it.peer));
        next = last.checked_add(1).filter(|next| *next <= most);
    }
    base.extend(next.map(|at| (at, most, PeerId(0))));
    let singles = classes.addresses.exact().filter_map(|(at, peer)| Some((of_family(at)?, peer)));
    // A pod's address stays inside the range around it. Otherwise a thousand pods would cut 10.0.0.0/8 into a thousand
    // ranges, which no report could show.
    overlay(&base, singles.filter(|(at, _)| !is_pod(*at)))
}

/// Cuts single addresses out of ranges; both are sorted.
fn overlay(base: &[(u128, u128, PeerId)], singles: impl Iterator<Item = (u128, PeerId)>) -> Vec<(u128, u128, PeerId)> {
    let mut singles = singles.peekable();
    let mut cut = Vec::with_capacity(base.len());
    for (first, last, peer) in base {
        let mut next = Some(*first);
        // Ranges cover the whole space in order, so each single address is inside the first range that ends at or after
        // it.
        while let Some((at, single)) = singles.next_if(|(at, _)| at <= last) {
            if let Some(start) = next.filter(|start| *start < at) {
                cut.push((start, at - 1, *peer));
            }
            cut.push((at, at, single));
            next = at.checked_add(1).filter(|next| next <= last);
        }
        cut.extend(next.map(|start| (start, *last, *peer)));
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_addresses_are_cut_out() {
        let base = [(0, 9, PeerId(0)), (10, 19, PeerId(1)), (20, u128::MAX, PeerId(0))];
        let singles = [(0, PeerId(7)), (12, PeerId(7)), (19, PeerId(8)), (u128::MAX, PeerId(9))];
        let cut: Vec<(u128, u128, u32)> =
            overlay(&base, singles.into_iter()).into_iter().map(|(first, last, peer)| (first, last, peer.0)).collect();
        let expected = [
            (0, 0, 7),
            (1, 9, 0),
            (10, 11, 1),
            (12, 12, 7),
            (13, 18, 1),
            (19, 19, 8),
            (20, u128::MAX - 1, 0),
            (u128::MAX, u128::MAX, 9),
        ];
        assert_eq!(cut, expected);
    }
}
