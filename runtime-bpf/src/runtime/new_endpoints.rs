//! Endpoints that were not enforced before: their pods lose no packet while others are attached.
//!
//! Problem: the programs drop all packets of an endpoint without an entry, and a new endpoint must not get its entry
//! before both programs are there. To attach a program to a hook can take the kernel some milliseconds, and more on a
//! busy node. If the entries came after all programs, the first generation on a node would interrupt all pods that run
//! there.
//! Strategy: first a program that does nothing is attached at both hooks. Then the two programs take its place, and the
//! entry follows. These three calls wait for no packet, but the first two wait for the lock of the kernel's network
//! configuration. Endpoints that are enforced change first: from then on, packets between them and a new endpoint are
//! judged by the same generation. Closed ones come last: a pod that is open until then could forge packets to them.
//! Invariants: a new endpoint has an entry only while both programs are there. An interface that is closed stays closed
//! until then. An endpoint of which the record lists another one as leaving, with the same interface or the same
//! number, gets its entry after that one has left.

use std::collections::{BTreeMap, BTreeSet};

use weir_artifact::NamedEndpoint;
use weir_artifact::layout::endpoint;

use super::Runtime;
use super::endpoint_entries::EndpointsByName;
use crate::generation::LoadedGeneration;
use crate::point::{NOTHING, ProgramSide, WITHOUT_EFFECT};
use crate::record::{EnforcedEndpoint, EnforcementRecord};
use crate::sys::KernelProgram;

/// The endpoints whose entries may be written as soon as their programs are there.
#[derive(Default)]
pub(crate) struct NewEndpoints {
    /// By interface number.
    entries: BTreeMap<u32, endpoint::Value>,
    /// Those whose interfaces are closed.
    closed: BTreeSet<u32>,
}

impl NewEndpoints {
    /// All endpoints of the record, in the order in which they change.
    pub(super) fn ordered(&self, record: &EnforcementRecord) -> Vec<EnforcedEndpoint> {
        let is_new = |it: &EnforcedEndpoint| self.entries.contains_key(&it.ifindex);
        let mut all = record.endpoints.clone();
        all.sort_by_key(|it| (is_new(it), self.closed.contains(&it.ifindex), it.ifindex));
        all
    }
}

impl Runtime {
    /// The program that does nothing, loaded once; `None` if the kernel refuses it.
    pub(super) fn nothing(&self) -> Option<&KernelProgram> {
        if self.nothing.get().is_none()
            && let Ok(loaded) = self.system.load(WITHOUT_EFFECT, &NOTHING, None)
        {
            _ = self.nothing.set(loaded);
        }
        self.nothing.get()
    }

    /// The endpoints of the record that are not among `enforced`, with their entries from `named`.
    pub(super) fn new_endpoints(
        &self,
        record: &EnforcementRecord,
        named: &[NamedEndpoint],
        enforced: &[EnforcedEndpoint],
    ) -> NewEndpoints {
        let enforced: BTreeSet<u32> = enforced.iter().map(|it| it.ifindex).collect();
        let is_new = |it: &&EnforcedEndpoint| {
            let replaces = |left: &EnforcedEndpoint| left.ifindex == it.ifindex || left.number == it.number;
            !enforced.contains(&it.ifindex) && !record.leaving.iter().any(replaces)
        };
        let mut new = NewEndpoints::default();
        let mut named_values = None;
        for local in record.endpoints.iter().filter(is_new) {
            let values = named_values.get_or_insert_with(|| EndpointsByName::new(named));
            if let Some(value) = values.value_of(local) {
                new.entries.insert(local.ifindex, value);
                if ProgramSide::BOTH.into_iter().any(|side| self.point(local, side).is_closed()) {
                    new.closed.insert(local.ifindex);
                }
            }
        }
        new
    }

    /// The endpoints at which no program of ours runs, after a process has died that was to put `next` in force.
    pub(super) fn interrupted_endpoints(&self, record: &EnforcementRecord, next: &LoadedGeneration) -> NewEndpoints {
        let judges = |local: &EnforcedEndpoint, side| !matches!(self.judging(record, local, side), Ok(None));
        let runs = |local: &&EnforcedEndpoint| ProgramSide::BOTH.into_iter().any(|side| judges(local, side));
        let enforced: Vec<EnforcedEndpoint> = record.endpoints.iter().filter(runs).cloned().collect();
        if enforced.len() == record.endpoints.len() {
            return NewEndpoints::default();
        }
        // Without the entries, the pods wait for all programs.
        let table = self.endpoint_table(next, None);
        table.map(|table| self.new_endpoints(record, &table.endpoints, &enforced)).unwrap_or_default()
    }

    /// The number of the program of ours that judges packets here. One that does nothing, which a process has left that
    /// died, does not count.
    pub(super) fn judging(
        &self,
        record: &EnforcementRecord,
        local: &EnforcedEndpoint,
        side: ProgramSide,
    ) -> Result<Option<u32>, crate::error::Error> {
        let point = self.point(local, side);
        let is_known = |number: u32| record.programs().contains(&number);
        Ok(point.program()?.filter(|number| is_known(*number) || !point.is_without_effect(*number)))
    }

    /// Does the part of attaching that takes long. An error is ignored: to place the programs meets it again.
    pub(super) fn prepare(&self, local: &EnforcedEndpoint, new: &NewEndpoints) {
        if !new.entries.contains_key(&local.ifindex) || new.closed.contains(&local.ifindex) {
            return;
        }
        let Some(nothing) = self.nothing() else { return };
        _ = ProgramSide::BOTH.into_iter().try_for_each(|side| self.point(local, side).attach_nothing(nothing));
    }

    /// Takes away what [`Self::prepare`] has attached, where no program has taken its place.
    pub(super) fn undo_preparation(&self, local: &EnforcedEndpoint) {
        for side in ProgramSide::BOTH {
            let point = self.point(local, side);
            if matches!(point.program(), Ok(Some(there)) if point.is_without_effect(there)) {
                // If it stays, it lets the packets pass, as before. The next operation puts the program in its place.
                _ = point.remove(None);
            }
        }
    }

    /// Writes the entry of a new endpoint whose programs are in place. An error is ignored:
    /// [`Self::open_endpoints`], which follows, meets it again.
    pub(super) fn open_new(&self, local: &EnforcedEndpoint, loaded: &LoadedGeneration, new: &NewEndpoints) {
        if let Some(value) = new.entries.get(&local.ifindex) {
            _ = self.write_entry(loaded, local, value);
        }
    }
}
