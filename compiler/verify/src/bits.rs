//! Sets of small numbers as bits, and a table that stores each distinct set once.

use std::collections::HashMap;

/// The number of 64-bit words of a set of the numbers below `count`.
pub(super) fn words(count: usize) -> usize {
    // At least one word: rows are stored as slices of this length, and slices of length zero would all be the same one.
    count.div_ceil(64).max(1)
}

/// Adds a number to the set.
pub(super) fn insert(set: &mut [u64], number: usize) {
    if let Some(word) = set.get_mut(number / 64) {
        *word |= 1 << (number % 64);
    }
}

/// Removes a number from the set.
pub(super) fn remove(set: &mut [u64], number: usize) {
    if let Some(word) = set.get_mut(number / 64) {
        *word &= !(1 << (number % 64));
    }
}

/// Whether the set contains a number.
pub(super) fn contains(set: &[u64], number: usize) -> bool {
    set.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

/// Adds all numbers of `other`.
pub(super) fn add(set: &mut [u64], other: &[u64]) {
    set.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
}

/// Removes all numbers of `other`.
pub(super) fn subtract(set: &mut [u64], other: &[u64]) {
    set.iter_mut().zip(other).for_each(|(word, other)| *word &= !other);
}

/// Keeps the numbers that are in `other` too.
pub(super) fn intersect(set: &mut [u64], other: &[u64]) {
    set.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
}

/// All numbers below `count`.
pub(super) fn full(count: usize) -> Vec<u64> {
    let mut set = vec![0; words(count)];
    (0..count).for_each(|number| insert(&mut set, number));
    set
}

/// Distinct sets, numbered.
#[derive(Debug, Default)]
pub(super) struct BitSets {
    pub(super) list: Vec<Box<[u64]>>,
    numbers: HashMap<Box<[u64]>, u32>,
}

impl BitSets {
    pub(super) fn number(&mut self, set: &[u64]) -> u32 {
        if let Some(number) = self.numbers.get(set) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(set.into());
        // Equal sets have one number, so later comparisons of sets are comparisons of two integers.
        self.numbers.insert(set.into(), number);
        number
    }
}
