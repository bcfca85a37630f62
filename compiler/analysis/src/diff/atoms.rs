//! Ports that neither side distinguishes, and sets of them, each stored once.

use std::collections::{BTreeSet, HashMap};

use super::RowTraffic;
use super::cluster_side::ClusterSide;
use weir_classes::{AtomId, AtomSet, AtomSetId, Atoms, PortSpec};
use weir_model::{Interner, Protocol};

number!(
    /// A set of joint atoms.
    SetId
);

impl SetId {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(1);
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The atoms of both sides, cut by each other. Atom 0 is all traffic without ports.
pub(super) struct JointAtoms {
    /// Sorted; together every port from 1 on.
    intervals: Vec<(PortSpec, u32)>,
    /// For each joint atom, its atoms on both sides.
    on: Vec<[AtomId; 2]>,
    sets: Interner<AtomSet>,
    /// A cache, by side and set of that side.
    mapped: [HashMap<AtomSetId, SetId>; 2],
}

impl JointAtoms {
    pub(super) fn new(sides: &[Option<ClusterSide<'_>>; 2]) -> Self {
        let mut it = Self {
            intervals: Vec::new(),
            // Joint atom 0 first: every side's atom 0 contains the traffic without ports.
            on: vec![[Atoms::REST; 2]],
            sets: Interner::default(),
            mapped: [HashMap::new(), HashMap::new()],
        };
        let service_ports = service_ports(sides);
        type AtomKey = ([AtomId; 2], Option<(Protocol, u16)>);
        let mut known: HashMap<AtomKey, u32> = HashMap::new();
        for protocol in PROTOCOLS {
            let starts = starts(sides, protocol, &service_ports);
            // Every cut of either side, so that between two starts neither side distinguishes two ports.
            for (index, first) in starts.iter().enumerate() {
                let last = starts.get(index + 1).map_or(u16::MAX, |next| next - 1);
                let find = |side: &Option<ClusterSide<'_>>| {
                    // A side that does not exist allows nothing, so it distinguishes no ports.
                    side.as_ref().map_or(Atoms::REST, |it| it.classes.atoms.find(protocol, *first))
                };
                let on = [find(&sides[0]), find(&sides[1])];
                // A service port leads to other destinations than its neighbours, even if no rule distinguishes them.
                let service = Some((protocol, *first)).filter(|it| service_ports.contains(it));
                let atom = *known.entry((on, service)).or_insert(it.on.len() as u32);
                if atom as usize == it.on.len() {
                    it.on.push(on);
                }
                it.intervals.push((PortSpec { protocol, first: *first, last }, atom));
            }
        }
        // In this order, and before any other set: [`SetId::NONE`] and [`SetId::ALL`] are their numbers.
        it.intern(AtomSet::none(it.on.len()));
        it.intern(AtomSet::all(it.on.len()));
        it
    }

    pub(super) fn intern(&mut self, set: AtomSet) -> SetId {
        SetId(self.sets.intern(set))
    }

    pub(super) fn get(&self, id: SetId) -> &AtomSet {
        &self.sets[id.index()]
    }

    /// A side's set, in joint atoms.
    pub(super) fn of_side(&mut self, which: usize, side: &ClusterSide<'_>, id: AtomSetId) -> SetId {
        // A row has thousands of entries and few different sets, and each conversion visits every joint atom.
        if let Some(known) = self.mapped[which].get(&id) {
            return *known;
        }
        let joint = self.joint(which, &side.classes.rows.atom_sets[id.index()]);
        let joint = self.intern(joint);
        self.mapped[which].insert(id, joint);
        joint
    }

    /// A side's atoms, in joint atoms.
    pub(super) fn joint(&self, which: usize, set: &AtomSet) -> AtomSet {
        let mut joint = AtomSet::none(self.on.len());
        let inside = self.on.iter().enumerate().filter(|(_, on)| set.contains(on[which]));
        inside.for_each(|(atom, _)| joint.insert(AtomId(atom as u32)));
        joint
    }

    /// The joint atom of a port.
    pub(super) fn find(&self, protocol: Protocol, port: u16) -> AtomId {
        let after = self.intervals.partition_point(|(it, _)| (it.protocol, it.first) <= (protocol, port));
        // The intervals cover every port from 1 on, so only port 0 is before all of them.
        AtomId(after.checked_sub(1).map_or(0, |index| self.intervals[index].1))
    }

    /// The traffic of a set.
    pub(super) fn traffic(&self, id: SetId) -> RowTraffic {
        let set = self.get(id);
        let mut ranges: Vec<PortSpec> = Vec::new();
        // Neighbours of one set are joined, although they are different atoms: a cut that only an unchanged rule needs
        // is not shown.
        for (spec, _) in self.intervals.iter().filter(|(_, atom)| set.contains(AtomId(*atom))) {
            match ranges.last_mut() {
                Some(before) if before.protocol == spec.protocol && before.last.checked_add(1) == Some(spec.first) => {
                    before.last = spec.last;
                }
                _ => ranges.push(*spec),
            }
        }
        RowTraffic { ranges, portless: set.contains(AtomId(0)), named: Vec::new() }
    }
}

fn service_ports(sides: &[Option<ClusterSide<'_>>; 2]) -> BTreeSet<(Protocol, u16)> {
    let frontends = sides.iter().flatten().flat_map(|side| &side.cluster.frontends);
    frontends.flat_map(|it| &it.at.ports).map(|port| (port.protocol, port.port)).collect()
}

/// The first ports of all ranges. Port 0 is left out.
fn starts(
    sides: &[Option<ClusterSide<'_>>; 2],
    protocol: Protocol,
    service_ports: &BTreeSet<(Protocol, u16)>,
) -> Vec<u16> {
    let mut starts: BTreeSet<u16> = BTreeSet::from([1]);
    let mut cut = |first: u16, last: u16| {
        // A range from port 0 (a rule without `port`) begins at port 1 here, or it would make an interval of its own.
        starts.insert(first.max(1));
        // `None` after port 65535, where no further interval begins.
        starts.extend(last.checked_add(1));
    };
    for side in sides.iter().flatten() {
        let of_protocol = side.classes.atoms.intervals.iter().filter(|it| it.spec.protocol == protocol);
        of_protocol.for_each(|it| cut(it.spec.first, it.spec.last));
    }
    service_ports.iter().filter(|it| it.0 == protocol).for_each(|(_, port)| cut(*port, *port));
    starts.into_iter().collect()
}
