//! Extends the tables of the generation in force, instead of replacing it.
//!
//! Problem: a service that comes, or a pod whose labels no other pod has, needs a peer class of its own. No packet of
//! another address is judged differently because of it, but a new generation exchanges the programs at all interfaces.
//! Strategy: the compiler says that its row table only adds to the one in force ([`super::Request::extends`]). If
//! everything else is equal apart from single addresses, the new rows are written over those in force, then the
//! addresses, then the epoch is raised, as after other single writes.
//!
//! Invariants:
//! * A packet is judged by the class of one address in each direction. An address gets a new class only after the rows
//!   of this class are written. The kernel copies the value of a table while programs read it, and bytes that do not
//!   change read the same before, during and after it.
//! * Addresses of local endpoints and of this host keep their classes: addresses are written one after the other, and a
//!   packet between two endpoints could pass because one end is judged by an entry from before and the other by a new
//!   one. A packet from or to another host is judged here by one address, before or after its entry is written.
//! * From before the first write until after the last one, the record says that the tables differ from the artifact. So
//!   after an error or the death of the process, the next generation replaces this one.
//! * Tables that are not written have the content of the artifact in force: the agent's regular comparison finds
//!   changes by others.
//!
//! Two kinds of packets ask more than once, as with all single writes, and the new epoch corrects the result: a packet
//! of a connection whose beginning was not seen asks for its address in each direction, and an ICMP error is judged by
//! its sender and by its flow. Where established flows are kept, the epoch would not correct it, so nothing is
//! extended.
//!
//! A switch also puts hooks right that another process has changed. An extension leaves that to the agent's regular
//! check of hooks, as other single writes do. Tests: `runtime-bpf/tests/enforce/extended.rs`.

use std::collections::BTreeSet;

use weir_artifact::NamedEndpoint;
use weir_artifact::layout::{MapName, address_bytes, config, endpoint};
use weir_artifact::map_image::MapImage;
use weir_ebpf::vm::MapKind;

use super::reconcile::Reconciled;
use super::{Request, Runtime};
use crate::error::{Doing as _, Error};
use crate::generation::{self, FILE, LoadedGeneration, TableDifference, WrittenTables};
use crate::pins::Age;
use crate::record::{EnforcementRecord, SinglePods};

/// A generation, and what extending it writes into its tables.
struct Extension<'r> {
    loaded: LoadedGeneration,
    /// In the order in which they are written.
    tables: Vec<(&'r MapImage, TableDifference<'r>)>,
}

impl Runtime {
    /// Puts the request's artifact in force by extending the tables of the generation in force. Returns whether it did:
    /// if not, a new generation must. The endpoints are those of the record.
    ///
    /// An error is no reason to fail: a new generation may succeed, and it replaces tables that were half written. It is
    /// reported with the repairs, and the pins become those of the record again.
    pub(super) fn extend_or_restore(
        &self,
        record: &mut EnforcementRecord,
        request: &Request<'_>,
        new: (&str, bool),
    ) -> Result<bool, Error> {
        let error = match self.extend(record, request, new) {
            Ok(is_extended) => return Ok(is_extended),
            Err(error) => error,
        };
        let mut repaired = vec![format!("tables that could not be extended: {error}")];
        repaired.extend(self.place_pins(record)?.restored);
        self.report_later(repaired);
        Ok(false)
    }

    fn extend(
        &self,
        record: &mut EnforcementRecord,
        request: &Request<'_>,
        (digest, keep): (&str, bool),
    ) -> Result<bool, Error> {
        let Some(written) = self.written.as_ref().filter(|_| !keep) else { return Ok(false) };
        let Some(Extension { mut loaded, tables }) = self.extension(record, request, written)? else {
            return Ok(false);
        };
        let mut next = record.clone();
        let takes_spares_file = self.keep_file_of(&mut next, request)?;
        next.last_epoch += 1;
        let Some(current) = &mut next.current else { return Ok(false) };
        current.epoch = next.last_epoch;
        current.digest = digest.to_owned();
        (current.patched, current.pods) = (true, SinglePods::default());
        loaded.generation = current.clone();
        self.write_record(&next)?;
        *record = next;
        self.place_file(record, takes_spares_file)?;
        let mut repaired = Reconciled::default();
        let table = self.stored_table(&loaded, Some(request.artifact))?;
        self.keep_addresses(&loaded, &table, &record.endpoints, &mut repaired)?;
        self.report_later(repaired.repaired);
        for (image, difference) in &tables {
            generation::extend(&self.system, &loaded, (image, difference), request.artifact, written)?;
        }
        self.set_config(&loaded, config::EPOCH, loaded.generation.epoch)?;
        record.current.iter_mut().for_each(|current| current.patched = false);
        self.write_record(record)?;
        Ok(true)
    }

