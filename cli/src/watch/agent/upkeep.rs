//! The agent's regular work: when it checks interfaces, hooks and the whole kernel state, and when it removes replaced
//! generations.

use std::time::{Duration, Instant};

use super::hook_checks::HookChecks;

/// The interval between two comparisons of the kernel's whole state with the record.
const RECONCILE: Duration = Duration::from_secs(30);
/// The longest interval between two checks of the host's interfaces. A notification
/// ([`crate::watch::host_changes`]) makes a check due at once; without notifications, the agent only polls.
pub(super) const CHECK: Duration = Duration::from_secs(1);
/// A generation that was replaced is kept for as long as packets may be under way in it, and until its programs have
/// ended, which a thread waits for in the meantime.
const KEEP_REPLACED: Duration = Duration::from_millis(100);

/// The time after which the agent looks again whether the replaced generation is still in use.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Work that repeats. It is due at once until it was done for the first time.
#[derive(Debug)]
pub(super) struct RepeatedWork {
    due: Option<Instant>,
    interval: Duration,
}

impl RepeatedWork {
    fn every(interval: Duration) -> Self {
        Self { due: None, interval }
    }

    /// Whether the work is due. If so, schedules it again: the caller does it now.
    pub(super) fn start(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_none_or(|due| due <= now);
        if is_due {
            self.due = Some(now + self.interval);
        }
        is_due
    }

    /// Makes the work due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.due = self.due.map(|due| due.min(now));
    }
}

/// The times of the regular work.
#[derive(Debug)]
pub(super) struct Upkeep {
    pub(super) interfaces: RepeatedWork,
    pub(super) reconcile: RepeatedWork,
    pub(super) hooks: HookChecks,
    /// When to separate the generation that was replaced from the one in force, if there is one. The next generation
    /// begins after it: before, the kernel's part of it would wait, and the agent with it.
    separation: Option<Instant>,
    /// When to remove the generation that was replaced, if there is one.
    replaced: Option<Instant>,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            interfaces: RepeatedWork::every(CHECK),
            reconcile: RepeatedWork::every(RECONCILE),
            hooks: HookChecks::default(),
            separation: None,
            replaced: None,
        }
    }
}

impl Upkeep {
    /// Schedules the removal of the generation that was replaced now. The next one begins after this pause.
    pub(super) fn generation_replaced(&mut self, now: Instant, pause: Duration) {
        self.separation = (!pause.is_zero()).then(|| now + pause);
        self.replaced = Some(now + KEEP_REPLACED);
    }

    /// When a generation begins that is due at this time.
    pub(super) fn generation_start(&self, due: Instant) -> Instant {
        self.separation.map_or(due, |start| start.max(due))
    }

    /// Postpones the separation and the removal of the replaced generation if one of them is due and it is in use: the
    /// agent would wait.
    pub(super) fn postpone_if(&mut self, is_in_use: impl FnOnce() -> bool, now: Instant) {
        let mut steps = [&mut self.separation, &mut self.replaced];
        if steps.iter().any(|step| step.is_some_and(|due| due <= now)) && is_in_use() {
            let later = |step: &mut Option<Instant>| *step = step.map(|due| due.max(now + LOOK_AGAIN));
            steps.iter_mut().for_each(|step| later(step));
        }
    }

    /// Whether to separate the replaced generation now. Returns `true` once for each replacement.
    pub(super) fn take_separation(&mut self, now: Instant) -> bool {
        self.separation.take_if(|due| *due <= now).is_some()
    }

    /// Whether to remove the replaced generation now. Returns `true` once for each replacement.
    pub(super) fn take_replaced(&mut self, now: Instant) -> bool {
        self.replaced.take_if(|due| *due <= now).is_some()
    }

    /// The times at which work is due, without the checks of hooks.
    pub(super) fn due(&self) -> [Option<Instant>; 4] {
        [self.reconcile.due, self.separation, self.replaced, self.interfaces.due]
    }
}
