//! The ends that are compared: endpoints by name, outside addresses, addresses of services.
//!
//! Invariants: an address that belongs to an endpoint on either side counts as that endpoint, not as an outside
//! address; as a destination, an address that belongs to a service on either side counts as the service. Outside
//! addresses are kept as ranges whose addresses neither side distinguishes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::cluster_side::{ClusterSide, PeerView};
use super::{AddressRange, DiffEndpoint, ServiceAddress};
use weir_classes::PeerId;
use weir_model::EndpointId;
use weir_objects::address::{Family, to_address, to_number};

/// Peer classes on both sides; `None` if the end does not exist there.
pub(super) type PeerPair = [Option<PeerId>; 2];

/// The ends of one family.
pub(super) struct FamilyEnds {
    pub(super) family: Family,
    /// By endpoint: its view on both sides, as it is compared in this family.
    pub(super) views: Vec<[PeerView; 2]>,
    pub(super) outside: Vec<Outside>,
    /// The addresses of endpoints on either side, sorted.
    taken: Vec<u128>,
    /// The same, with the addresses of services.
    taken_or_service: Vec<u128>,
}

/// Outside addresses that neither side distinguishes.
pub(super) struct Outside {
    pub(super) peers: PeerPair,
    /// Sorted, as numbers.
    pub(super) as_source: Vec<(u128, u128)>,
    /// Without addresses of services.
    pub(super) as_destination: Vec<(u128, u128)>,
}

