//! Pairs → edges: the fewest edges that describe all pairs, and sums by namespace.
//!
//! Destinations that all sources reach in the same way share an edge. Of their sources, those that reach them in the
//! same way are grouped. Both groups are described in the largest exact terms: everyone, every pod, a namespace, a
//! party, ranges.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::{CellCache, CellId, Passes, Reach, ReachEnd};
use weir_classes::AtomSet;
use weir_model::NamespaceId;
use weir_objects::address::{Family, to_number};

/// A group of ends, as a description names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndGroup {
    /// Every pod and every address.
    Everyone,
    /// Every pod.
    Pods,
    /// Every party of a namespace.
    Namespace(NamespaceId),
    /// One party: an index into [`Reach::parties`].
    Party(u32),
    /// Every address outside of the cluster.
    Outside,
    /// Addresses outside of the cluster, of one family: sorted, disjoint.
    Ranges(Vec<(IpAddr, IpAddr)>),
}

/// All sources of `from` reach all destinations of `to` in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The sources; empty if nothing passes.
    pub from: Vec<EndGroup>,
    /// The destinations.
    pub to: Vec<EndGroup>,
    /// The traffic that passes.
    pub passes: Passes,
}

/// The pairs that edges are about.
pub trait PairFilter {
    /// Whether the traffic of a pair is asked for.
    fn takes(&self, cells: &CellCache<'_>, from: ReachEnd, to: ReachEnd, passes: Passes) -> bool;
    /// Whether an end is asked for as a destination, so that an edge shows if no source reaches it.
    fn takes_destination(&self, to: ReachEnd) -> bool;
}

/// All edges, by destination.
pub fn edges(reach: &Reach<'_>, cells: &mut CellCache<'_>) -> Vec<Edge> {
    edges_among(reach, cells, None)
}

/// The edges of some of the pairs, by destination.
pub fn edges_among(reach: &Reach<'_>, cells: &mut CellCache<'_>, filter: Option<&dyn PairFilter>) -> Vec<Edge> {
    let all_ends = reach.all_ends();
    let mut columns: BTreeMap<Vec<Option<Passes>>, Vec<ReachEnd>> = BTreeMap::new();
    for (index, to) in all_ends.iter().enumerate() {
        cells.report(index, all_ends.len());
        // The whole column is the key, because an edge claims something about all sources. Parties are few where pods
        // are many, so the square of parties and zones is affordable.
        let mut passes = |from: &ReachEnd| {
            let passes = cells.passes(*from, *to)?;
            let is_asked = filter.is_none_or(|it| it.takes(cells, *from, *to, passes));
            Some(if is_asked { passes } else { Passes::NOTHING })
        };
        let column: Vec<Option<Passes>> = all_ends.iter().map(&mut passes).collect();
        // A destination that is not asked for must not share an edge with one that no source reaches.
        let is_reached = column.iter().flatten().any(|it| *it != Passes::NOTHING);
        if is_reached || filter.is_none_or(|it| it.takes_destination(*to)) {
            columns.entry(column).or_default().push(*to);
        }
    }
    let mut columns: Vec<(Vec<ReachEnd>, Vec<Option<Passes>>)> = columns.into_iter().map(|(a, b)| (b, a)).collect();
    // By destinations: the order of the map is that of the cells' numbers, which says nothing to a reader.
    columns.sort();
    let mut found = Vec::new();
    for (to, column) in columns {
        let mut by_value: BTreeMap<Passes, Vec<ReachEnd>> = BTreeMap::new();
        let mut void = Vec::new();
        for (from, passes) in all_ends.iter().zip(&column) {
            match passes {
                // No common family: neither "reaches" nor "does not reach" would be true, so the description may choose
                // the shorter text.
                None => void.push(*from),
                Some(Passes::NOTHING) => {}
                Some(passes) => by_value.entry(*passes).or_default().push(*from),
            }
        }
        let to = describe(reach, &to, &[]);
        // Without this edge, an unreachable destination would be missing from the picture, as if it did not exist.
        if by_value.is_empty() {
            found.push(Edge { from: Vec::new(), to: to.clone(), passes: Passes::NOTHING });
        }
        for (passes, from) in by_value {
            found.push(Edge { from: describe(reach, &from, &void), to: to.clone(), passes });
        }
    }
    found
}

/// Describes ends in the largest exact terms. Ends in `void` share no address family with the other end, so a
/// description may include them.
pub fn describe(reach: &Reach<'_>, members: &[ReachEnd], void: &[ReachEnd]) -> Vec<EndGroup> {
    // Both lists are sorted, since all ends are listed parties first, each in order.
    let is = |it: &ReachEnd, of: &[ReachEnd]| of.binary_search(it).is_ok();
    let all = |mut who: Box<dyn Iterator<Item = ReachEnd> + '_>| {
        // A namespace whose parties are all void is not described: at least one of them must really be a member.
        let mut any = false;
        who.all(|it| {
            is(&it, void) || {
                any |= is(&it, members);
                is(&it, members)
            }
        }) && any
    };
    let parties = || (0..reach.parties.len() as u32).map(ReachEnd::Party);
    let zones = || (0..reach.zones.len() as u32).map(ReachEnd::Zone);
    let (every_pod, everywhere) = (all(Box::new(parties())), all(Box::new(zones())));
    let mut found = Vec::new();
    match (every_pod, everywhere) {
        (true, true) => return vec![EndGroup::Everyone],
        (true, false) => found.push(EndGroup::Pods),
        (false, _) => {
            let mut index = 0;
            // Parties are sorted by namespace, so each namespace is one chunk.
            for of_namespace in reach.parties.chunk_by(|a, b| a.namespace == b.namespace) {
                let range = index..index + of_namespace.len() as u32;
                index = range.end;
                match all(Box::new(range.clone().map(ReachEnd::Party))) {
                    true => found.push(EndGroup::Namespace(of_namespace[0].namespace)),
                    false => found.extend(range.filter(|it| is(&ReachEnd::Party(*it), members)).map(EndGroup::Party)),
                }
            }
        }
    }
    if everywhere {
        found.push(EndGroup::Outside)
    } else {
        found.extend(ranges(reach, members).map(EndGroup::Ranges))
    }
    found
}

