//! Generators as strategies of proptest.
//!
//! Problem: later choices of a generator depend on earlier ones. proptest's `prop_flat_map` shrinks such values badly: if
//! an earlier part changes, it makes all later parts anew, and the failure is lost.
//! Strategy: record the choices, shrink the record, and let the generator make the value from it. List elements are
//! dropped first, then single choices; then choices are lowered. Hypothesis uses the same method.
//! Invariant: a candidate has fewer choices than the failing value, or the same number and the first different choice
//! is lower. So shrinking ends.
//!
//! Tests: `fuzz/tests/strategy.rs`.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner, contextualize_config};

use super::Random;
use super::random::ChoiceRecord;

type Make<T> = Rc<dyn Fn(&mut Random) -> T>;

/// The strategy of all values that a generator makes.
#[derive(Clone)]
pub struct Generated<T>(Make<T>);

impl<T> Generated<T> {
    /// The values that `make` returns. Its result must depend only on the choices.
    pub fn by(make: impl Fn(&mut Random) -> T + 'static) -> Self {
        Self(Rc::new(make))
    }

    /// The results of `next`, which gets such a value and draws further choices.
    pub fn then<U>(self, next: impl Fn(T, &mut Random) -> U + 'static) -> Generated<U>
    where
        T: 'static,
    {
        Generated::by(move |random| {
            let value = (self.0)(random);
            next(value, random)
        })
    }
}

impl<T> fmt::Debug for Generated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Generated")
    }
}

impl<T: fmt::Debug> Strategy for Generated<T> {
    type Tree = ChoiceTree<T>;
    type Value = T;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let mut random = Random::recorded(runner.new_rng());
        (self.0)(&mut random);
        Ok(ChoiceTree {
            make: Rc::clone(&self.0),
            failing: random.into_record(),
            candidate: None,
            next: 0,
            is_smaller: false,
        })
    }
}

/// A value with its choices, for shrinking.
pub struct ChoiceTree<T> {
    make: Make<T>,
    /// The plainest choices that are known to fail.
    failing: ChoiceRecord,
    /// The choices that are tested now.
    candidate: Option<ChoiceRecord>,
    /// The index of the next edit of `failing`.
    next: usize,
    /// Whether one of the edits since the first one has succeeded.
    is_smaller: bool,
}

impl<T: fmt::Debug> ValueTree for ChoiceTree<T> {
    type Value = T;

    fn current(&self) -> T {
        let choices = &self.candidate.as_ref().unwrap_or(&self.failing).choices;
        (self.make)(&mut Random::given(choices.clone()))
    }

    fn simplify(&mut self) -> bool {
        if let Some(candidate) = self.candidate.take() {
            // The same index again: it is the next part of a shortened list, or a lowered choice that can be lowered
            // further.
            (self.failing, self.next, self.is_smaller) = (candidate, self.next - 1, true);
        }
        self.advance()
    }

    fn complicate(&mut self) -> bool {
        self.candidate = None;
        self.advance()
    }
}

impl<T> ChoiceTree<T> {
    /// Goes to the next candidate; without one, back to the failing choices.
    fn advance(&mut self) -> bool {
        let edits = edits(&self.failing);
        loop {
            let Some(edit) = edits.get(self.next) else {
                if !std::mem::take(&mut self.is_smaller) {
                    return false;
                }
                self.next = 0;
                continue;
            };
            self.next += 1;
            let mut random = Random::given(edit.apply(&self.failing.choices));
            (self.make)(&mut random);
            let record = random.into_record();
            if size(&record) < size(&self.failing) {
                self.candidate = Some(record);
                return true;
            }
        }
    }
}

fn size(record: &ChoiceRecord) -> (usize, &[u64]) {
    (record.choices.len(), &record.choices)
}

enum Edit {
    Drop(Range<usize>),
    Zero(Range<usize>),
    /// Lowers a choice by this part of it.
    Lower(usize, u64),
}

impl Edit {
    fn apply(&self, choices: &[u64]) -> Vec<u64> {
        let mut choices = choices.to_vec();
        match self {
            Self::Drop(part) => drop(choices.drain(part.clone())),
            Self::Zero(part) => choices[part.clone()].fill(0),
            Self::Lower(index, part) => choices[*index] -= choices[*index].div_ceil(*part),
        }
        choices
    }
}

/// The edits to try, those that remove most first.
fn edits(record: &ChoiceRecord) -> Vec<Edit> {
    let count = record.choices.len();
    let mut parts = record.parts.clone();
    parts.sort_by_key(|part| Reverse(part.len()));
    let blocks =
        [4, 2, 1].into_iter().flat_map(|size| (0..(count + 1).saturating_sub(size)).map(move |at| at..at + size));
    let mut edits: Vec<Edit> = parts.iter().cloned().map(Edit::Drop).collect();
    edits.extend(parts.into_iter().map(Edit::Zero));
    edits.extend((0..count).map(|index| Edit::Zero(index..index + 1)));
    edits.extend(blocks.map(Edit::Drop));
    edits.extend((0..count).flat_map(|index| [2, 8, 64].map(|part| Edit::Lower(index, part))));
    edits
}

/// The most candidates that shrinking tries. proptest's own limit depends on the number of cases.
pub const MOST_CANDIDATES: u32 = 20_000;

/// Runs `test` on `cases` values. A value on which it panics is shrunk and printed, and its seed is written beside the
/// source file of the test, where the next run finds it.
///
/// The values are the same in every run. `PROPTEST_CASES` raises their number, and `PROPTEST_RNG_SEED` changes them.
#[track_caller]
pub fn for_each<S: Strategy>(cases: u32, strategy: &S, test: impl FnMut(S::Value)) {
    let source_file = Some(Location::caller().file());
    let seeded = Config { source_file, rng_seed: RngSeed::Fixed(1), ..Config::with_cases(1) };
    let config = Config { max_shrink_iters: MOST_CANDIDATES, ..seeded };
    let config = contextualize_config(config);
    // Fewer would fail the tests' own limits on what must have occurred.
    let config = Config { cases: config.cases.max(cases), ..config };
    let test = RefCell::new(test);
    let result = TestRunner::new(config).run(strategy, |value| {
        (test.borrow_mut())(value);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("{reason}\nsmallest input that fails:\n{value:?}"),
        Err(error) => panic!("{error}"),
    }
}
