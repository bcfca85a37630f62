//! Addresses → classes: single addresses in one table, ranges in another.
//!
//! Every block and list cuts the address space at its ends; between two cuts the same address predicates hold. Ranges
//! of a single address go to the exact table, so a list of a million hosts makes no range.

mod moves;
mod singles;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::PeerId;
use super::meter::{CLASS_BYTES, Meter, PAIR_BYTES};
use super::predicates::{Predicate, PredicateId, RulePredicates};
use super::shared_sets::{SharedSet, SharedSets};
use weir_model::labels::matches;
use weir_model::{Cluster, SelectorId};
use weir_objects::address::{Family, Prefix, to_address, to_number};
use weir_objects::k8s::ListEntry;

pub(crate) use moves::{RangeMove, RangeMoves, Ranges};
pub use singles::{SingleAddress, SingleAddresses, SinglePiece};

/// Bytes that a range costs: in lists of cuts, in the address map, and in the tables.
const SEGMENT_BYTES: u64 = 60;

/// Address → peer class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// Looked up first; IPv4, then IPv6.
    singles: [SingleAddresses; 2],
    /// Sorted, disjoint; all other addresses are of class 0.
    pub ranges: Arc<[ClassRange]>,
}

/// Addresses from first to last, both inclusive, of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRange {
    /// The first address.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
    /// Their class.
    pub peer: PeerId,
}

impl AddressMap {
    /// Of single addresses and ranges, which are sorted, IPv4 first. Each address is there once.
    pub fn new(singles: &[SingleAddress], ranges: Vec<ClassRange>) -> Self {
        debug_assert!(singles.is_sorted_by(|one, next| one.address < next.address), "single addresses ascend");
        let of_v4 = singles.partition_point(|it| it.address.is_ipv4());
        let (v4, v6) = singles.split_at(of_v4);
        Self { singles: [v4, v6].map(SingleAddresses::new), ranges: ranges.into() }
    }

    /// The single addresses of a family.
    pub fn singles(&self, family: Family) -> &SingleAddresses {
        &self.singles[usize::from(family == Family::V6)]
    }

    /// Whether another map has the same ranges of a family.
    pub fn has_ranges_of(&self, other: &Self, family: Family) -> bool {
        // Usually they are the same memory.
        Arc::ptr_eq(&self.ranges, &other.ranges) || self.ranges_of(family) == other.ranges_of(family)
    }

    fn ranges_of(&self, family: Family) -> &[ClassRange] {
        let (v4, v6) = self.ranges.split_at(self.ranges.partition_point(|it| it.first.is_ipv4()));
        if family == Family::V4 { v4 } else { v6 }
    }

    /// The single addresses of a family with their classes, in order.
    pub fn of_family(&self, family: Family) -> impl Iterator<Item = (IpAddr, PeerId)> {
        self.singles(family).iter().map(|it| (it.address, it.peer))
    }

    /// All single addresses with their classes, in order.
    pub fn exact(&self) -> impl Iterator<Item = (IpAddr, PeerId)> {
        [Family::V4, Family::V6].into_iter().flat_map(|family| self.of_family(family))
    }

    /// The number of single addresses of blocks and lists.
    pub fn count_listed(&self, family: Family) -> usize {
        let singles = self.singles(family);
        singles.len() - singles.count_moving()
    }

    /// The single addresses that are added and removed alone.
    pub fn moving(&self, family: Family) -> impl Iterator<Item = (IpAddr, PeerId)> {
        self.singles(family).iter().filter(|it| it.moves).map(|it| (it.address, it.peer))
    }

    /// The single addresses of blocks and lists.
    pub fn listed(&self, family: Family) -> impl Iterator<Item = (IpAddr, PeerId)> {
        self.singles(family).iter().filter(|it| !it.moves).map(|it| (it.address, it.peer))
    }

