//! Addresses → classes: single addresses in one table, stretches in another.
//!
//! Every block and list cuts the address space at its ends; between two cuts the same address predicates hold. What is
//! one address long goes to the exact table: a list of a million hosts never makes a stretch.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::PeerId;
use super::predicates::{Predicate, PredicateId, Rules};
use crate::address::{Family, Prefix};
use crate::model::Cluster;

/// Address → peer class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// Sorted; asked first.
    pub exact: Vec<(IpAddr, PeerId)>,
    /// Sorted, disjoint; what is between them is class 0.
    pub stretches: Vec<Stretch>,
}

/// Addresses from first to last, both inclusive, of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first address.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
    /// Their class.
    pub peer: PeerId,
}

impl AddressMap {
    /// The class of an address.
    pub fn find(&self, address: IpAddr) -> PeerId {
        match self.exact.binary_search_by_key(&address, |(at, _)| *at) {
            Ok(index) => self.exact[index].1,
            Err(_) => self.find_stretch(address),
        }
    }

    /// The class of an address that is not in the exact table.
    pub fn find_stretch(&self, address: IpAddr) -> PeerId {
        let after = self.stretches.partition_point(|it| it.first <= address);
        let before = after.checked_sub(1).map(|index| self.stretches[index]);
        before.filter(|it| address <= it.last).map_or(PeerId(0), |it| it.peer)
    }
}

/// A stretch under one set of address predicates, as numbers of the family's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) family: Family,
    pub(super) first: u128,
    pub(super) last: u128,
    /// Index into [`Segments::sets`].
    pub(super) set: u32,
}

impl Segment {
    /// As addresses of a class.
    pub(super) fn stretch(&self, peer: PeerId) -> Stretch {
        let to_address = |number| to_address(self.family, number);
        Stretch { first: to_address(self.first), last: to_address(self.last), peer }
    }
}

/// The address space, cut at every end of a block or list.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    /// Sorted; only where a predicate holds.
    pub(super) list: Vec<Segment>,
    /// Sets of predicates, each once, sorted inside; the first is empty.
    pub(super) sets: Vec<Vec<PredicateId>>,
}

impl Segments {
    pub(super) fn find(&self, address: IpAddr) -> &[PredicateId] {
        let (family, number) = to_number(address);
        let after = self.list.partition_point(|it| (it.family, it.first) <= (family, number));
        let before = after.checked_sub(1).map(|index| self.list[index]);
        let set = before.filter(|it| it.family == family && number <= it.last).map_or(0, |it| it.set);
        &self.sets[set as usize]
    }
}

pub(super) fn cut(cluster: &Cluster, rules: &Rules) -> Segments {
    let mut segments = Segments { list: Vec::new(), sets: vec![Vec::new()] };
    let mut ids: HashMap<Vec<PredicateId>, u32> = HashMap::from([(Vec::new(), 0)]);
    for family in [Family::V4, Family::V6] {
        let mut starts: Vec<(u128, PredicateId)> = Vec::new();
        let mut ends: Vec<(u128, PredicateId)> = Vec::new();
        for (index, predicate) in rules.predicates.iter().enumerate() {
            for (first, last) in ranges(cluster, predicate, family) {
                starts.push((first, PredicateId(index as u32)));
                ends.push((last, PredicateId(index as u32)));
            }
        }
        starts.sort_unstable();
        ends.sort_unstable();
        sweep(family, &starts, &ends, &mut segments, &mut ids);
    }
    segments
}

