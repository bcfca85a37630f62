//! A check of the generation that a switch replaces.
//!
//! Problem: a switch begins with [`Runtime::reconcile`], which reads and writes more of the generation in force than a
//! switch needs: it is replaced at once. On a node full of pods this was a large part of an agent's work for a change.
//! Strategy: an agent holds all objects, and each exchange of a program compares the one before
//! ([`crate::point::Point::switch`]). So the questions before it are about the rest: interfaces, pins, and entries. If
//! there is a deviation, or if a question fails, the whole reconciliation runs, which repairs it.
//!
//! The check leaves out three values that the next generation gets anew: the configuration, the program for packets of
//! the other generation, and this host's addresses. If the switch fails, the next `repair` compares them. An extension
//! (`extended.rs`) exchanges no programs: it renews the addresses, and leaves the rest to the regular checks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Runtime;
use super::endpoint_entries::EndpointsByName;
use super::reconcile::Reconciled;
use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::observe::word;
use crate::pins::Pins;
use crate::point::HookKind;
use crate::record::{EnforcedEndpoint, EnforcementRecord};
use crate::sys::known_interfaces::InterfacesByNumber;

impl Runtime {
    /// Checks that the kernel is as the record says. Returns what [`Self::reconcile`] would return if there is no
    /// deviation; `None` if there is one, if a question fails, or if this is not an agent.
    pub(crate) fn checked(&self, record: &EnforcementRecord) -> Option<Reconciled> {
        let is_settled = record.next.is_none() && record.leaving.is_empty() && record.uplinks.is_empty();
        if self.kept.is_none() || !is_settled {
            return None;
        }
        // An error is no reason to fail: the reconciliation asks again, and handles it.
        self.without_deviation(record).ok().flatten()
    }

    fn without_deviation(&self, record: &EnforcementRecord) -> Result<Option<Reconciled>, Error> {
        let Some(loaded) = self.current(record)? else { return Ok(None) };
        let interfaces = self.system.interfaces().doing("list this host's interfaces")?;
        let is_right = are_as_recorded(record, &interfaces)
            && self.has_exactly_the_pins(record)?
            && self.has_other_programs(record, &loaded)?
            && self.has_exactly_the_entries(record, &loaded)?;
        Ok(is_right.then(|| Reconciled { interfaces, ..Reconciled::default() }))
    }

    /// Whether every hook without a held link has its program of this generation: there, an exchange compares nothing.
    fn has_other_programs(&self, record: &EnforcementRecord, loaded: &LoadedGeneration) -> Result<bool, Error> {
        let held = self.held_interfaces();
        let compares = |it: &EnforcedEndpoint| it.way == HookKind::Tcx && held.binary_search(&it.ifindex).is_ok();
        for local in record.endpoints.iter().filter(|it| !compares(it)) {
            if !self.has_both(local, loaded)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all recorded pins of programs and maps, and no others, are there, and hold the recorded objects. An
    /// object is known by its pin's inode; an unknown inode counts as a deviation. Of links, only the names are
    /// compared: [`Self::bring_back`] has compared the objects.
    fn has_exactly_the_pins(&self, record: &EnforcementRecord) -> Result<bool, Error> {
        let recorded = self.recorded_pins(record);
        // Bytes are compared several times faster than paths.
        let recorded: BTreeMap<_, _> = recorded.iter().map(|it| (it.path.as_os_str(), it.object)).collect();
        let there = self.pinned()?;
        let is_right = |path, inode| {
            let object = recorded.get(path).copied();
            object.is_some() && object == self.known_pin(inode)
        };
        if there.len() != recorded.len() || !there.iter().all(|(path, inode)| is_right(path.as_os_str(), *inode)) {
            return Ok(false);
        }
        let endpoints: BTreeSet<u32> = record.endpoints.iter().map(|it| it.ifindex).collect();
        Ok(self.link_pins()?.names().all(|name| Pins::link_of(name).is_some_and(|it| endpoints.contains(&it))))
    }

    /// Whether the map `endpoints` has the entries of the open endpoints, and no others.
    fn has_exactly_the_entries(&self, record: &EnforcementRecord, loaded: &LoadedGeneration) -> Result<bool, Error> {
        let Some((entries, _)) = loaded.endpoints() else { return Ok(true) };
        let table = self.endpoint_table(loaded, None)?;
        let named = EndpointsByName::new(&table.endpoints);
        let open: HashMap<u32, &EnforcedEndpoint> =
            record.endpoints.iter().filter(|it| !it.closed).map(|it| (it.ifindex, it)).collect();
        let there = self.system.flat_entries(entries).doing("read the map endpoints")?;
        let is_right = |(key, value): (&[u8], &[u8])| {
            let expected = open.get(&word(key, 0)).and_then(|it| named.value_of(it));
            expected.is_some_and(|it| it == *value)
        };
        Ok(there.iter().count() == open.len() && there.iter().all(is_right))
    }
}

/// Whether every recorded interface is listed, with its recorded name and hardware address.
fn are_as_recorded(record: &EnforcementRecord, interfaces: &InterfacesByNumber) -> bool {
    record.endpoints.iter().all(|local| {
        let now = interfaces.get(&local.ifindex);
        now.is_some_and(|now| (&local.interface, &local.address) == (&now.name, &now.address))
    })
}
