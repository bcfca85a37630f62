//! Endpoints that were not enforced before: their pods lose no packets while others are attached.
//!
//! Problem: the programs drop all packets of an endpoint without an entry, and an entry must not exist before both
//! programs are there. To attach a TCX link takes the kernel some milliseconds, and more on a busy node. If the entries
//! came after all programs, the first generation on a node would interrupt all pods that run there.
//! Strategy: first both links are attached, with a program that does nothing. Then the programs are exchanged in the
//! links, and the entry follows. None of these three calls waits. With clsact no call does.
//! Invariants: an entry exists only while both programs are there. An interface that is closed stays closed until then.
//! An endpoint of which the record lists another one as leaving, with the same interface or the same number, gets its
//! entry after that one has left.

use std::collections::BTreeMap;

use weir_artifact::NamedEndpoint;
use weir_artifact::layout::endpoint;

use super::Runtime;
use super::endpoint_entries::EndpointsByName;
use crate::closed;
use crate::generation::LoadedGeneration;
use crate::point::{HookKind, NOTHING, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord};
use crate::sys::KernelProgram;

/// The endpoints whose entries may be written as soon as their programs are there.
#[derive(Default)]
pub(crate) struct NewEndpoints {
    /// By interface number.
    entries: BTreeMap<u32, endpoint::Value>,
}

impl NewEndpoints {
    /// The open endpoints of the record that are not among `enforced`.
    pub(super) fn of(record: &EnforcementRecord, named: &[NamedEndpoint], enforced: &[EnforcedEndpoint]) -> Self {
        let is_new = |it: &&EnforcedEndpoint| {
            let is_same = |known: &EnforcedEndpoint| known.ifindex == it.ifindex;
            let replaces = |left: &EnforcedEndpoint| left.ifindex == it.ifindex || left.number == it.number;
            !enforced.iter().any(is_same) && !record.leaving.iter().any(replaces)
        };
        let named = EndpointsByName::new(named);
        let new = record.endpoints.iter().filter(is_new);
        Self { entries: new.filter_map(|it| Some((it.ifindex, named.value_of(it)?))).collect() }
    }
}

impl Runtime {
    /// The program that does nothing, loaded once; `None` if the kernel refuses it.
    pub(super) fn nothing(&self) -> Option<&KernelProgram> {
        if self.nothing.get().is_none()
            && let Ok(loaded) = self.system.load("weir_nothing", &NOTHING, None)
        {
            _ = self.nothing.set(loaded);
        }
        self.nothing.get()
    }

    /// Does the part of attaching that takes long. An error is ignored: to place the programs meets it again.
    pub(super) fn prepare(&self, local: &EnforcedEndpoint, new: &NewEndpoints) {
        if local.way != HookKind::Tcx || !new.entries.contains_key(&local.ifindex) {
            return;
        }
        let Some(nothing) = self.nothing() else { return };
        let closing = closed::pins(self.pins.root());
        for side in ProgramSide::BOTH {
            // The link of a closed interface becomes that of the programs, or stays in force until they are there.
            let is_closed = !matches!(self.system.pinned_link(&closing.link(local.ifindex, side)), Ok(None));
            if is_closed || self.point(local, side).attach_nothing(nothing).is_err() {
                return;
            }
        }
    }

    /// Takes the links away that [`Self::prepare`] has attached, where no program has replaced its own.
    pub(super) fn undo_preparation(&self, local: &EnforcedEndpoint) {
        let Some(nothing) = self.nothing.get() else { return };
        let Ok(nothing) = self.system.program_info(nothing) else { return };
        for side in ProgramSide::BOTH {
            let point = self.point(local, side);
            if matches!(point.program(), Ok(Some(there)) if there == nothing.id) {
                // If it stays, it lets the packets pass, as before. The next operation places the program in it.
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
