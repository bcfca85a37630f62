//! Reuses the programs and maps of a generation that is no longer in force.
//!
//! Problem: after most changes the compiler emits the same programs as before and other tables. Loading the programs
//! again would cost tens of milliseconds in the kernel's verifier. Apart from additions ([`super::extension`]), the
//! tables of the generation in force cannot be changed in place either: a packet must never see half of a change.
//! Strategy: two banks, each with its own maps and its own programs on them. One is in force. The other, the *spare*,
//! is the generation before, or one that was prepared (`runtime/prepared.rs`); no packet can be in it. If the next
//! generation has the spare's code, its content is written into the spare's maps, and the switch is the usual one.
//! Packets pay nothing for this, because the programs are the same as without it.
//!
//! Other programs need another load, but most of their tables have the same form ([`reusable`]).
//!
//! Invariants: of a spare, only content that this process has written is known ([`super::written`]); a process that
//! died may leave anything there. Unknown arrays are written whole; unknown hashes and tries are read and compared.
//! Programs of a spare with maps of other shapes or other shared maps are not used. Tests:
//! `runtime-bpf/tests/enforce/spare.rs`, and the faults in `runtime-bpf/tests/enforce/faults.rs`.

use std::collections::{BTreeMap, HashMap};

use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_ebpf::vm::MapKind;

use super::file::keep_file;
use super::flows::FlowTables;
use super::written::{TableDifference, WrittenTable, WrittenTables};
use super::{
    Entry, FILE, GenerationSource, LoadedGeneration, ObjectSource, configured, definition, is_shared, number_of, open,
    shared_maps, write,
};
use crate::error::{Doing as _, Error};
use crate::pins::Age;
use crate::record::{EnforcementRecord, KernelGeneration, SinglePods};
use crate::runtime::of;
use crate::sys::{KernelMap, MapDefinition};
use crate::system::System;

/// Maps of a spare that new programs can use, by name.
pub(crate) type ReusedMaps = BTreeMap<MapName, KernelMap>;

/// A spare into which a generation can be written.
struct UsableSpare {
    spare: KernelGeneration,
    loaded: LoadedGeneration,
    flows: FlowTables,
}

/// The record's spare; `None` if there is no spare with the same code and with maps that have room.
fn usable(
    objects: &ObjectSource<'_>,
    record: &mut EnforcementRecord,
    source: &GenerationSource<'_>,
) -> Result<Option<UsableSpare>, Error> {
    let system = objects.system;
    let has_code = |spare: &&KernelGeneration| !spare.code.is_empty() && spare.code == source.code;
    let Some(spare) = record.spare.as_ref().filter(has_code).cloned() else { return Ok(None) };
    shared_maps(objects, record, source)?;
    // The programs keep the shared maps that they were loaded with.
    if spare.shared.iter().any(|(name, number)| record.shared.get(name) != Some(number)) {
        return Ok(None);
    }
    let Some(loaded) = open(objects, record, &spare, Age::Old)? else { return Ok(None) };
    let flows = FlowTables::new(system, record, &loaded.maps)?;
    Ok(has_room(system, source, &loaded, &flows)?.then_some(UsableSpare { spare, loaded, flows }))
}

/// Whether the generation could be written into the record's spare at once, without reading any large table of it.
pub(crate) fn is_prepared(
    objects: &ObjectSource<'_>,
    record: &mut EnforcementRecord,
    source: &GenerationSource<'_>,
) -> Result<bool, Error> {
    let usable = usable(objects, record, source)?;
    Ok(usable.zip(source.written).is_some_and(|(usable, written)| written.knows(&usable.spare.maps)))
}

/// Writes a generation into the record's spare. Its pins stay where they are until the switch is over; only a new map
/// for the file is pinned under `next`. `None` if the spare cannot be used. After an error, its content is unknown.
pub(crate) fn take_over(
    objects: &ObjectSource<'_>,
    record: &mut EnforcementRecord,
    source: &GenerationSource<'_>,
) -> Result<Option<LoadedGeneration>, Error> {
    let ObjectSource { system, pins, .. } = *objects;
    let Some(UsableSpare { spare, mut loaded, flows }) = usable(objects, record, source)? else { return Ok(None) };
    let images = source.images().filter(|image| !is_shared(image.name));
    for (image, map) in images.filter_map(|image| Some((image, loaded.map(image.name)?))) {
        renew(system, source, image, map, spare.maps.get(image.name.name()).copied(), &flows)?;
    }
    let file = keep_file(system, pins, (source.artifact, source.file), loaded.maps.remove(FILE))?;
    let number = number_of(system, &file)?;
    loaded.maps.insert(FILE.to_owned(), file);
    let GenerationSource { epoch, ref digest, keep, stamp, .. } = *source;
    let mut maps = spare.maps.clone();
    maps.insert(FILE.to_owned(), number);
    let (digest, pods) = (digest.clone(), SinglePods::default());
    loaded.generation = KernelGeneration { epoch, digest, keep, stamp, maps, patched: false, pods, ..spare };
    Ok(Some(loaded))
}

/// Tables of the record's spare for a generation with other programs: those of the right form, whose content is known.
///
/// To write a hundred thousand entries into a new table takes as long as to load programs. The pins of these tables
/// stay where they are, as in [`take_over`]; the caller removes the rest of the spare.
pub(crate) fn reusable(
    objects: &ObjectSource<'_>,
    record: &EnforcementRecord,
    source: &GenerationSource<'_>,
) -> Result<ReusedMaps, Error> {
    let (Some(spare), Some(written)) = (&record.spare, source.written) else { return Ok(ReusedMaps::new()) };
    let Some(mut loaded) = open(objects, record, spare, Age::Old)? else { return Ok(ReusedMaps::new()) };
    let is_known = |image: &&MapImage| {
        let number = spare.maps.get(image.name.name()).filter(|_| WrittenTables::is_kept(image.name));
        number.is_some_and(|number| written.has(*number))
    };
    let known = source.images().filter(is_known);
    let fitting = known.filter_map(|image| {
        let map = loaded.maps.remove(image.name.name())?;
        fits(source, image, map.definition()).then_some((image.name, map))
    });
    Ok(fitting.collect())
}