    /// The entry of an address in the exact table.
    pub(crate) fn entry(&self, address: IpAddr) -> Option<&SingleAddress> {
        self.singles(Family::of(address)).get(address)
    }

    /// Whether an address is in the exact table because of a block or list.
    pub fn is_listed(&self, address: IpAddr) -> bool {
        self.entry(address).is_some_and(|it| !it.moves)
    }

    /// The same map with other single addresses; `None` removes one, unless blocks and lists need it.
    pub(crate) fn with_entries(&self, changes: &BTreeMap<IpAddr, Option<PeerId>>) -> Self {
        let of_family = |family| {
            let is_change = |(at, peer): &(&IpAddr, &Option<PeerId>)| {
                Family::of(**at) == family && (peer.is_some() || !self.is_listed(**at))
            };
            let entry = |(at, peer): (&IpAddr, &Option<PeerId>)| {
                (*at, peer.map(|peer| SingleAddress { address: *at, peer, moves: true }))
            };
            self.singles(family).with(changes.iter().filter(is_change).map(entry))
        };
        Self { singles: [Family::V4, Family::V6].map(of_family), ranges: Arc::clone(&self.ranges) }
    }

    /// The entry of the exact table that gives an address this class; `None` if the ranges already give it.
    pub(crate) fn entry_for(&self, address: IpAddr, peer: PeerId) -> Option<PeerId> {
        let is_said = self.find_range(address) == peer && !self.is_listed(address);
        (!is_said).then_some(peer)
    }

    /// The class of an address.
    pub fn find(&self, address: IpAddr) -> PeerId {
        // The exact entry alone decides: its class was made with all blocks and lists that contain the address.
        self.entry(address).map_or_else(|| self.find_range(address), |it| it.peer)
    }

    /// The class of an address that is not in the exact table.
    pub fn find_range(&self, address: IpAddr) -> PeerId {
        let after = self.ranges.partition_point(|it| it.first <= address);
        let before = after.checked_sub(1).map(|index| self.ranges[index]);
        before.filter(|it| address <= it.last).map_or(PeerId(0), |it| it.peer)
    }
}

/// A range under one set of address predicates, as numbers of the family's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment<N> {
    first: N,
    last: N,
    /// Index into [`Segments::sets`].
    set: u32,
}

/// An address as a number: sorting a million numbers of 4 bytes is four times as fast as of 16.
pub(crate) trait Number: Copy + Ord {
    const FAMILY: Family;
    /// Converts from a number of the family's width.
    fn of(number: u128) -> Self;
    fn wide(self) -> u128;
}

impl Number for u32 {
    const FAMILY: Family = Family::V4;

    fn of(number: u128) -> Self {
        number as Self
    }

    fn wide(self) -> u128 {
        self.into()
    }
}

impl Number for u128 {
    const FAMILY: Family = Family::V6;

    fn of(number: u128) -> Self {
        number
    }

    fn wide(self) -> u128 {
        self
    }
}

/// The number after this one, unless it is the last.
pub(crate) fn after<N: Number>(number: N) -> Option<N> {
    // After the last address this is 0, for `u32` because `of` cuts it off. Then it is not greater, and there is no
    // successor.
    let next = N::of(number.wide().wrapping_add(1));
    (next > number).then_some(next)
}

fn before<N: Number>(number: N) -> N {
    // Callers only ask for numbers that are greater than another one, so this does not wrap.
    N::of(number.wide().wrapping_sub(1))
}

/// The address space, cut at every end of a block or list.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    /// Sorted; only where a predicate holds.
    v4: Vec<Segment<u32>>,
    v6: Vec<Segment<u128>>,
    /// Sets of predicates, each once, sorted inside; the first is empty.
    pub(super) sets: Vec<Arc<[PredicateId]>>,
}

/// An index into [`Segments::sets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SetId(u32);

impl SetId {
    /// The set without members.
    pub(super) const EMPTY: Self = Self(0);
}