/// The ranges of the zones in `members`, by family.
fn ranges<'a>(reach: &'a Reach<'_>, members: &'a [ReachEnd]) -> impl Iterator<Item = Vec<(IpAddr, IpAddr)>> + 'a {
    let of = move |family| {
        let zones = members.iter().filter_map(|it| match it {
            ReachEnd::Zone(index) => Some(&reach.zones[*index as usize]),
            ReachEnd::Party(_) => None,
        });
        let mut all: Vec<(IpAddr, IpAddr)> =
            zones.filter(|it| it.family == family).flat_map(|it| it.ranges.iter().copied()).collect();
        all.sort_unstable();
        let mut joined: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match joined.last_mut() {
                // Zones are classes, not ranges: two of them that send the same traffic can be neighbours, and read as
                // one range.
                Some(before) if to_number(before.1).1.checked_add(1) == Some(to_number(first).1) => before.1 = last,
                _ => joined.push((first, last)),
            }
        }
        joined
    };
    [Family::V4, Family::V6].into_iter().map(of).filter(|it| !it.is_empty())
}

/// A namespace, or outside.
pub type NamespaceOrOutside = Option<NamespaceId>;

/// The traffic between the parties of two places, summarized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The number of pairs with a common address family.
    pub pairs: usize,
    /// The number of pairs between which any traffic passes.
    pub passing: usize,
    /// The traffic that passes between at least one pair.
    pub any: CellId,
    /// The traffic that passes between all pairs.
    pub all: CellId,
}

