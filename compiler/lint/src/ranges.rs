//! The addresses of a list, as disjoint ranges.

use std::net::IpAddr;

use weir_model::CidrList;

/// Invariant: sorted, disjoint, each of one family.
#[derive(Debug)]
pub(super) struct RangeSet(Vec<(IpAddr, IpAddr)>);

impl RangeSet {
    pub(super) fn of(list: &CidrList) -> Self {
        let mut entries: Vec<_> = list.entries.iter().map(|entry| (entry.first, entry.last)).collect();
        entries.sort_unstable();
        let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(entries.len());
        for (first, last) in entries {
            match ranges.last_mut() {
                Some(before) if first <= before.1 || Some(first) == successor(before.1) => {
                    before.1 = before.1.max(last);
                }
                _ => ranges.push((first, last)),
            }
        }
        Self(ranges)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.contains_range((address, address))
    }

    /// Whether every address of the other is in this one.
    pub(super) fn contains_all(&self, other: &Self) -> bool {
        other.iter().all(|range| self.contains_range(range))
    }

    fn contains_range(&self, (first, last): (IpAddr, IpAddr)) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= first);
        after.checked_sub(1).and_then(|index| self.0.get(index)).is_some_and(|(_, end)| last <= *end)
    }
}

/// The next address of the family, if there is one.
fn successor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(&str, &str)]) -> RangeSet {
        let parse = |text: &str| text.parse::<IpAddr>().expect(text);
        let entry = |(first, last): &(&str, &str)| weir_objects::k8s::ListEntry {
            first: parse(first),
            last: parse(last),
            position: 0,
        };
        let everything = weir_model::labels::Labelling::default().intern_selector(&Default::default());
        RangeSet::of(&CidrList {
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
    }

    #[test]
    fn neighbours_make_one_range() {
        let all = ranges(&[("10.0.0.128", "10.0.0.255"), ("10.0.0.0", "10.0.0.127")]);
        assert!(all.contains_all(&ranges(&[("10.0.0.0", "10.0.0.255")])));
        assert!(!all.contains_all(&ranges(&[("10.0.0.0", "10.0.1.0")])));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn families_do_not_touch() {
        let all = ranges(&[("255.0.0.0", "255.255.255.255"), ("::", "::ff")]);
        assert_eq!(all.len(), 2);
        assert!(!all.contains("::1:0".parse().expect("address")));
    }
}
