//! Exposure: to the outside, to other namespaces, and because no policy applies.

use std::collections::{BTreeMap, HashMap};

use super::edges::{EndGroup, describe, place_of};
use super::{CellCache, Party, Passes, Reach, ReachEnd};
use weir_classes::AtomSet;
use weir_model::{Backend, Direction, EndpointId, Protocol, Service, ServiceId};
use weir_objects::address::Family;

/// The exposure of one party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// An index into [`Reach::parties`].
    pub party: u32,
    /// The traffic that reaches it from outside, and from which addresses.
    pub outside: Vec<(Passes, Vec<EndGroup>)>,
    /// The traffic that reaches it from other namespaces, and from which parties. [`EndGroup::Pods`] means every pod of
    /// the other namespaces.
    pub namespaces: Vec<(Passes, Vec<EndGroup>)>,
    /// Whether a policy isolates it for ingress, and for egress.
    pub isolated: [bool; 2],
    /// Whether an address list applies to it.
    pub lists: bool,
}

/// A service port that can be reached from outside of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// The service.
    pub service: ServiceId,
    /// An index into its ports.
    pub port: u32,
    /// The ready backends that admit traffic from an address outside, with their ports.
    pub open: Vec<(EndpointId, u16)>,
    /// The number of ready backends that are pods of the cluster.
    pub backends: usize,
}

/// The exposure of every party, in order.
pub fn exposures(reach: &Reach<'_>, cells: &mut CellCache<'_>) -> Vec<Exposure> {
    let all_ends = reach.all_ends();
    // `all_ends` lists all parties first.
    let (parties, zones) = all_ends.split_at(reach.parties.len());
    let mut known: HashMap<_, Exposure> = HashMap::new();
    let mut one = |(index, party): (usize, &Party)| {
        cells.report(index, parties.len());
        // Parties of one namespace with the same classes have the same exposure.
        let exposure = known.entry((party.namespace, party.subject, party.peers)).or_insert_with(|| {
            let to = ReachEnd::Party(index as u32);
            let (own, elsewhere): (Vec<ReachEnd>, Vec<ReachEnd>) =
                parties.iter().partition(|it| place_of(reach, **it) == Some(party.namespace));
            Exposure {
                party: 0,
                // Zones in one call, other namespaces in another: "from everyone" would hide that the outside is part
                // of it.
                outside: sources(reach, cells, zones, Vec::new(), to),
                // Without sources of the own namespace, so that `EndGroup::Pods` can mean all pods of other namespaces.
                namespaces: sources(reach, cells, &elsewhere, own, to),
                isolated: [Direction::Ingress, Direction::Egress].map(|it| reach.is_isolated(it, party)),
                lists: !reach.classes.subjects[party.subject.index()].lists.is_empty(),
            }
        });
        Exposure { party: index as u32, ..exposure.clone() }
    };
    reach.parties.iter().enumerate().map(&mut one).collect()
}

/// The sources among `from` that reach `to`, grouped by the traffic that passes. A description may include ends in
/// `void`.
fn sources(
    reach: &Reach<'_>,
    cells: &mut CellCache<'_>,
    from: &[ReachEnd],
    mut void: Vec<ReachEnd>,
    to: ReachEnd,
) -> Vec<(Passes, Vec<EndGroup>)> {
    let mut by_value: BTreeMap<Passes, Vec<ReachEnd>> = BTreeMap::new();
    for who in from {
        match cells.passes(*who, to) {
            None => void.push(*who),
            Some(Passes::NOTHING) => {}
            Some(passes) => by_value.entry(passes).or_default().push(*who),
        }
    }
    // `describe` searches it, and `void` has two parts: the caller's ends and those without a common family.
    void.sort_unstable();
    by_value.into_iter().map(|(passes, members)| (passes, describe(reach, &members, &void))).collect()
}

/// The service ports with node ports, external addresses or load balancers that can be reached from outside.
/// `is_external` says whether a service has external addresses, because the model does not distinguish them from its
/// cluster address.
pub fn entrances(
    reach: &Reach<'_>,
    exposures: &[Exposure],
    cells: &CellCache<'_>,
    is_external: impl Fn(&Service) -> bool,
) -> Vec<Entrance> {
    let mut party_of: BTreeMap<EndpointId, usize> = BTreeMap::new();
    for (index, party) in reach.parties.iter().enumerate() {
        party_of.extend(party.members.iter().map(|member| (*member, index)));
    }
    let lets_in = |backend: &Backend, protocol: Protocol| {
        let exposure = backend.endpoint.and_then(|id| party_of.get(&id)).and_then(|index| exposures.get(*index));
        let atom = reach.classes.atoms.find(protocol, backend.port);
        let sets = |passes: &Passes| -> Vec<AtomSet> {
            match (passes, backend.address.map(Family::of)) {
                (Passes::Cell(cell), _) => vec![cells.set(*cell).clone()],
                // The service proxy translates within one family, so the family of the backend's address decides.
                (Passes::ByFamily(v4, _), Some(Family::V4)) => vec![cells.set(*v4).clone()],
                (Passes::ByFamily(_, v6), Some(Family::V6)) => vec![cells.set(*v6).clone()],
                (Passes::ByFamily(v4, v6), None) => vec![cells.set(*v4).clone(), cells.set(*v6).clone()],
            }
        };
        exposure.is_some_and(|it| it.outside.iter().flat_map(|(passes, _)| sets(passes)).any(|set| set.contains(atom)))
    };
    let mut found = Vec::new();
    for (id, service) in reach.cluster.services.iter().enumerate() {
        for (index, port) in service.ports.iter().enumerate() {
            // A ClusterIP alone cannot be reached from outside of the cluster.
            if port.node_port.is_none() && !is_external(service) {
                continue;
            }
            let pods = port.backends.iter().filter_map(|it| Some((it, it.endpoint?)));
            let open = pods.clone().filter(|(backend, _)| lets_in(backend, port.protocol));
            found.push(Entrance {
                service: ServiceId(id as u32),
                port: index as u32,
                open: open.map(|(backend, id)| (id, backend.port)).collect(),
                backends: pods.count(),
            });
        }
    }
    found
}
