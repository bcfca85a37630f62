//! Predicates that begin or cease to hold for ranges of addresses, applied to the segments of a generation.
//!
//! The ranges of all moves are cut into segments of their own. Their sets contain moves instead of predicates. One pass
//! over both lists of segments then gives the new list, so the cost is that of a copy, however many ranges move.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{
    Number, PredicateSets, SEGMENT_BYTES, Segment, Segments, SetId, after, before, difference, ranges_at, ranges_of,
    ranges_of_block, ranges_of_networks, sweep,
};
use crate::PredicateId;
use crate::meter::{CLASS_BYTES, Meter, PAIR_BYTES};
use weir_objects::address::{Family, Prefix};
use weir_objects::k8s::ListEntry;

/// Ranges of addresses, from first to last: sorted, disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Ranges {
    /// The addresses of a block without its excepted blocks.
    pub(crate) fn of_block(cidr: Prefix, except: &[Prefix]) -> Self {
        match cidr.family() {
            Family::V4 => Self { v4: ranges_of_block(cidr, except), v6: Vec::new() },
            Family::V6 => Self { v4: Vec::new(), v6: ranges_of_block(cidr, except) },
        }
    }

    pub(crate) fn of_networks(networks: &[Prefix]) -> Self {
        Self { v4: ranges_of_networks(networks), v6: ranges_of_networks(networks) }
    }

    pub(crate) fn of_list(entries: &[ListEntry]) -> Self {
        Self { v4: ranges_of(entries), v6: ranges_of(entries) }
    }

    pub(crate) fn of_addresses<'a>(addresses: impl IntoIterator<Item = &'a IpAddr> + Clone) -> Self {
        Self { v4: ranges_at(addresses.clone()), v6: ranges_at(addresses) }
    }

    /// Whether there are no addresses.
    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The parts that other ranges do not cover.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self { v4: difference(&self.v4, &other.v4), v6: difference(&self.v6, &other.v6) }
    }
}

/// Addresses for which a predicate begins or ceases to hold.
#[derive(Clone, Debug)]
pub(crate) struct RangeMove {
    pub(crate) predicate: PredicateId,
    /// Whether it holds from now on.
    pub(crate) holds: bool,
    /// Whether the ranges are of a policy, and not of a list: lists have no budget.
    pub(crate) is_metered: bool,
    pub(crate) ranges: Ranges,
}

/// All moves of one change.
#[derive(Debug)]
pub(crate) struct RangeMoves {
    moves: Vec<(PredicateId, bool)>,
    /// The address space, cut at the ends of the moves. The members of its sets are indices into `moves`.
    cut: Segments,
}

impl RangeMoves {
    /// The cost is added to the meter's. If that exceeds a limit, the result is incomplete.
    pub(crate) fn new(list: &[RangeMove], meter: &Meter) -> Self {
        let mut sets = PredicateSets::new(list.len());
        let v4 = cut_moves(list, |it| &it.v4, &mut sets, meter);
        let v6 = cut_moves(list, |it| &it.v6, &mut sets, meter);
        let moves = list.iter().map(|it| (it.predicate, it.holds)).collect();
        Self { moves, cut: Segments { v4, v6, sets: sets.list } }
    }

    /// The moves at an address.
    pub(crate) fn at(&self, address: IpAddr) -> SetId {
        self.cut.set_of(address)
    }

    /// A sorted list of predicates after the moves of a set.
    pub(crate) fn apply(&self, SetId(set): SetId, predicates: &[PredicateId]) -> Vec<PredicateId> {
        let mut found = predicates.to_vec();
        for moved in &*self.cut.sets[set as usize] {
            let (predicate, holds) = self.moves[moved.index()];
            match (found.binary_search(&predicate), holds) {
                (Err(at), true) => found.insert(at, predicate),
                (Ok(at), false) => _ = found.remove(at),
                _ => {}
            }
        }
        found
    }
}

fn cut_moves<N: Number>(
    list: &[RangeMove],
    of_family: impl Fn(&Ranges) -> &Vec<(N, N)>,
    sets: &mut PredicateSets,
    meter: &Meter,
) -> Vec<Segment<N>> {
    let numbered = || (0..).map(PredicateId).zip(list.iter().map(|it| of_family(&it.ranges)));
    let count = 2 * list.iter().filter(|it| it.is_metered).map(|it| of_family(&it.ranges).len() as u64).sum::<u64>();
    if !meter.take(SEGMENT_BYTES * count, count) {
        return Vec::new();
    }
    let mut starts: Vec<_> = numbered().flat_map(|(id, ranges)| ranges.iter().map(move |at| (at.0, id))).collect();
    let mut ends: Vec<_> = numbered().flat_map(|(id, ranges)| ranges.iter().map(move |at| (at.1, id))).collect();
    starts.sort_by_key(|(at, _)| *at);
    ends.sort_by_key(|(at, _)| *at);
    sweep(&starts, &ends, sets, meter)
}

