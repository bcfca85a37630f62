//! Single keys → numbers: a perfect hash, laid out in bytes that a program reads with two memory accesses.
//!
//! Problem: a kernel hash costs a call, two or three dependent cache lines and some ninety bytes an entry.
//! Strategy: hash and displace. A key's hash selects a bucket. The bucket's displacement, found at build time, sends
//! each of its keys to a slot of its own. The slot holds the whole key and the number.
//!
//! ```text
//!  displacements: u16 × buckets, padded to 8 │ slots: (key, u32 number, padding to 8) × slots
//! ```
//!
//! Invariants: a look-up compares the whole key in the slot, so it never finds another key. Empty slots hold the first
//! entry's key, which hashes to another slot, so no look-up can match them. The same entries give the same bytes.

use super::room::Room;

/// A key: one word, or two for 16 bytes. Shorter keys are zero-extended.
pub type HashKey = [u64; 2];

/// An odd number with well-spread bits: the golden ratio.
pub const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// An odd number for the second round (MurmurHash3's finalizer).
pub const MIX_AGAIN: u64 = 0xff51_afd7_ed55_8ccd;
/// An odd number that spreads a displacement over all bits.
pub const SPREAD: u64 = 0xc4ce_b9fe_1a85_ec53;

// Displacements cost 2 bytes for each bucket, so half a byte an entry.
/// The average number of keys in a bucket. More keys make the table smaller and the construction slower.
const PER_BUCKET: usize = 4;
/// One slot in this many stays free, which keeps the construction fast.
const FREE: usize = 16;
/// The number of attempts. An attempt fails only if a bucket finds no displacement among 65,536.
const SEEDS: u32 = 32;

/// The width of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyWidth {
    /// An IPv4 address.
    W4,
    /// A subject class and a peer class.
    W8,
    /// An IPv6 address.
    W16,
}

impl KeyWidth {
    /// The bytes of a key; the number follows them.
    pub fn key_bytes(self) -> usize {
        match self {
            Self::W4 => 4,
            Self::W8 => 8,
            Self::W16 => 16,
        }
    }

    /// Bytes of a slot.
    pub fn slot_bytes(self) -> usize {
        // A slot of eight bytes for IPv4: key and number are one load.
        (self.key_bytes() + 4).next_multiple_of(8)
    }

    /// The number of a key's words that are used.
    pub fn words(self) -> usize {
        if self == Self::W16 { 2 } else { 1 }
    }
}

/// The parameters with which a program reads the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfectShape {
    /// The width of the keys.
    pub width: KeyWidth,
    /// The start value of the hash.
    pub seed: u32,
    /// The number of buckets, each with a displacement.
    pub buckets: u32,
    /// The number of slots.
    pub slots: u32,
}

impl PerfectShape {
    /// The offset of the slots.
    pub fn slots_at(self) -> usize {
        (2 * self.buckets as usize).next_multiple_of(8)
    }

    /// The size of the table.
    pub fn bytes(self) -> usize {
        self.slots_at() + self.slots as usize * self.width.slot_bytes()
    }

    fn of(width: KeyWidth, entries: usize, seed: u32) -> Self {
        let [buckets, slots] = [entries / PER_BUCKET + 1, entries + entries / FREE + 1].map(|it| it as u32);
        Self { width, seed, buckets, slots }
    }

    fn hash(self, key: HashKey) -> u64 {
        let words = &key[..self.width.words()];
        let mixed = words.iter().fold(u64::from(self.seed), |hash, word| fold((hash ^ word).wrapping_mul(MIX)));
        // The bucket is taken from the upper half. After the fold the lower half depends on the whole key, and this
        // multiplication brings it up.
        mixed.wrapping_mul(MIX_AGAIN)
    }

    fn bucket(self, hash: u64) -> usize {
        scale(hash, self.buckets)
    }

    fn slot(self, hash: u64, displacement: u16) -> usize {
        let moved = hash ^ u64::from(displacement).wrapping_mul(SPREAD);
        scale(moved.wrapping_mul(MIX), self.slots)
    }
}

