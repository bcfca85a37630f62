//! IPv4 ranges → numbers: a table indexed by the upper 16 bits, and a short search where the number changes within one
//! of their values.
//!
//! Strategy: DXR (Zec, Rizzo, Mikuc). For most of the address space the first table has the answer, with one memory
//! access. The rest are chunks of a few ranges, searched without a branch as in [`super::search`].
//!
//! ```text
//!  first table: u32 × 65,536 │ starts: u16 × elements │ numbers: u8, u16 or u32 × elements
//!  first table: upper bit set: a number; else the first element of a chunk << 5 │ the levels of its search
//! ```

use super::room::Room;
use super::search::{Cut, LEAF};

/// Bytes of the first table.
pub const FIRST_BYTES: usize = 4 << 16;
// A reference has 31 bits: 26 for the element and 5 for the levels.
/// The number of elements that the first table can address.
const MOST_ELEMENTS: usize = 1 << 26;

/// The parameters with which a program reads the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxrShape {
    /// The maximum levels of a chunk; 0 without chunks.
    pub most_levels: u32,
    /// The number of elements in chunks. References point only below it.
    pub used: u32,
    /// The number of all elements. Behind the last chunk are as many as the largest search can reach.
    pub elements: u32,
    /// Bytes of a number: 1, 2 or 4.
    pub width: u8,
}

impl DxrShape {
    /// The offset of the numbers.
    pub fn numbers_at(self) -> usize {
        // Aligned, so that numbers of any width can be read in one piece on machines that insist on it.
        (FIRST_BYTES + 2 * self.elements as usize).next_multiple_of(4)
    }

    /// The size of the table.
    pub fn bytes(self) -> usize {
        self.numbers_at() + self.elements as usize * usize::from(self.width)
    }
}

/// A DXR table: its bytes and their shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DxrTable {
    /// The value of the map.
    pub bytes: Vec<u8>,
    /// The parameters for reading the bytes.
    pub shape: DxrShape,
}

/// Lays out cuts, which are sorted by address. Before the first cut the number is 0. `None` if there are too many cuts.
pub fn build(cuts: &[Cut], room: Room) -> Option<DxrTable> {
    let mut chunks = DxrChunks { first: Vec::with_capacity(1 << 16), elements: Vec::new(), most_levels: 0 };
    let mut rest = cuts;
    let mut before = 0;
    // All values, also those without a cut: the first table is indexed and not searched.
    for upper in 0..1u128 << 16 {
        // Cuts are sorted, so each chunk is a slice of the rest and the whole is one pass.
        let count = rest.partition_point(|(start, _)| start >> 16 <= upper);
        let (here, after) = rest.split_at(count);
        chunks.chunk(before, here)?;
        // The number at the end of this chunk holds at the beginning of the next.
        before = here.last().map_or(before, |last| last.1);
        rest = after;
    }
    Some(chunks.finish(room))
}

struct DxrChunks {
    first: Vec<u32>,
    /// (start - 1, number)
    elements: Vec<(u16, u32)>,
    most_levels: u32,
}

impl DxrChunks {
    fn chunk(&mut self, before: u32, cuts: &[Cut]) -> Option<()> {
        match cuts {
            [] => self.first.push(LEAF | before),
            // A change exactly at the border needs no search: all of this chunk has the new number.
            [(start, number)] if *start as u16 == 0 => self.first.push(LEAF | number),
            _ => self.search(before, cuts)?,
        }
        Some(())
    }

    fn search(&mut self, before: u32, cuts: &[Cut]) -> Option<()> {
        let at = self.elements.len();
        // The part before the first cut. Its start is never compared, because a search begins at the first element and
        // only moves on.
        if cuts[0].0 as u16 != 0 {
            self.elements.push((u16::MAX, before));
        }
        // Less one, so that "begins at or before" is "smaller than": that comparison is a subtraction whose sign bit
        // moves the position, without a branch. A start of 0 wraps, but it is the first element, which is not compared.
        self.elements.extend(cuts.iter().map(|(start, number)| ((*start as u16).wrapping_sub(1), *number)));
        let levels = (self.elements.len() - at).next_power_of_two().trailing_zeros();
        // A power of two, so that every search of this chunk takes the same steps. No key is larger than the padding.
        self.elements.resize(at + (1 << levels), (u16::MAX, 0));
        self.first.push((at as u32) << 5 | levels);
        self.most_levels = self.most_levels.max(levels);
        // Given up rather than cut off: the choice then takes another structure.
        (self.elements.len() <= MOST_ELEMENTS).then_some(())
    }

    fn finish(mut self, room: Room) -> DxrTable {
        let used = room.of(self.elements.len());
        // Verifier: it does not know that a reference fits its levels. With this room behind the last chunk, one bound
        // on the position covers the whole search instead of a check at each level.
        self.elements.resize(used + (1 << self.most_levels), (u16::MAX, 0));
        // As narrow as the classes allow: most clusters have fewer than 256, and the table is a quarter smaller in the
        // cache.
        let width = match self.elements.iter().map(|(_, number)| *number).max().unwrap_or_default() {
            // With room, one class more must not change the programs.
            0..=0xff if room == Room::Exact => 1,
            0..=0xffff => 2,
            _ => 4,
        };
        let (most_levels, elements) = (self.most_levels, self.elements.len() as u32);
        let shape = DxrShape { most_levels, used: used as u32, elements, width };
        let mut bytes = Vec::with_capacity(shape.bytes());
        self.first.iter().for_each(|it| bytes.extend(it.to_le_bytes()));
        self.elements.iter().for_each(|(start, _)| bytes.extend(start.to_le_bytes()));
        bytes.resize(shape.numbers_at(), 0);
        for (_, number) in &self.elements {
            bytes.extend(&number.to_le_bytes()[..usize::from(width)]);
        }
        DxrTable { bytes, shape }
    }
}

impl DxrTable {
    /// The number that a program finds in the bytes for an address.
    pub fn find(&self, address: u32) -> Option<u32> {
        let number = |at: usize, bytes: usize| {
            let found = self.bytes.get(at..at + bytes)?;
            Some(found.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
        };
        let reference = number(4 * (address >> 16) as usize, 4)?;
        if reference & LEAF != 0 {
            return Some(reference & !LEAF);
        }
        let mut at = (reference >> 5) as usize;
        for level in (0..reference & 31).rev() {
            let step = 1usize << level;
            // The same steps as the program's, on the bytes and not on the cuts, so that tests see what a program sees.
            if number(FIRST_BYTES + 2 * (at + step), 2)? < address & 0xffff {
                at += step;
            }
        }
        let bytes = usize::from(self.shape.width);
        number(self.shape.numbers_at() + bytes * at, bytes)
    }
}
