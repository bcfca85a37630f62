//! Verdict rows: (direction, subject class, peer class) → set of atoms, in bytes that a program reads directly.
//!
//! Strategy: every set is stored once, one after the other, and an index leads to them. A dense index is a matrix,
//! including the defaults. A sparse index is a perfect hash of the entries that differ from the default; a miss is the
//! row's default.
//!
//! ```text
//!  sets: u64 × words × sets │ defaults: u32 × 2 × subjects, padded to 8 │ matrix: u16 or u32 × 2 × subjects × peers
//!                                                                       │ or a perfect hash
//! ```

use std::ops::Range;

use super::perfect::{self, KeyWidth};
use super::room::Room;
use weir_classes::{AtomSet, AtomSetId, Row};

/// The index over the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryIndex {
    /// A matrix, indexed by position.
    Matrix {
        /// Whether set numbers have four bytes instead of two.
        wide: bool,
    },
    /// A perfect hash.
    Perfect(perfect::PerfectShape),
    /// No entries: every row is its default.
    Defaults,
}

/// The parameters with which a program reads the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// 64-bit words of a set.
    pub words: u32,
    /// The number of places for sets.
    pub sets: u32,
    /// The number of places for subject classes.
    pub subjects: u32,
    /// The number of places for peer classes, including 0.
    pub peers: u32,
    /// The index over the entries.
    pub index: EntryIndex,
}

impl RowShape {
    /// The offset of the defaults.
    pub fn defaults_at(self) -> usize {
        8 * self.words as usize * self.sets as usize
    }

    /// The offset of the index.
    pub fn index_at(self) -> usize {
        self.defaults_at() + 8 * self.subjects as usize
    }

    /// The size of a matrix.
    pub fn matrix_bytes(self) -> usize {
        let cells = 2 * self.subjects as usize * self.peers as usize;
        if is_wide(self.sets) { 4 * cells } else { 2 * cells }
    }

    /// Whether `bytes` have all of the table `before` in the same places, and only add sets behind its `sets` and
    /// columns behind its `peers` classes. Both tables are of this shape.
    ///
    /// A packet of a class that `before` has then reads the same bytes in both, so one can be written over the other
    /// while programs read it.
    pub fn only_adds(self, (before, sets, peers): (&[u8], usize, usize), bytes: &[u8]) -> bool {
        if before == bytes {
            return true;
        }
        let EntryIndex::Matrix { wide } = self.index else { return false };
        let cell = if wide { 4 } else { 2 };
        let (row, known) = (cell * self.peers as usize, cell * peers.min(self.peers as usize));
        let sets = 8 * self.words as usize * sets;
        let is_same = |range: Range<usize>| before.get(range.clone()).is_some_and(|of| bytes.get(range) == Some(of));
        let mut rows = (0..2 * self.subjects as usize).map(|number| self.index_at() + row * number);
        before.len() == bytes.len()
            && is_same(0..sets)
            && is_same(self.defaults_at()..self.index_at())
            && rows.all(|at| is_same(at..at + known))
    }
}

/// Whether numbers of sets need 32 bits. The largest number of 16 bits means that there is no set.
fn is_wide(sets: u32) -> bool {
    sets >= 1 << 16
}

/// A row table: its bytes and their shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTableBytes {
    /// The value of the map.
    pub bytes: Vec<u8>,
    /// The parameters for reading the bytes.
    pub shape: RowShape,
}

/// The rows as they come from the classes: by direction, by subject class.
#[derive(Clone, Copy, Debug)]
pub struct DirectionRows<'a> {
    /// The rows of ingress and egress; both have one row per subject class.
    pub directions: [&'a [Row]; 2],
    /// Sets of atoms.
    pub sets: &'a [AtomSet],
    /// 64-bit words of a set.
    pub words: usize,
    /// How sizes follow the content.
    pub room: Room,
}

impl DirectionRows<'_> {
    /// The number of entries that differ from their row's default.
    pub fn entries(self) -> usize {
        self.directions.iter().flat_map(|rows| rows.iter()).map(|row| row.entries.len()).sum()
    }

    /// The shape, still without an index.
    pub fn shape(self) -> RowShape {
        let rows = self.directions.iter().flat_map(|rows| rows.iter());
        let last = rows.filter_map(|row| row.entries.last()).map(|(peer, _)| peer.0).max();
        RowShape {
            words: self.words as u32,
            sets: self.room.of_sets(self.sets.len()) as u32,
            subjects: self.room.of(self.directions[0].len()) as u32,
            // Up to the last class with an entry, not all classes: those behind it have the default in every row, which
            // programs read beyond the matrix.
            peers: self.room.of(last.map_or(1, |last| last as usize + 1)) as u32,
            index: EntryIndex::Defaults,
        }
    }
}