/// Every endpoint that is on the network on a side, sorted by namespace and name.
pub(super) fn endpoints(sides: &[Option<ClusterSide<'_>>; 2]) -> Vec<DiffEndpoint> {
    let mut found: BTreeMap<(String, String, bool, String), [Option<EndpointId>; 2]> = BTreeMap::new();
    for (which, side) in sides.iter().enumerate() {
        let Some(side) = side else { continue };
        for (index, endpoint) in side.cluster.endpoints.iter().enumerate() {
            let id = EndpointId(index as u32);
            // Finished and pending pods, and pods whose only address another pod has: no packet is theirs.
            if [Family::V4, Family::V6].iter().all(|family| side.view(id, *family) == PeerView::Gone) {
                continue;
            }
            let namespace = side.cluster.namespaces[endpoint.namespace.index()].name.clone();
            // The kind is part of the identity: the Deployment `web` of the base and a Pod `web` of the head are two
            // endpoints. Pods come first among equal names.
            let key = (namespace, endpoint.name.clone(), endpoint.kind != "Pod", endpoint.kind.to_string());
            found.entry(key).or_default()[which] = Some(id);
        }
    }
    let make = |((namespace, name, _, kind), ids)| DiffEndpoint { namespace, name, kind, ids };
    found.into_iter().map(make).collect()
}

/// Every address of a service that does not belong to an endpoint, sorted.
pub(super) fn services(sides: &[Option<ClusterSide<'_>>; 2]) -> Vec<ServiceAddress> {
    let of =
        |side: &ClusterSide<'_>| -> BTreeSet<IpAddr> { side.cluster.frontends.iter().map(|it| it.address).collect() };
    let all: BTreeSet<IpAddr> = sides.iter().flatten().flat_map(of).collect();
    // If an endpoint has the address on either side, it counts as the endpoint on both. Otherwise one flow would be in
    // a row about the endpoint and in a row about the service.
    let is_free = |at: &IpAddr| sides.iter().flatten().all(|side| side.directory.endpoint_at(*at).is_none());
    let make = |address| {
        let on =
            |side: &Option<ClusterSide<'_>>| side.as_ref().map_or(Vec::new(), |it| it.services_at(address).to_vec());
        ServiceAddress { address, services: [on(&sides[0]), on(&sides[1])] }
    };
    let found = all.into_iter().filter(is_free).map(make);
    // None on either side with `service-address=address`: then the address is an ordinary one.
    found.filter(|it: &ServiceAddress| it.services.iter().any(|on| !on.is_empty())).collect()
}

impl FamilyEnds {
    pub(super) fn new(
        sides: &[Option<ClusterSide<'_>>; 2],
        endpoints: &[DiffEndpoint],
        services: &[ServiceAddress],
        family: Family,
    ) -> Self {
        let views: Vec<[PeerView; 2]> = endpoints.iter().map(|endpoint| views(sides, endpoint, family)).collect();
        let of_family = |address: IpAddr| Some(to_number(address)).filter(|it| it.0 == family).map(|it| it.1);
        let members = |side: &ClusterSide<'_>| -> Vec<u128> {
            let all = side.cluster.endpoints.iter().flat_map(|it| it.addresses.iter().copied());
            // Not every address that a pod's status lists: one that no pod has now is an outside address again.
            all.filter(|at| side.directory.endpoint_at(*at).is_some()).filter_map(of_family).collect()
        };
        // Of both sides: an address that a pod has only in the head is no outside address in the base, because the
        // pod's row describes the change.
        let taken: BTreeSet<u128> = sides.iter().flatten().flat_map(members).collect();
        let of_services: BTreeSet<u128> = services.iter().filter_map(|it| of_family(it.address)).collect();
        let taken_or_service = taken.union(&of_services).copied().collect();
        let outside = outside(sides, family, &taken, &of_services);
        Self { family, views, outside, taken: taken.into_iter().collect(), taken_or_service }
    }

    /// The classes of an endpoint as a peer.
    pub(super) fn peers(&self, endpoint: usize) -> PeerPair {
        self.views[endpoint].map(PeerView::peer)
    }

    /// The ranges of several classes, joined where only addresses of endpoints or services lie between them.
    pub(super) fn ranges(&self, classes: &[u32], as_source: bool) -> Vec<AddressRange> {
        let holes = if as_source { &self.taken } else { &self.taken_or_service };
        let of = |it: &u32| {
            let outside = &self.outside[*it as usize];
            if as_source { &outside.as_source } else { &outside.as_destination }
        };
        let mut all: Vec<(u128, u128)> = classes.iter().flat_map(of).copied().collect();
        all.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match joined.last_mut() {
                // Without this, every pod inside 10.0.0.0/8 would cut the description of the block in two.
                Some(before) if only_holes(holes, before.1, first) => before.1 = last,
                _ => joined.push((first, last)),
            }
        }
        let address = |number| to_address(self.family, number);
        joined.into_iter().map(|(first, last)| AddressRange { first: address(first), last: address(last) }).collect()
    }

    /// Whether an address is an outside address.
    pub(super) fn is_outside(&self, address: IpAddr, as_source: bool) -> bool {
        let holes = if as_source { &self.taken } else { &self.taken_or_service };
        holes.binary_search(&to_number(address).1).is_err()
    }
}

/// Whether all addresses between the two are holes.
fn only_holes(holes: &[u128], last: u128, first: u128) -> bool {
    // Counts instead of a walk from address to address: the gap can be most of the IPv6 space.
    let between = first.saturating_sub(last).saturating_sub(1);
    let from = holes.partition_point(|it| *it <= last);
    let to = holes.partition_point(|it| *it < first);
    (to - from) as u128 == between
}

fn views(sides: &[Option<ClusterSide<'_>>; 2], endpoint: &DiffEndpoint, family: Family) -> [PeerView; 2] {
    let on = |which: usize, family| match (&sides[which], endpoint.ids[which]) {
        (Some(side), Some(id)) => side.view(id, family),
        _ => PeerView::Gone,
    };
    let both = [on(0, family), on(1, family)];
    // An endpoint that has no address on one side is compared in the families of its addresses on the other side.
    match both {
        [PeerView::Any(_), PeerView::Gone] if endpoint.ids[1].is_some() => [PeerView::Gone; 2],
        [PeerView::Gone, PeerView::Any(_)] if endpoint.ids[0].is_some() => [PeerView::Gone; 2],
        _ => both,
    }
}

fn outside(
    sides: &[Option<ClusterSide<'_>>; 2],
    family: Family,
    taken: &BTreeSet<u128>,
    services: &BTreeSet<u128>,
) -> Vec<Outside> {
    let most = if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX };
    // From 0, so that addresses of class 0 are in a range too: a rule without peers allows them.
    let mut starts: BTreeSet<u128> = BTreeSet::from([0]);
    let mut cut = |first: u128, last: u128| {
        starts.insert(first);
        starts.extend(last.checked_add(1).filter(|next| *next <= most));
    };
    for side in sides.iter().flatten() {
        let map = &side.classes.addresses;
        let exact = map.exact().map(|(address, _)| (address, address));
        let ranges = map.ranges.iter().map(|it| (it.first, it.last));
        for (first, last) in exact.chain(ranges).filter(|it| Family::of(it.0) == family) {
            cut(to_number(first).1, to_number(last).1);
        }
    }
    // Cut out on both sides: the neighbours of a pod's address are outside addresses, the pod's address is not.
    taken.iter().chain(services).for_each(|address| cut(*address, *address));
    let starts: Vec<u128> = starts.into_iter().collect();
    let mut classes: HashMap<PeerPair, usize> = HashMap::new();
    let mut found: Vec<Outside> = Vec::new();
    for (index, first) in starts.iter().enumerate() {
        if taken.contains(first) {
            continue;
        }
        let last = starts.get(index + 1).map_or(most, |next| next - 1);
        // The first address represents all addresses before the next start: no rule of either side distinguishes them.
        let address = to_address(family, *first);
        let peers = sides.each_ref().map(|side| side.as_ref().map(|it| it.peer_outside(address)));
        // Ranges of one pair of classes are one participant, however many there are: a long list is one column of the
        // grid.
        let class = *classes.entry(peers).or_insert(found.len());
        if class == found.len() {
            found.push(Outside { peers, as_source: Vec::new(), as_destination: Vec::new() });
        }
        found[class].as_source.push((*first, last));
        // Services send nothing, so as a source the address is an ordinary one.
        if !services.contains(first) {
            found[class].as_destination.push((*first, last));
        }
    }
    found
}
