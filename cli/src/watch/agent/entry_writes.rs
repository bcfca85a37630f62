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
//! with an old entry under a new epoch; if the kernel refuses an entry, the epoch is raised again with its retry.
//!
//! The epoch cannot wrap around while a flow waits for it: see `epoch` in `runtime-bpf/src/record.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_classes::PeerId;
use weir_classes::index::{Changes, LocalChange};

use super::pace::ISOLATION;
use super::{NodeAgent, RETRY, Value};
use crate::watch::backoff::Backoff;
use crate::watch::enforce::{AddressChange, Enforce, EnforceError};

/// The time between two epochs that are raised for single addresses.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The entries to write, and whether flows must be judged again.
#[derive(Debug, Default)]
pub(super) struct EntryWrites {
    entries: BTreeMap<IpAddr, Option<PeerId>>,
    /// Pods of this node that come or leave, in order. Only after the entries are written.
    locals: Vec<LocalChange>,
    /// The time since which flows have to be judged again.
    judge_since: Option<Instant>,
    /// The time at which the last epoch began.
    judged_at: Option<Instant>,
    /// Set after a write that failed.
    failed: Option<FailedWrite>,
}

/// A write that failed, and when to retry.
#[derive(Clone, Copy, Debug)]
struct FailedWrite {
    at: Instant,
    retry: Backoff,
    /// Whether it had entries. If it was a new epoch alone, entries and pods that come later do not wait for its retry.
    has_entries: bool,
    /// Whether entries have come since then. The kernel may take them, and they may isolate.
    has_more: bool,
}

impl FailedWrite {
    fn due(&self) -> Instant {
        let due = self.retry.due();
        if self.has_entries && self.has_more { due.min(self.at + ISOLATION) } else { due }
    }
}

impl EntryWrites {
    pub(super) fn add(&mut self, changes: Changes, at: Instant) {
        if let Some(failed) = &mut self.failed {
            failed.has_more |= !changes.entries.is_empty();
        }
        self.entries.extend(changes.entries);
        self.locals.extend(changes.locals);
        if changes.judge_again {
            self.judge_again(at);
        }
    }

    /// Requests that flows are judged again.
    pub(super) fn judge_again(&mut self, at: Instant) {
        self.judge_since.get_or_insert(at);
    }

    /// Drops all entries and pods: a generation has them, or will have them.
    pub(super) fn forget_entries(&mut self) {
        self.entries.clear();
        self.locals.clear();
    }

    /// Takes the pods of this node that come or leave.
    pub(super) fn take_locals(&mut self) -> Vec<LocalChange> {
        std::mem::take(&mut self.locals)
    }

    /// Notes that a new epoch has begun.
    fn epoch_began(&mut self, at: Instant) {
        (self.judge_since, self.judged_at, self.failed) = (None, Some(at), None);
    }

    /// Notes that a generation with a new number is in force: it has begun an epoch, and a write that failed was for
    /// an earlier generation.
    pub(super) fn generation_began(&mut self, at: Instant) {
        self.epoch_began(at);
    }

    /// Notes that all entries are written. A new epoch that failed still waits for its retry.
    fn written(&mut self) {
        self.entries.clear();
        self.failed = self.failed.filter(|failed| !failed.has_entries);
    }

    /// When the next write is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let epoch = self.epoch_due();
        match self.failed {
            Some(failed) if epoch.is_some() || !self.entries.is_empty() => Some(failed.due()),
            _ => epoch,
        }
    }

    fn epoch_due(&self) -> Option<Instant> {
        let since = self.judge_since?;
        Some(self.judged_at.map_or(since, |last| since.max(last + PAUSE)))
    }

    fn waits(&self, now: Instant) -> bool {
        let has_work = !self.entries.is_empty() || !self.locals.is_empty();
        let is_urgent = |failed: FailedWrite| !failed.has_entries && has_work;
        self.waits_to_retry(now) && !self.failed.is_some_and(is_urgent)
    }

    fn waits_to_retry(&self, now: Instant) -> bool {
        self.failed.is_some_and(|failed| failed.due() > now)
    }

    fn fail(&mut self, has_entries: bool, now: Instant) {
        let retry = Backoff::after(self.failed.map(|it| it.retry), now, RETRY);
        self.failed = Some(FailedWrite { at: now, retry, has_entries, has_more: false });
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Writes single entries into the generation in force, and raises the epoch if that is due. If this fails, a new
    /// generation is compiled; until then the write is retried.
    pub(super) fn write_entries(&mut self, now: Instant) {
        if !self.enforcement.is_writable() || self.pending.writes.waits(now) {
            return;
        }
        let writes = &mut self.pending.writes;
        let again = writes.epoch_due().is_some_and(|due| due <= now) && !writes.waits_to_retry(now);
        if again || !writes.entries.is_empty() {
            let change =
                |(address, class): (&IpAddr, &Option<PeerId>)| AddressChange { address: *address, class: *class };
            let changes: Vec<AddressChange> = writes.entries.iter().map(change).collect();
            if let Err(error) = self.enforce.write_addresses(&changes, again) {
                writes.fail(!changes.is_empty(), now);
                self.write_failed(!changes.is_empty(), error, now);
                if !self.pending.writes.locals.is_empty() {
                    // A generation contains the pods, and does not wait for the retry.
                    self.pending.need_generation(now);
                }
                return;
            }
            writes.written();
            if again {
                writes.epoch_began(now);
            }
            self.reports.metrics.add("weir_address_writes_total", &[], changes.len() as f64);
        }
        self.change_local_pods(now);
        let written = self.pending.take_entry_times();
        self.reports.time_changes(written, Instant::now());
    }

    /// Handles a failed write. If there were entries, a new generation is needed, because it has room for them.
    /// Otherwise a generation could not do more than a retry.
    fn write_failed(&mut self, has_entries: bool, error: EnforceError, now: Instant) {
        let fields = [("error", Value::from(error.message))];
        if has_entries {
            self.reports.log.info("single entries cannot be written; compiling a new generation", &fields);
            self.pending.move_entries_to_generation();
            self.pending.need_generation(now);
        } else {
            self.reports.log.error("established flows cannot be judged again; retrying", &fields);
        }
    }
}
