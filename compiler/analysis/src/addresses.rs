//! Sets of addresses.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Arc;

use weir_model::labels::matches;
use weir_model::{CidrList, Cluster, SelectorId};
use weir_objects::address::{Family, Prefix};

/// Addresses from first to last, without the addresses of endpoints (and, as destinations, of services).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// The first one.
    pub first: IpAddr,
    /// The last one, of the same family.
    pub last: IpAddr,
}

impl AddressRange {
    /// Whether an address is inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == Family::of(self.first) && self.first <= address && address <= self.last
    }
}

/// A set of addresses, as the fewest ranges. Copies share them: a list has up to a million, and a comparison names it in
/// every row.
#[derive(Clone, Debug, Default)]
pub struct AddressSet(Arc<[AddressRange]>);

impl AddressSet {
    /// The addresses in any of the ranges.
    pub fn new(mut ranges: Vec<AddressRange>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<AddressRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                // `IpAddr` orders all IPv4 addresses before all IPv6 ones, and `after` stays in its family.
                Some(last) if range.first <= last.last || after(last.last) == Some(range.first) => {
                    last.last = last.last.max(range.last);
                }
                _ => joined.push(range),
            }
        }
        Self(joined.into())
    }

    /// The addresses of a list.
    pub fn of_list(list: &CidrList) -> Self {
        Self::new(list.entries.iter().map(|it| AddressRange { first: it.first, last: it.last }).collect())
    }

    /// The addresses of a block without its exceptions.
    pub fn of_block(cidr: Prefix, except: &[Prefix]) -> Self {
        let range = |it: &Prefix| AddressRange { first: it.address(), last: it.last() };
        let holes = Self::new(except.iter().map(range).collect());
        Self::new(vec![range(&cidr)]).without(&holes)
    }

    /// The addresses of the nodes that have the labels.
    pub fn of_nodes(cluster: &Cluster, selector: SelectorId) -> Self {
        let selector = cluster.labels.selector(selector);
        let nodes = cluster.nodes.iter().filter(|it| matches(selector, cluster.labels.labels(it.labels)));
        let addresses = nodes.flat_map(|it| &it.addresses);
        Self::new(addresses.map(|at| AddressRange { first: *at, last: *at }).collect())
    }

    /// The addresses in any of these networks.
    pub fn of_networks(networks: &[Prefix]) -> Self {
        Self::new(networks.iter().map(|it| AddressRange { first: it.address(), last: it.last() }).collect())
    }

    /// All addresses of both families.
    pub fn all() -> Self {
        let range = |first: IpAddr, last: IpAddr| AddressRange { first, last };
        Self(Arc::new([
            range(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()),
            range(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into()),
        ]))
    }

    /// Whether an address is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        let after = self.partition_point(|range| range.first <= address);
        after.checked_sub(1).is_some_and(|index| self[index].contains(address))
    }

    /// Whether all addresses of another set are in this one.
    pub fn contains_all(&self, other: &Self) -> bool {
        other.without(self).is_empty()
    }

    /// The addresses in both sets.
    pub fn and(&self, other: &Self) -> Self {
        let all = Self::all();
        if *self == all || self == other {
            return other.clone();
        }
        if *other == all {
            return self.clone();
        }
        let (few, many) = if self.len() <= other.len() { (self, other) } else { (other, self) };
        let mut common = Vec::new();
        for range in few.iter() {
            let from = many.partition_point(|it| it.last < range.first);
            for it in many[from..].iter().take_while(|it| it.first <= range.last) {
                let (first, last) = (range.first.max(it.first), range.last.min(it.last));
                common.push(AddressRange { first, last });
            }
        }
        Self(common.into())
    }

    /// The addresses of this set that are not in the other.
    pub fn without(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        for range in self.iter() {
            let mut first = Some(range.first);
            let from = other.partition_point(|hole| hole.last < range.first);
            for hole in other[from..].iter().take_while(|hole| hole.first <= range.last) {
                let Some(start) = first else { break };
                if let Some(end) = before(hole.first).filter(|end| start < hole.first && start <= *end) {
                    rest.push(AddressRange { first: start, last: end });
                }
                first = after(hole.last);
            }
            if let Some(start) = first.filter(|start| *start <= range.last && start.is_ipv4() == range.last.is_ipv4()) {
                rest.push(AddressRange { first: start, last: range.last });
            }
        }
        Self(rest.into())
    }

    /// The addresses in one of the sets.
    pub fn or(&self, other: &Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other.clone(),
            (_, true) => self.clone(),
            _ => Self::new(self.iter().chain(other.iter()).copied().collect()),
        }
    }

    /// The addresses of one family.
    pub fn of_family(&self, family: Family) -> Self {
        let border = self.partition_point(|range| range.first.is_ipv4());
        match family {
            Family::V4 if border == self.len() => self.clone(),
            Family::V6 if border == 0 => self.clone(),
            Family::V4 => Self(self[..border].into()),
            Family::V6 => Self(self[border..].into()),
        }
    }
}

impl Deref for AddressSet {
    type Target = [AddressRange];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

// Copies of one set are common and large, so they are recognized before their ranges are compared.

impl PartialEq for AddressSet {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for AddressSet {}

impl Ord for AddressSet {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for AddressSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for AddressSet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.len(), self.first(), self.last()).hash(state);
    }
}

/// The next address of the same family, if there is one.
fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(it) => u32::from(it).checked_add(1).map(|it| Ipv4Addr::from(it).into()),
        IpAddr::V6(it) => u128::from(it).checked_add(1).map(|it| Ipv6Addr::from(it).into()),
    }
}

fn before(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(it) => u32::from(it).checked_sub(1).map(|it| Ipv4Addr::from(it).into()),
        IpAddr::V6(it) => u128::from(it).checked_sub(1).map(|it| Ipv6Addr::from(it).into()),
    }
}