impl Segments {
    /// The ranges where a predicate holds.
    pub(crate) fn ranges_where(&self, predicate: PredicateId) -> Ranges {
        let holds: Vec<bool> = self.sets.iter().map(|set| set.binary_search(&predicate).is_ok()).collect();
        Ranges { v4: ranges_where(&self.v4, &holds), v6: ranges_where(&self.v6, &holds) }
    }

    /// The segments after moves, without sets that no range has any more. Incomplete if a limit of the meter is
    /// exceeded.
    pub(crate) fn moved(&self, moves: &RangeMoves, meter: &Meter) -> Self {
        let mut sets = MovedSets {
            before: &self.sets,
            moves,
            meter,
            list: vec![Arc::default()],
            numbers: HashMap::from([(Arc::default(), 0)]),
            unmoved: vec![None; self.sets.len()],
            known: HashMap::new(),
            has_room: true,
        };
        let v4 = merge(&self.v4, &moves.cut.v4, &mut sets);
        let v6 = merge(&self.v6, &moves.cut.v6, &mut sets);
        Self { v4, v6, sets: sets.list }
    }
}

fn ranges_where<N: Number>(list: &[Segment<N>], holds: &[bool]) -> Vec<(N, N)> {
    list.iter().filter(|it| holds[it.set as usize]).map(|it| (it.first, it.last)).collect()
}

/// The sets of predicates after moves.
struct MovedSets<'m> {
    before: &'m [Arc<[PredicateId]>],
    moves: &'m RangeMoves,
    meter: &'m Meter,
    list: Vec<Arc<[PredicateId]>>,
    numbers: HashMap<Arc<[PredicateId]>, u32>,
    /// The number of each earlier set where nothing moves. In a long list most segments are of this kind.
    unmoved: Vec<Option<u32>>,
    /// The number of each earlier set with a set of moves.
    known: HashMap<(u32, u32), u32>,
    /// Whether no limit is exceeded.
    has_room: bool,
}

impl MovedSets<'_> {
    fn number(&mut self, before: u32, moved: u32) -> u32 {
        let known = match moved {
            0 => self.unmoved[before as usize],
            _ => self.known.get(&(before, moved)).copied(),
        };
        known.unwrap_or_else(|| self.add(before, moved))
    }

    fn add(&mut self, before: u32, moved: u32) -> u32 {
        let of_before = &self.before[before as usize];
        let set: Arc<[PredicateId]> = match moved {
            0 => Arc::clone(of_before),
            _ => self.moves.apply(SetId(moved), of_before).into(),
        };
        let length = set.len() as u64;
        let number = *self.numbers.entry(set).or_insert_with_key(|set| {
            self.list.push(Arc::clone(set));
            self.list.len() as u32 - 1
        });
        if moved == 0 {
            self.unmoved[before as usize] = Some(number);
        } else {
            self.known.insert((before, moved), number);
            self.has_room = self.meter.take(PAIR_BYTES * length + CLASS_BYTES, length);
        }
        number
    }
}

/// One pass over both lists, which cuts each at the ends of the other's segments.
fn merge<N: Number>(old: &[Segment<N>], moved: &[Segment<N>], sets: &mut MovedSets<'_>) -> Vec<Segment<N>> {
    let mut list: Vec<Segment<N>> = Vec::with_capacity(old.len() + 2 * moved.len());
    let (mut old, mut moved) = (Rest::new(old), Rest::new(moved));
    while let Some(first) = [old.first(), moved.first()].into_iter().flatten().min().filter(|_| sets.has_room) {
        // At least one of them has a segment from here on.
        let Some(last) = [old.end_of_part(first), moved.end_of_part(first)].into_iter().flatten().min() else { break };
        let set = sets.number(old.take(first, last), moved.take(first, last));
        match list.last_mut() {
            // No predicate holds here any more.
            _ if set == 0 => {}
            Some(it) if it.set == set && after(it.last) == Some(first) => it.last = last,
            _ => list.push(Segment { first, last, set }),
        }
    }
    list
}

/// The segments that are not merged yet.
struct Rest<'s, N> {
    next: Option<Segment<N>>,
    others: std::slice::Iter<'s, Segment<N>>,
}

impl<'s, N: Number> Rest<'s, N> {
    fn new(segments: &'s [Segment<N>]) -> Self {
        let mut others = segments.iter();
        Self { next: others.next().copied(), others }
    }

    fn first(&self) -> Option<N> {
        self.next.map(|it| it.first)
    }

    /// Where the present segment ends, or the gap before the next one.
    fn end_of_part(&self, first: N) -> Option<N> {
        self.next.map(|it| if it.first <= first { it.last } else { before(it.first) })
    }

    /// Takes these addresses away. Returns their set, which is 0 in a gap.
    fn take(&mut self, first: N, last: N) -> u32 {
        let Some(it) = self.next.filter(|it| it.first <= first) else { return 0 };
        self.next = match after(last).filter(|_| last < it.last) {
            Some(next) => Some(Segment { first: next, ..it }),
            None => self.others.next().copied(),
        };
        it.set
    }
}
