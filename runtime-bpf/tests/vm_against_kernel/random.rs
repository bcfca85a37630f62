//! Seeded numbers: edge values as often as arbitrary ones.

pub(crate) use weir_testing::Random;

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

/// Numbers and bytes that are worth computing with.
pub(crate) trait Values {
    /// An edge value or any number.
    fn value(&mut self) -> u64;
    /// Bytes of such numbers.
    fn bytes(&mut self, count: usize) -> Vec<u8>;
}

impl Values for Random {
    fn value(&mut self) -> u64 {
        match self.below(4) {
            0 | 1 => self.pick(&EDGES),
            2 => self.number() >> self.below(64),
            _ => self.number(),
        }
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.value().to_le_bytes()).take(count).collect()
    }
}