impl Segments {
    pub(super) fn find(&self, address: IpAddr) -> &[PredicateId] {
        let SetId(set) = self.set_of(address);
        &self.sets[set as usize]
    }

    /// Like [`Self::find`], but shared, so that the caller can keep the set.
    pub(super) fn shared(&self, address: IpAddr) -> Arc<[PredicateId]> {
        let SetId(set) = self.set_of(address);
        Arc::clone(&self.sets[set as usize])
    }

    /// The set of predicates that hold for an address.
    pub(super) fn set_of(&self, address: IpAddr) -> SetId {
        SetId(match address {
            IpAddr::V4(v4) => set_at(&self.v4, v4.to_bits()),
            IpAddr::V6(v6) => set_at(&self.v6, v6.to_bits()),
        })
    }

    /// All ranges of the address space, with the class of each set.
    pub(super) fn ranges(&self, of_sets: &[PeerId]) -> impl Iterator<Item = ClassRange> {
        let v4 = self.v4.iter().map(|it| range(it, of_sets));
        v4.chain(self.v6.iter().map(|it| range(it, of_sets)))
    }
}

fn set_at<N: Number>(list: &[Segment<N>], number: N) -> u32 {
    let after = list.partition_point(|it| it.first <= number);
    let before = after.checked_sub(1).map(|index| list[index]);
    before.filter(|it| number <= it.last).map_or(0, |it| it.set)
}

fn range<N: Number>(segment: &Segment<N>, of_sets: &[PeerId]) -> ClassRange {
    let to_address = |number: N| to_address(N::FAMILY, number.wide());
    let (first, last) = (to_address(segment.first), to_address(segment.last));
    ClassRange { first, last, peer: of_sets[segment.set as usize] }
}

/// Sets of predicates by number.
struct PredicateSets {
    list: Vec<Arc<[PredicateId]>>,
    /// By number: the id of the set that `list` has at this number.
    shared: Vec<SharedSet>,
    trees: SharedSets,
    numbers: HashMap<SharedSet, u32>,
    /// A cache: the number of the set that differs from a set by one predicate. A list of a million addresses inside a
    /// block alternates between the same two sets, and changing a tree takes ten times as long as this lookup.
    known: HashMap<(u32, PredicateId), u32>,
}

impl PredicateSets {
    fn new(predicates: usize) -> Self {
        Self {
            list: vec![Arc::default()],
            shared: vec![SharedSet::EMPTY],
            trees: SharedSets::new(predicates),
            numbers: HashMap::from([(SharedSet::EMPTY, 0)]),
            known: HashMap::new(),
        }
    }

    /// The number of the set that differs from the set `from` by `changes`. A new set is added to the list. `None` if
    /// that exceeds the meter's limits.
    fn number(&mut self, from: u32, changes: &[PredicateId], members: &[PredicateId], meter: &Meter) -> Option<u32> {
        // Only single changes are cached: several changes at one address would need a list as the key.
        if let [change] = changes
            && let Some(known) = self.known.get(&(from, *change))
        {
            return Some(*known);
        }
        let start = self.shared[from as usize];
        let set = changes.iter().fold(start, |set, change| self.trees.toggle(set, change.0));
        let number = match self.numbers.get(&set) {
            Some(number) => *number,
            // The members are listed here only: once for each different set, not once for each range.
            None => self.list(set, members, meter)?,
        };
        if let [change] = changes {
            self.known.insert((from, *change), number);
        }
        Some(number)
    }

    fn list(&mut self, set: SharedSet, members: &[PredicateId], meter: &Meter) -> Option<u32> {
        let length = members.len() as u64;
        meter.take(PAIR_BYTES * length + CLASS_BYTES, length).then(|| {
            let number = self.list.len() as u32;
            self.list.push(members.into());
            self.shared.push(set);
            self.numbers.insert(set, number);
            number
        })
    }
}

