//! Extends the tables of the generation in force, instead of replacing it.
//!
//! Problem: a service that comes, or a pod whose labels no other pod has, needs a peer class of its own. No packet of
//! another address is judged differently because of it, but a new generation exchanges the programs at all interfaces.
//! Strategy: the compiler says that its row table only adds to the one in force ([`super::Request::extends`]). If
//! everything else is equal apart from single addresses, the new rows are written over those in force, then the
//! addresses, then the epoch is raised, as after other single writes.
//!
//! Invariants:
//! * A packet reads the rows of the class that it found for one address. An address gets a new class only after the
//!   rows of this class are written. The kernel copies the value of a table while programs read it, and bytes that do
//!   not change read the same before, during and after it.
//! * From before the first write until after the last one, the record says that the tables differ from the artifact. So
//!   after an error or the death of the process, the next generation replaces this one.
//! * Of tables that are not written, the content is that of the artifact in force: the agent's regular comparison finds
//!   what others have changed.
//!
//! Tests: `runtime-bpf/tests/enforce/extended.rs`.

use weir_artifact::NamedEndpoint;
use weir_artifact::layout::{MapName, config};
use weir_artifact::map_image::MapImage;
use weir_ebpf::vm::MapKind;

use super::{Request, Runtime};
use crate::error::Error;
use crate::generation::{self, FILE, LoadedGeneration};
use crate::pins::Age;
use crate::record::{EnforcementRecord, SinglePods};

impl Runtime {
    /// Puts the request's artifact in force by extending the tables of the generation in force. Returns whether it did:
    /// if not, a new generation must. The endpoints are those of the record.
    pub(super) fn extend(
        &self,
        record: &mut EnforcementRecord,
        request: &Request<'_>,
        (digest, keep): (&str, bool),
    ) -> Result<bool, Error> {
        let Some(written) = &self.written else { return Ok(false) };
        let Some(mut loaded) = self.extensible(record, request, keep)? else { return Ok(false) };
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
        for name in CHANGED {
            if let Some(image) = request.artifact.map(name) {
                generation::extend(&self.system, &loaded, image, request.artifact, written)?;
            }
        }
        self.set_config(&loaded, config::EPOCH, loaded.generation.epoch)?;
        record.current.iter_mut().for_each(|current| current.patched = false);
        self.write_record(record)?;
        self.stored_table(&loaded, Some(request.artifact))?;
        Ok(true)
    }

    /// The generation in force, if the request's artifact extends it.
    fn extensible(
        &self,
        record: &EnforcementRecord,
        request: &Request<'_>,
        keep: bool,
    ) -> Result<Option<LoadedGeneration>, Error> {
        let (Some(rows), Some(written)) = (request.extends, &self.written) else { return Ok(None) };
        let code = request.artifact.code_digest().to_string();
        let has_code = record.current.as_ref().is_some_and(|it| it.code == code && it.keep == keep);
        if !has_code || record.next.is_some() || !record.leaving.is_empty() {
            return Ok(None);
        }
        let Some(loaded) = self.current(record)? else { return Ok(None) };
        let there = self.endpoint_table(&loaded, None)?;
        let is_known = |name: MapName| {
            let number = loaded.generation.maps.get(name.name());
            number.is_none_or(|number| written.has(*number))
        };
        let maps = &request.artifact.maps;
        let is_extended = there.map(MapName::Rows).is_some_and(|image| image.entries == *rows)
            && are_same_endpoints(&there.endpoints, &request.artifact.endpoints)
            && there.maps.iter().map(|image| image.name).eq(maps.iter().map(|image| image.name))
            && there.maps.iter().zip(maps).all(|(there, image)| is_extension(there, image, &loaded))
            && CHANGED.into_iter().all(is_known);
        Ok(is_extended.then_some(loaded))
    }

    /// Keeps the request's file for the generation in force. A reader never sees half of it: it goes into the map of the
    /// spare, which exchanges its map with the generation in force, or into a new map. Returns whether it went into the
    /// spare's.
    fn keep_file_of(&self, record: &mut EnforcementRecord, request: &Request<'_>) -> Result<bool, Error> {
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
    fn place_file(&self, record: &EnforcementRecord, takes_spares_file: bool) -> Result<(), Error> {
        let [current, old] = [Age::Current, Age::Old].map(|age| self.pins.map(age, FILE));
        if takes_spares_file && self.exchange_pins(&current, &old).is_ok() {
            return Ok(());
        }
        self.place_pins(record).map(drop)
    }
}

/// The tables that an extension changes, in the order in which it writes them.
const CHANGED: [MapName; 3] = [MapName::Rows, MapName::Exact4, MapName::Exact6];

/// Whether a map in force need not change, or can be changed in force.
fn is_extension(there: &MapImage, image: &MapImage, loaded: &LoadedGeneration) -> bool {
    use MapName::*;
    let is_array = image.spec.kind == MapKind::Array;
    match image.name {
        Rows => is_array && there.spec == image.spec,
        Exact4 | Exact6 if !is_array && there.spec.kind == image.spec.kind => {
            let room = loaded.map(image.name).map_or(0, |map| map.definition().max_entries);
            image.entries.len() as u64 <= room.into()
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
