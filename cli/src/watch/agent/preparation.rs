//! Prepares the kernel for the next generation when there is nothing else to do.
//!
//! Problem: the first change after a start, or after a change of the programs, has to load a second copy of them
//! ([`weir_runtime::runtime::Runtime::prepare_spare`]), which takes a tenth of a second.
//! Strategy: the agent keeps the artifact of the generation in force, and has the copy made when no generation was
//! needed for a while. This is not urgent, so it waits for other work, and until half of the CPU budget is left.
//! Invariant: the artifact that is kept is that of the generation in force. If the preparation fails, the next change
//! takes longer, and nothing else.

use std::time::{Duration, Instant};

use weir_artifact::Artifact;

use super::{NodeAgent, Value};
use crate::watch::enforce::{Enforce, Installed};

/// How long no generation must have been needed since one with other programs. An edit a moment later finds the copy.
pub(super) const QUIET_BEFORE: Duration = Duration::from_millis(200);
/// The same since one with the same programs: nearly always, the copy is there, and to find that out costs CPU time.
const QUIET_IF_SAME: Duration = Duration::from_secs(1);
/// The same since the last one from scratch. At a start, lists that come late need several, with other programs.
pub(super) const QUIET_AFTER_WHOLE: Duration = Duration::from_secs(1);
/// The time after which the agent looks again whether the budget allows it: the budget is spent on looking, too.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The part of the CPU budget that must be left before.
const LEFT: f64 = 0.5;

/// The generation in force, for whose successor the kernel is perhaps not prepared.
#[derive(Debug)]
struct Unprepared {
    artifact: Artifact,
    due: Instant,
}

/// When to prepare the next generation.
#[derive(Debug, Default)]
pub(super) struct Preparation {
    unprepared: Option<Unprepared>,
    /// The end of [`QUIET_AFTER_WHOLE`] after the last generation from scratch.
    earliest: Option<Instant>,
}

impl<E: Enforce> NodeAgent<E> {
    /// Keeps the artifact of the generation that is in force now for [`Self::prepare_next`].
    pub(super) fn prepare_later(&mut self, artifact: Artifact, installed: &Installed, is_whole: bool, now: Instant) {
        if is_whole {
            self.preparation.earliest = Some(now + QUIET_AFTER_WHOLE);
        }
        let quiet = now + if self.compile.last.has_taken_programs() { QUIET_IF_SAME } else { QUIET_BEFORE };
        let due = self.preparation.earliest.map_or(quiet, |earliest| earliest.max(quiet));
        // Programs of the generation before may still run where this one could not be installed. Then the next change
        // drops every spare.
        match installed.failed.is_empty() {
            true => self.preparation.unprepared = Some(Unprepared { artifact, due }),
            false => self.compile.last.reuse(artifact),
        }
    }

    /// Called before the next generation is made: the artifact is out of date then.
    pub(super) fn end_preparation(&mut self) {
        if let Some(Unprepared { artifact, .. }) = self.preparation.unprepared.take() {
            self.compile.last.reuse(artifact);
        }
    }

    /// When to prepare the next generation, if no other work is waiting.
    pub(super) fn preparation_due(&self) -> Option<Instant> {
        let other_work = [self.pending.writes.due(), self.starting.held.due()];
        let is_busy = self.pending.needs_generation() || other_work.iter().any(Option::is_some);
        self.preparation.unprepared.as_ref().filter(|_| !is_busy).map(|it| it.due)
    }

    /// Prepares the kernel for the next generation if that is due.
    pub(super) fn prepare_next(&mut self, now: Instant) {
        if self.preparation_due().is_none_or(|due| due > now) {
            return;
        }
        let Some(mut unprepared) = self.preparation.unprepared.take() else { return };
        if !self.pace.can_spare(LEFT) {
            unprepared.due = now + LOOK_AGAIN;
            self.preparation.unprepared = Some(unprepared);
            return;
        }
        if let Err(error) = self.enforce.prepare_spare(&unprepared.artifact) {
            self.reports.metrics.add("weir_failures_total", &[("stage", "prepare")], 1.0);
            let fields = [("error", Value::from(error.message))];
            self.reports.log.warn("the kernel is not prepared for the next change, which will take longer", &fields);
        }
        self.compile.last.reuse(unprepared.artifact);
    }
}
