//! Moves endpoints from one kind of hook to the other (TCX, clsact); no packet passes unjudged meanwhile.
//!
//! Problem: when a TCX link is created, the kernel waits until no CPU runs the hook's previous programs. This takes
//! some milliseconds per link, one after the other, so a node full of pods takes many seconds. A filter on clsact does
//! not wait, but it costs a little more per packet. Strategy: if more than [`FEW`] endpoints are new at once, those
//! whose hooks have no other programs are attached through clsact and marked as hurried. Each reconciliation of the
//! agent then moves a few of them to TCX.
//!
//! Steps of a move: write it into the record, place both programs on the new hooks, remove them from the old hooks. In
//! between, both run and give the same verdict. If a hook refuses a program, the endpoint stays on its old hooks.

use super::Runtime;
use super::reconcile::Reconciled;
use crate::error::{Doing as _, Error, Failure, StateAfterFailure};
use crate::generation::LoadedGeneration;
use crate::point::{HookKind, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord};

/// The largest number of new endpoints that get TCX links at once, and of leaving endpoints whose links are simply
/// removed. Larger numbers are treated differently, because the kernel waits for each link.
pub(crate) const FEW: usize = 16;
/// Number of hurried endpoints that each reconciliation moves.
const EACH_TIME: usize = 4;

impl Runtime {
    /// Whether an interface has no TCX links. TCX links run before clsact filters, and another program's link could end
    /// the processing before our filter.
    pub(crate) fn has_no_links(&self, ifindex: u32) -> bool {
        ProgramSide::BOTH
            .into_iter()
            .all(|side| self.system.query(ifindex, side.hook()).is_ok_and(|links| links.is_empty()))
    }

    /// Moves some of the hurried endpoints to TCX links.
    pub(crate) fn move_hurried(
        &self,
        record: &mut EnforcementRecord,
        loaded: &LoadedGeneration,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let hurried = record.endpoints.iter().filter(|it| it.hurried).take(EACH_TIME);
        for ifindex in hurried.map(|it| it.ifindex).collect::<Vec<_>>() {
            self.move_over(record, loaded, ifindex, HookKind::Tcx, reconciled)?;
        }
        Ok(())
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
}
