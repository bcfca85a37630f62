//! The differences of one family, as regions: from all of these sources to all of those destinations.
//!
//! Strategy: the [`Grid`] classifies all ends. Pairs of classes are then related for each kind of ends: endpoints to
//! endpoints, endpoints to outside addresses, outside addresses to endpoints, and endpoints to services. Regions
//! of the first three kinds that have the same sources or the same destinations are merged.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::boxes::relate;
use super::cells::{CellTable, PartId};
use super::cluster_side::ClusterSide;
use super::grid::{Actor, Destination, Grid, GridEnd, SourceClass};
use super::tables::{EntryTables, Gate, SubjectEnd};
use super::universe::FamilyEnds;
use super::{DiffEndpoint, Presence, ServiceAddress};
use weir_objects::address::Family;

/// The sources or destinations of a region: numbers of endpoints, of outside classes, of services; each sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RegionMembers {
    pub(super) endpoints: Vec<u32>,
    pub(super) outside: Vec<u32>,
    pub(super) services: Vec<u32>,
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DiffRegion {
    pub(super) part: PartId,
    pub(super) source: RegionMembers,
    pub(super) destination: RegionMembers,
}

/// Every difference of a family.
pub(super) fn regions(
    tables: &mut EntryTables<'_, '_>,
    cells: &mut CellTable,
    frame: &FamilyEnds,
    endpoints: &[DiffEndpoint],
    services: &[ServiceAddress],
) -> Vec<DiffRegion> {
    let actors = actors(tables.sides, frame, endpoints, services);
    // One grid for all kinds of ends, because a policy does not know the kind of the other end. The kinds are related
    // one by one, so that a row about services can be apart from the row about their backends.
    let grid = Grid::new(tables, &actors);
    let is = |it: &&Actor, sort: MemberKind| sort.has(it.who);
    let sources = |sort| group(actors.iter().filter(|it| is(it, sort)), |it| grid.source(it));
    let destinations = |sort| group(actors.iter().filter(|it| is(it, sort)), |it| grid.destination(it));
    let mut relate = |from: MemberKind, to: MemberKind| {
        let (from, to): (MemberClasses<SourceClass>, MemberClasses<Destination>) = (sources(from), destinations(to));
        let products = relate(tables, cells, &grid, &from.classes, &to.classes);
        let region = |part, (sources, destinations): (Vec<u32>, Vec<u32>)| DiffRegion {
            part,
            source: from.members(&sources),
            destination: to.members(&destinations),
        };
        let of_part = |(part, products): (PartId, Vec<_>)| products.into_iter().map(move |it| (part, it));
        products.into_iter().flat_map(of_part).map(|(part, product)| region(part, product)).collect::<Vec<DiffRegion>>()
    };
    // Outside to outside is missing: no policy judges it. So is anything to services from outside: it arrives at the
    // backends.
    let mut found = relate(MemberKind::Endpoint, MemberKind::Endpoint);
    found.extend(relate(MemberKind::Outside, MemberKind::Endpoint));
    // First the sources of the same destinations, then the destinations of the same sources: a region that has gained
    // outside sources can still gain outside destinations. So "all pods, and any outside address" is one row.
    let found = join(found, |it| (it.part, it.destination.clone()), |into, it| into.source.add(it.source));
    let mut found: Vec<DiffRegion> =
        found.into_iter().chain(relate(MemberKind::Endpoint, MemberKind::Outside)).collect();
    found = join(found, |it| (it.part, it.source.clone()), |into, it| into.destination.add(it.destination));
    // Never joined: rows about services follow from rows about their backends, and are listed after them.
    found.extend(relate(MemberKind::Endpoint, MemberKind::Service));
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberKind {
    Endpoint,
    Outside,
    Service,
}

impl MemberKind {
    fn has(self, who: GridEnd) -> bool {
        matches!(
            (self, who),
            (Self::Endpoint, GridEnd::Endpoint(_))
                | (Self::Outside, GridEnd::Outside(_))
                | (Self::Service, GridEnd::Service(_))
        )
    }
}

/// Classes with who is in them.
struct MemberClasses<C> {
    classes: Vec<C>,
    members: Vec<Vec<GridEnd>>,
}

fn group<'a, C: Ord>(actors: impl Iterator<Item = &'a Actor>, class: impl Fn(&Actor) -> Option<C>) -> MemberClasses<C> {
    let mut found: BTreeMap<C, Vec<GridEnd>> = BTreeMap::new();
    for actor in actors {
        if let Some(class) = class(actor) {
            found.entry(class).or_default().push(actor.who);
        }
    }
    let (classes, members) = found.into_iter().unzip();
    MemberClasses { classes, members }
}

