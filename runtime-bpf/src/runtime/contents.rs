//! The tables of the generation in force: a comparison with its artifact, and how full they are.
//!
//! Problem: an agent makes this comparison all the time, and a large cluster has tables of 100,000 entries. Strategy:
//! each table is read once, for both purposes, and two sorted lists of references are compared. An artifact has its
//! entries sorted; of the entries that the kernel returns, mostly the first bytes of the keys are compared, as a
//! number.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use weir_artifact::Artifact;
use weir_artifact::entries::MapEntries;
use weir_artifact::layout::{MapName, buckets, config, protected};
use weir_artifact::map_image::{MapBytes, MapEntry, MapImage, bucket_family};
use weir_ebpf::vm::MapKind;

use super::endpoint_entries::EndpointsByName;
use super::{Fill, OWN, OwnAddresses, Runtime, of};
use crate::error::{Doing as _, Error};
use crate::generation::{self, LoadedGeneration, is_shared};
use crate::observe::word;
use crate::record::EnforcementRecord;
use crate::sys::{FlatEntries, KernelMap, MapType};

/// How many entries each table has that was read, by name.
pub(crate) type EntryCounts = BTreeMap<&'static str, u64>;

/// The parts of the record and the artifact that decide about expected entries.
struct ExpectedSource<'a> {
    record: &'a EnforcementRecord,
    named: EndpointsByName<'a>,
    own: OwnAddresses,
}

/// A key and its value, with the first bytes of the key as a number that orders as they do.
#[derive(Clone, Copy, Debug)]
struct SortableEntry<'a> {
    first: u64,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> SortableEntry<'a> {
    fn new(key: &'a [u8], value: &'a [u8]) -> Self {
        let mut first = [0; 8];
        first.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        Self { first: u64::from_be_bytes(first), key, value }
    }

    fn compare_keys(&self, other: &Self) -> Ordering {
        self.first.cmp(&other.first).then_with(|| self.key.cmp(other.key))
    }
}

/// Sorts entries by key. If a key occurs more than once, its last entry counts.
fn sorted<'a>(entries: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<SortableEntry<'a>> {
    let mut entries: Vec<_> = entries.map(|(key, value)| SortableEntry::new(key, value)).collect();
    if !entries.is_sorted_by(|one, next| one.compare_keys(next).is_lt()) {
        entries.sort_by(SortableEntry::compare_keys);
        entries.dedup_by(|next, kept| {
            let is_same = next.key == kept.key;
            *kept = if is_same { *next } else { *kept };
            is_same
        });
    }
    entries
}

/// The differences between two lists of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EntryDifferences {
    /// Expected entries that are not there, or have other values.
    missing: usize,
    /// Entries that are not expected.
    extra: usize,
}

impl EntryDifferences {
    /// Compares two sorted lists. `is_unset` says of a value that its entry does not count if it is not expected.
    fn new(expected: &[SortableEntry<'_>], there: &[SortableEntry<'_>], is_unset: impl Fn(&[u8]) -> bool) -> Self {
        let mut differences = Self::default();
        let (mut expected, mut there) = (expected.iter().peekable(), there.iter().peekable());
        loop {
            let order = match (expected.peek(), there.peek()) {
                (None, None) => return differences,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(other)) => one.compare_keys(other),
            };
            let one = expected.next_if(|_| order.is_le());
            let other = there.next_if(|_| order.is_ge());
            match (one, other) {
                (Some(one), Some(other)) => differences.missing += usize::from(one.value != other.value),
                (Some(_), None) => differences.missing += 1,
                (None, Some(other)) => differences.extra += usize::from(!is_unset(other.value)),
                (None, None) => return differences,
            }
        }
    }
}

impl Runtime {
    /// The tables must contain exactly the entries that the compiler made. Returns the numbers of entries of the tables
    /// that it has read.
    pub(crate) fn check_contents(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        artifact: &Artifact,
        drift: &mut Vec<String>,
    ) -> Result<EntryCounts, Error> {
        let own = self.own_addresses(&artifact.endpoints, &record.endpoints)?;
        let source = ExpectedSource { record, named: EndpointsByName::new(&artifact.endpoints), own };
        let mut counts = EntryCounts::new();
        for image in artifact.maps.iter().filter(|image| !is_shared(image.name)) {
            let (name, Some(map)) = (image.name.name(), loaded.map(image.name)) else { continue };
            match image.name {
                // Each switch writes `other`. `flow_shape` is frozen, and its content is this machine's own.
                MapName::Other | MapName::FlowShape => continue,
                _ => {}
            }
            let written = self.written_entries(loaded, image.name);
            let entries = match (&written, image.name) {
                (Some(written), _) => written,
                // Only the process that has written single addresses knows them.
                (None, MapName::Exact4 | MapName::Exact6) if loaded.generation.patched => continue,
                (None, _) => &image.entries,
            };
            let there = self.entries_of(map, name)?;
            counts.insert(name, there.iter().count() as u64);
            if image.name == MapName::Config {
                let value = there.iter().next().map(|(_, value)| value);
                let epoch =
                    value.filter(|it| it.len() > config::EPOCH as usize).map(|it| word(it, config::EPOCH as usize));
                if epoch != Some(loaded.generation.epoch) {
                    drift.push("the map config has another generation's number".to_owned());
                }
                continue;
            }
            let EntryDifferences { missing, extra } = differences(image, entries, &source, &there);
            if missing + extra > 0 {
                drift.push(format!(
                    "the map {name} differs from the artifact: {missing} entries are missing or changed, {extra} are \
                     unexpected"
                ));
            }
        }
        Ok(counts)
    }

