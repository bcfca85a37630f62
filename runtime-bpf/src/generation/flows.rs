//! Sizes and seeds of the flow tables. The tables are made once, and all generations share them.

use std::collections::BTreeMap;

use weir_artifact::layout::{MapName, buckets, fragments};
use weir_artifact::map_image::{MapImage, bucket_family};

use super::GenerationSource;
use crate::error::{Doing as _, Error};
use crate::record::EnforcementRecord;
use crate::sys::{KernelMap, MapDefinition, errno};
use crate::system::System;

/// Room for at least this many flows.
const LEAST_FLOWS: u32 = 1 << 14;

/// The facts about the existing flow tables that a generation needs.
pub(crate) struct FlowTables {
    /// The value of `flow_shape`.
    pub(crate) shape: Vec<u8>,
    pub(crate) seeds: Vec<u64>,
}

impl FlowTables {
    pub(crate) fn new(
        system: &System,
        record: &mut EnforcementRecord,
        maps: &BTreeMap<String, KernelMap>,
    ) -> Result<Self, Error> {
        Ok(Self { shape: shape(maps), seeds: seeds(system, record)? })
    }
}

/// The sizes of the existing tables, which an earlier generation may have made.
fn shape(maps: &BTreeMap<String, KernelMap>) -> Vec<u8> {
    let mut value = vec![0; buckets::shape::BYTES as usize];
    for name in MapName::ALL {
        let Some(((family, at), map)) = bucket_family(name).zip(maps.get(name.name())) else { continue };
        let mask = buckets::mask(family, map.definition().value_size).to_le_bytes();
        value.iter_mut().skip(at as usize).zip(mask).for_each(|(to, from)| *to = from);
    }
    value
}

/// The seeds of the hash by which the tables' flows are placed. They are as old as the record, and so at least as old
/// as any table.
fn seeds(system: &System, record: &mut EnforcementRecord) -> Result<Vec<u64>, Error> {
    if record.seeds.len() != buckets::SEEDS {
        record.seeds = system.random(buckets::SEEDS).doing("ask for random numbers")?;
    }
    Ok(record.seeds.clone())
}

/// The number of endpoints that a node may have; an input with more is that of a whole cluster.
const OF_A_NODE: u32 = 256;
/// The fragments map has room for at least this many endpoints: it is made once, for all generations.
const WITH_FRAGMENTS: u32 = 1_024;

/// The compiler sizes shared tables for every endpoint in its input. Here the number on this host is known, and the
/// sizes are scaled.
pub(crate) fn sized(image: &MapImage, source: &GenerationSource<'_>, definition: MapDefinition) -> MapDefinition {
    let known = (source.artifact.endpoints.len() as u32).max(1);
    let expected = source.endpoints.max(known.min(OF_A_NODE));
    if image.name == MapName::Fragments {
        let endpoints = expected.saturating_mul(2).max(WITH_FRAGMENTS);
        return MapDefinition { max_entries: endpoints.saturating_mul(fragments::PLACES), ..definition };
    }
    let Some((family, _)) = bucket_family(image.name) else { return definition };
    // Half of the slots is the number of flows that the compiler planned for. If an old kernel's limit has cut the
    // table, the number that was planned is not known, and this is a lower bound.
    let of_known = image.spec.value_size / buckets::slot_bytes(family) / 2;
    let flows = u64::from(of_known) * u64::from(expected) / u64::from(known);
    let bytes = buckets::table_bytes(family, flows.max(LEAST_FLOWS.into()), u64::MAX);
    MapDefinition { value_size: bytes, ..definition }
}

/// Before 6.1 a value has 4 MiB at most: a table of flows is then as large as it can be.
pub(crate) fn create(system: &System, image: &MapImage, mut wanted: MapDefinition) -> std::io::Result<KernelMap> {
    const LEAST: u32 = 1 << 16;
    loop {
        match system.create_map(image.name.name(), &wanted) {
            Err(error)
                if errno(&error) == Some(libc::E2BIG)
                    && bucket_family(image.name).is_some()
                    && wanted.value_size > LEAST =>
            {
                wanted.value_size /= 2;
            }
            other => return other,
        }
    }
}

/// Removes shared maps from the record that this version does not know: an older version made them, with another
/// layout.
pub(crate) fn forget_unknown(record: &mut EnforcementRecord) {
    record.shared.retain(|name, _| MapName::ALL.into_iter().any(|known| known.name() == name));
}
