//! The changes that are not in force yet, and the work that they need.
//!
//! Invariants: a change waits either for single entries ([`EntryWrites`]) or for a generation, never for neither. The
//! changes of a generation that failed wait again, together with later ones. A failed generation always has a time at
//! which it is retried.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_classes::index::{ChangeEffect, Dirty, Key};

use super::RETRY;
use super::entry_writes::EntryWrites;
use super::pace::{ISOLATION, OldestChanges, Pace};
use crate::watch::backoff::Backoff;
use crate::watch::resources::has_rules;

/// A generation begins when there was no change for this time,
pub(super) const QUIET: Duration = Duration::from_millis(1);
/// or when the first change has waited for this time.
pub(super) const GATHER: Duration = Duration::from_millis(15);
/// The most changes for which the agent measures the time until they are in force, for each generation.
const MOST_TIMED: usize = 10_000;
/// The most policies and lists on which a failed generation is reported.
const MOST_NAMED: usize = 10;

/// The work that has to be done.
#[derive(Debug, Default)]
pub(super) struct PendingWork {
    /// Set if a new generation is needed.
    generation: Option<GenerationRequest>,
    /// Set after a generation that failed, until one succeeds.
    failed: Option<FailedGeneration>,
    /// Whether changes that isolate have come since the last attempt to make a generation began.
    later: LaterIsolation,
    /// Set while the next generation waits for lists: it does not wait longer than this.
    lists_until: Option<Instant>,
    /// Whether flows must be judged again when the next generation is in force. A generation with a new number does
    /// that by itself.
    judge_with_generation: bool,
    /// Changes of single map entries.
    pub(super) writes: EntryWrites,
    /// The times of changes that wait for single entries.
    entry_times: ChangeTimes,
    /// The times of changes that wait for a generation.
    generation_times: ChangeTimes,
    /// Policies and lists that have changed, at most [`MOST_NAMED`]. If the generation fails, an Event on each
    /// reports it.
    policies: BTreeSet<Key>,
}

/// The changes that need a generation.
#[derive(Clone, Copy, Debug)]
struct GenerationRequest {
    first: Instant,
    last: Instant,
    isolating: WaitingChanges,
    allowing: WaitingChanges,
}

/// Changes of one effect that wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitingChanges {
    pub(super) count: u32,
    pub(super) oldest: Option<Instant>,
}

impl WaitingChanges {
    fn add(&mut self, count: u32, oldest: Instant) {
        self.count = self.count.saturating_add(count);
        self.oldest = Some(self.oldest.map_or(oldest, |it| it.min(oldest)));
    }

    fn append(&mut self, other: Self) {
        if let Some(oldest) = other.oldest {
            self.add(other.count, oldest);
        }
    }
}

impl GenerationRequest {
    fn new(at: Instant) -> Self {
        let none = WaitingChanges::default();
        Self { first: at, last: at, isolating: none, allowing: none }
    }

    fn add(&mut self, effect: ChangeEffect, at: Instant) {
        self.last = at;
        match effect {
            ChangeEffect::Isolating => self.isolating.add(1, at),
            ChangeEffect::Allowing => self.allowing.add(1, at),
        }
    }

    /// Adds the changes of a later request.
    fn append(&mut self, later: Self) {
        self.last = later.last;
        self.isolating.append(later.isolating);
        self.allowing.append(later.allowing);
    }
}

/// Why the last generation is not in force, and when to retry.
#[derive(Debug)]
struct FailedGeneration {
    error: String,
    at: Instant,
    retry: Backoff,
    /// Whether no entries can be written until the retry succeeds.
    holds_entries: bool,
}

/// Whether a change that isolates has come: one that needs a generation, or one of entries.
#[derive(Clone, Copy, Debug, Default)]
struct LaterIsolation {
    generation: bool,
    entries: bool,
}

/// The times at which the agent received changes, for metrics.
#[derive(Debug, Default)]
pub(super) struct ChangeTimes {
    pub(super) pods: Vec<Instant>,
    pub(super) others: Vec<Instant>,
}