pub(super) fn cut(cluster: &Cluster, rules: &RulePredicates, meter: &Meter) -> Segments {
    // One collection for both families: a list with addresses of both is one predicate, and its set is one class.
    let mut sets = PredicateSets::new(rules.predicates.len());
    let v4 = cut_family(cluster, rules, &mut sets, meter);
    let v6 = cut_family(cluster, rules, &mut sets, meter);
    Segments { v4, v6, sets: sets.list }
}

fn cut_family<N: Number>(
    cluster: &Cluster,
    rules: &RulePredicates,
    sets: &mut PredicateSets,
    meter: &Meter,
) -> Vec<Segment<N>> {
    // Starts and ends apart instead of one list of events: a start changes the set before its address and an end after
    // it, so at one address they would need an order, and the end of the address space would need an address after it.
    let mut starts: Vec<(N, PredicateId)> = Vec::new();
    let mut ends: Vec<(N, PredicateId)> = Vec::new();
    for (index, predicate) in rules.predicates.iter().enumerate() {
        let ranges = ranges(cluster, predicate);
        // A range adds at most two segments. Those of lists are not metered: lists belong to the administrator, their
        // segments are as many as their entries, and a long list must not take a tenant's policies out of the budget.
        let count = 2 * ranges.len() as u64;
        if matches!(predicate, Predicate::Block { .. }) && !meter.take(SEGMENT_BYTES * count, count) {
            return Vec::new();
        }
        starts.extend(ranges.iter().map(|(first, _)| (*first, PredicateId(index as u32))));
        ends.extend(ranges.iter().map(|(_, last)| (*last, PredicateId(index as u32))));
    }
    // Stable: each predicate's are sorted already, and only need to be merged.
    starts.sort_by_key(|(at, _)| *at);
    ends.sort_by_key(|(at, _)| *at);
    sweep(&starts, &ends, sets, meter)
}

fn sweep<N: Number>(
    starts: &[(N, PredicateId)],
    ends: &[(N, PredicateId)],
    sets: &mut PredicateSets,
    meter: &Meter,
) -> Vec<Segment<N>> {
    let mut list = Vec::with_capacity(starts.len());
    // `active` is sorted. It differs from the set with the number `number` by `changes`.
    let (mut active, mut changes): (Vec<PredicateId>, Vec<PredicateId>) = (Vec::new(), Vec::new());
    let mut number = 0;
    let (mut next_start, mut next_end) = (0, 0);
    let Some((mut at, _)) = starts.first().copied() else { return list };
    while next_end < ends.len() {
        while starts.get(next_start).is_some_and(|(first, _)| *first <= at) {
            let predicate = starts[next_start].1;
            // A sorted list, because a new set stores it as it is. It is as long as the number of blocks that overlap
            // here.
            active.insert(active.partition_point(|it| *it < predicate), predicate);
            toggle(&mut changes, predicate);
            next_start += 1;
        }
        // A gap: addresses that no block and no list contains are in no segment, and so in no table.
        if active.is_empty() {
            let Some((first, _)) = starts.get(next_start) else { break };
            at = *first;
            continue;
        }
        // The range continues until the next predicate begins or one of these ends.
        let end = ends[next_end].0;
        let last = starts.get(next_start).map_or(end, |(first, _)| end.min(before(*first)));
        // Compared by the change, not by the members: comparing whole lists at each cut costs the square of overlapping
        // blocks.
        let Some(found) = sets.number(number, &changes, &active, meter) else { break };
        (number, changes) = (found, Vec::new());
        list.push(Segment { first: at, last, set: number });
        // Ends after the segment is stored: the last address of a range is inside the range.
        while let Some((end, predicate)) = ends.get(next_end)
            && *end <= last
        {
            if let Ok(index) = active.binary_search(predicate) {
                active.remove(index);
                toggle(&mut changes, *predicate);
            }
            next_end += 1;
        }
        // Inserting and removing moves the rest of `active`. It is the only part of a step whose cost grows with the
        // overlap.
        let moved = active.len() as u64 / 8;
        let Some(next) = after(last).filter(|_| meter.take(0, 1 + moved)) else { break };
        at = next;
    }
    list
}

