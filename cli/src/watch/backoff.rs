//! Growing waits between attempts.

use std::time::{Duration, Instant};

/// The waits between attempts: the first one, and the limit for their doubling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackoffLimits {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

/// The time of the next attempt, and the wait after it if it fails too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    due: Instant,
    next_wait: Duration,
}

impl Backoff {
    /// An attempt at this time. If it fails, the first wait follows.
    pub(crate) fn at(due: Instant, limits: BackoffLimits) -> Self {
        Self { due, next_wait: limits.first }
    }

    /// The next attempt after one that failed now. `before` is that attempt's backoff, if it was a retry.
    pub(crate) fn after(before: Option<Self>, now: Instant, limits: BackoffLimits) -> Self {
        let wait = before.map_or(limits.first, |it| it.next_wait);
        Self { due: now + wait, next_wait: (wait * 2).min(limits.longest) }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }
}
