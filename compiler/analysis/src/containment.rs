//! Whether one set of flows contains another, by their descriptions alone.
//!
//! Problem: an approval of a change must still hold after unrelated changes, and never for more flows than a person has
//! accepted. So the flows of a row are compared with accepted flows as sets, not as texts.
//! Strategy: each description is a product of ends and traffic, without some exceptions. Products are compared part by
//! part, selectors key by key ([`selectors`]).
//! Invariant: an answer "contains" or "disjoint" is certain, for every cluster. "No" may only mean that the descriptions
//! do not show it, for example where two accepted products contain a third one only together.

mod selectors;

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::addresses::AddressSet;
use crate::diff::RowTraffic;
use crate::world::PodSet;
use weir_classes::PortSpec;
use weir_model::{Direction, Protocol};
use weir_objects::address::Family;

/// The sources or the destinations of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndScope {
    /// Pods that could exist.
    pub pods: Vec<PodSet>,
    /// Outside addresses.
    pub addresses: AddressSet,
    /// Pods and workloads of the input, by name.
    pub endpoints: BTreeSet<String>,
    /// Addresses of services.
    pub services: BTreeSet<IpAddr>,
}

/// All traffic of a kind from all sources to all destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowScope {
    /// The sources.
    pub source: EndScope,
    /// The destinations.
    pub destination: EndScope,
    /// The traffic.
    pub traffic: RowTraffic,
}

/// A set of flows: a product without some products.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowRegion {
    /// The product.
    pub flows: FlowScope,
    /// The products that are not in the set.
    pub except: Vec<FlowScope>,
    /// If set, only flows that this direction allows are in the set.
    pub given: Option<Direction>,
    /// If set, only flows of this family are in the set.
    pub family: Option<Family>,
}

impl FlowRegion {
    /// Whether the set has no flows of a family.
    pub fn is_empty(&self, family: Family) -> bool {
        let flows = self.flows.of_family(family);
        self.family.is_some_and(|it| it != family) || flows.source.is_empty() || flows.destination.is_empty()
    }

    /// Whether every flow of the other set with this family is in this set.
    pub fn contains(&self, other: &Self, family: Family) -> bool {
        let [own, others] = [self, other].map(|it| it.flows.of_family(family));
        let is_left_out = |except: &FlowScope| {
            let except = except.of_family(family);
            except.is_disjoint(&others) || other.except.iter().any(|it| it.of_family(family).contains(&except))
        };
        self.family.is_none_or(|it| it == family)
            && (self.given.is_none() || self.given == other.given)
            && own.contains(&others)
            && self.except.iter().all(is_left_out)
    }
}

impl FlowScope {
    /// All traffic from every possible pod to every possible pod.
    pub fn between_all_pods() -> Self {
        let all = |protocol| PortSpec { protocol, first: 1, last: u16::MAX };
        let ranges = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(all).into();
        let end = EndScope { pods: vec![PodSet::default()], ..EndScope::default() };
        let traffic = RowTraffic { ranges, portless: true, named: Vec::new() };
        Self { source: end.clone(), destination: end, traffic }
    }

    fn contains(&self, other: &Self) -> bool {
        self.source.contains(&other.source)
            && self.destination.contains(&other.destination)
            && contains_traffic(&self.traffic, &other.traffic)
    }

    fn is_disjoint(&self, other: &Self) -> bool {
        self.source.is_disjoint(&other.source)
            || self.destination.is_disjoint(&other.destination)
            || is_disjoint_traffic(&self.traffic, &other.traffic)
    }

    fn of_family(&self, family: Family) -> Self {
        let [source, destination] = [&self.source, &self.destination].map(|it| it.of_family(family));
        Self { source, destination, traffic: self.traffic.clone() }
    }
}

impl EndScope {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.addresses.is_empty() && self.endpoints.is_empty() && self.services.is_empty()
    }

    fn contains(&self, other: &Self) -> bool {
        other.pods.iter().all(|pods| self.pods.iter().any(|it| contains_pods(it, pods)))
            && self.addresses.contains_all(&other.addresses)
            && other.endpoints.is_subset(&self.endpoints)
            && other.services.is_subset(&self.services)
    }

    /// Whether it is certain that the two have no end in common.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        // A pod of the input may be in any set of possible pods.
        let may_name = |one: &Self, other: &Self| !one.pods.is_empty() && !other.endpoints.is_empty();
        !may_name(self, other)
            && !may_name(other, self)
            && self.pods.iter().all(|it| other.pods.iter().all(|other| is_disjoint_pods(it, other)))
            && self.addresses.and(&other.addresses).is_empty()
            && self.endpoints.is_disjoint(&other.endpoints)
            && self.services.is_disjoint(&other.services)
    }

    fn of_family(&self, family: Family) -> Self {
        let mut end = self.clone();
        end.addresses = end.addresses.of_family(family);
        end.services.retain(|it| Family::of(*it) == family);
        end.pods.iter_mut().filter_map(|it| it.addresses.as_mut()).for_each(|it| *it = it.of_family(family));
        end.pods.retain(|it| it.addresses.as_ref().is_none_or(|it| !it.is_empty()));
        end
    }
}

fn contains_pods(some: &PodSet, others: &PodSet) -> bool {
    let has_addresses = match (&some.addresses, &others.addresses) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(own), Some(others)) => own.contains_all(others),
    };
    has_addresses
        && selectors::implies(&others.namespaces, &some.namespaces)
        && selectors::implies(&others.pods, &some.pods)
}

fn is_disjoint_pods(some: &PodSet, others: &PodSet) -> bool {
    let have_addresses = match (&some.addresses, &others.addresses) {
        (Some(own), Some(others)) => !own.and(others).is_empty(),
        _ => true,
    };
    !have_addresses
        || selectors::contradict(&some.namespaces, &others.namespaces)
        || selectors::contradict(&some.pods, &others.pods)
}

fn contains_traffic(some: &RowTraffic, others: &RowTraffic) -> bool {
    let is_named = |(ports, names): &(PortSpec, Vec<String>)| {
        let has = |named: &Vec<String>| named.iter().all(|it| names.contains(it));
        some.named.iter().any(|(own, named)| has(named) && contains_ports(&[*own], *ports))
    };
    (some.portless || !others.portless)
        && others.ranges.iter().all(|it| contains_ports(&some.ranges, *it))
        && others.named.iter().all(|it| contains_ports(&some.ranges, it.0) || is_named(it))
}

/// Whether the ranges together contain a range.
fn contains_ports(ranges: &[PortSpec], wanted: PortSpec) -> bool {
    let mut next = u32::from(wanted.first);
    let mut sorted: Vec<&PortSpec> = ranges.iter().filter(|it| it.protocol == wanted.protocol).collect();
    sorted.sort_unstable();
    for range in sorted {
        if u32::from(range.first) <= next {
            next = next.max(u32::from(range.last) + 1);
        }
    }
    next > u32::from(wanted.last)
}

fn is_disjoint_traffic(some: &RowTraffic, others: &RowTraffic) -> bool {
    // A port may have any names, so names do not make ports disjoint.
    let ports = |it: &RowTraffic| -> Vec<PortSpec> {
        it.ranges.iter().copied().chain(it.named.iter().map(|(ports, _)| *ports)).collect()
    };
    let (own, others_ports) = (ports(some), ports(others));
    let meet = |one: &PortSpec, other: &PortSpec| {
        one.protocol == other.protocol && one.first <= other.last && other.first <= one.last
    };
    !(some.portless && others.portless) && own.iter().all(|one| !others_ports.iter().any(|other| meet(one, other)))
}
