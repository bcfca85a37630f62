//! Numbers of flows, without overflow.
//!
//! Problem: a pod has 2^128 times 2^18 flows with IPv6 addresses, more than a `u128` holds. If larger numbers become
//! the largest one, edits that differ much cost the same. Then the shortest edit wins, which denies most.
//! Strategy: integers of 256 bits. A flow has an endpoint at one end, so no cluster reaches their largest number.

use std::ops::{Add, Mul};

/// A number of flows or of their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    // The order of the fields makes the derived comparison that of the numbers.
    high: u128,
    low: u128,
}

impl Count {
    /// None.
    pub const ZERO: Self = Self { high: 0, low: 0 };
    /// The largest number. Larger results become this one.
    pub const MAX: Self = Self { high: u128::MAX, low: u128::MAX };

    /// Groups of 64 bits, the lowest first.
    fn limbs(self) -> [u128; 4] {
        let lower = |number: u128| number & u128::from(u64::MAX);
        [lower(self.low), self.low >> 64, lower(self.high), self.high >> 64]
    }

    /// The number, shifted by a number of limbs.
    fn shifted(number: u128, limbs: usize) -> Self {
        match limbs {
            0 => Self { high: 0, low: number },
            1 => Self { high: number >> 64, low: number << 64 },
            2 => Self { high: number, low: 0 },
            3 if number >> 64 == 0 => Self { high: number << 64, low: 0 },
            _ if number == 0 => Self::ZERO,
            _ => Self::MAX,
        }
    }
}

impl From<u128> for Count {
    fn from(low: u128) -> Self {
        Self { high: 0, low }
    }
}

impl Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        let high = self.high.checked_add(other.high).and_then(|it| it.checked_add(u128::from(carry)));
        high.map_or(Self::MAX, |high| Self { high, low })
    }
}

impl Mul for Count {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let mut product = Self::ZERO;
        for (position, limb) in self.limbs().into_iter().enumerate() {
            for (other_position, other_limb) in other.limbs().into_iter().enumerate() {
                product = product + Self::shifted(limb * other_limb, position + other_position);
            }
        }
        product
    }
}

#[cfg(test)]
mod tests {
    use super::Count;

    const ALL_IPV6: Count = Count { high: 1, low: 0 };

    #[test]
    fn sums_and_products_carry() {
        let most = Count::from(u128::MAX);
        assert_eq!(most + Count::from(1), ALL_IPV6);
        // (2^128 - 1)² = 2^256 - 2^129 + 1
        assert_eq!(most * most, Count { high: u128::MAX - 1, low: 1 });
        assert_eq!(Count::from(3 << 64) * Count::from(5 << 64), Count { high: 15, low: 0 });
        assert_eq!(ALL_IPV6 * Count::from(65_535), Count { high: 65_535, low: 0 });
        assert_eq!(Count::from(7) * Count::from(6), Count::from(42));
        assert_eq!(ALL_IPV6 * Count::ZERO, Count::ZERO);
    }

    #[test]
    fn one_flow_more_than_those_of_all_ipv6_addresses_is_more() {
        let all = ALL_IPV6 * Count::from(196_606);
        assert!(all < all + Count::from(1));
        assert!(all + Count::from(u128::MAX) < ALL_IPV6 * Count::from(196_607));
    }

    #[test]
    fn larger_numbers_become_the_largest() {
        assert_eq!(ALL_IPV6 * ALL_IPV6, Count::MAX);
        assert_eq!(Count::MAX + Count::from(1), Count::MAX);
        assert_eq!(Count::MAX * Count::from(2), Count::MAX);
    }
}
