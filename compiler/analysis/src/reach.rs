//! Reachability in one cluster: the data behind `matrix`, `graph`, `exposure` and the HTML report.
//!
//! Problem: 100,000 pods are ten thousand million pairs, too many to read.
//! Strategy: endpoints of one workload that no rule or list in force distinguishes are one *party*; outside addresses
//! that none distinguishes are one *zone*. The traffic between two of them is read from the class tables: egress of the
//! one and ingress of the other must both allow it.
//! Invariants: exact, for every pair of a party's members. Services are left out, since their backends are judged
//! ([`exposure`] names the services); so are nodes: a pod and its own node always reach each other, and a pod always
//! reaches itself.

pub mod edges;
pub mod exposure;
mod parties;
pub mod ports;
pub mod possible;
mod zones;

pub use parties::workload_of;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use weir_classes as classify;
use weir_classes::{AtomSet, AtomSetId, Classes, ClassifyError, PeerId, Scope, SubjectId, classify};
use weir_model::directory::Directory;
use weir_model::{Cluster, Direction, EndpointId, Interner, NamespaceId, PolicyId, id};
use weir_objects::address::Family;

id!(/// A set of atoms that passes both ends. Prints as `cell3`.
    CellId, "cell");

impl CellId {
    /// Nothing passes.
    pub const NOTHING: Self = Self(0);
    /// Everything passes.
    pub const EVERYTHING: Self = Self(1);
}

/// Endpoints of one workload that no rule or list in force distinguishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// The workload's name, with a suffix if a workload is more than one party.
    pub name: String,
    /// `Pod`, or the workload's kind.
    pub kind: String,
    /// Its endpoints, sorted.
    pub members: Vec<EndpointId>,
    /// Its class as a subject.
    pub subject: SubjectId,
    /// Its class as a peer, for IPv4 and IPv6; `None` where it has no address of the family.
    pub peers: [Option<PeerId>; 2],
}

/// Addresses outside of the cluster that no rule or list in force distinguishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// IPv4 or IPv6.
    pub family: Family,
    /// Their class.
    pub peer: PeerId,
    /// Sorted, disjoint, both ends inclusive. Addresses of pods inside these ranges belong to the pods, not to the
    /// zone.
    pub ranges: Vec<(IpAddr, IpAddr)>,
}

/// One end of a connection. Sorted: parties by namespace and name, then zones by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReachEnd {
    /// An index into [`Reach::parties`].
    Party(u32),
    /// An index into [`Reach::zones`].
    Zone(u32),
}

/// The traffic that passes from one end to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Passes {
    /// The same over every family that both ends have.
    Cell(CellId),
    /// Different traffic over IPv4 and over IPv6.
    ByFamily(CellId, CellId),
}

impl Passes {
    /// Nothing at all.
    pub const NOTHING: Self = Self::Cell(CellId::NOTHING);
    /// Everything.
    pub const EVERYTHING: Self = Self::Cell(CellId::EVERYTHING);
}

/// Numbers of endpoints that are left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// On their node's network: their address is the node's.
    pub host_network: usize,
    /// Finished, not on the network yet, or without an address because another pod has it.
    pub absent: usize,
}

/// The parties and zones of a cluster, with the tables for their traffic.
#[derive(Debug)]
pub struct Reach<'c> {
    /// The cluster.
    pub cluster: &'c Cluster,
    /// Its classes, without nodes and services.
    pub classes: Classes,
    /// Sorted by namespace and name.
    pub parties: Vec<Party>,
    /// Sorted by family and first address.
    pub zones: Vec<Zone>,
    /// The endpoints that are in no party.
    pub left_out: LeftOut,
}

/// The traffic between ends, cached: the same pairs of table entries occur again and again.
#[derive(Debug)]
pub struct CellCache<'r> {
    reach: &'r Reach<'r>,
    sets: Interner<AtomSet>,
    known: HashMap<(AtomSetId, AtomSetId), CellId>,
    watch: Watch<'r>,
}

/// A function that gets the number of finished rows and the number of all rows.
#[derive(Clone, Copy)]
struct Watch<'w>(Option<&'w dyn Fn(u64, u64)>);

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.0.is_some()).finish()
    }
}

impl<'c> Reach<'c> {
    /// Finds the parties and zones of a cluster.
    pub fn new(cluster: &'c Cluster) -> Result<Self, ClassifyError> {
        let mut seen = Cow::Borrowed(cluster);
        // Left in, services and nodes would split zones and parties although they decide nothing here: services are
        // judged by their backends, and every pod reaches its node. Without nodes, no hostPort is found either.
        let reshaped = seen.to_mut();
        reshaped.services.clear();
        reshaped.frontends.clear();
        reshaped.endpoints.iter_mut().for_each(|it| it.node = None);
        let given = classify::stand_ins(&mut seen);
        let by_address: BTreeMap<IpAddr, EndpointId> = given.iter().map(|(id, address)| (*address, *id)).collect();
        let scope = Scope::everything(&seen).with_stand_ins(by_address);
        let classes = classify(&seen, &scope)?;
        let (mut parties, left_out) = parties::parties(&seen, &classes);
        possible::remove_repeated(cluster, &mut parties);
        let directory = Directory::new(&seen);
        // The placeholder addresses of endpoints belong to no zone.
        let given: HashSet<IpAddr> = given.into_iter().map(|(_, address)| address).collect();
        let is_pod = |at| directory.endpoint_at(at).is_some() || given.contains(&at);
        let zones = zones::zones(&classes, is_pod);
        Ok(Self { cluster, classes, parties, zones, left_out })
    }

