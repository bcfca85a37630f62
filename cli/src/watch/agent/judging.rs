//! Single entries of the generation in force, and when flows are judged again because of them.
//!
//! Problem: after an address changes its owner, a flow that was judged before keeps the old verdict. A new epoch makes
//! every flow be judged again on its next packet. This is expensive for all flows, and pods come and go all the time.
//! Strategy: entries are written at once. The epoch is raised with them if the last time was at least [`PAUSE`] ago,
//! else at the end of that pause, once for all changes in between. So there are at most ten epochs per second, however
//! many pods there are.
//! Invariants: a request for a new epoch ends only with a new epoch: after a write that succeeded, or when a generation
//! with a new number comes into force. Entries that could not be written are kept and retried until a generation
//! contains them. Entries are written before the epoch is raised (`Runtime::write_addresses`), so no flow is judged
//! with an old entry under a new epoch.
//!
//! The epoch cannot wrap around while a flow waits for it: see `epoch` in `runtime-bpf/src/record.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_classes::PeerId;
use weir_classes::index::Changes;

use super::{Agent, Backoff, Value, back_off};
use crate::watch::enforce::{Enforce, Trouble};

/// The time between two epochs that are raised for single addresses.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The entries to write, and whether flows must be judged again.
#[derive(Debug, Default)]
pub(super) struct Writes {
    entries: BTreeMap<IpAddr, Option<PeerId>>,
    /// The time since which flows have to be judged again.
    judge_since: Option<Instant>,
    /// The time at which the last epoch began.
    judged_at: Option<Instant>,
    /// Set after a write that failed.
    retry: Option<Backoff>,
}

impl Writes {
    pub(super) fn add(&mut self, changes: Changes, at: Instant) {
        self.entries.extend(changes.entries);
        if changes.judge_again {
            self.judge_again(at);
        }
    }

    /// Requests that flows are judged again.
    pub(super) fn judge_again(&mut self, at: Instant) {
        self.judge_since.get_or_insert(at);
    }

    /// Drops all entries: a generation has them, or will have them.
    pub(super) fn forget_entries(&mut self) {
        self.entries.clear();
    }

    /// Notes that a new epoch has begun.
    pub(super) fn judged(&mut self, at: Instant) {
        (self.judge_since, self.judged_at) = (None, Some(at));
    }

    /// Drops the retry: a new generation is in force, and the failed write was for an earlier one.
    pub(super) fn forget_failure(&mut self) {
        self.retry = None;
    }

    /// When the next write is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let epoch = self.epoch_due();
        match self.retry {
            Some((at, _)) if epoch.is_some() || !self.entries.is_empty() => Some(at),
            _ => epoch,
        }
    }

    fn epoch_due(&self) -> Option<Instant> {
        let since = self.judge_since?;
        Some(self.judged_at.map_or(since, |last| since.max(last + PAUSE)))
    }

    fn waits(&self, now: Instant) -> bool {
        self.retry.is_some_and(|(at, _)| at > now)
    }
}

impl<E: Enforce> Agent<E> {
    /// Writes single entries into the generation in force, and raises the epoch if that is due. If this fails, a new
    /// generation is made; until then it is retried.
    pub(super) fn write(&mut self, now: Instant) {
        if !self.is_indexed || self.pending.writes.waits(now) {
            return;
        }
        let writes = &mut self.pending.writes;
        let again = writes.epoch_due().is_some_and(|due| due <= now);
        if again || !writes.entries.is_empty() {
            let changes: Vec<_> = writes.entries.iter().map(|(address, peer)| (*address, *peer)).collect();
            if let Err(trouble) = self.enforce.write(&changes, again) {
                writes.retry = Some(back_off(writes.retry, now));
                self.refused(!changes.is_empty(), trouble, now);
                return;
            }
            writes.forget_entries();
            writes.forget_failure();
            if again {
                writes.judged(now);
            }
            self.metrics.add("weir_address_writes_total", &[], changes.len() as f64);
        }
        let written = std::mem::take(&mut self.pending.single);
        self.in_force_now(written, Instant::now());
    }

    /// Handles a failed write. If there were entries, a new generation is made, because it has room for them. Otherwise
    /// a generation could not do more than a retry.
    fn refused(&mut self, has_entries: bool, Trouble(why): Trouble, now: Instant) {
        if has_entries {
            self.log.info("single entries need a new generation", &[("why", Value::from(why))]);
            self.pending.whole.append(&mut self.pending.single);
            self.pending.want_generation(now);
        } else {
            self.log.error("flows are not judged again yet", &[("error", Value::from(why))]);
        }
    }
}