fn sweep(
    family: Family,
    starts: &[(u128, PredicateId)],
    ends: &[(u128, PredicateId)],
    segments: &mut Segments,
    ids: &mut HashMap<Vec<PredicateId>, u32>,
) {
    // Sorted; few at a time.
    let mut active: Vec<PredicateId> = Vec::new();
    let (mut next_start, mut next_end) = (0, 0);
    let mut at = 0u128;
    while next_end < ends.len() {
        while starts.get(next_start).is_some_and(|(first, _)| *first <= at) {
            let predicate = starts[next_start].1;
            active.insert(active.partition_point(|it| *it < predicate), predicate);
            next_start += 1;
        }
        if active.is_empty() {
            at = starts.get(next_start).map_or(u128::MAX, |(first, _)| *first);
            continue;
        }
        // The stretch goes on until the next predicate begins or one of these ends.
        let end = ends[next_end].0;
        let last = starts.get(next_start).map_or(end, |(first, _)| end.min(*first - 1));
        let set = ids.get(active.as_slice()).copied().unwrap_or_else(|| {
            segments.sets.push(active.clone());
            let set = segments.sets.len() as u32 - 1;
            ids.insert(active.clone(), set);
            set
        });
        segments.list.push(Segment { family, first: at, last, set });
        while ends.get(next_end).is_some_and(|(end, _)| *end <= last) {
            let predicate = ends[next_end].1;
            active.retain(|it| *it != predicate);
            next_end += 1;
        }
        at = last.saturating_add(1);
    }
}

/// Where an address predicate holds: sorted, disjoint, never touching.
fn ranges(cluster: &Cluster, predicate: &Predicate, family: Family) -> Vec<(u128, u128)> {
    match predicate {
        Predicate::Pods { .. } => Vec::new(),
        Predicate::Block { cidr, .. } if cidr.family() != family => Vec::new(),
        Predicate::Block { cidr, except } => {
            let holes = except.iter().map(|hole| bounds(*hole)).collect();
            subtract(bounds(*cidr), &union(holes))
        }
        Predicate::List(list) => {
            let entries = cluster.lists[list.index()].entries.iter();
            let of_family = entries.filter(|entry| Family::of(entry.first) == family);
            union(of_family.map(|entry| (to_number(entry.first).1, to_number(entry.last).1)).collect())
        }
    }
}

fn union(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn subtract((first, last): (u128, u128), holes: &[(u128, u128)]) -> Vec<(u128, u128)> {
    let mut rest = Vec::with_capacity(holes.len() + 1);
    let mut at = Some(first);
    for (hole_first, hole_last) in holes {
        let Some(start) = at else { break };
        if *hole_first > start {
            rest.push((start, hole_first - 1));
        }
        at = hole_last.checked_add(1).filter(|next| *next <= last);
    }
    rest.extend(at.map(|start| (start, last)));
    rest
}

pub(super) fn bounds(prefix: Prefix) -> (u128, u128) {
    let (family, first) = to_number(prefix.address());
    let host_bits = u32::from(family.bits() - prefix.len());
    let size = 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
    (first, first | size)
}

/// The family, and the address as a number of its width.
pub fn to_number(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(v4) => (Family::V4, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (Family::V6, v6.to_bits()),
    }
}

/// The address of a number of the family's width.
pub fn to_address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

/// Puts the two tables together. Both are sorted; `exact` overrides `segments`.
pub(super) fn assemble(segments: impl Iterator<Item = Stretch>, mut exact: Vec<(IpAddr, PeerId)>) -> AddressMap {
    let mut stretches: Vec<Stretch> = Vec::new();
    // How far, from the last stretch on, there are only addresses that the exact table has.
    let mut reach: Option<IpAddr> = None;
    for segment in segments {
        let adjacent = reach.is_some_and(|reach| follows(reach, segment.first));
        if segment.first == segment.last {
            exact.push((segment.first, segment.peer));
            reach = reach.filter(|_| adjacent).map(|_| segment.last);
            continue;
        }
        match stretches.last_mut() {
            Some(before) if adjacent && before.peer == segment.peer => before.last = segment.last,
            _ => stretches.push(segment),
        }
        reach = Some(segment.last);
    }
    // Two sorted runs; of two entries for one address the first run's stays first.
    exact.sort_by_key(|(address, _)| *address);
    exact.dedup_by_key(|(address, _)| *address);
    let map = AddressMap { exact: Vec::new(), stretches };
    // What the stretches already say need not be said again.
    exact.retain(|(address, peer)| map.find_stretch(*address) != *peer);
    AddressMap { exact, ..map }
}

fn follows(last: IpAddr, first: IpAddr) -> bool {
    let ((family, last), (next_family, first)) = (to_number(last), to_number(first));
    family == next_family && last.checked_add(1) == Some(first)
}