    /// All ends, parties first.
    pub fn all_ends(&self) -> Vec<ReachEnd> {
        let parties = (0..self.parties.len() as u32).map(ReachEnd::Party);
        parties.chain((0..self.zones.len() as u32).map(ReachEnd::Zone)).collect()
    }

    /// The policies that isolate a party.
    pub fn isolating(&self, direction: Direction, party: &Party) -> impl Iterator<Item = PolicyId> + '_ {
        let policies = self.classes.subjects[party.subject.index()].policies.iter().copied();
        policies.filter(move |id| self.cluster.policies[id.index()].rules(direction).is_some())
    }

    /// Whether any policy isolates a party in a direction.
    pub fn is_isolated(&self, direction: Direction, party: &Party) -> bool {
        self.isolating(direction, party).next().is_some()
    }

    /// The name of a namespace.
    pub fn namespace(&self, id: NamespaceId) -> &'c str {
        &self.cluster.namespaces[id.index()].name
    }

    /// `namespace/name` of a party.
    pub fn party_name(&self, party: &Party) -> String {
        format!("{}/{}", self.namespace(party.namespace), party.name)
    }

    fn peer(&self, who: ReachEnd, family: Family) -> Option<PeerId> {
        match who {
            ReachEnd::Party(index) => self.parties[index as usize].peers[family as usize],
            ReachEnd::Zone(index) => {
                Some(&self.zones[index as usize]).filter(|it| it.family == family).map(|it| it.peer)
            }
        }
    }

    fn subject(&self, who: ReachEnd) -> Option<SubjectId> {
        match who {
            ReachEnd::Party(index) => Some(self.parties[index as usize].subject),
            ReachEnd::Zone(_) => None,
        }
    }
}

impl<'r> CellCache<'r> {
    /// An empty cache.
    pub fn new(reach: &'r Reach<'r>) -> Self {
        let count = reach.classes.atoms.count();
        // In this order: their numbers are `NOTHING` and `EVERYTHING`.
        let mut sets = Interner::default();
        let first = [AtomSet::none(count), AtomSet::all(count)].map(|set| CellId(sets.intern(set)));
        debug_assert_eq!(first, [CellId::NOTHING, CellId::EVERYTHING]);
        Self { reach, sets, known: HashMap::new(), watch: Watch(None) }
    }

    /// The same cache. Functions that go through all pairs of ends then call `watch` for each row.
    pub fn watched(self, watch: &'r dyn Fn(u64, u64)) -> Self {
        Self { watch: Watch(Some(watch)), ..self }
    }

    /// Calls the watch with the number of finished rows.
    pub fn report(&self, finished: usize, all: usize) {
        if let Some(watch) = self.watch.0 {
            watch(finished as u64, all as u64);
        }
    }

    /// The set of a number.
    pub fn set(&self, id: CellId) -> &AtomSet {
        &self.sets[id.index()]
    }

    /// The number of a set; a new set gets the next number.
    pub fn intern(&mut self, set: AtomSet) -> CellId {
        CellId(self.sets.intern(set))
    }

    /// The traffic that passes from one end to another; `None` if they have no address family in common, or if both are
    /// outside addresses. From an end to itself, it is the traffic between two of its members.
    pub fn passes(&mut self, from: ReachEnd, to: ReachEnd) -> Option<Passes> {
        match [Family::V4, Family::V6].map(|family| self.passes_over(family, from, to)) {
            [None, None] => None,
            // One common family only: naming it would suggest that the other one is denied.
            [Some(only), None] | [None, Some(only)] => Some(Passes::Cell(only)),
            [Some(v4), Some(v6)] if v4 == v6 => Some(Passes::Cell(v4)),
            [Some(v4), Some(v6)] => Some(Passes::ByFamily(v4, v6)),
        }
    }

    /// The traffic, in words.
    pub fn words(&self, passes: Passes) -> String {
        let words = |id| ports::words(&self.reach.classes.atoms, self.set(id));
        match passes {
            Passes::Cell(cell) => words(cell),
            Passes::ByFamily(v4, v6) => format!("{} over IPv4, {} over IPv6", words(v4), words(v6)),
        }
    }

    fn passes_over(&mut self, family: Family, from: ReachEnd, to: ReachEnd) -> Option<CellId> {
        let reach = self.reach;
        let (from_peer, to_peer) = (reach.peer(from, family)?, reach.peer(to, family)?);
        let find =
            |direction, who, peer| reach.subject(who).map(|subject| reach.classes.row(direction, subject).find(peer));
        match (find(Direction::Egress, from, to_peer), find(Direction::Ingress, to, from_peer)) {
            (None, None) => None,
            // The other end is outside, where no policy of this cluster applies, so one end decides alone.
            (Some(one), None) | (None, Some(one)) => Some(self.both(one, one)),
            (Some(egress), Some(ingress)) => Some(self.both(egress, ingress)),
        }
    }

    fn both(&mut self, one: AtomSetId, other: AtomSetId) -> CellId {
        // By pairs of sets, not by pairs of ends: ten thousand parties have few different sets.
        if let Some(id) = self.known.get(&(one, other)) {
            return *id;
        }
        let sets = &self.reach.classes.rows.atom_sets;
        let mut set = sets[one.index()].clone();
        set.intersect(&sets[other.index()]);
        let id = self.intern(set);
        self.known.insert((one, other), id);
        id
    }
}
