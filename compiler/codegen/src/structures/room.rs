//! Room in compiled tables, so that a small change of the input changes their content but not their shape.
//!
//! Problem: programs contain the sizes of the compiled tables that they read. If a table had exactly the size of its
//! content, nearly every change of a policy would change the programs, and the kernel would have to verify them again.
//! Strategy: sizes are rounded up to few values. Between two powers of two there are four, so a table is at most a
//! quarter larger than its content, except for small ones.
//! Invariant: a size depends on the content alone, so the same input gives the same programs. (The alternative, to keep
//! the sizes of the previous generation as long as the content fits, would change programs even more rarely, but the
//! result would depend on the order of changes.)

/// How the sizes of compiled tables follow their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// Exactly: the smallest tables.
    #[default]
    Exact,
    /// Rounded up: for the agent, which often replaces a generation by one that differs little.
    Rounded,
}

/// Smaller differences between two sizes would save no memory that counts.
const LEAST_STEP: usize = 8;
/// The same for sets of atoms, which are few and small: 512 bytes while there are at most 64 atoms. An edit of a port
/// often makes a new set.
const LEAST_STEP_OF_SETS: usize = 64;

impl Room {
    /// The number of places for `count` elements; none for none.
    pub(crate) fn of(self, count: usize) -> usize {
        self.in_steps(count, LEAST_STEP)
    }

    /// The number of places for `count` sets of atoms; none for none.
    pub(crate) fn of_sets(self, count: usize) -> usize {
        self.in_steps(count, LEAST_STEP_OF_SETS)
    }

    fn in_steps(self, count: usize, least: usize) -> usize {
        match self {
            Self::Exact => count,
            Self::Rounded => count.next_multiple_of((count.next_power_of_two() / 8).max(least)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Room;

    #[test]
    fn sizes_are_few_and_at_most_a_quarter_too_large() {
        let sizes: std::collections::BTreeSet<usize> = (0..=100_000).map(|count| Room::Rounded.of(count)).collect();
        assert!(sizes.len() < 60, "{sizes:?}");
        for count in 0..=100_000 {
            let size = Room::Rounded.of(count);
            assert!(size >= count && size <= (count + count / 4).max(count.next_multiple_of(8)), "{count}: {size}");
            assert_eq!(Room::Rounded.of(size), size, "a rounded size is rounded");
        }
    }

    #[test]
    fn a_few_more_sets_seldom_need_another_size() {
        let places = [0, 1, 64, 65, 512, 513].map(|count| Room::Rounded.of_sets(count));
        assert_eq!(places, [0, 64, 64, 128, 512, 640]);
        assert_eq!(Room::Exact.of_sets(17), 17);
    }
}