/// Adds a change. A change and its reversal cancel each other out.
fn toggle(changes: &mut Vec<PredicateId>, predicate: PredicateId) {
    // A list of single addresses ends and begins at each of them. The two changes cancel, so the set from before the
    // gap is found without changing a tree.
    match changes.iter().position(|it| *it == predicate) {
        Some(index) => _ = changes.swap_remove(index),
        None => changes.push(predicate),
    }
}

/// Where an address predicate holds: sorted, disjoint, never touching.
fn ranges<N: Number>(cluster: &Cluster, predicate: &Predicate) -> Vec<(N, N)> {
    match predicate {
        Predicate::Pods { .. } => Vec::new(),
        Predicate::Block { cidr, .. } if cidr.family() != N::FAMILY => Vec::new(),
        Predicate::Block { cidr, except } => ranges_of_block(*cidr, except),
        Predicate::Networks(networks) => ranges_of_networks(networks),
        Predicate::Nodes(nodes) => ranges_of_nodes(cluster, *nodes),
        Predicate::List(list) => ranges_of(&cluster.lists[list.index()].entries),
    }
}

/// The addresses of networks, in a family: sorted, disjoint, never touching.
pub(crate) fn ranges_of_networks<N: Number>(networks: &[Prefix]) -> Vec<(N, N)> {
    union(networks.iter().filter(|it| it.family() == N::FAMILY).map(|it| bounds(*it)).collect())
}

/// The addresses of the nodes with these labels, in a family: sorted, disjoint, never touching.
pub(crate) fn ranges_of_nodes<N: Number>(cluster: &Cluster, nodes: SelectorId) -> Vec<(N, N)> {
    let selector = cluster.labels.selector(nodes);
    let nodes = cluster.nodes.iter().filter(|node| matches(selector, cluster.labels.labels(node.labels)));
    ranges_at(nodes.flat_map(|node| &node.addresses))
}

/// Single addresses in a family, as ranges: sorted, disjoint, never touching.
pub(crate) fn ranges_at<'a, N: Number>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> Vec<(N, N)> {
    let of_family = addresses.into_iter().filter(|at| Family::of(**at) == N::FAMILY);
    union(of_family.map(|at| N::of(to_number(*at).1)).map(|at| (at, at)).collect())
}

/// The addresses of a block without its excepted blocks: sorted, disjoint, never touching.
pub(crate) fn ranges_of_block<N: Number>(cidr: Prefix, except: &[Prefix]) -> Vec<(N, N)> {
    // `except` narrows its own block only, so it is subtracted before blocks are united. In another implementation a
    // hole of one rule closed other rules: https://github.com/aws/amazon-network-policy-controller-k8s/issues/121
    let holes = except.iter().map(|hole| bounds(*hole)).collect();
    subtract(bounds(cidr), &union(holes))
}

/// The addresses of a list's entries in a family: sorted, disjoint, never touching.
pub(crate) fn ranges_of<N: Number>(entries: &[ListEntry]) -> Vec<(N, N)> {
    let number = |address| N::of(to_number(address).1);
    let of_family = entries.iter().filter(|entry| Family::of(entry.first) == N::FAMILY);
    union(of_family.map(|entry| (number(entry.first), number(entry.last))).collect())
}

