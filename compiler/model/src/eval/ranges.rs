//! The addresses that a list contains.

use std::net::IpAddr;

use crate::CidrList;

/// The union of a list's entries, so that a flow does not have to be compared with a million entries.
#[derive(Debug)]
pub(super) struct ListRanges {
    /// Sorted by the first address, disjoint.
    ranges: Vec<(IpAddr, IpAddr)>,
}

impl ListRanges {
    pub(super) fn new(list: &CidrList) -> Self {
        let mut entries: Vec<_> = list.entries.iter().map(|entry| (entry.first, entry.last)).collect();
        entries.sort_unstable();
        let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(entries.len());
        for (first, last) in entries {
            match ranges.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        Self { ranges }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let after = self.ranges.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).is_some_and(|index| address <= self.ranges[index].1)
    }
}