impl ChangeTimes {
    fn add(&mut self, is_pod: bool, at: Instant) {
        let times = if is_pod { &mut self.pods } else { &mut self.others };
        if times.len() < MOST_TIMED {
            times.push(at);
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.pods.append(&mut other.pods);
        self.others.append(&mut other.others);
    }
}

/// The changes for which a generation was begun.
#[derive(Debug)]
pub(super) struct BegunGeneration {
    request: GenerationRequest,
    pub(super) judge_again: bool,
    pub(super) times: ChangeTimes,
    policies: BTreeSet<Key>,
}

impl PendingWork {
    /// The time at which a generation must begin; `None` if none is needed.
    pub(super) fn generation_due(&self, pace: &Pace) -> Option<Instant> {
        let GenerationRequest { first, last, isolating, .. } = self.generation?;
        let gathered = (last + QUIET).min(first + GATHER);
        let start = pace.start(gathered, OldestChanges { first, isolating: isolating.oldest });
        let start = self.lists_until.map_or(start, |until| until.max(start));
        Some(self.failed.as_ref().map_or(start, |failed| self.retry_due(failed, pace).max(start)))
    }

    /// When a failed generation is tried again. A later change that isolates does not wait for its retry for more than
    /// [`ISOLATION`], as long as the CPU budget allows it.
    fn retry_due(&self, failed: &FailedGeneration, pace: &Pace) -> Instant {
        let due = failed.retry.due();
        let isolates = self.later.generation || (failed.holds_entries && self.later.entries);
        if isolates { due.min((failed.at + ISOLATION).max(pace.affordable(failed.at))) } else { due }
    }

    /// Makes the next generation wait for lists, at most until this time.
    pub(super) fn wait_for_lists(&mut self, until: Instant) {
        self.lists_until = Some(until);
    }

    /// Ends that wait.
    pub(super) fn lists_are_complete(&mut self) {
        self.lists_until = None;
    }

    /// The changes of an effect that wait for a generation.
    pub(super) fn waiting(&self, effect: ChangeEffect) -> WaitingChanges {
        self.generation.map_or_else(WaitingChanges::default, |request| match effect {
            ChangeEffect::Isolating => request.isolating,
            ChangeEffect::Allowing => request.allowing,
        })
    }

    pub(super) fn needs_generation(&self) -> bool {
        self.generation.is_some()
    }

    /// Whether a generation is needed that isolates, so that the CPU budget does not delay it for long. A generation
    /// that only allows more can wait for seconds, and other work must not wait for it.
    pub(super) fn isolates_soon(&self) -> bool {
        self.generation.is_some_and(|request| request.isolating.oldest.is_some())
    }

    /// Adds the work that a change of an object needs. `is_timed` says whether to measure the time until it is in
    /// force.
    pub(super) fn add(&mut self, dirty: Dirty, effect: ChangeEffect, at: Instant, is_pod: bool, is_timed: bool) {
        if effect == ChangeEffect::Isolating {
            self.later.generation |= dirty == Dirty::Everything;
            self.later.entries |= matches!(dirty, Dirty::Addresses(_));
        }
        let times = match dirty {
            Dirty::Nothing => return,
            Dirty::Everything => {
                self.need_generation_for(effect, at);
                self.judge_with_generation = true;
                &mut self.generation_times
            }
            Dirty::Addresses(changes) => {
                self.writes.add(changes, at);
                &mut self.entry_times
            }
        };
        if is_timed {
            times.add(is_pod, at);
        }
    }

    /// Notes that this object has changed and needs a generation.
    pub(super) fn add_policy(&mut self, key: &Key) {
        if has_rules(&key.kind) && self.policies.len() < MOST_NAMED {
            self.policies.insert(key.clone());
        }
    }

    /// Requests a generation that the CPU budget does not delay for long.
    pub(super) fn need_generation(&mut self, at: Instant) {
        self.need_generation_for(ChangeEffect::Isolating, at);
    }

