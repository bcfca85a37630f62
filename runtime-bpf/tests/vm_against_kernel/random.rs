//! Seeded numbers: edge values as often as arbitrary ones.

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

const EDGES: [u64; 20] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_8000_0000,
    u64::MAX,
    u64::MAX - 1,
    32,
    64,
];

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number worth computing with.
    pub(crate) fn value(&mut self) -> u64 {
        match self.below(4) {
            0 | 1 => self.pick(&EDGES),
            2 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.value().to_le_bytes()).take(count).collect()
    }
}
