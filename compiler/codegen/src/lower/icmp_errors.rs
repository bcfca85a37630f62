//! The atom of ICMP errors about live flows.
//!
//! Problem: policies do not apply to ICMP errors, because any router on the path of a flow must be able to report that
//! a packet is too big. Deny lists must apply to their senders: otherwise a listed machine could send the pod data in
//! the errors' quotations.
//! Strategy: one more atom. A set contains it unless a list denies the peer class. The programs test it with the
//! look-ups of a new flow, so errors need no map of their own, and verification covers them as it covers ports. The
//! alternative, a map of denied senders, would repeat the classes and would need a proof of its own.
//! Invariants: only ingress asks for the atom. An egress set contains the atom if it contains [`Atoms::REST`], so no
//! two egress sets differ in the atom alone.

use std::collections::{BTreeSet, HashMap};

use weir_classes::{AtomId, AtomSet, AtomSetId, Atoms, Classes, PeerId, Row};

/// The rows of the classes, of both directions, and the sets that they name.
pub(super) struct Extended {
    pub(super) enforced: [Vec<Row>; 2],
    pub(super) audit: Option<[Vec<Row>; 2]>,
    pub(super) sets: Vec<AtomSet>,
    pub(super) atoms: usize,
    /// The atom of ICMP errors, if lists deny any sender.
    pub(super) icmp_errors: Option<AtomId>,
}

impl Extended {
    pub(super) fn new(classes: &Classes) -> Self {
        let enforced = [&classes.ingress, &classes.egress];
        match &classes.denied_by_lists {
            Some(denied) => extend(classes, enforced, denied),
            None => Self {
                enforced: enforced.map(Clone::clone),
                audit: classes.audit.clone(),
                sets: classes.atom_sets.clone(),
                atoms: classes.atoms.count(),
                icmp_errors: None,
            },
        }
    }
}

fn extend(classes: &Classes, enforced: [&Vec<Row>; 2], denied: &[Vec<PeerId>]) -> Extended {
    let atom = AtomId(classes.atoms.count() as u32);
    let mut extender = Extender { sets: &classes.atom_sets, atom, list: Vec::new(), known: HashMap::new() };
    let enforced = extender.both(enforced, denied);
    let audit = classes.audit.as_ref().map(|rows| extender.both(rows.each_ref(), denied));
    Extended { enforced, audit, sets: extender.list, atoms: atom.index() + 1, icmp_errors: Some(atom) }
}

struct Extender<'a> {
    sets: &'a [AtomSet],
    atom: AtomId,
    list: Vec<AtomSet>,
    /// The number of a set with the atom, and of one without.
    known: HashMap<(AtomSetId, bool), AtomSetId>,
}

impl Extender<'_> {
    fn both(&mut self, [ingress, egress]: [&Vec<Row>; 2], denied: &[Vec<PeerId>]) -> [Vec<Row>; 2] {
        let ingress = ingress.iter().zip(denied).map(|(row, denied)| self.ingress(row, denied)).collect();
        [ingress, egress.iter().map(|row| self.egress(row)).collect()]
    }

    fn ingress(&mut self, row: &Row, denied: &[PeerId]) -> Row {
        let default = self.set(row.default, true);
        let peers: BTreeSet<PeerId> = row.entries.iter().map(|(peer, _)| *peer).chain(denied.iter().copied()).collect();
        let mut set = |peer| self.set(row.find(peer), denied.binary_search(&peer).is_err());
        let entries = peers.into_iter().map(|peer| (peer, set(peer)));
        Row { default, entries: entries.filter(|(_, set)| *set != default).collect() }
    }

    fn egress(&mut self, row: &Row) -> Row {
        let mut set = |id: AtomSetId| self.set(id, self.sets[id.index()].contains(Atoms::REST));
        let default = set(row.default);
        Row { default, entries: row.entries.iter().map(|(peer, id)| (*peer, set(*id))).collect() }
    }

    fn set(&mut self, id: AtomSetId, hears_errors: bool) -> AtomSetId {
        *self.known.entry((id, hears_errors)).or_insert_with(|| {
            let mut set = self.sets[id.index()].widened(self.atom.index() + 1);
            if hears_errors {
                set.insert(self.atom);
            }
            self.list.push(set);
            AtomSetId(self.list.len() as u32 - 1)
        })
    }
}