fn fold(number: u64) -> u64 {
    number ^ (number >> 32)
}

/// Scales the upper half of a number to one below `count`.
fn scale(number: u64, count: u32) -> usize {
    // A multiplication instead of a remainder: a division is the slowest instruction, and the number of slots need not
    // be a power of two, which would double some tables.
    (((number >> 32) * u64::from(count)) >> 32) as usize
}

/// A perfect hash table: its bytes and their shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfectTable {
    /// The value of the map.
    pub bytes: Vec<u8>,
    /// The parameters for reading the bytes.
    pub shape: PerfectShape,
}

/// The size of a table for this many entries.
pub fn predict(width: KeyWidth, entries: usize, room: Room) -> usize {
    PerfectShape::of(width, room.of(entries), 0).bytes()
}

/// Lays out entries with distinct keys. `None` without entries, or if no seed works (two equal keys).
pub fn build(width: KeyWidth, entries: &[(HashKey, u32)], room: Room) -> Option<PerfectTable> {
    let places = room.of(entries.len());
    if entries.is_empty() || u32::try_from(places + places / FREE + 1).is_err() {
        return None;
    }
    // Seeds in a fixed order, so that the same entries give the same bytes. `>> 1` keeps the seed positive as the
    // constant of an instruction, which is sign-extended.
    (1..=SEEDS).find_map(|seed| attempt(PerfectShape::of(width, places, seed.wrapping_mul(0x5bd1_e995) >> 1), entries))
}

fn attempt(shape: PerfectShape, entries: &[(HashKey, u32)]) -> Option<PerfectTable> {
    let buckets = Buckets::new(shape, entries);
    // Bits, because this is read for each try of each key: for a million entries 130 KiB instead of a megabyte.
    let mut taken = TakenSlots(vec![0; shape.slots.div_ceil(64) as usize]);
    let mut displacements = vec![0u16; shape.buckets as usize];
    for bucket in buckets.largest_first() {
        displacements[bucket as usize] = displace(shape, buckets.hashes(bucket), &mut taken)?;
    }
    Some(PerfectTable { bytes: lay_out(shape, entries, &displacements), shape })
}

/// The hashes, grouped by bucket: a million of them fit in no cache, so those of a bucket are neighbours in memory.
struct Buckets {
    /// Where each bucket's hashes begin, and the end of the last.
    starts: Vec<u32>,
    hashes: Vec<u64>,
}

impl Buckets {
    fn new(shape: PerfectShape, entries: &[(HashKey, u32)]) -> Self {
        let all: Vec<u64> = entries.iter().map(|(key, _)| shape.hash(*key)).collect();
        let mut starts = vec![0u32; shape.buckets as usize + 1];
        // Counted first, then placed: two passes over the hashes and no vector for each bucket.
        all.iter().for_each(|hash| starts[shape.bucket(*hash) + 1] += 1);
        (1..starts.len()).for_each(|index| starts[index] += starts[index - 1]);
        let mut next = starts.clone();
        let mut hashes = vec![0; all.len()];
        for hash in all {
            let place = &mut next[shape.bucket(hash)];
            hashes[*place as usize] = hash;
            *place += 1;
        }
        Self { starts, hashes }
    }

    fn hashes(&self, bucket: u32) -> &[u64] {
        let bucket = bucket as usize;
        &self.hashes[self.starts[bucket] as usize..self.starts[bucket + 1] as usize]
    }

    /// The buckets by size, largest first: they are the hardest to place, so they come while most slots are free. Empty
    /// buckets are left out.
    fn largest_first(&self) -> Vec<u32> {
        let mut by_length: Vec<Vec<u32>> = Vec::new();
        for (bucket, ends) in (0..).zip(self.starts.windows(2)) {
            let length = (ends[1] - ends[0]) as usize;
            // Sorted by counting: lengths are small numbers, and the order within a length is that of the buckets,
            // which makes the result repeatable.
            by_length.resize_with(by_length.len().max(length + 1), Vec::new);
            by_length[length].push(bucket);
        }
        by_length.into_iter().skip(1).rev().flatten().collect()
    }
}

