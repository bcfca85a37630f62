//! The addresses of a list, as ranges in which an address is found by binary search.

use std::net::IpAddr;
use std::ops::Deref;

use weir_objects::address::{Family, to_address, to_number};

use crate::CidrList;

/// Ranges of addresses, each of one family. Dereferences to pairs of first and last address.
///
/// Invariant: sorted, disjoint. A list has up to a million entries, so no flow is compared with each of them.
#[derive(Clone, Debug)]
pub struct AddressRanges(Vec<(IpAddr, IpAddr)>);

impl AddressRanges {
    /// The union of a list's entries. Ranges that only touch stay apart.
    pub fn of(list: &CidrList) -> Self {
        let mut entries: Vec<_> = list.entries.iter().map(|entry| (entry.first, entry.last)).collect();
        // `IpAddr` orders all IPv4 addresses before all IPv6 ones, so one sorted list serves both and no range reaches
        // from one into the other.
        entries.sort_unstable();
        Self(merged(entries, |first, before| first <= before))
    }

    /// The same addresses in the fewest ranges: those that touch become one.
    pub fn joined(self) -> Self {
        Self(merged(self.0, |first, before| first <= before || Some(first) == successor(before)))
    }

    /// Whether an address is in one of the ranges.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.contains_range(address, address)
    }

    /// Whether one range contains every address from `first` to `last`.
    pub fn contains_range(&self, first: IpAddr, last: IpAddr) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= first);
        after.checked_sub(1).and_then(|index| self.0.get(index)).is_some_and(|(_, end)| last <= *end)
    }
}

impl Deref for AddressRanges {
    type Target = [(IpAddr, IpAddr)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Joins each range with the one before it if `meets` holds for its first address and the other's last.
fn merged(
    sorted: impl IntoIterator<Item = (IpAddr, IpAddr)>,
    meets: impl Fn(IpAddr, IpAddr) -> bool,
) -> Vec<(IpAddr, IpAddr)> {
    let sorted = sorted.into_iter();
    let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(sorted.size_hint().0);
    for (first, last) in sorted {
        match ranges.last_mut() {
            // The larger end, because an entry may lie inside the one before.
            Some(before) if meets(first, before.1) => before.1 = before.1.max(last),
            _ => ranges.push((first, last)),
        }
    }
    ranges
}

/// The next address of the family, if there is one.
fn successor(address: IpAddr) -> Option<IpAddr> {
    let (family, number) = to_number(address);
    let next = number.checked_add(1).filter(|next| family == Family::V6 || *next <= u128::from(u32::MAX))?;
    Some(to_address(family, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn ranges(pairs: &[(&str, &str)]) -> AddressRanges {
        let entry = |(first, last): &(&str, &str)| weir_objects::k8s::ListEntry {
            first: parse(first),
            last: parse(last),
            position: 0,
        };
        let everything = crate::labels::Labelling::default().intern_selector(&Default::default());
        AddressRanges::of(&CidrList {
            name: String::new(),
            action: weir_objects::k8s::ListAction::Deny,
            order: 0,
            ingress: true,
            egress: true,
            namespaces: everything,
            pods: everything,
            entries: pairs.iter().map(entry).collect(),
            object: weir_objects::origin::ObjectId(0),
        })
        .joined()
    }

    #[test]
    fn neighbours_make_one_range() {
        let all = ranges(&[("10.0.0.128", "10.0.0.255"), ("10.0.0.0", "10.0.0.127")]);
        assert!(all.contains_range(parse("10.0.0.0"), parse("10.0.0.255")));
        assert!(!all.contains_range(parse("10.0.0.0"), parse("10.0.1.0")));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn families_do_not_touch() {
        let all = ranges(&[("255.0.0.0", "255.255.255.255"), ("::", "::ff")]);
        assert_eq!(all.len(), 2);
        assert!(!all.contains(parse("::1:0")));
    }
}
