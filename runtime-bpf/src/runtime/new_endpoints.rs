//! Endpoints that were not enforced before: their pods lose no packet while others are attached.
//!
//! Problem: the programs drop all packets of an endpoint without an entry, and a new endpoint must not get its entry
//! before both programs are there. To attach a program to a hook can take the kernel some milliseconds, and more on a
//! busy node. If the entries came after all programs, the first generation on a node would interrupt all pods that run
//! there.
//! Strategy: first a program that does nothing is attached at both hooks of each new endpoint. Then, at one endpoint
//! after the other, the two programs take its place, and the entry follows. This is quick, unless another process
//! changes interfaces at that moment. Endpoints that are enforced change before: from then on, packets between them and
//! a new endpoint are judged by the same generation. Closed ones come last: a pod that is open could forge packets to
//! them.
//! Invariants: a new endpoint has an entry only while both programs are there. An interface that is closed stays closed
//! until then. An endpoint of which the record lists another one as leaving, with the same interface or the same
//! number, gets its entry after that one has left.

use std::collections::{BTreeMap, BTreeSet};

use weir_artifact::NamedEndpoint;
use weir_artifact::layout::endpoint;

use super::Runtime;
use super::endpoint_entries::EndpointsByName;
use crate::error::Error;
use crate::generation::LoadedGeneration;
use crate::point::{NOTHING, ProgramSide, WITHOUT_EFFECT};
use crate::record::{EnforcedEndpoint, EnforcementRecord};
use crate::sys::KernelProgram;

/// The endpoints whose entries may be written as soon as their programs are there.
#[derive(Default)]
pub(crate) struct NewEndpoints {
    /// By interface number.
    entries: BTreeMap<u32, endpoint::Value>,
    /// Those without a program that judges or drops packets.
    running: BTreeSet<u32>,
}

impl NewEndpoints {
    /// Whether this is a new endpoint whose packets passed before.
    pub(super) fn runs(&self, local: &EnforcedEndpoint) -> bool {
        self.running.contains(&local.ifindex)
    }

    /// The endpoints of a record, in the order in which they change.
    pub(super) fn ordered<'e>(&self, endpoints: &'e [EnforcedEndpoint]) -> Vec<&'e EnforcedEndpoint> {
        let is_new = |it: &EnforcedEndpoint| self.entries.contains_key(&it.ifindex);
        let mut all: Vec<&EnforcedEndpoint> = endpoints.iter().collect();
        all.sort_by_key(|it| (is_new(it), !self.runs(it), it.ifindex));
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
        let (mut named_values, ours) = (None, record.programs());
        // After an error, the endpoint counts as one whose packets do not pass: nothing is taken away there.
        let is_free = |local: &EnforcedEndpoint, side| {
            !self.point(local, side).is_closed() && matches!(self.judging(local, side, &ours), Ok(None))
        };
        for local in record.endpoints.iter().filter(is_new) {
            let values = named_values.get_or_insert_with(|| EndpointsByName::new(named));
            if let Some(value) = values.value_of(local) {
                new.entries.insert(local.ifindex, value);
                // An enforced endpoint that lost its entry after a failure still has its programs.
                if ProgramSide::BOTH.into_iter().all(|side| is_free(local, side)) {
                    new.running.insert(local.ifindex);
                }
            }
        }
        new
    }

    /// The endpoints without an entry, after a process may have died while it attached them. If this cannot be read,
    /// their entries are written after all programs.
    pub(super) fn interrupted_endpoints(&self, record: &EnforcementRecord, loaded: &LoadedGeneration) -> NewEndpoints {
        let Some((entries, _)) = loaded.endpoints() else { return NewEndpoints::default() };
        let Ok(entries) = self.system.flat_entries(entries) else { return NewEndpoints::default() };
        let there: BTreeSet<&[u8]> = entries.iter().map(|(key, _)| key).collect();
        let is_there = |it: &&EnforcedEndpoint| there.contains(&it.ifindex.to_le_bytes()[..]);
        let enforced: Vec<EnforcedEndpoint> = record.endpoints.iter().filter(is_there).cloned().collect();
        if record.endpoints.iter().all(|it| it.closed || is_there(&it)) {
            return NewEndpoints::default();
        }
        let table = self.endpoint_table(loaded, None);
        table.map(|table| self.new_endpoints(record, &table.endpoints, &enforced)).unwrap_or_default()
    }

    /// The number of our program here, if it judges packets. A process that died can have left one that does nothing.
    /// `judging` are programs that are known to judge.
    pub(super) fn judging(
        &self,
        local: &EnforcedEndpoint,
        side: ProgramSide,
        judging: &BTreeSet<u32>,
    ) -> Result<Option<u32>, Error> {
        let point = self.point(local, side);
        Ok(point.program()?.filter(|number| judging.contains(number) || !point.is_without_effect(*number)))
    }

    /// Does the part of attaching that takes long, at all new endpoints. An error is ignored: to place the programs meets
    /// it again.
    pub(super) fn prepare(&self, record: &EnforcementRecord, new: &NewEndpoints) {
        for local in record.endpoints.iter().filter(|it| new.runs(it)) {
            let Some(nothing) = self.nothing() else { return };
            _ = ProgramSide::BOTH.into_iter().try_for_each(|side| self.point(local, side).attach_nothing(nothing));
        }
    }

    /// Takes away what [`Self::prepare`] has attached, where no program has taken its place.
    pub(super) fn undo_preparation(&self, local: &EnforcedEndpoint) {
        for side in ProgramSide::BOTH {
            let point = self.point(local, side);
            if matches!(point.program(), Ok(Some(there)) if point.is_without_effect(there)) {
                // If it stays, it lets the packets pass, as before.
                _ = point.remove(None);
            }
        }
    }

    /// Writes the entry of a new endpoint whose programs are in place, and returns whether it has. An error is ignored:
    /// [`Self::open_endpoints`], which follows, meets it again.
    pub(super) fn open_new(&self, local: &EnforcedEndpoint, loaded: &LoadedGeneration, new: &NewEndpoints) -> bool {
        new.entries.get(&local.ifindex).is_some_and(|value| self.write_entry(loaded, local, value).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::HookKind;

    #[test]
    fn enforced_endpoints_change_first_and_closed_ones_last() {
        let at = |ifindex: u32| EnforcedEndpoint {
            pod: format!("default/p{ifindex}"),
            uid: None,
            interface: format!("veth{ifindex}"),
            ifindex,
            address: Vec::new(),
            pod_address: None,
            number: ifindex as u16,
            way: HookKind::Tcx,
            hurried: false,
            closed: false,
            by_hand: false,
        };
        let endpoints: Vec<EnforcedEndpoint> = (1..=6).map(at).collect();
        let new = NewEndpoints {
            entries: [1, 2, 3, 5].map(|it| (it, [0; endpoint::BYTES as usize])).into(),
            running: [2, 5].into(),
        };
        let order: Vec<u32> = new.ordered(&endpoints).iter().map(|it| it.ifindex).collect();
        assert_eq!(order, [4, 6, 2, 5, 1, 3]);
    }
}
