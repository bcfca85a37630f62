//! The checksum of the file.
//!
//! An agent makes a file for each generation, and the file describes all policies of the node. XXH3 takes a tenth of
//! the time of SHA-256, and finds damage just as well. Neither helps against an attacker, who can write a new checksum.

use std::fmt;

use twox_hash::XxHash3_128;

/// An XXH3 checksum of 128 bits; prints as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(pub [u8; Self::BYTES]);

impl Checksum {
    /// Its length.
    pub const BYTES: usize = 16;

    /// The checksum of several parts, one after the other.
    pub(super) fn of_parts<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut hash = XxHash3_128::new();
        parts.into_iter().for_each(|part| hash.write(part));
        Self(hash.finish_128().to_be_bytes())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_what_xxhsum_prints() {
        assert_eq!(Checksum::of_parts([&b"ab"[..], b"c"]).to_string(), "06b05ab6733a618578af5f94892f3950");
    }

    #[test]
    fn boundaries_of_parts_do_not_count() {
        let bytes: Vec<u8> = (0..5_000_u32).map(|number| ((number * 31) >> 3) as u8).collect();
        let whole = Checksum(XxHash3_128::oneshot(&bytes).to_be_bytes());
        for at in [0, 1, 63, 64, 255, 256, 257, 1_023, 1_024, 1_025, 4_999, 5_000] {
            assert_eq!(Checksum::of_parts([&bytes[..at], &bytes[at..]]), whole, "{at}");
        }
    }
}