/// The sums of all pairs of places: namespaces in order, then outside.
pub fn sums(reach: &Reach<'_>, cells: &mut CellCache<'_>) -> BTreeMap<(usize, usize), Sum> {
    let places = places(reach);
    let of_place = |place: &NamespaceOrOutside| -> Vec<(ReachEnd, usize)> {
        let all = reach.all_ends();
        let here = all.into_iter().filter(|who| place_of(reach, *who) == *place);
        // Parties of the same classes are computed once.
        let mut known: HashMap<_, usize> = HashMap::new();
        let mut found: Vec<(ReachEnd, usize)> = Vec::new();
        for who in here {
            let class = match who {
                ReachEnd::Party(index) => {
                    let party = &reach.parties[index as usize];
                    (Some(party.subject), party.peers)
                }
                ReachEnd::Zone(index) => (None, [Some(reach.zones[index as usize].peer), None]),
            };
            // Only parties are merged. Zones of the two families can have the same peer class, but reach different
            // addresses.
            match (matches!(who, ReachEnd::Party(_)), known.get(&class)) {
                (true, Some(at)) => found[*at].1 += 1,
                _ => {
                    known.insert(class, found.len());
                    found.push((who, 1));
                }
            }
        }
        found
    };
    let members: Vec<Vec<(ReachEnd, usize)>> = places.iter().map(of_place).collect();
    let mut found = BTreeMap::new();
    for (row, from) in members.iter().enumerate() {
        cells.report(row, members.len());
        for (column, to) in members.iter().enumerate() {
            found.extend(sum(cells, from, to).map(|sum| ((row, column), sum)));
        }
    }
    found
}

/// The namespaces that have parties, in order, and then outside.
pub fn places(reach: &Reach<'_>) -> Vec<NamespaceOrOutside> {
    let mut found: Vec<NamespaceOrOutside> = reach.parties.iter().map(|it| Some(it.namespace)).collect();
    found.dedup();
    found.push(None);
    found
}

/// The place of an end.
pub fn place_of(reach: &Reach<'_>, who: ReachEnd) -> NamespaceOrOutside {
    match who {
        ReachEnd::Party(index) => Some(reach.parties[index as usize].namespace),
        ReachEnd::Zone(_) => None,
    }
}

fn sum(cells: &mut CellCache<'_>, from: &[(ReachEnd, usize)], to: &[(ReachEnd, usize)]) -> Option<Sum> {
    let mut values: HashMap<Passes, usize> = HashMap::new();
    for (from, from_count) in from {
        for (to, to_count) in to {
            // Pairs without a common family count neither as passing nor as not passing.
            if let Some(passes) = cells.passes(*from, *to) {
                *values.entry(passes).or_default() += from_count * to_count;
            }
        }
    }
    // Sorted before it is used: new sets get numbers below, and a hash map's order must not decide them.
    let values: BTreeMap<Passes, usize> = values.into_iter().collect();
    // Not the empty set: for `all`, the first pair's traffic has to be the start, since nothing remains of an
    // intersection with the empty set.
    let mut any: Option<AtomSet> = None;
    let mut all: Option<AtomSet> = None;
    for passes in values.keys() {
        let sets = match passes {
            Passes::Cell(cell) => vec![*cell],
            Passes::ByFamily(v4, v6) => vec![*v4, *v6],
        };
        for set in sets.into_iter().map(|id| cells.set(id).clone()) {
            any = Some(any.map_or_else(
                || set.clone(),
                |mut any| {
                    any.add(&set);
                    any
                },
            ));
            all = Some(all.map_or_else(
                || set.clone(),
                |mut all| {
                    all.intersect(&set);
                    all
                },
            ));
        }
    }
    let (any, all) = (cells.intern(any?), cells.intern(all?));
    let pairs = values.values().sum();
    let passing = values.iter().filter(|(passes, _)| **passes != Passes::NOTHING).map(|(_, count)| count).sum();
    Some(Sum { pairs, passing, any, all })
}
