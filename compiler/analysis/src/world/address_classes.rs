//! Classes of addresses that blocks and lists do not distinguish.
//!
//! Problem: a list has up to a million entries, and a diagram that tests addresses would have an interval for each of
//! them, again and again.
//! Strategy: policies and lists mention few *sets* of addresses. Addresses that are in the same sets are one class, and
//! diagrams test the class.
//! Invariant: every set that a comparison asks about is made from the mentioned sets, so it is a union of classes.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::addresses::{AddressRange, AddressSet};
use weir_model::{AddressRanges, Cluster, Peer, TierPeer};
use weir_objects::address::{Family, to_address, to_number};

/// The classes of both families.
pub(super) struct AddressClasses([FamilyClasses; 2]);

struct FamilyClasses {
    /// The first number of each interval, and its class. The first interval begins at 0.
    intervals: Vec<(u128, u32)>,
    /// The intervals of each class, by their index.
    members: Vec<Vec<u32>>,
}

impl AddressClasses {
    pub(super) fn of(sides: [&Cluster; 2]) -> Self {
        let mut blocks: BTreeSet<(IpAddr, IpAddr)> = BTreeSet::new();
        let mut lists = Vec::new();
        for cluster in sides {
            let rules = cluster.policies.iter().flat_map(|it| it.ingress.iter().chain(&it.egress)).flatten();
            for peer in rules.flat_map(|rule| &rule.peers) {
                if let Peer::Block { cidr, except } = peer {
                    blocks.extend([cidr].into_iter().chain(except).map(|it| (it.address(), it.last())));
                }
            }
            let tiers = cluster.tiers.iter().filter(|it| !it.is_audit);
            let rules = tiers.flat_map(|it| it.ingress.iter().chain(&it.egress));
            for peer in rules.filter_map(|rule| rule.matched.as_ref()).flat_map(|it| &it.peers) {
                match peer {
                    TierPeer::Pods { .. } => {}
                    TierPeer::Networks(networks) => {
                        blocks.extend(networks.iter().map(|it| (it.address(), it.last())));
                    }
                    TierPeer::Nodes(nodes) => {
                        let addresses = AddressSet::of_nodes(cluster, *nodes);
                        blocks.extend(addresses.iter().map(|it| (it.first, it.last)));
                    }
                }
            }
            lists.extend(cluster.lists.iter().map(AddressRanges::of));
        }
        let blocks = blocks.iter().map(std::slice::from_ref);
        let sets: Vec<&[(IpAddr, IpAddr)]> = blocks.chain(lists.iter().map(|it| &**it)).collect();
        Self([Family::V4, Family::V6].map(|family| FamilyClasses::of(family, &sets)))
    }

    /// The classes of a set, as intervals of their numbers. The last class stands for all larger numbers too, so that
    /// "every address" is every number.
    pub(super) fn within(&self, family: Family, set: &AddressSet) -> Vec<(u128, u128)> {
        let FamilyClasses { intervals, members } = &self.0[family as usize];
        let mut found = BTreeSet::new();
        for range in set.iter().filter(|it| Family::of(it.first) == family) {
            let (first, last) = (to_number(range.first).1, to_number(range.last).1);
            let from = intervals.partition_point(|(start, _)| *start < first);
            let inside = intervals[from..].iter().take_while(|(start, _)| *start <= last);
            found.extend(inside.map(|(_, class)| *class));
        }
        let mut numbers: Vec<(u128, u128)> = Vec::new();
        for class in found {
            let number = u128::from(class);
            let end = if class as usize == members.len() - 1 { u128::MAX } else { number };
            match numbers.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = end,
                _ => numbers.push((number, end)),
            }
        }
        numbers
    }

    /// The class of an address.
    pub(super) fn class(&self, address: IpAddr) -> u128 {
        let (family, number) = to_number(address);
        let intervals = &self.0[family as usize].intervals;
        let after = intervals.partition_point(|(start, _)| *start <= number);
        u128::from(intervals[after - 1].1)
    }

    /// Addresses of a class, not all of them: of each interval the second ones, which read better than the first.
    pub(super) fn addresses(&self, family: Family, class: u128) -> impl Iterator<Item = IpAddr> + '_ {
        /// At most this many of one interval.
        const MOST: u128 = 1024;
        let FamilyClasses { intervals, members } = &self.0[family as usize];
        let class = usize::try_from(class).unwrap_or(usize::MAX).min(members.len() - 1);
        let of_interval = move |index: &u32| {
            let (first, _) = intervals[*index as usize];
            let last = intervals.get(*index as usize + 1).map_or_else(|| most(family), |(next, _)| next - 1);
            (1..MOST).map_while(move |step| first.checked_add(step).filter(|it| *it <= last)).chain([first])
        };
        members[class].iter().flat_map(of_interval).map(move |number| to_address(family, number))
    }

    /// All addresses of a class.
    pub(super) fn set(&self, family: Family, class: u128) -> AddressSet {
        let FamilyClasses { intervals, members } = &self.0[family as usize];
        let range = |index: &u32| {
            let (first, _) = intervals[*index as usize];
            let last = intervals.get(*index as usize + 1).map_or_else(|| most(family), |(next, _)| next - 1);
            AddressRange { first: to_address(family, first), last: to_address(family, last) }
        };
        AddressSet::new(members[class as usize].iter().map(range).collect())
    }
}

impl FamilyClasses {
    fn of(family: Family, sets: &[&[(IpAddr, IpAddr)]]) -> Self {
        // At a number, a set begins or ends.
        let mut borders: Vec<(u128, u32, bool)> = Vec::new();
        for (index, set) in sets.iter().enumerate() {
            for (first, last) in set.iter().filter(|(first, _)| Family::of(*first) == family) {
                borders.push((to_number(*first).1, index as u32, true));
                let after = to_number(*last).1.checked_add(1).filter(|it| *it <= most(family));
                borders.extend(after.map(|after| (after, index as u32, false)));
            }
        }
        borders.sort_unstable();
        let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
        let (mut intervals, mut members) = (Vec::new(), Vec::<Vec<u32>>::new());
        let mut inside: BTreeSet<u32> = BTreeSet::new();
        let mut borders = borders.into_iter().peekable();
        let mut start = 0;
        loop {
            while let Some((_, set, begins)) = borders.next_if(|(at, ..)| *at == start) {
                if begins {
                    inside.insert(set)
                } else {
                    inside.remove(&set)
                };
            }
            let next = known.len() as u32;
            let class = *known.entry(inside.iter().copied().collect()).or_insert(next);
            if class == next {
                members.push(Vec::new());
            }
            members[class as usize].push(intervals.len() as u32);
            intervals.push((start, class));
            match borders.peek() {
                Some((at, ..)) => start = *at,
                None => return Self { intervals, members },
            }
        }
    }
}

fn most(family: Family) -> u128 {
    match family {
        Family::V4 => u32::MAX.into(),
        Family::V6 => u128::MAX,
    }
}