/// The bytes of a set's number for subject classes that do not exist. No set has this number ([`is_wide`]), so programs
/// drop the packet.
const NO_SET: u8 = 0xff;

/// Builds a matrix. `None` without rows.
pub fn matrix(rows: DirectionRows<'_>) -> Option<RowTableBytes> {
    let (mut bytes, mut shape) = begin(rows)?;
    let wide = is_wide(shape.sets);
    shape.index = EntryIndex::Matrix { wide };
    let cell = if wide { 4 } else { 2 };
    let number = |set: AtomSetId| set.0.to_le_bytes();
    bytes.reserve_exact(shape.matrix_bytes());
    for rows in rows.directions {
        for row in rows {
            let begin = bytes.len();
            bytes.extend(number(row.default)[..cell].repeat(shape.peers as usize));
            // The shape has a column for the last class with an entry.
            let cells = &mut bytes[begin..];
            for (peer, set) in row.entries.iter() {
                cells[cell * peer.index()..][..cell].copy_from_slice(&number(*set)[..cell]);
            }
        }
        let unused_rows = shape.subjects as usize - rows.len();
        bytes.resize(bytes.len() + unused_rows * shape.peers as usize * cell, NO_SET);
    }
    Some(RowTableBytes { bytes, shape })
}

/// Builds a perfect hash. `None` without rows, or if no hash was found.
pub fn hash(rows: DirectionRows<'_>) -> Option<RowTableBytes> {
    let (mut bytes, mut shape) = begin(rows)?;
    let mut entries = Vec::with_capacity(rows.entries());
    for (direction, of_direction) in rows.directions.iter().enumerate() {
        for (subject, row) in of_direction.iter().enumerate() {
            // The direction in the uppermost bit, so that one table serves both directions.
            let upper = (direction as u64) << 31 | subject as u64;
            entries.extend(row.entries.iter().map(|(peer, set)| ([upper << 32 | u64::from(peer.0), 0], set.0)));
        }
    }
    // `perfect::build` makes no table of nothing, and programs then read the default at once.
    if !entries.is_empty() {
        let table = perfect::build(KeyWidth::W8, &entries, rows.room)?;
        bytes.extend(&table.bytes);
        shape.index = EntryIndex::Perfect(table.shape);
    }
    Some(RowTableBytes { bytes, shape })
}

fn begin(rows: DirectionRows<'_>) -> Option<(Vec<u8>, RowShape)> {
    let shape = rows.shape();
    // One number of subjects serves both directions in the layout. Rows of different lengths would shift the second
    // half.
    if shape.subjects == 0 || rows.directions[1].len() != rows.directions[0].len() {
        return None;
    }
    let mut bytes = Vec::new();
    for set in rows.sets {
        set.words().iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    // A place without a set is the empty set.
    bytes.resize(bytes.len() + 8 * rows.words * (shape.sets as usize - rows.sets.len()), 0);
    for rows in rows.directions {
        rows.iter().for_each(|row| bytes.extend(row.default.0.to_le_bytes()));
        bytes.resize(bytes.len() + 4 * (shape.subjects as usize - rows.len()), NO_SET);
    }
    // A set with another number of words than announced would move everything behind it. Then there is no table instead
    // of a wrong one.
    (bytes.len() == shape.index_at()).then_some((bytes, shape))
}

impl RowTableBytes {
    /// The number of the set that a program finds in the bytes.
    pub fn find(&self, direction: usize, subject: u32, peer: u32) -> Option<u32> {
        let number = |at: usize, bytes: usize| {
            let found = self.bytes.get(at..at + bytes)?;
            Some(found.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
        };
        let row = direction * self.shape.subjects as usize + subject as usize;
        let default = number(self.shape.defaults_at() + 4 * row, 4);
        match self.shape.index {
            // First, also for a matrix: a class behind its last column would be read from the next row.
            _ if peer >= self.shape.peers => default,
            EntryIndex::Matrix { wide } => {
                let bytes = if wide { 4 } else { 2 };
                number(self.shape.index_at() + bytes * (row * self.shape.peers as usize + peer as usize), bytes)
            }
            EntryIndex::Perfect(shape) => {
                let upper = (direction as u64) << 31 | u64::from(subject);
                let index = self.bytes.get(self.shape.index_at()..)?;
                perfect::find(index, shape, [upper << 32 | u64::from(peer), 0]).or(default)
            }
            EntryIndex::Defaults => default,
        }
    }
}