    fn need_generation_for(&mut self, effect: ChangeEffect, at: Instant) {
        self.generation.get_or_insert_with(|| GenerationRequest::new(at)).add(effect, at);
    }

    /// Like [`Self::need_generation`]. When the generation is in force, flows are judged again.
    pub(super) fn need_generation_and_judging(&mut self, at: Instant) {
        self.need_generation(at);
        self.judge_with_generation = true;
    }

    /// Makes the changes that wait for single entries wait for a generation.
    pub(super) fn move_entries_to_generation(&mut self) {
        self.generation_times.append(&mut self.entry_times);
    }

    /// Takes all changes that wait: they are in the generation that begins now. Later changes are not.
    pub(super) fn begin(&mut self, now: Instant) -> BegunGeneration {
        self.later = LaterIsolation::default();
        self.take_waiting(now)
    }

    fn take_waiting(&mut self, now: Instant) -> BegunGeneration {
        self.move_entries_to_generation();
        self.lists_until = None;
        BegunGeneration {
            request: self.generation.take().unwrap_or_else(|| GenerationRequest::new(now)),
            judge_again: std::mem::take(&mut self.judge_with_generation),
            times: std::mem::take(&mut self.generation_times),
            policies: std::mem::take(&mut self.policies),
        }
    }

    /// Takes the changes that wait, if there are any: a generation that was begun before starts again with them.
    pub(super) fn begin_again(&mut self, begun: &mut BegunGeneration, now: Instant) {
        let Some(later) = self.generation else { return };
        let mut with = self.take_waiting(now);
        begun.request.append(later);
        begun.judge_again |= with.judge_again;
        begun.times.append(&mut with.times);
        begun.policies.append(&mut with.policies);
    }

    /// Puts the changes back, because their generation failed, and schedules a retry, later each time. Returns whether
    /// the error differs from that of the previous attempt. `holds_entries` says that no entries can be written until
    /// the retry succeeds.
    pub(super) fn fail(
        &mut self,
        mut begun: BegunGeneration,
        error: String,
        holds_entries: bool,
        now: Instant,
    ) -> bool {
        self.put_back(begun.request);
        self.judge_with_generation |= begun.judge_again;
        begun.times.append(&mut self.generation_times);
        self.generation_times = begun.times;
        self.policies.append(&mut begun.policies);
        let before = self.failed.take();
        let is_new = before.as_ref().is_none_or(|it| it.error != error);
        let retry = Backoff::after(before.map(|it| it.retry), now, RETRY);
        self.failed = Some(FailedGeneration { error, at: now, retry, holds_entries });
        if holds_entries && !self.isolates_soon() {
            // Entries that wait, or come until then, may isolate.
            self.need_generation(now);
        }
        is_new
    }

    fn put_back(&mut self, mut request: GenerationRequest) {
        self.generation.into_iter().for_each(|later| request.append(later));
        self.generation = Some(request);
    }

    /// Notes that a generation has come into force.
    pub(super) fn succeed(&mut self) {
        self.failed = None;
    }

    /// Why the generation that should be in force is not.
    pub(super) fn error(&self) -> Option<&str> {
        self.failed.as_ref().map(|failed| failed.error.as_str())
    }

    /// The policies and lists that have changed since the last generation.
    pub(super) fn policies(&self) -> &BTreeSet<Key> {
        &self.policies
    }

    /// Takes the times of the changes that are in force now as single entries.
    pub(super) fn take_entry_times(&mut self) -> ChangeTimes {
        std::mem::take(&mut self.entry_times)
    }

    /// Keeps generations from beginning until this time, as a failed one does.
    #[cfg(test)]
    pub(super) fn delay_generation(&mut self, until: Instant) {
        let (error, retry) = ("delayed".to_owned(), Backoff::at(until, RETRY));
        self.failed = Some(FailedGeneration { error, at: until, retry, holds_entries: false });
    }
}
