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

use weir_classes::{AtomId, AtomSet, AtomSetId, Atoms, Classes, PeerId, Row};

use crate::structures::Room;

/// The rows of the classes, of both directions, and the sets that they name.
pub(super) struct Extended {
    pub(super) enforced: [Vec<Row>; 2],
    pub(super) audit: Option<[Vec<Row>; 2]>,
    pub(super) sets: Vec<AtomSet>,
    /// The number of atoms. With room, it is rounded up to whole words of a set, and a set that has every atom has also
    /// those that do not exist.
    pub(super) atoms: usize,
    /// The atom of ICMP errors, if lists deny any sender.
    pub(super) icmp_errors: Option<AtomId>,
}

impl Extended {
    pub(super) fn new(classes: &Classes, room: Room) -> Self {
        let mut extended = Self::exact(classes, room);
        if room == Room::Rounded {
            extended.fill_words(classes.atoms.count());
        }
        extended
    }

    fn exact(classes: &Classes, room: Room) -> Self {
        let enforced = [&classes.rows.ingress, &classes.rows.egress];
        match &classes.rows.denied_by_lists {
            Some(denied) => extend(classes, enforced, denied, room),
            None => Self {
                enforced: enforced.map(Clone::clone),
                audit: classes.rows.audit.clone(),
                sets: classes.rows.atom_sets.clone(),
                atoms: classes.atoms.count(),
                icmp_errors: None,
            },
        }
    }

    /// Rounds the number of atoms up to whole words. `count` is the number of atoms of ports. Programs compare sets
    /// with the full set, so without this each new port would change them.
    fn fill_words(&mut self, count: usize) {
        let mut every = AtomSet::all(count).widened(self.atoms);
        self.icmp_errors.into_iter().for_each(|atom| every.insert(atom));
        self.atoms = self.atoms.next_multiple_of(WORD);
        let full = AtomSet::all(self.atoms);
        self.sets.iter_mut().filter(|set| **set == every).for_each(|set| set.clone_from(&full));
    }
}

/// The atoms in a word of a set.
const WORD: usize = 64;

fn extend(classes: &Classes, enforced: [&Vec<Row>; 2], denied: &[Vec<PeerId>], room: Room) -> Extended {
    let first_free = classes.atoms.count();
    // Programs contain this number. With room it is the last one of a word, so that a new port does not change it.
    let atom = AtomId(if room == Room::Exact { first_free } else { first_free | (WORD - 1) } as u32);
    let sets = &classes.rows.atom_sets;
    let mut extender = Extender { sets, atom, list: Vec::new(), known: vec![[None; 2]; sets.len()] };
    let enforced = extender.both(enforced, denied);
    let audit = classes.rows.audit.as_ref().map(|rows| extender.both(rows.each_ref(), denied));
    Extended { enforced, audit, sets: extender.list, atoms: atom.index() + 1, icmp_errors: Some(atom) }
}

struct Extender<'a> {
    sets: &'a [AtomSet],
    atom: AtomId,
    list: Vec<AtomSet>,
    /// For each set, the number of the one without the atom, and of the one with it. This is asked for each entry of
    /// each row.
    known: Vec<[Option<AtomSetId>; 2]>,
}

impl Extender<'_> {
    fn both(&mut self, [ingress, egress]: [&Vec<Row>; 2], denied: &[Vec<PeerId>]) -> [Vec<Row>; 2] {
        let ingress = ingress.iter().zip(denied).map(|(row, denied)| self.ingress(row, denied)).collect();
        [ingress, egress.iter().map(|row| self.egress(row)).collect()]
    }

    fn ingress(&mut self, row: &Row, denied: &[PeerId]) -> Row {
        let default = self.set(row.default, true);
        let mut entries = Vec::with_capacity(row.entries.len());
        let mut denied = denied.iter().peekable();
        for (peer, id) in row.entries.iter() {
            while let Some(before) = denied.next_if(|it| *it < peer) {
                entries.push((*before, self.set(row.default, false)));
            }
            let is_denied = denied.next_if(|it| *it == peer).is_some();
            entries.push((*peer, self.set(*id, !is_denied)));
        }
        entries.extend(denied.map(|peer| (*peer, self.set(row.default, false))));
        entries.retain(|(_, set)| *set != default);
        Row { default, entries: entries.into() }
    }

    fn egress(&mut self, row: &Row) -> Row {
        let mut set = |id: AtomSetId| self.set(id, self.sets[id.index()].contains(Atoms::REST));
        let default = set(row.default);
        Row { default, entries: row.entries.iter().map(|(peer, id)| (*peer, set(*id))).collect() }
    }

    fn set(&mut self, id: AtomSetId, hears_errors: bool) -> AtomSetId {
        *self.known[id.index()][usize::from(hears_errors)].get_or_insert_with(|| {
            let mut set = self.sets[id.index()].widened(self.atom.index() + 1);
            if hears_errors {
                set.insert(self.atom);
            }
            self.list.push(set);
            AtomSetId(self.list.len() as u32 - 1)
        })
    }
}