/// Whether the spare has the maps that the generation needs: hashes and tries with room for its entries, all others of
/// the same size.
fn has_room(
    system: &System,
    source: &GenerationSource<'_>,
    spare: &LoadedGeneration,
    flows: &FlowTables,
) -> Result<bool, Error> {
    let images: Vec<&MapImage> = source.images().filter(|image| !is_shared(image.name)).collect();
    if spare.generation.maps.len() != images.len() + 1 || spare.edge.is_some() != source.has_edge() {
        return Ok(false);
    }
    for image in images {
        let Some(map) = spare.map(image.name) else { return Ok(false) };
        if !fits(source, image, map.definition()) {
            return Ok(false);
        }
        // Frozen, and a constant for the verifier.
        if image.name == MapName::FlowShape
            && system.lookup(map, &[0; 4]).doing("read the map flow_shape")?.as_ref() != Some(&flows.shape)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fits(source: &GenerationSource<'_>, image: &MapImage, there: MapDefinition) -> bool {
    let wanted = definition(source, image);
    match image.spec.kind {
        MapKind::Hash | MapKind::LpmTrie => {
            let occupied = match image.name {
                // More endpoints of the artifact may be attached later.
                MapName::Endpoints | MapName::Local4 | MapName::Local6 => {
                    source.endpoints.max(source.artifact.endpoints.len() as u32)
                }
                name => (image.entries.len() + of(&source.own, name).count()) as u32,
            };
            // A new map has room for changes until the next generation. Half of that room is enough here: otherwise one
            // more entry than at the previous generation would be too many. A map far too large wastes memory.
            let room = occupied.midpoint(wanted.max_entries)..=wanted.max_entries.saturating_mul(2);
            room.contains(&there.max_entries) && there == MapDefinition { max_entries: there.max_entries, ..wanted }
        }
        // Every element must be written: the others would keep their earlier values.
        MapKind::Array if image.name != MapName::FlowShape => {
            there == wanted && image.entries.len() as u32 == there.max_entries
        }
        _ => there == wanted,
    }
}

/// Gives a map of the spare the content of the new generation: by the difference, if its content is known.
pub(super) fn renew(
    system: &System,
    source: &GenerationSource<'_>,
    image: &MapImage,
    map: &KernelMap,
    number: Option<u32>,
    flows: &FlowTables,
) -> Result<(), Error> {
    let Some((written, number)) = source.written_to(image.name).zip(number) else {
        return rewrite(system, source, image, map, flows);
    };
    match written.take(number) {
        Some(table) => write_difference(system, source, image, map, &table)?,
        None => rewrite(system, source, image, map, flows)?,
    }
    written.put(number, WrittenTable::new(image.entries.clone()));
    Ok(())
}

/// Gives a map of the spare the content of the new generation, whatever its content is.
fn rewrite(
    system: &System,
    source: &GenerationSource<'_>,
    image: &MapImage,
    map: &KernelMap,
    flows: &FlowTables,
) -> Result<(), Error> {
    let writing = format!("write the map {}", image.name.name());
    match (image.name, image.spec.kind) {
        (MapName::Config, _) => {
            for (key, value) in image.entries.iter() {
                let value = configured(system, value, source, &flows.seeds)?;
                system.update(map, key, &value).doing(&writing)?;
            }
            Ok(())
        }
        (MapName::FlowShape, _) | (_, MapKind::ProgArray) => Ok(()),
        (_, MapKind::Hash | MapKind::LpmTrie) => rewrite_entries(system, source, image, map),
        _ => write(system, map, image.name, &source.entries(image), source.artifact),
    }
}

/// Writes the difference between the new generation and the table that this process has written before.
fn write_difference(
    system: &System,
    source: &GenerationSource<'_>,
    image: &MapImage,
    map: &KernelMap,
    table: &WrittenTable,
) -> Result<(), Error> {
    let TableDifference { removed, written } = table.difference(&image.entries);
    for key in &removed {
        system.delete(map, key).doing(format!("write the map {}", image.name.name()))?;
    }
    write(system, map, image.name, &written, source.artifact)
}

/// Removes the entries that the new generation does not have, then writes those that are missing or differ. Reading all
/// entries costs less than writing all.
fn rewrite_entries(
    system: &System,
    source: &GenerationSource<'_>,
    image: &MapImage,
    map: &KernelMap,
) -> Result<(), Error> {
    let writing = format!("write the map {}", image.name.name());
    let wanted = source.entries(image);
    // A search in the sorted keys would cost several times more, because each step compares two slices.
    let places: HashMap<&[u8], usize> = wanted.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
    let mut is_there = vec![false; wanted.len()];
    for (key, value) in system.flat_entries(map).doing(&writing)?.iter() {
        match places.get(key) {
            Some(at) => is_there[*at] = wanted[*at].1 == value,
            None => system.delete(map, key).doing(&writing)?,
        }
    }
    let missing: Vec<Entry<'_>> = wanted.iter().zip(is_there).filter(|(_, is)| !is).map(|(entry, _)| *entry).collect();
    write(system, map, image.name, &missing, source.artifact)
}
