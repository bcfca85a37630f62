//! Moves endpoints from one kind of hook to the other (TCX, clsact); no packet passes unjudged meanwhile.
//!
//! Problem: when a TCX link is created, the kernel waits until no CPU runs the hook's previous programs. This takes
//! some milliseconds per link, one after the other, so a node full of pods takes many seconds. A filter on clsact does
//! not wait, but it costs a little more per packet. Strategy: if more than [`FEW`] endpoints are new at once, those
//! whose hooks have no other programs are attached through clsact and marked as hurried. Later, the agent's checks of
//! hooks move them to TCX, one at a time.
//!
//! Steps of a move: write it into the record, place both programs on the new hooks, remove them from the old hooks. In
//! between, both run and give the same verdict. If a hook refuses a program, the endpoint stays on its old hooks. A
//! move that was interrupted before both programs were placed is undone ([`Runtime::undo_moves`]): the new hooks may
//! refuse the programs, and the old ones have them.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Runtime;
use super::reconcile::Reconciled;
use crate::error::{Doing as _, Error, Failure, StateAfterFailure};
use crate::generation::LoadedGeneration;
use crate::point::{HookKind, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord};

/// The largest number of new endpoints that get TCX links at once, and of leaving endpoints whose links are simply
/// removed. Larger numbers are treated differently, because the kernel waits for each link.
pub(crate) const FEW: usize = 16;
/// The shortest time between two moves. During a move the kernel waits for every CPU, and meanwhile no other process
/// can change an interface.
const BETWEEN_MOVES: Duration = Duration::from_millis(500);

/// The agent's moves of hurried endpoints.
#[derive(Debug)]
pub(crate) struct HurriedMoves {
    between: Duration,
    /// The interface that was moved last, or should have been, and when. If moves fail, all endpoints take turns.
    last: Option<(u32, Instant)>,
    /// Moves that failed since the last repair, by interface.
    failures: BTreeMap<u32, Failure>,
}

impl Default for HurriedMoves {
    fn default() -> Self {
        Self { between: BETWEEN_MOVES, last: None, failures: BTreeMap::new() }
    }
}

impl HurriedMoves {
    /// The interface to move now.
    fn next(&mut self, record: &EnforcementRecord) -> Option<u32> {
        let mut hurried = record.endpoints.iter().filter(|it| it.hurried).map(|it| it.ifindex);
        let first = hurried.next()?;
        let next = match self.last {
            Some((_, at)) if at.elapsed() < self.between => return None,
            Some((last, _)) if first <= last => hurried.find(|ifindex| *ifindex > last).unwrap_or(first),
            _ => first,
        };
        self.last = Some((next, Instant::now()));
        Some(next)
    }
}

impl Runtime {
    /// Whether an interface has no TCX links. TCX links run before clsact filters, and another program's link could end
    /// the processing before our filter.
    pub(crate) fn has_no_links(&self, ifindex: u32) -> bool {
        ProgramSide::BOTH
            .into_iter()
            .all(|side| self.system.query(ifindex, side.hook()).is_ok_and(|links| links.is_empty()))
    }

    /// Moves one of the hurried endpoints to TCX links. Without the copy of an agent it does nothing.
    pub(crate) fn move_one_hurried(&self, record: &EnforcementRecord) -> Result<(), Error> {
        // Packets of a retired generation may be under way.
        let is_settled = record.retired.is_none() && record.leaving.is_empty();
        let Some(ifindex) = self.hurried_moves().filter(|_| is_settled).and_then(|mut moves| moves.next(record)) else {
            return Ok(());
        };
        self.kept_during(|| {
            let (mut record, mut moved) = (self.record()?, Reconciled::default());
            let Some(loaded) = self.current(&record)? else { return Ok(()) };
            self.move_over(&mut record, &loaded, ifindex, HookKind::Tcx, &mut moved)?;
            if let Some((mut moves, failure)) = self.hurried_moves().zip(moved.failures.pop()) {
                moves.failures.insert(ifindex, failure);
            }
            Ok(())
        })
    }

    /// Moves hurried endpoints with other pauses. Only for tests.
    pub fn moving_every(self, between: Duration) -> Self {
        self.hurried_moves().into_iter().for_each(|mut moves| moves.between = between);
        self
    }

    /// The moves that failed since the last call. The endpoints are enforced as before, and are tried again.
    pub(crate) fn take_failed_moves(&self) -> Vec<Failure> {
        let failures = self.hurried_moves().map(|mut moves| std::mem::take(&mut moves.failures));
        failures.unwrap_or_default().into_values().collect()
    }

    fn hurried_moves(&self) -> Option<MutexGuard<'_, HurriedMoves>> {
        // A panic leaves an earlier state, with which the moves go on.
        self.hurried_moves.as_ref().map(|moves| moves.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves an endpoint's programs to the other kind of hook.
    pub(crate) fn move_over(
        &self,
        record: &mut EnforcementRecord,
        loaded: &LoadedGeneration,
        ifindex: u32,
        way: HookKind,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let Some(place) = record.endpoints.iter_mut().find(|it| it.ifindex == ifindex && it.way != way) else {
            return Ok(());
        };
        let old = place.clone();
        let new = EnforcedEndpoint { way, hurried: false, ..old.clone() };
        *place = new.clone();
        record.leaving.push(old.clone());
        self.write_record(record)?;
        let placed =
            ProgramSide::BOTH.into_iter().try_for_each(|side| self.point(&new, side).place(loaded.program(side)));
        if let Err(why) = placed {
            for side in ProgramSide::BOTH {
                let removing = format!("remove {} from {}", side.program(), new.interface);
                self.point(&new, side).remove(None).doing(removing)?;
            }
            record.endpoints.iter_mut().filter(|it| it.ifindex == ifindex).for_each(|it| *it = old.clone());
            record.leaving.retain(|it| *it != old);
            let (pod, interface) = (old.pod, old.interface);
            reconciled.failures.push(Failure {
                pod,
                interface,
                now: StateAfterFailure::AsBefore,
                why: why.to_string(),
            });
            return self.write_record(record);
        }
        self.remove_leaving(record, Some(loaded), &[])
    }

    /// Undoes interrupted moves if the old hooks have both programs and the new ones do not. Programs on the new hooks
    /// are removed.
    pub(super) fn undo_moves(&self, record: &mut EnforcementRecord, loaded: &LoadedGeneration) -> Result<(), Error> {
        let mut is_changed = false;
        for left in &mut record.leaving {
            let moved = record.endpoints.iter_mut();
            let moved =
                moved.filter(|it| (it.ifindex, &it.pod) == (left.ifindex, &left.pod)).find(|it| it.way != left.way);
            let Some(moved) = moved else { continue };
            // If a query fails, the move is not undone.
            if matches!(self.has_both(left, loaded), Ok(true)) && matches!(self.has_both(moved, loaded), Ok(false)) {
                std::mem::swap(moved, left);
                is_changed = true;
            }
        }
        if is_changed { self.write_record(record) } else { Ok(()) }
    }

    /// Whether an endpoint's hooks have the programs of this generation.
    pub(super) fn has_both(&self, local: &EnforcedEndpoint, loaded: &LoadedGeneration) -> Result<bool, Error> {
        for (side, number) in ProgramSide::BOTH.into_iter().zip(loaded.generation.programs) {
            if self.point(local, side).program()? != Some(number) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