fn union<N: Number>(mut ranges: Vec<(N, N)>) -> Vec<(N, N)> {
    ranges.sort_unstable_by_key(|(first, _)| *first);
    let mut merged: Vec<(N, N)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            // Ranges that only touch are merged too: a cut between them would be a segment more, with the same set.
            // After the end of the address space nothing begins, so every further range is inside the last one.
            Some((_, end)) if after(*end).is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn subtract<N: Number>((first, last): (N, N), holes: &[(N, N)]) -> Vec<(N, N)> {
    let mut rest = Vec::with_capacity(holes.len() + 1);
    let mut at = Some(first);
    for (hole_first, hole_last) in holes {
        let Some(start) = at else { break };
        if *hole_first > start {
            rest.push((start, before(*hole_first)));
        }
        // `None`: the hole reaches the end of the block, and no later hole can be inside.
        at = after(*hole_last).filter(|next| *next <= last);
    }
    rest.extend(at.map(|start| (start, last)));
    rest
}

/// The parts of ranges that no range of another list covers. In both lists they are sorted and disjoint.
pub(crate) fn difference<N: Number>(ranges: &[(N, N)], other: &[(N, N)]) -> Vec<(N, N)> {
    let mut rest = Vec::new();
    let mut start = 0;
    for (first, last) in ranges {
        start += other[start..].iter().take_while(|it| it.1 < *first).count();
        let holes = other[start..].iter().take_while(|it| it.0 <= *last).count();
        rest.extend(subtract((*first, *last), &other[start..start + holes]));
    }
    rest
}

fn bounds<N: Number>(prefix: Prefix) -> (N, N) {
    (N::of(to_number(prefix.address()).1), N::of(to_number(prefix.last()).1))
}

/// Puts the two tables together. Both are sorted; `moving` overrides `segments`.
pub(super) fn assemble(segments: impl Iterator<Item = ClassRange>, moving: Vec<(IpAddr, PeerId)>) -> AddressMap {
    let mut ranges: Vec<ClassRange> = Vec::new();
    let mut singles: Vec<(IpAddr, PeerId)> = Vec::new();
    // Up to this address, from the last range on, all addresses are in the exact table.
    let mut reach: Option<IpAddr> = None;
    for segment in segments {
        let adjacent = reach.is_some_and(|reach| follows(reach, segment.first));
        if segment.first == segment.last {
            // A single address does not end the range before it: its exact entry has precedence, so the ranges on
            // both sides of it can be one. A list of many hosts inside a block leaves the block whole.
            singles.push((segment.first, segment.peer));
            reach = reach.filter(|_| adjacent).map(|_| segment.last);
            continue;
        }
        match ranges.last_mut() {
            Some(before) if adjacent && before.peer == segment.peer => before.last = segment.last,
            _ => ranges.push(segment),
        }
        reach = Some(segment.last);
    }
    // A single address needs no entry if the ranges already give its class.
    let mut next = ranges.iter().peekable();
    let mut is_said = |(address, peer): (IpAddr, PeerId)| {
        // Entries arrive in ascending order, so the ranges are walked once.
        while next.next_if(|it| it.last < address).is_some() {}
        next.peek().filter(|it| it.first <= address).map_or(PeerId(0), |it| it.peer) == peer
    };
    let mut exact: Vec<SingleAddress> = Vec::new();
    let mut singles = singles.into_iter().peekable();
    let mut moving = moving.into_iter().peekable();
    loop {
        let moves = match (moving.peek(), singles.peek()) {
            (None, None) => break,
            (moved, single) => single.is_none_or(|single| moved.is_some_and(|moved| moved.0 <= single.0)),
        };
        let Some(entry) = (if moves { moving.next() } else { singles.next() }) else { break };
        if moves {
            // A pod, service or node at the address: its class includes the blocks and lists, so the listed entry is
            // superfluous.
            singles.next_if(|single| single.0 == entry.0);
        }
        if !is_said(entry) {
            let (address, peer) = entry;
            exact.push(SingleAddress { address, peer, moves });
        }
    }
    AddressMap::new(&exact, ranges)
}

fn follows(last: IpAddr, first: IpAddr) -> bool {
    let ((family, last), (next_family, first)) = (to_number(last), to_number(first));
    // The families are compared too: no IPv6 address follows 255.255.255.255.
    family == next_family && last.checked_add(1) == Some(first)
}