    /// The entries of a table of single addresses that an agent has changed since the artifact, if it knows all of
    /// them.
    fn written_entries(&self, loaded: &LoadedGeneration, name: MapName) -> Option<MapEntries> {
        let is_patched = loaded.generation.patched && matches!(name, MapName::Exact4 | MapName::Exact6);
        let number = loaded.generation.maps.get(name.name()).filter(|_| is_patched)?;
        self.written.as_ref()?.get(*number).map(|table| table.entries())
    }

    fn entries_of(&self, map: &KernelMap, name: &str) -> Result<FlatEntries, Error> {
        let reading = format!("read the map {name}");
        let definition = map.definition();
        if definition.map_type != MapType::Array || definition.max_entries != 1 {
            return self.system.flat_entries(map).doing(reading);
        }
        // Its value can have many megabytes. To read several entries at once takes room for several such values.
        let mut entries = FlatEntries::new(map);
        let value = self.system.lookup(map, &[0; 4]).doing(reading)?;
        value.iter().for_each(|value| entries.push(&[0; 4], value));
        Ok(entries)
    }

    /// How full the maps are. Only of maps that grow at run time: the compiler sized the others to their content.
    /// `counts` are the entries that were counted already.
    pub(crate) fn fill_of(&self, loaded: &LoadedGeneration, counts: &EntryCounts) -> Result<Vec<Fill>, Error> {
        let mut fills = Vec::new();
        for (name, map) in &loaded.maps {
            let definition = map.definition();
            let known = MapName::named(name);
            if let Some((family, _)) = known.and_then(bucket_family) {
                let entries = self.system.slots(map, family).doing(format!("read the map {name}"))?.len() as u64;
                let max_entries = definition.value_size / buckets::slot_bytes(family);
                fills.push(Fill { name: name.clone(), entries, max_entries });
                continue;
            }
            let is_counted = matches!(definition.map_type, MapType::Hash | MapType::LruHash | MapType::LpmTrie);
            if is_counted && name != generation::FILE {
                let entries = match counts.get(name.as_str()) {
                    Some(count) => *count,
                    None => self.system.count(map).doing(format!("read the map {name}"))?,
                };
                fills.push(Fill { name: name.clone(), entries, max_entries: definition.max_entries });
            }
        }
        Ok(fills)
    }
}

/// Compares a table with the entries that it should have.
fn differences(
    image: &MapImage,
    entries: &MapEntries,
    source: &ExpectedSource<'_>,
    there: &FlatEntries,
) -> EntryDifferences {
    let ExpectedSource { record, named, own } = source;
    let of_endpoints: Vec<MapEntry> = match image.name {
        MapName::Endpoints => {
            let values = record.endpoints.iter().filter_map(|it| Some((it.ifindex.to_le_bytes(), named.value_of(it)?)));
            values.map(|(key, value)| (MapBytes::from_slice(&key), value.to_vec().into())).collect()
        }
        MapName::Local4 | MapName::Local6 => {
            let values: Vec<_> = record.endpoints.iter().filter_map(|it| named.value_of(it)).collect();
            protected(image.name, values.iter().map(|it| it.as_slice()))
        }
        _ => Vec::new(),
    };
    // The image of a table of endpoints has no entries.
    let of_endpoints = of_endpoints.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
    let own = of(own, image.name).map(|key| (key, &OWN[..]));
    let expected = sorted(entries.iter().chain(of_endpoints).chain(own));
    // An array has all of its entries, at least one, from the beginning: unused entries are zero.
    let is_unset = |value: &[u8]| image.spec.kind == MapKind::Array && value.iter().all(|byte| *byte == 0);
    EntryDifferences::new(&expected, &sorted(there.iter()), is_unset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some keys differ only after their first eight bytes.
    fn key(number: u8) -> [u8; 9] {
        [0, 0, 0, 0, 0, 0, 0, number / 10, number % 10]
    }

    /// Compares lists of numbers with their values; a value of 0 is unset.
    fn compared(expected: &[(u8, u8)], there: &[(u8, u8)]) -> (usize, usize) {
        let entries =
            |list: &[(u8, u8)]| list.iter().map(|(number, value)| (key(*number), [*value])).collect::<Vec<_>>();
        let (expected, there) = (entries(expected), entries(there));
        let expected = sorted(expected.iter().map(|(key, value)| (&key[..], &value[..])));
        let there = sorted(there.iter().map(|(key, value)| (&key[..], &value[..])));
        let EntryDifferences { missing, extra } = EntryDifferences::new(&expected, &there, |value| value == [0]);
        (missing, extra)
    }

    #[test]
    fn each_difference_is_counted_once_in_any_order() {
        let all = [(1, 1), (5, 1), (12, 1), (13, 1), (20, 1)];
        let mut reversed = all;
        reversed.reverse();
        assert_eq!(compared(&all, &reversed), (0, 0));
        assert_eq!(compared(&reversed, &all), (0, 0));
        assert_eq!(compared(&all, &[]), (5, 0));
        assert_eq!(compared(&[], &all), (0, 5));
        assert_eq!(compared(&all, &[(20, 1), (13, 2), (12, 1), (1, 1)]), (2, 0), "one is missing, one has changed");
        assert_eq!(compared(&all[..3], &[(13, 1), (12, 1), (5, 1), (1, 1), (0, 1)]), (0, 2));
        assert_eq!(compared(&all, &[(2, 0), (5, 0), (20, 1), (21, 0), (12, 1), (13, 1)]), (2, 0), "unset entries");
        assert_eq!(compared(&[(5, 2), (5, 1), (1, 1)], &[(5, 1), (1, 1)]), (0, 0), "the last entry of a key counts");
    }
}
