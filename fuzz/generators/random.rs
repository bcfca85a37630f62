//! Random numbers, and the record of the numbers that a generator drew.
//!
//! A generator draws numbers below a bound, and so is a function of these choices. 0 is always its plainest choice, and
//! a missing choice is 0. So [`super::Generated`] can shrink every value in the same way: it drops and lowers choices.

use std::ops::{Range, RangeInclusive};

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// One in this number of lists is shorter than its usual lengths.
const SELDOM: usize = 64;

/// The source of a generator's choices: a random number generator, or the choices of another run.
#[derive(Clone, Debug)]
pub struct Random {
    source: Source,
    record: Option<ChoiceRecord>,
}

#[derive(Clone, Debug)]
enum Source {
    Seeded(Box<TestRng>),
    Given(std::vec::IntoIter<u64>),
}

/// The choices of one run of a generator.
#[derive(Clone, Debug, Default)]
pub(super) struct ChoiceRecord {
    /// Each number, below its bound.
    pub(super) choices: Vec<u64>,
    /// The choices of each list element, with the one before it that continues the list.
    pub(super) parts: Vec<Range<usize>>,
}

impl Random {
    /// A generator that starts at a seed. The same seed gives the same numbers on every machine.
    pub fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Self { source: Source::Seeded(Box::new(rng)), record: None }
    }

    /// Choices from a fuzzer: two bytes each.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let choice = |pair: &[u8]| pair.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self::given(bytes.chunks(2).map(choice).collect())
    }

    pub(super) fn recorded(rng: TestRng) -> Self {
        Self { source: Source::Seeded(Box::new(rng)), record: Some(ChoiceRecord::default()) }
    }

    pub(super) fn given(choices: Vec<u64>) -> Self {
        Self { source: Source::Given(choices.into_iter()), record: Some(ChoiceRecord::default()) }
    }

    pub(super) fn into_record(self) -> ChoiceRecord {
        self.record.unwrap_or_default()
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.choose(|number| number)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.choose(|number| number % bound.max(1) as u64) as usize
    }

    fn choose(&mut self, bounded: impl FnOnce(u64) -> u64) -> u64 {
        let choice = bounded(match &mut self.source {
            Source::Seeded(rng) => rng.next_u64(),
            Source::Given(choices) => choices.next().unwrap_or(0),
        });
        if let Some(record) = &mut self.record {
            record.choices.push(choice);
        }
        choice
    }

    /// True once in `times`. The plainest choice is false.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// False once in `times`. The plainest choice is false.
    pub fn mostly(&mut self, times: usize) -> bool {
        self.below(times) > 0
    }

    /// One of several; the first one is the plainest.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// One of several; `None` if the list is empty.
    pub fn pick_any<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.pick(from))
    }

    /// A random number of results of `make`, up to `most`.
    pub fn several<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        self.list(0..=most, |_, random| make(random))
    }

    /// One to `most` results of `make`, which gets their index.
    pub fn some<T>(&mut self, most: usize, mut make: impl FnMut(usize, &mut Self) -> T) -> Vec<T> {
        let mut made = vec![make(0, self)];
        made.extend(self.list(0..=most - 1, |index, random| make(index + 1, random)));
        made
    }

    /// Results of `make`, which gets their index. Each usual length is equally likely; shorter lists are rare, but
    /// shrinking finds them.
    pub fn list<T>(&mut self, usual: RangeInclusive<usize>, mut make: impl FnMut(usize, &mut Self) -> T) -> Vec<T> {
        let mut made = Vec::new();
        while let Some(part) = self.begin_part(made.len(), &usual) {
            made.push(make(made.len(), self));
            self.end_part(part);
        }
        made
    }

    /// Chooses whether a list continues, and begins its next element. Returns the value for [`Random::end_part`].
    ///
    /// There is a choice before each element, and not one of the length before all of them: the choices of an element
    /// can be dropped, and the others stay as they are.
    pub(super) fn begin_part(&mut self, made: usize, usual: &RangeInclusive<usize>) -> Option<usize> {
        let start = self.position();
        let bound = if made < *usual.start() { SELDOM } else { (usual.end() + 1).saturating_sub(made) };
        // Only 0 or 1 is recorded: shrinking need not try other numbers that mean the same.
        (self.choose(|number| u64::from(number % bound as u64 > 0)) > 0).then_some(start)
    }

    pub(super) fn end_part(&mut self, start: usize) {
        let part = start..self.position();
        self.record.iter_mut().for_each(|it| it.parts.push(part.clone()));
    }

    fn position(&self) -> usize {
        self.record.as_ref().map_or(0, |it| it.choices.len())
    }

    /// Another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
