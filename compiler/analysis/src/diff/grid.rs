//! Both directions of one family as two grids of entries; equal rows and equal columns are stored once.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::Presence;
use super::tables::{EntryId, EntryTables, Gate};
use super::universe::PeerPair;
use weir_model::{Direction, Interner};

/// A participant: an endpoint, a class of outside addresses, or a service's address.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) who: GridEnd,
    pub(super) presence: Presence,
    /// The gate that judges the traffic it sends; `None` if it sends none.
    pub(super) exit: Option<Gate>,
    /// The gate that judges the traffic it receives; `None` if it receives none.
    pub(super) entrance: Option<Gate>,
    /// Its peer classes on both sides, for the gates of other participants.
    pub(super) peers: PeerPair,
}

/// An endpoint, a class of outside addresses, or a service's address, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum GridEnd {
    Endpoint(u32),
    Outside(u32),
    Service(u32),
}

/// A class of sources: participants that send under the same conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SourceClass {
    pub(super) presence: Presence,
    exit: u32,
    look: u32,
}

/// A class of destinations: participants that receive under the same conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Destination {
    pub(super) presence: Presence,
    entrance: u32,
    look: u32,
}

/// The entries of every exit for every destination's column, and of every entrance for every source's column.
pub(super) struct Grid {
    exits: GridAxis,
    entrances: GridAxis,
    /// The ingress entries, by the source's column and the entrance.
    ingress: Vec<Vec<EntryId>>,
}

/// The entries of one direction.
struct GridAxis {
    /// The number of a row.
    rows: BTreeMap<Gate, u32>,
    /// The number of a column.
    columns: BTreeMap<PeerPair, u32>,
    entries: Vec<Vec<EntryId>>,
}

impl Grid {
    pub(super) fn new(tables: &mut EntryTables<'_, '_>, actors: &[Actor]) -> Self {
        // One grid for each direction: a flow's verdict is the intersection of an egress entry and an ingress entry. A
        // grid of these intersections could have a row for each pair of egress and ingress behaviour.
        let exits = actors.iter().filter_map(|it| it.exit.as_ref()).collect();
        let senders = actors.iter().filter(|it| it.exit.is_some()).map(|it| it.peers).collect();
        let entrances = actors.iter().filter_map(|it| it.entrance.as_ref()).collect();
        let receivers = actors.iter().filter(|it| it.entrance.is_some()).map(|it| it.peers).collect();
        let egress = GridAxis::new(tables, Direction::Egress, exits, receivers);
        let ingress = GridAxis::new(tables, Direction::Ingress, entrances, senders);
        // `boxes` walks from source to source, so it needs the ingress entries of one source side by side.
        let transposed = transpose(&ingress.entries);
        Self { exits: egress, entrances: ingress, ingress: transposed }
    }

    /// The class of a participant as a source.
    pub(super) fn source(&self, actor: &Actor) -> Option<SourceClass> {
        let exit = *self.exits.rows.get(actor.exit.as_ref()?)?;
        // A source is known by its own egress row and by its column in the ingress entries of all others.
        Some(SourceClass { presence: actor.presence, exit, look: *self.entrances.columns.get(&actor.peers)? })
    }

    /// The class of a participant as a destination.
    pub(super) fn destination(&self, actor: &Actor) -> Option<Destination> {
        let entrance = *self.entrances.rows.get(actor.entrance.as_ref()?)?;
        Some(Destination { presence: actor.presence, entrance, look: *self.exits.columns.get(&actor.peers)? })
    }

    /// The egress entries of a source, by the destination's column, and the ingress entries for it, by entrance.
    pub(super) fn of(&self, source: SourceClass) -> (&[EntryId], &[EntryId]) {
        (&self.exits.entries[source.exit as usize], &self.ingress[source.look as usize])
    }
}

impl Destination {
    /// The indices of this destination in the two slices that [`Grid::of`] returns.
    pub(super) fn places(self) -> (usize, usize) {
        (self.look as usize, self.entrance as usize)
    }
}

impl GridAxis {
    fn new(tables: &mut EntryTables<'_, '_>, direction: Direction, gates: Vec<&Gate>, peers: Vec<PeerPair>) -> Self {
        // First equal gates and equal pairs of peer classes: thousands of endpoints have few of them, and only these
        // are computed.
        let (gates, peers) = (distinct(gates), distinct(peers));
        let rows: Vec<Vec<EntryId>> = gates.iter().map(|gate| tables.row(direction, gate, &peers)).collect();
        // Then equal contents: classes that a side distinguishes for a reason without effect on the difference become
        // one. This is why a row of the result can say "all pods".
        let (row_numbers, rows) = number(rows);
        let (column_numbers, columns) =
            // Columns after rows: joining equal rows shortens the columns and makes no two of them equal. Without any
            // row, `transpose` would return no columns, and peers would have no number.
            number(if rows.is_empty() { vec![Vec::new(); peers.len()] } else { transpose(&rows) });
        Self {
            rows: gates.into_iter().cloned().zip(row_numbers).collect(),
            columns: peers.into_iter().zip(column_numbers).collect(),
            entries: transpose(&columns),
        }
    }
}

fn distinct<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort_unstable();
    items.dedup();
    items
}

/// Numbers for the items, equal ones with the same number, and the distinct items by number.
fn number<T: Eq + Hash + Clone>(items: Vec<T>) -> (Vec<u32>, Vec<T>) {
    let mut distinct = Interner::default();
    let numbers = items.into_iter().map(|item| distinct.intern(item)).collect();
    (numbers, distinct.into_values())
}

fn transpose(rows: &[Vec<EntryId>]) -> Vec<Vec<EntryId>> {
    let width = rows.first().map_or(0, Vec::len);
    (0..width).map(|column| rows.iter().map(|row| row[column]).collect()).collect()
}
