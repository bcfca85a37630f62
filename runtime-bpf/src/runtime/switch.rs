//! The switch from one generation to the next: every point, one after the other, and back again if one of them fails.

use super::endpoint_programs::FoundPrograms;
use super::new_endpoints::NewEndpoints;
use super::reconcile::Reconciled;
use super::{Runtime, uptime};
use crate::error::{Error, Failure, StateAfterFailure};
use crate::generation::{self, LoadedGeneration};
use crate::pins::Age;
use crate::point::ProgramSide;
use crate::record::{EnforcedEndpoint, EnforcementRecord};

impl Runtime {
    /// Continues the switch that the record names.
    pub(crate) fn go_forward(&self, record: &mut EnforcementRecord, reconciled: &mut Reconciled) -> Result<(), Error> {
        let Some(generation) = record.next.clone() else { return Ok(()) };
        let current = self.current(record)?;
        match generation::open(&self.objects(), record, &generation, Age::Next)? {
            Some(next) => {
                let new = self.interrupted_endpoints(record, &next);
                self.switch(record, current.as_ref(), &next, &new, reconciled)
            }
            None => {
                record.next = None;
                self.write_record(record)
            }
        }
    }

    /// Puts the record's next generation in force everywhere, or keeps the present one. Counts and notes where the
    /// present one was not in force as it should have been.
    pub(crate) fn switch(
        &self,
        record: &mut EnforcementRecord,
        current: Option<&LoadedGeneration>,
        next: &LoadedGeneration,
        new: &NewEndpoints,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        if let Some(current) = current
            && let Err(error) = self.pair(current, next)
        {
            self.go_back(record, Some(current), new, &[])?;
            return Err(error);
        }
        // From here on, packets can meet programs of both generations. The record names the next one already, so if the
        // process dies anywhere below, the next command continues forward and never has to guess which hooks were
        // replaced. The uplinks change first: see `edge`.
        self.place_edge(record, next, reconciled);
        let generations: Vec<&LoadedGeneration> = current.into_iter().chain([next]).collect();
        let (mut replaced, mut gone) = (Vec::new(), Vec::new());
        self.prepare(record, new);
        let endpoints = record.endpoints.clone();
        for local in new.ordered(&endpoints) {
            let before = reconciled.met.len();
            let switched = self.replace(local, current, next, (&mut replaced, &mut reconciled.met));
            record.repaired += (reconciled.met.len() - before) as u64;
            match switched {
                Ok(()) => _ = self.open_new(local, next, new),
                Err(why) if self.is_gone(local, &record.programs(), &mut FoundPrograms::new())? => {
                    reconciled.failures.push(failure(local, StateAfterFailure::Gone, &why));
                    gone.push(local.clone());
                }
                // An endpoint that was not in force before has no previous program to restore.
                Err(why) if !self.was_enforced(local, current, &replaced) => {
                    self.undo_preparation(local);
                    let failure = self.fail_closed(local, &generations, why.to_string());
                    if failure.now == StateAfterFailure::Open {
                        record.endpoints.retain(|it| it != local);
                    }
                    reconciled.failures.push(failure);
                }
                Err(error) => {
                    if self.apart && self.remove_entries(local, &generations).is_empty() {
                        let now = self.state_without_entry(local, &generations);
                        reconciled.failures.push(failure(local, now, &error));
                        continue;
                    }
                    self.go_back(record, current, new, &replaced)?;
                    return Err(Error::Kernel {
                        doing: format!("put the new generation in force at {} ({})", local.interface, local.pod),
                        error,
                    });
                }
            }
        }
        if !gone.is_empty() {
            record.endpoints.retain(|it| !gone.contains(it));
        }
        record.leaving.extend(gone.iter().cloned());
        reconciled.gone.extend(gone);
        // One write makes the next generation the current one. Before it, recovery repeats the replacements above,
        // which does no harm. After it, the pins have other places, and `place_pins` moves them.
        record.retired = record.current.take().map(|generation| (generation, uptime()));
        // Its programs may still run at such an endpoint or uplink, so its maps must not change.
        let may_run = !reconciled.failures.is_empty() || !reconciled.edge_failures.is_empty();
        record.retired.iter_mut().filter(|_| may_run).for_each(|(retired, _)| retired.code.clear());
        record.current = record.next.take();
        self.begin_to_retire(record);
        self.write_record(record)
    }

    fn replace<'a>(
        &self,
        local: &'a EnforcedEndpoint,
        current: Option<&LoadedGeneration>,
        next: &LoadedGeneration,
        (replaced, met): (&mut Vec<(&'a EnforcedEndpoint, ProgramSide)>, &mut Vec<String>),
    ) -> std::io::Result<()> {
        for side in ProgramSide::BOTH {
            if !self.point(local, side).switch(current, next)? {
                met.push(hook_name(local, side));
            }
            replaced.push((local, side));
        }
        Ok(())
    }

    /// Whether the previous generation is, or was until now, in force at this endpoint. If the query fails, it counts
    /// as in force.
    fn was_enforced(
        &self,
        local: &EnforcedEndpoint,
        current: Option<&LoadedGeneration>,
        replaced: &[(&EnforcedEndpoint, ProgramSide)],
    ) -> bool {
        let Some(current) = current else { return false };
        ProgramSide::BOTH.into_iter().zip(current.generation.programs).any(|(side, number)| {
            let was_replaced = replaced.iter().any(|(it, at)| *it == local && *at == side);
            !was_replaced && self.point(local, side).program().map_or(true, |there| there == Some(number))
        })
    }

    /// Puts the present generation in force again where the next one has replaced it. New endpoints whose pods run are as
    /// before, and leave the record. The record drops the next generation only after the last hook has changed back:
    /// until then, both generations must be kept.
    fn go_back(
        &self,
        record: &mut EnforcementRecord,
        current: Option<&LoadedGeneration>,
        new: &NewEndpoints,
        replaced: &[(&EnforcedEndpoint, ProgramSide)],
    ) -> Result<(), Error> {
        let Some(current) = current else { return Ok(()) };
        // If this fails, the next command tries it again.
        self.place_edge(record, current, &mut Reconciled::default());
        let mut failed = Vec::new();
        for (local, side) in replaced {
            let point = self.point(local, *side);
            let back = if new.runs(local) { point.remove(None) } else { point.place(current.program(*side)) };
            if let Err(why) = back {
                failed.push(failure(local, StateAfterFailure::Other, &why));
            }
        }
        if !failed.is_empty() {
            // Both generations stay. The next operation continues the switch.
            return Err(Error::Partial(failed));
        }
        // The present generation may not have them, and would drop all their packets.
        record.endpoints.iter().filter(|it| new.runs(it)).for_each(|it| self.undo_preparation(it));
        record.endpoints.retain(|it| !new.runs(it));
        record.next = None;
        self.write_record(record)?;
        self.unpair(current)?;
        self.place_pins(record).map(|_| ())
    }
}

/// A hook of an endpoint whose program was missing, for the list of repairs.
pub(super) fn hook_name(local: &EnforcedEndpoint, side: ProgramSide) -> String {
    format!("{} at {}", side.program(), local.interface)
}

fn failure(local: &EnforcedEndpoint, now: StateAfterFailure, why: &std::io::Error) -> Failure {
    Failure { pod: local.pod.clone(), interface: local.interface.clone(), now, why: why.to_string() }
}
