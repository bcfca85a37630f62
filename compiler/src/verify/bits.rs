//! Sets of small numbers, and each of them once.

use std::collections::HashMap;

/// How many words a set of so many numbers has.
pub(super) fn words(count: usize) -> usize {
    count.div_ceil(64).max(1)
}

/// Puts a number in.
pub(super) fn insert(set: &mut [u64], number: usize) {
    if let Some(word) = set.get_mut(number / 64) {
        *word |= 1 << (number % 64);
    }
}

/// Takes a number out.
pub(super) fn remove(set: &mut [u64], number: usize) {
    if let Some(word) = set.get_mut(number / 64) {
        *word &= !(1 << (number % 64));
    }
}

/// Whether a number is in.
pub(super) fn contains(set: &[u64], number: usize) -> bool {
    set.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

/// Puts in all of another set.
pub(super) fn add(set: &mut [u64], other: &[u64]) {
    set.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
}

/// All numbers below `count`.
pub(super) fn full(count: usize) -> Vec<u64> {
    let mut set = vec![0; words(count)];
    (0..count).for_each(|number| insert(&mut set, number));
    set
}

/// Sets by number.
#[derive(Debug, Default)]
pub(super) struct Sets {
    pub(super) list: Vec<Box<[u64]>>,
    numbers: HashMap<Box<[u64]>, u32>,
}

impl Sets {
    pub(super) fn number(&mut self, set: &[u64]) -> u32 {
        if let Some(number) = self.numbers.get(set) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(set.into());
        self.numbers.insert(set.into(), number);
        number
    }
}