    /// What extends the generation in force to the request's artifact; `None` if that is not possible.
    fn extension<'r>(
        &self,
        record: &EnforcementRecord,
        request: &Request<'r>,
        written: &WrittenTables,
    ) -> Result<Option<Extension<'r>>, Error> {
        let Request { artifact, extends: Some(rows), .. } = *request else { return Ok(None) };
        let code = self.code_of(artifact);
        let has_code = record.current.as_ref().is_some_and(|it| it.code == code && !it.keep);
        if !has_code || record.next.is_some() || !record.leaving.is_empty() {
            return Ok(None);
        }
        let Some(loaded) = self.current(record)? else { return Ok(None) };
        let there = self.endpoint_table(&loaded, None)?;
        let is_extension = there.map(MapName::Rows).is_some_and(|image| image.entries == *rows)
            && are_same_endpoints(&there.endpoints, &artifact.endpoints)
            && there.maps.iter().map(|image| image.name).eq(artifact.maps.iter().map(|image| image.name))
            && there.maps.iter().zip(&artifact.maps).all(|(there, image)| can_be_extended(there, image, &loaded));
        if !is_extension {
            return Ok(None);
        }
        let mut tables = Vec::new();
        for image in EXTENDED_TABLES.into_iter().filter_map(|name| artifact.map(name)) {
            let number = loaded.generation.maps.get(image.name.name());
            let Some(table) = number.and_then(|number| written.get(*number)) else { return Ok(None) };
            tables.push((image, table.difference(&image.entries)));
        }
        let addresses = tables.iter().filter(|(image, _)| image.name != MapName::Rows);
        let here = self.addresses_here(&artifact.endpoints)?;
        let moves_here = addresses.flat_map(|(_, difference)| difference.keys()).any(|key| here.contains(key));
        Ok((!moves_here).then_some(Extension { loaded, tables }))
    }

    /// The addresses of endpoints and of this host, as keys.
    fn addresses_here(&self, endpoints: &[NamedEndpoint]) -> Result<BTreeSet<Vec<u8>>, Error> {
        let own = self.system.addresses().doing("list this host's addresses")?;
        let own = own.into_iter().map(|address| address_bytes(address).to_vec());
        let places = [(endpoint::V4, 4), (endpoint::V6, 16)];
        let of_endpoint = |it: &NamedEndpoint| places.map(|(at, size)| it.value[at as usize..][..size].to_vec());
        Ok(own.chain(endpoints.iter().flat_map(of_endpoint)).collect())
    }

    /// Keeps the request's file for the generation in force. A reader never sees half of it: it goes into the map of
    /// the spare, which exchanges its map with the generation in force, or into a new map. Returns whether it went into
    /// the spare's.
    pub(super) fn keep_file_of(&self, record: &mut EnforcementRecord, request: &Request<'_>) -> Result<bool, Error> {
        let spares = record.spare.as_ref().and_then(|spare| spare.maps.get(FILE).copied());
        let map = spares.and_then(|number| self.held_objects().map(number));
        let file = generation::keep_file(&self.system, &self.pins, (request.artifact, request.file), map)?;
        let number = generation::number_of(&self.system, &file)?;
        let before = record.current.as_mut().and_then(|current| current.maps.insert(FILE.to_owned(), number));
        let takes_spares = spares == Some(number);
        if let Some((spare, before)) = record.spare.as_mut().zip(before).filter(|_| takes_spares) {
            spare.maps.insert(FILE.to_owned(), before);
        }
        Ok(takes_spares)
    }

    /// Moves the pins of files to their places.
    pub(super) fn place_file(&self, record: &EnforcementRecord, takes_spares_file: bool) -> Result<(), Error> {
        let [current, old] = [Age::Current, Age::Old].map(|age| self.pins.map(age, FILE));
        if takes_spares_file && self.exchange_pins(&current, &old).is_ok() {
            return Ok(());
        }
        let placed = self.place_pins(record)?;
        self.report_later(placed.restored);
        Ok(())
    }
}

/// The tables that an extension changes, in the order in which it writes them.
const EXTENDED_TABLES: [MapName; 3] = [MapName::Rows, MapName::Exact4, MapName::Exact6];

/// Whether a map in force need not change, or can be changed in force.
fn can_be_extended(there: &MapImage, image: &MapImage, loaded: &LoadedGeneration) -> bool {
    use MapName::*;
    let is_array = image.spec.kind == MapKind::Array;
    match image.name {
        Rows => is_array && there.spec == image.spec,
        Exact4 | Exact6 if !is_array && there.spec.kind == image.spec.kind => {
            // As for a spare: half of the room that a new map would have.
            let room = loaded.map(image.name).map_or(0, |map| map.definition().max_entries);
            (image.entries.len() as u32).midpoint(image.spec.max_entries) <= room
        }
        // Their sizes follow the number of local endpoints, and their content is the runtime's. `add_pod` leaves their
        // sizes too.
        Endpoints | Fragments | FlowShape | FlowBuckets4 | FlowBuckets6 | Local4 | Local6 => {
            there.spec.kind == image.spec.kind
        }
        _ => there.spec == image.spec && there.entries == image.entries,
    }
}

/// Whether both have the same endpoints with the same values, in any order.
fn are_same_endpoints(one: &[NamedEndpoint], other: &[NamedEndpoint]) -> bool {
    let sorted = |of: &[NamedEndpoint]| {
        let mut of: Vec<NamedEndpoint> = of.to_vec();
        of.sort_unstable_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        of
    };
    one == other || sorted(one) == sorted(other)
}