/// The slots that are taken, one bit each: few enough bytes to stay in a cache.
struct TakenSlots(Vec<u64>);

impl TakenSlots {
    /// Takes a slot. Returns whether it was free.
    fn take(&mut self, slot: usize) -> bool {
        let (word, bit) = (&mut self.0[slot / 64], 1 << (slot % 64));
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    fn give_back(&mut self, slot: usize) {
        self.0[slot / 64] &= !(1 << (slot % 64));
    }
}

/// Finds the first displacement that gives every key of a bucket a free slot, and takes these slots.
fn displace(shape: PerfectShape, hashes: &[u64], taken: &mut TakenSlots) -> Option<u16> {
    (0..=u16::MAX).find(|displacement| {
        // Slots are taken while trying, so two keys of one bucket also collide with each other.
        let collides = hashes.iter().position(|hash| !taken.take(shape.slot(*hash, *displacement)));
        // Only those before the collision. The slot of the collision itself belongs to another key.
        let taken_again = &hashes[..collides.unwrap_or(0)];
        taken_again.iter().for_each(|hash| taken.give_back(shape.slot(*hash, *displacement)));
        collides.is_none()
    })
}

fn lay_out(shape: PerfectShape, entries: &[(HashKey, u32)], displacements: &[u16]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(shape.bytes());
    displacements.iter().for_each(|displacement| bytes.extend(displacement.to_le_bytes()));
    bytes.resize(shape.slots_at(), 0);
    // Slots are whole words, so a program reads them aligned.
    let words = shape.width.slot_bytes() / 8;
    // Empty slots hold the first entry's key, which hashes to another slot.
    // No flag for "empty", which would be one more comparison for each packet. Zeros would be a key too: 0.0.0.0, or
    // subject 0 and peer 0.
    let unused_slot = slot_words(shape.width, entries[0].0, 0).map(u64::to_le_bytes);
    (0..shape.slots).for_each(|_| bytes.extend(unused_slot[..words].as_flattened()));
    let slots = bytes[shape.slots_at()..].as_chunks_mut::<8>().0;
    for (key, number) in entries {
        let hash = shape.hash(*key);
        let slot = shape.slot(hash, displacements[shape.bucket(hash)]);
        let place = &mut slots[slot * words..][..words];
        place.iter_mut().zip(slot_words(shape.width, *key, *number)).for_each(|(to, word)| *to = word.to_le_bytes());
    }
    bytes
}

/// A slot's words: the key, the number, zeros.
fn slot_words(width: KeyWidth, key: HashKey, number: u32) -> [u64; 3] {
    match width {
        KeyWidth::W4 => [key[0] | u64::from(number) << 32, 0, 0],
        KeyWidth::W8 => [key[0], number.into(), 0],
        KeyWidth::W16 => [key[0], key[1], number.into()],
    }
}

impl PerfectTable {
    /// The number that a program finds in the bytes for a key.
    pub fn find(&self, key: HashKey) -> Option<u32> {
        find(&self.bytes, self.shape, key)
    }
}

/// The number that a program finds in a table's bytes for a key.
pub(super) fn find(bytes: &[u8], shape: PerfectShape, key: HashKey) -> Option<u32> {
    let hash = shape.hash(key);
    let at = 2 * shape.bucket(hash);
    let displacement = u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
    let at = shape.slots_at() + shape.slot(hash, displacement) * shape.width.slot_bytes();
    // The whole key: a perfect hash sends unknown keys to some slot as well.
    let (found, rest) = bytes.get(at..)?.split_at_checked(shape.width.key_bytes())?;
    let words = key.map(u64::to_le_bytes);
    let number = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
    (found == &words.as_flattened()[..shape.width.key_bytes()]).then_some(number)
}

#[cfg(test)]
mod tests;
