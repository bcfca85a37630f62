//! Endpoints that leave: removes their programs, entries and flows.
//!
//! Problem: a later interface can get the same number, and must not inherit anything.
//! Strategy: the record lists an endpoint as leaving until everything is removed. A process that dies meanwhile leaves
//! this list, and the next command repeats the removal.

use std::collections::BTreeSet;

use weir_artifact::layout::MapName;
use weir_artifact::layout::buckets::Slot;
use weir_artifact::map_image::bucket_family;

use super::Runtime;
use super::hook_move::FEW;
use crate::error::{Doing as _, Error, Failure};
use crate::generation::{LoadedGeneration, is_shared};
use crate::point::{HookKind, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord};
use crate::sys::errno;

impl Runtime {
    /// Removes the programs, entries and flows of endpoints that leave, because a later interface can get the same
    /// number. If an endpoint is attached in a new way and that fails, the programs of the old way stay.
    pub(super) fn remove_leaving(
        &self,
        record: &mut EnforcementRecord,
        loaded: Option<&LoadedGeneration>,
        failures: &[Failure],
    ) -> Result<(), Error> {
        let is_needed = |left: &EnforcedEndpoint| {
            let moves = record.endpoints.iter().any(|it| (it.ifindex, &it.pod) == (left.ifindex, &left.pod));
            moves && failures.iter().any(|it| (&it.interface, &it.pod) == (&left.interface, &left.pod))
        };
        let (mut needed, leaving): (Vec<_>, Vec<_>) = record.leaving.iter().cloned().partition(is_needed);
        if leaving.is_empty() {
            return Ok(());
        }
        if let Some(loaded) = loaded {
            // The edge must not drop packets for an address whose pod is no longer enforced.
            self.protect(record, loaded)?;
        }
        let stays = |left: &EnforcedEndpoint, same: fn(&EnforcedEndpoint, &EnforcedEndpoint) -> bool| {
            record.endpoints.iter().any(|it| it.ifindex == left.ifindex && same(it, left))
        };
        let has_many_links = leaving.iter().filter(|it| it.way == HookKind::Tcx).count() > FEW;
        let nothing = has_many_links.then(|| self.nothing()).flatten();
        for local in &leaving {
            if !stays(local, |it, left| it.way == left.way) {
                for side in ProgramSide::BOTH {
                    let removing = format!("remove {} from {}", side.program(), local.interface);
                    let point = self.point(local, side);
                    // A new interface with the number of one that is gone stays closed, unless everything goes.
                    if loaded.is_some() && point.is_closed_filter() {
                        continue;
                    }
                    match point.remove(nothing) {
                        // The interface is gone, and the program with it.
                        Err(error) if errno(&error) == Some(libc::ENODEV) => {}
                        // The endpoint has no entry any more, so its packets are dropped. The next change removes the
                        // program.
                        Err(_) if self.apart => needed.extend((!needed.contains(local)).then(|| local.clone())),
                        other => other.doing(removing)?,
                    }
                }
            }
        }
        let leaving = leaving.iter().filter(|it| !stays(it, |it, left| it.pod == left.pod));
        let leaving: BTreeSet<u32> = leaving.map(|it| it.ifindex).collect();
        if let Some(loaded) = loaded.filter(|_| !leaving.is_empty()) {
            self.close(loaded, &leaving)?;
            self.purge(loaded, &leaving)?;
        }
        // Last: if the process dies before this write, the next command finds the endpoints here and repeats the
        // removal.
        record.leaving = needed;
        self.write_record(record)
    }

    /// Removes the flows of interfaces.
    fn purge(&self, loaded: &LoadedGeneration, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        for name in MapName::ALL.into_iter().filter(|name| is_shared(*name)) {
            let purging = format!("remove flows from the map {}", name.name());
            if let Some(((family, _), map)) = bucket_family(name).zip(loaded.map(name)) {
                let gone = |slot: &Slot| interfaces.contains(&slot.ifindex());
                self.system.remove_slots(map, family, gone).doing(&purging)?;
            }
        }
        Ok(())
    }
}
