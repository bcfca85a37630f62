//! Flow tables: how large, with which seeds, and what happens when one kind of table follows another.
//!
//! Invariant: the flows that a generation finds are those that the one before it has left, whatever they are kept in.

use std::collections::BTreeMap;

use weir_compiler::address::Family;
use weir_compiler::artifact::Artifact;
use weir_compiler::image::{MapImage, bucket_family, is_flow_table};
use weir_compiler::layout::{MapName, buckets};

use super::Source;
use crate::error::{Doing as _, Error};
use crate::record::Record;
use crate::sys::{Map, MapDefinition};
use crate::system::System;

/// At least as many flows.
const LEAST_FLOWS: u32 = 1 << 14;

/// What a generation must know of the flow tables that are there.
pub(crate) struct FlowTables {
    /// The value of `flow_shape`.
    pub(crate) shape: Vec<u8>,
    pub(crate) seeds: Vec<u64>,
}

impl FlowTables {
    pub(crate) fn new(system: &System, record: &mut Record, maps: &BTreeMap<String, Map>) -> Result<Self, Error> {
        Ok(Self { shape: shape(maps), seeds: seeds(system, record)? })
    }
}

/// How large the tables are, whoever made them.
fn shape(maps: &BTreeMap<String, Map>) -> Vec<u8> {
    let mut value = vec![0; buckets::shape::BYTES as usize];
    for name in MapName::ALL {
        let Some(((family, at), map)) = bucket_family(name).zip(maps.get(name.name())) else { continue };
        let mask = buckets::mask(family, map.definition().value_size).to_le_bytes();
        value.iter_mut().skip(at as usize).zip(mask).for_each(|(to, from)| *to = from);
    }
    value
}

/// The seeds that the tables' flows stand by; they are as old as the record, and so no younger than any table.
fn seeds(system: &System, record: &mut Record) -> Result<Vec<u64>, Error> {
    if record.seeds.len() != buckets::SEEDS {
        record.seeds = system.random(buckets::SEEDS).doing("ask for random numbers")?;
    }
    Ok(record.seeds.clone())
}

/// The compiler sizes flows for every endpoint that it knows; here it is known how many there are.
pub(crate) fn sized(image: &MapImage, source: &Source<'_>, definition: MapDefinition) -> MapDefinition {
    if !is_flow_table(image.name) {
        return definition;
    }
    /// As many endpoints as a node may have; a larger input is that of a whole cluster.
    const OF_A_NODE: u32 = 256;
    let known = (source.artifact.endpoints.len() as u32).max(1);
    let expected = source.endpoints.max(known.min(OF_A_NODE));
    let of_expected = |number: u32| u64::from(number) * u64::from(expected) / u64::from(known);
    match bucket_family(image.name) {
        Some((family, _)) => {
            // Of a table that was cut to what an old kernel can give, we know no more than that it is full.
            let flows = of_expected(image.spec.value_size / buckets::slot_bytes(family) / 2).max(LEAST_FLOWS.into());
            MapDefinition { value_size: buckets::table_bytes(family, flows, u64::MAX), ..definition }
        }
        None => {
            let max_entries = u32::try_from(of_expected(image.spec.max_entries)).unwrap_or(u32::MAX).max(LEAST_FLOWS);
            MapDefinition { max_entries, ..definition }
        }
    }
}

/// Before 6.1 a value has 4 MiB at most: a table of flows is then as large as it can be.
pub(crate) fn create(system: &System, image: &MapImage, mut wanted: MapDefinition) -> std::io::Result<Map> {
    const LEAST: u32 = 1 << 16;
    loop {
        match system.create_map(image.name.name(), &wanted) {
            Err(error)
                if error.raw_os_error() == Some(libc::E2BIG)
                    && bucket_family(image.name).is_some()
                    && wanted.value_size > LEAST =>
            {
                wanted.value_size /= 2;
            }
            other => return other,
        }
    }
}

/// Of a family: the kernel's maps of confirmed and of fresh flows, and our own table.
const TABLES: [(Family, MapName, MapName, MapName); 2] = [
    (Family::V4, MapName::Flows4, MapName::Fresh4, MapName::FlowBuckets4),
    (Family::V6, MapName::Flows6, MapName::Fresh6, MapName::FlowBuckets6),
];

/// Copies the flows of tables of the other kind, which the generation before has, into `maps`. What is there already stays.
/// Says how many flows had no room: a bucket can be full where its table is not.
pub(crate) fn carry(system: &System, record: &Record, maps: &BTreeMap<String, Map>) -> Result<usize, Error> {
    const CARRYING: &str = "carry flows over";
    let mut lost = 0;
    let old = |name: MapName| match record.shared.get(name.name()) {
        Some(number) if !maps.contains_key(name.name()) => system.numbered_map(*number).doing(CARRYING),
        _ => Ok(None),
    };
    for (family, open, fresh, table) in TABLES {
        if let Some(new) = maps.get(table.name()) {
            let seeds = record.seeds.as_slice().first_chunk().copied().unwrap_or_default();
            for name in [open, fresh] {
                let Some(old) = old(name)? else { continue };
                let entries = system.entries(&old).doing(CARRYING)?;
                lost += system.put_slots(new, family, &seeds, &entries).doing(CARRYING)?;
            }
        }
        if let Some((open, fresh)) = maps.get(open.name()).zip(maps.get(fresh.name())) {
            let Some(old) = old(table)? else { continue };
            for slot in system.slots(&old, family).doing(CARRYING)? {
                let (key, value) = slot.entry();
                let new = if slot.is_confirmed() { open } else { fresh };
                if system.lookup(new, &key).doing(CARRYING)?.is_none() {
                    system.update(new, &key, &value).doing(CARRYING)?;
                }
            }
        }
    }
    Ok(lost)
}

/// The generation in force keeps its flows elsewhere: the record forgets tables of the other kind.
pub(crate) fn forget_others(record: &mut Record, artifact: &Artifact) {
    let has = |name: MapName| artifact.map(name).is_some();
    let has_buckets = has(MapName::FlowBuckets4) || has(MapName::FlowBuckets6);
    let has_lru = has(MapName::Flows4) || has(MapName::Flows6);
    let is_other = |name: &str| {
        let known = MapName::ALL.into_iter().find(|it| it.name() == name).filter(|it| is_flow_table(*it));
        known.is_some_and(|it| if bucket_family(it).is_some() { has_lru } else { has_buckets })
    };
    record.shared.retain(|name, _| !is_other(name));
}
