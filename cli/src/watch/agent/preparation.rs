//! Prepares the kernel for the next generation when there is nothing else to do.
//!
//! Problem: the first change after a start, or after a change of the programs, has to load a second copy of them
//! ([`weir_runtime::runtime::Runtime::prepare_spare`]), which takes a tenth of a second.
//! Strategy: the agent keeps the artifact of the generation in force, and makes the copy when no generation was needed
//! for [`QUIET_BEFORE`]. This is not urgent, so it leaves half of the CPU budget for changes.
//! Invariant: an artifact is kept only while its generation is in force and the kernel is not prepared. If this fails,
//! the next change takes longer, and nothing else.

use std::time::{Duration, Instant};

use weir_artifact::Artifact;

use super::{NodeAgent, Value};
use crate::watch::enforce::{Enforce, Installed};

/// How long no generation must have been needed. At a start, lists that come late need several, with other programs.
pub(super) const QUIET_BEFORE: Duration = Duration::from_secs(1);
/// The part of the CPU budget that must be left.
const LEFT: f64 = 0.5;

/// The generation for whose successor the kernel is not prepared.
#[derive(Debug)]
pub(super) struct Unprepared {
    artifact: Artifact,
    since: Instant,
}

impl<E: Enforce> NodeAgent<E> {
    /// Keeps the artifact of the generation that is in force now for [`Self::prepare_next`], if the kernel is not
    /// prepared for the next one.
    pub(super) fn prepare_later(&mut self, artifact: Artifact, installed: &Installed, now: Instant) {
        self.end_preparation();
        match installed.lacks_spare {
            true => self.unprepared = Some(Unprepared { artifact, since: now }),
            false => self.compile.last.reuse(artifact),
        }
    }

    /// Called before the next generation is made: the artifact is out of date then.
    pub(super) fn end_preparation(&mut self) {
        if let Some(Unprepared { artifact, .. }) = self.unprepared.take() {
            self.compile.last.reuse(artifact);
        }
    }

    /// When to prepare the next generation, unless one is needed before.
    pub(super) fn preparation_due(&self) -> Option<Instant> {
        let Unprepared { since, .. } = self.unprepared.as_ref().filter(|_| !self.pending.needs_generation())?;
        Some(self.pace.filled(LEFT)?.max(*since + QUIET_BEFORE))
    }

    /// Prepares the kernel for the next generation.
    pub(super) fn prepare_next(&mut self) {
        let Some(Unprepared { artifact, .. }) = self.unprepared.take() else { return };
        if let Err(error) = self.enforce.prepare_spare(&artifact) {
            self.reports.metrics.add("weir_failures_total", &[("stage", "prepare")], 1.0);
            let fields = [("error", Value::from(error.message))];
            self.reports.log.warn("the kernel is not prepared for the next change, which will take longer", &fields);
        }
        self.compile.last.reuse(artifact);
    }
}
