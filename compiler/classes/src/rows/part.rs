//! The part of all rows that a change of services or new peer classes can make others.
//!
//! Problem: a service that comes or gets a backend of another class changes one entry of each egress row, and a new
//! peer class adds one. To make all rows again would cost a match of all rules with all classes.
//! Strategy: [`RowPart`] names the classes whose entries are made, and the row builder examines only these, and the
//! classes of the backends that decide about them. All other entries stay.
//! Invariant: three things decide about the entry of a special address: the class of the address, the classes of the
//! backends of all services and hostPorts that claim a port of it, and the rules. `special_set` asks for no other
//! class. For a class that is not examined, a row would have the verdict of a class that no rule matches, so debug
//! builds panic.

use std::collections::BTreeSet;

use super::facts::Matching;
use super::{Row, RowBuilder, RowFacts};
use crate::peers::Peers;
use crate::ports::AtomSetId;
use crate::vips::VipPort;
use crate::{PeerClass, PeerId, SubjectClass};
use weir_model::{Direction, ServiceId};
use weir_objects::address::Family;

/// Changes of services that can change the entries of their addresses.
#[derive(Debug, Default)]
pub(crate) struct SpecialChanges {
    /// Those with a port that is judged by other backends.
    pub(crate) services: BTreeSet<ServiceId>,
    /// The elements of [`Peers::vips`] that are others.
    pub(crate) vips: BTreeSet<u32>,
    /// Whether there are other node ports.
    pub(crate) node_ports: bool,
}

/// The classes whose entries a change adds to rows or makes others.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartClasses {
    /// Classes are new from this number on.
    pub(crate) first_new: usize,
    /// Special classes below it, sorted.
    pub(crate) again: Vec<PeerId>,
}

/// The entries of rows that a builder makes, if it does not make whole rows.
pub(super) struct RowPart {
    classes: PartClasses,
    /// The special ones of these classes.
    pub(super) special: Vec<PeerId>,
    /// These classes, and those of the backends that decide about them.
    pub(super) matching: Matching,
}

impl RowPart {
    /// Whether the entry of a class is made. For packets to a pod, special addresses are like others.
    pub(super) fn contains(&self, direction: Direction, peer: PeerId) -> bool {
        self.is_new(peer) || (direction == Direction::Egress && self.classes.again.binary_search(&peer).is_ok())
    }

    fn is_new(&self, peer: PeerId) -> bool {
        peer.index() >= self.classes.first_new
    }
}

impl RowFacts {
    /// The special classes with numbers below `first_new` that such changes can make others.
    pub(crate) fn special_of(&self, changes: &SpecialChanges, first_new: usize, peers: &Peers) -> Vec<PeerId> {
        let SpecialChanges { services, vips, node_ports } = changes;
        if services.is_empty() && vips.is_empty() && !node_ports {
            return Vec::new();
        }
        let claims = |port: &VipPort| services.contains(&port.service);
        let numbered = (0..).zip(&*peers.vips);
        let vips: Vec<bool> =
            numbered.map(|(number, vip)| vips.contains(&number) || vip.ports.iter().any(claims)).collect();
        let of_nodes = *node_ports || self.node_ports.iter().any(claims);
        let is_other =
            |peer: &PeerClass| peer.vip.is_some_and(|vip| vips[vip as usize]) || (of_nodes && !peer.nodes.is_empty());
        let known = self.special.iter().filter(|id| id.index() < first_new);
        known.filter(|id| is_other(&peers.list[id.index()])).copied().collect()
    }
}

impl RowBuilder<'_> {
    /// From here on, only the entries of these classes are made.
    pub(crate) fn begin_part(&mut self, classes: PartClasses) {
        let new = self.facts.special.iter().filter(|id| id.index() >= classes.first_new);
        let special: Vec<PeerId> = classes.again.iter().chain(new).copied().collect();
        let mut examined: BTreeSet<PeerId> = special.iter().flat_map(|id| self.behind_address(*id)).collect();
        examined.extend(&classes.again);
        let examined = examined.into_iter().filter(|id| id.index() < classes.first_new).collect();
        let matching = Matching::new(examined, classes.first_new, self.rules, &self.peers.list);
        self.part = Some(RowPart { classes, special, matching });
        // They are of other classes.
        self.tier_rows.take();
    }

    /// From here on, whole rows are made.
    pub(crate) fn end_part(&mut self) {
        self.part = None;
        self.tier_rows.take();
    }

    /// The classes of the backends that can decide about an address.
    fn behind_address(&self, id: PeerId) -> Vec<PeerId> {
        let peer = self.peer(id);
        let of_nodes = if peer.nodes.is_empty() { &[][..] } else { &self.facts.node_ports };
        let ports = peer.vip.iter().flat_map(|vip| &self.peers.vips[*vip as usize].ports).chain(of_nodes);
        let families = [Family::V4, Family::V6];
        let of_services =
            ports.flat_map(|it| families.map(|family| self.facts.behind_port(it.service.0, it.port, family)));
        let host_ports = peer.host_ports.iter().map(|index| &self.cluster.host_ports[*index as usize]);
        let of_host_ports = host_ports.map(|it| self.stands_behind(&it.backend, it.protocol).peer);
        of_services.flatten().map(|it| it.peer).chain(of_host_ports).collect()
    }

    /// The row with the entries of the part.
    pub(crate) fn with_part(&mut self, direction: Direction, subject: &SubjectClass, row: &Row) -> Row {
        let made = self.row(direction, subject);
        // Two numbers can have the same set, since ports were cut again. After a limit, the entries are incomplete.
        let set = |id: AtomSetId| &self.sets[id.0 as usize];
        debug_assert!(self.meter.check().is_err() || set(made.default) == set(row.default), "only entries are others");
        let is_of_part = |peer: PeerId| self.part.as_ref().is_some_and(|part| part.contains(direction, peer));
        if row.entries.iter().filter(|(peer, _)| is_of_part(*peer)).eq(made.entries.iter()) {
            return row.clone();
        }
        let kept = row.entries.iter().filter(|(peer, _)| !is_of_part(*peer));
        let mut entries: Vec<_> = kept.chain(made.entries.iter()).copied().collect();
        entries.sort_unstable_by_key(|(peer, _)| *peer);
        Row { default: row.default, entries: entries.into() }
    }

    /// The new classes that lists deny.
    pub(crate) fn new_denied_by_lists(&self, direction: Direction, subject: &SubjectClass) -> Vec<PeerId> {
        let mut denied = self.denied_by_lists(direction, subject);
        denied.retain(|peer| self.part.as_ref().is_some_and(|part| part.is_new(*peer)));
        denied
    }
}