impl<C> MemberClasses<C> {
    fn members(&self, classes: &[u32]) -> RegionMembers {
        let mut members = RegionMembers::default();
        for who in classes.iter().flat_map(|it| &self.members[*it as usize]) {
            match who {
                GridEnd::Endpoint(id) => members.endpoints.push(*id),
                GridEnd::Outside(id) => members.outside.push(*id),
                GridEnd::Service(id) => members.services.push(*id),
            }
        }
        members.sort();
        members
    }
}

impl RegionMembers {
    pub(super) fn add(&mut self, other: Self) {
        self.endpoints.extend(other.endpoints);
        self.outside.extend(other.outside);
        self.services.extend(other.services);
        self.sort();
    }

    fn sort(&mut self) {
        for list in [&mut self.endpoints, &mut self.outside, &mut self.services] {
            list.sort_unstable();
            list.dedup();
        }
    }
}

/// Regions with the same key are one.
fn join<K: Ord>(
    regions: Vec<DiffRegion>,
    key: impl Fn(&DiffRegion) -> K,
    add: impl Fn(&mut DiffRegion, DiffRegion),
) -> Vec<DiffRegion> {
    // Sorted by key, since the order of regions decides which of them are paired across the families.
    let mut joined: BTreeMap<K, DiffRegion> = BTreeMap::new();
    for region in regions {
        match joined.entry(key(&region)) {
            std::collections::btree_map::Entry::Vacant(free) => _ = free.insert(region),
            std::collections::btree_map::Entry::Occupied(mut known) => add(known.get_mut(), region),
        }
    }
    joined.into_values().collect()
}

fn actors(
    sides: &[Option<ClusterSide<'_>>; 2],
    frame: &FamilyEnds,
    endpoints: &[DiffEndpoint],
    services: &[ServiceAddress],
) -> Vec<Actor> {
    // On a side that does not exist (a survey's base) even outside addresses allow nothing. So everything is new.
    let free = sides.each_ref().map(|side| if side.is_some() { SubjectEnd::Free } else { SubjectEnd::Absent });
    let mut actors: Vec<Actor> = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let peers = frame.peers(index);
        let end = |which: usize| match (&sides[which], endpoint.ids[which], peers[which]) {
            // Without a peer class it has no address of this family, so in this family it does not exist. A
            // host-network pod has a class but is no subject: policies do not apply to it.
            (Some(side), Some(id), Some(_)) => side.subject(id).map_or(SubjectEnd::Free, SubjectEnd::Subject),
            _ => SubjectEnd::Absent,
        };
        let presence = match [end(0), end(1)] {
            [SubjectEnd::Absent, SubjectEnd::Absent] => continue,
            [SubjectEnd::Absent, _] => Presence::Appeared,
            [_, SubjectEnd::Absent] => Presence::Disappeared,
            _ => Presence::Kept,
        };
        let ends = [end(0), end(1)];
        let who = GridEnd::Endpoint(index as u32);
        // A service can claim ports of a pod's own address (`externalIPs`), so endpoints as destinations have frontends
        // too.
        let address = |which: usize| frame.views[index][which].address();
        let entrance = Some(Gate { ends, frontends: [0, 1].map(|which| claimed(&sides[which], address(which))) });
        actors.push(Actor { who, presence, exit: Some(Gate { ends, frontends: [None; 2] }), entrance, peers });
    }
    for (index, outside) in frame.outside.iter().enumerate() {
        let gate = Gate { ends: free, frontends: [None; 2] };
        actors.push(Actor {
            who: GridEnd::Outside(index as u32),
            presence: Presence::Kept,
            exit: Some(gate.clone()),
            // If services have all addresses of the class, it can only be a source.
            entrance: Some(gate).filter(|_| !outside.as_destination.is_empty()),
            peers: outside.peers,
        });
    }
    for (index, service) in services.iter().enumerate().filter(|it| Family::of(it.1.address) == frame.family) {
        actors.push(Actor {
            // Kept, even if only one side has the service: on the other side the address exists as an ordinary one.
            who: GridEnd::Service(index as u32),
            presence: Presence::Kept,
            exit: None,
            entrance: Some(Gate {
                ends: free,
                frontends: sides.each_ref().map(|side| claimed(side, Some(service.address))),
            }),
            peers: sides.each_ref().map(|side| side.as_ref().map(|it| it.classes.peer_at(service.address))),
        });
    }
    actors
}

/// The address, if services claim ports of it.
fn claimed(side: &Option<ClusterSide<'_>>, address: Option<IpAddr>) -> Option<IpAddr> {
    let has_ports = |at: &IpAddr| side.as_ref()?.frontend(*at).map(|it| !it.ports.is_empty());
    address.filter(|at| has_ports(at) == Some(true))
}
