//! The entries of endpoints in the map `endpoints`, and writing the keys of other maps that depend on the record.
//!
//! Problem: a program drops all packets of an endpoint without an entry, and judges packets of one with an entry. So an
//! entry that is written too early opens one direction of a pod before its program is attached.
//! Strategy: [`Runtime::open_endpoints`] runs after the programs are placed, and leaves out endpoints that failed.
//! Entries that are as they should be are not written again: new endpoints have theirs already (`new_endpoints`).
//! Invariant: the map has no entry of an endpoint that is closed or not in the record.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use weir_artifact::layout::{MapName, endpoint};
use weir_artifact::{Artifact, NamedEndpoint};

use super::Runtime;
use super::endpoint_table::EndpointTable;
use super::reconcile::Reconciled;
use crate::error::{Doing as _, Error};
use crate::generation::{LoadedGeneration, refused};
use crate::observe::word;
use crate::record::{EnforcedEndpoint, EnforcementRecord};

/// The endpoints of a generation: from the artifact at hand, or from the one that was kept in the kernel.
pub(super) struct Values<'a> {
    given: Option<&'a Artifact>,
    table: OnceCell<Arc<EndpointTable>>,
}

impl<'a> Values<'a> {
    pub(super) fn new(given: Option<&'a Artifact>) -> Self {
        Self { given, table: OnceCell::new() }
    }

    fn table(&self, runtime: &Runtime, loaded: &LoadedGeneration) -> Result<&EndpointTable, Error> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = runtime.endpoint_table(loaded, self.given)?;
        Ok(self.table.get_or_init(|| table))
    }
}

/// The result of [`Runtime::keep_keys`].
#[derive(Default)]
pub(super) struct KeptKeys {
    pub(super) removed: usize,
    pub(super) written: usize,
    /// The error, if keys were left out.
    pub(super) full: Option<Error>,
}

/// The endpoints of an artifact by namespace and name.
pub(super) struct EndpointsByName<'a>(HashMap<(&'a str, &'a str), &'a endpoint::Value>);

impl<'a> EndpointsByName<'a> {
    pub(super) fn new(named: &'a [NamedEndpoint]) -> Self {
        // The first one of a name counts.
        Self(named.iter().rev().map(|it| ((it.namespace.as_str(), it.name.as_str()), &it.value)).collect())
    }

    /// The endpoint's value in the artifact, with its number and its pod's hardware address filled in; `None` if the
    /// endpoint is closed.
    pub(super) fn value_of(&self, local: &EnforcedEndpoint) -> Option<endpoint::Value> {
        if local.closed {
            return None;
        }
        let mut value = **self.0.get(&local.pod.split_once('/')?)?;
        let mut put = |at: i16, bytes: &[u8]| {
            value.iter_mut().skip(at as usize).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        put(endpoint::NUMBER, &local.number.to_le_bytes());
        put(endpoint::MAC, &local.pod_address.unwrap_or_default());
        Some(value)
    }
}

impl Runtime {
    /// Writes entries for the endpoints whose programs are in place, and removes all others.
    pub(super) fn open_endpoints(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        values: &Values<'_>,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let table = values.table(self, loaded)?;
        self.keep_addresses(loaded, table, &record.endpoints, reconciled)?;
        let Some((entries, map)) = loaded.endpoints() else { return Ok(()) };
        let writing = "write the map endpoints";
        let there: BTreeMap<Vec<u8>, Vec<u8>> = self.system.entries(entries).doing(writing)?.into_iter().collect();
        let named = EndpointsByName::new(&table.endpoints);
        for local in &record.endpoints {
            if reconciled.failures.iter().any(|it| it.interface == local.interface) {
                continue;
            }
            let key = local.ifindex.to_le_bytes();
            let Some(value) = named.value_of(local) else { continue };
            if there.get(key.as_slice()).is_some_and(|known| *known == value) {
                continue;
            }
            self.write_entry(loaded, local, &value)?;
            reconciled.repaired.push(format!("the entry of {}", local.pod));
        }
        let open = record.endpoints.iter().filter(|it| !it.closed);
        let open: BTreeSet<u32> = open.map(|it| it.ifindex).collect();
        for ifindex in there.keys().map(|key| word(key, 0)).filter(|it| !open.contains(it)) {
            self.system.remove(map, &ifindex).doing(writing)?;
            reconciled.repaired.push("an entry of no endpoint".to_owned());
        }
        self.protect(record, loaded)
    }

    pub(super) fn write_entry(
        &self,
        loaded: &LoadedGeneration,
        local: &EnforcedEndpoint,
        value: &endpoint::Value,
    ) -> Result<(), Error> {
        let Some((entries, map)) = loaded.endpoints() else { return Ok(()) };
        let written = self.system.insert(map, &local.ifindex, value);
        written.map_err(|error| refused(entries, MapName::Endpoints, Some(local.pod.clone()), error))
    }

    /// Removes the entries of interfaces. Without an entry, all packets are dropped.
    pub(super) fn close(&self, loaded: &LoadedGeneration, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        let Some((_, map)) = loaded.endpoints() else { return Ok(()) };
        for ifindex in interfaces {
            self.system.remove(map, ifindex).doing("remove from the map endpoints")?;
        }
        Ok(())
    }

    /// Makes a map have exactly these keys. If it is full, the other keys are left out.
    pub(super) fn keep_keys<const N: usize>(
        &self,
        loaded: &LoadedGeneration,
        name: MapName,
        wanted: &BTreeSet<[u8; N]>,
        value: [u8; 4],
    ) -> Result<KeptKeys, Error> {
        let mut kept = KeptKeys::default();
        let Some(map) = loaded.map(name) else { return Ok(kept) };
        let writing = format!("write the map {}", name.name());
        let there = self.system.flat_entries(map).doing(&writing)?;
        let there: BTreeSet<[u8; N]> = there.iter().filter_map(|(key, _)| key.first_chunk().copied()).collect();
        for key in there.difference(wanted) {
            self.system.delete(map, key).doing(&writing)?;
            kept.removed += 1;
        }
        for key in wanted.difference(&there) {
            match self.system.update(map, key, &value).map_err(|error| refused(map, name, None, error)) {
                Ok(()) => kept.written += 1,
                Err(full @ Error::Full { .. }) => return Ok(KeptKeys { full: Some(full), ..kept }),
                Err(error) => return Err(error),
            }
        }
        Ok(kept)
    }
}
