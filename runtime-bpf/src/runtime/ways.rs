//! From one way onto an interface to the other, with no packet unseen.
//!
//! Problem: before it returns, the kernel waits with each new TCX link until no CPU runs what was at the hook before, some
//! milliseconds each and one after the other, so that a node's pods would take many seconds; a filter on clsact takes none of that,
//! and costs each packet a little more for as long as it is there. Strategy: of more than [`FEW`] new endpoints at once, those
//! whose hooks are nobody's come through clsact, and are marked as hurried. The agent's mending moves them on, a few each time.
//!
//! A move: the record says so; both programs are put there by the new way; those of the old way go. Until then both run, and say
//! the same. What refuses is put back as it was.

use super::Runtime;
use super::settle::Settled;
use crate::error::{Doing as _, Error, Failure, Now};
use crate::generation::Loaded;
use crate::point::{Side, Way};
use crate::record::{Endpoint, Record};

/// So many new endpoints get links at once, and so many lose them.
pub(crate) const FEW: usize = 16;
/// So many hurried ones get them with each mending.
const EACH_TIME: usize = 4;

impl Runtime {
    /// Whether a filter at an interface would be the first program there: a link of somebody else's could end the walk before it.
    pub(crate) fn has_no_links(&self, ifindex: u32) -> bool {
        Side::BOTH.into_iter().all(|side| self.system.query(ifindex, side.hook()).is_ok_and(|links| links.is_empty()))
    }

    /// Links for some of those that came in a hurry.
    pub(crate) fn move_hurried(
        &self,
        record: &mut Record,
        loaded: &Loaded,
        settled: &mut Settled,
    ) -> Result<(), Error> {
        let hurried = record.endpoints.iter().filter(|it| it.hurried).take(EACH_TIME);
        for ifindex in hurried.map(|it| it.ifindex).collect::<Vec<_>>() {
            self.move_over(record, loaded, ifindex, Way::Tcx, settled)?;
        }
        Ok(())
    }

    /// Enforces at an interface by the other way.
    pub(crate) fn move_over(
        &self,
        record: &mut Record,
        loaded: &Loaded,
        ifindex: u32,
        way: Way,
        settled: &mut Settled,
    ) -> Result<(), Error> {
        let Some(place) = record.endpoints.iter_mut().find(|it| it.ifindex == ifindex && it.way != way) else {
            return Ok(());
        };
        let old = place.clone();
        let new = Endpoint { way, hurried: false, ..old.clone() };
        *place = new.clone();
        record.leaving.push(old.clone());
        record.write(&self.system, &self.pins)?;
        let placed = Side::BOTH.into_iter().try_for_each(|side| self.point(&new, side).place(loaded.program(side)));
        if let Err(why) = placed {
            for side in Side::BOTH {
                let removing = format!("remove {} from {}", side.program(), new.interface);
                self.point(&new, side).remove(None).doing(removing)?;
            }
            record.endpoints.iter_mut().filter(|it| it.ifindex == ifindex).for_each(|it| *it = old.clone());
            record.leaving.retain(|it| *it != old);
            let (pod, interface) = (old.pod, old.interface);
            settled.failures.push(Failure { pod, interface, now: Now::AsBefore, why: why.to_string() });
            return record.write(&self.system, &self.pins);
        }
        self.remove_leaving(record, Some(loaded), &[])
    }
}
