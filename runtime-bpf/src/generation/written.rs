//! The content that an agent has written into the tables of its two banks.
//!
//! Problem: most changes leave most tables as they are, but to find that out, a spare's tables must be read from the
//! kernel: at 100,000 addresses this costs more than the change. Strategy: an agent remembers the content that it
//! has written to each table since its start, and writes the difference. The content is shared with the artifact
//! ([`weir_artifact::entries`]), so tables that are equal are not even compared.
//!
//! Invariants: content is remembered only after all of it was written; an error forgets it. Only tables that no
//! operation but [`super::spare`], [`super::extension`] and single writes of addresses changes are remembered. Another
//! process with root's rights can change a table behind the agent's back: the agent's regular comparison finds that as
//! soon as the table is in force, and [`crate::runtime::Runtime::deviations`] makes the next generation read everything
//! again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use weir_artifact::entries::{EntryRef, MapEntries};
use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapBytes;

/// The content of one table.
#[derive(Clone, Debug)]
pub(crate) struct WrittenTable {
    entries: MapEntries,
    /// Entries that were written or removed one by one.
    changes: BTreeMap<MapBytes, Option<MapBytes>>,
}

/// The operations that give a table other content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TableDifference<'w> {
    pub(crate) removed: Vec<MapBytes>,
    pub(crate) written: Vec<EntryRef<'w>>,
}

impl TableDifference<'_> {
    /// The keys that are removed or written.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.removed.iter().map(|key| key.as_slice()).chain(self.written.iter().map(|(key, _)| *key))
    }
}

impl WrittenTable {
    /// A table with these entries, which are sorted.
    pub(crate) fn new(entries: MapEntries) -> Self {
        Self { entries, changes: BTreeMap::new() }
    }

    /// Notes a single write. Addresses that come and go leave nothing behind, however many they are.
    fn set(&mut self, key: MapBytes, value: Option<MapBytes>) {
        if self.entries.get(&key) == value.as_deref() {
            self.changes.remove(&key);
        } else {
            self.changes.insert(key, value);
        }
    }

    /// All entries that the table has, sorted.
    pub(crate) fn entries(&self) -> MapEntries {
        let mut entries = self.entries.clone();
        for (key, value) in &self.changes {
            entries.set(key, value.as_deref());
        }
        entries
    }

    /// The operations after which the table has exactly the entries `wanted`, which are sorted.
    pub(crate) fn difference<'w>(&self, wanted: &'w MapEntries) -> TableDifference<'w> {
        let mut difference = TableDifference::default();
        for (key, there) in &self.changes {
            match (there, wanted.get_entry(key)) {
                (Some(there), Some((_, value))) if there[..] == *value => {}
                (_, Some(entry)) => difference.written.push(entry),
                (Some(_), None) => difference.removed.push(key.clone()),
                (None, None) => {}
            }
        }
        if self.entries.are_shared_with(wanted) {
            return difference;
        }
        let (mut at, mut wanted_at) = (0, 0);
        loop {
            let equal = self.entries.equal_run(at, wanted, wanted_at);
            (at, wanted_at) = (at + equal, wanted_at + equal);
            let there = (at < self.entries.len()).then(|| self.entries.entry(at));
            let next = (wanted_at < wanted.len()).then(|| wanted.entry(wanted_at));
            // Whether the smallest key is in the table, and whether it is wanted.
            let order = match (there, next) {
                (None, None) => return difference,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((one, _)), Some((other, _))) => one.cmp(other),
            };
            let (old, new) = (there.filter(|_| order.is_le()), next.filter(|_| order.is_ge()));
            (at, wanted_at) = (at + usize::from(old.is_some()), wanted_at + usize::from(new.is_some()));
            let key = new.or(old).map_or(&[][..], |(key, _)| key);
            if old == new || (!self.changes.is_empty() && self.changes.contains_key(key)) {
                continue;
            }
            match new {
                Some(entry) => difference.written.push(entry),
                None => difference.removed.push(MapBytes::from_slice(key)),
            }
        }
    }
}

/// The tables whose content is known, by the map's number.
#[derive(Debug, Default)]
pub(crate) struct WrittenTables(Mutex<BTreeMap<u32, WrittenTable>>);

impl WrittenTables {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<u32, WrittenTable>) -> T) -> T {
        // A panic leaves tables out, never wrong ones in: they are taken out before the first write.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the content of a map can be remembered.
    pub(crate) fn is_kept(name: MapName) -> bool {
        use MapName::{Defaults, Edge, Exact4, Exact6, Listed4, Listed6, Ports, Prefixes4, Prefixes6, Rows};
        matches!(name, Defaults | Edge | Exact4 | Exact6 | Listed4 | Listed6 | Ports | Prefixes4 | Prefixes6 | Rows)
    }

    /// Whether the content of a generation's maps is known, as far as it can be. `maps` has their numbers, by name.
    pub(crate) fn knows(&self, maps: &BTreeMap<String, u32>) -> bool {
        let mut kept = MapName::ALL.iter().filter(|name| Self::is_kept(**name)).filter_map(|it| maps.get(it.name()));
        self.with(|tables| kept.all(|map| tables.contains_key(map)))
    }

    /// Whether the content of a map is known.
    pub(crate) fn has(&self, map: u32) -> bool {
        self.with(|tables| tables.contains_key(&map))
    }

    /// The content of a table. It is forgotten until [`Self::put`], because it is about to change.
    pub(crate) fn take(&self, map: u32) -> Option<WrittenTable> {
        self.with(|tables| tables.remove(&map))
    }

    /// The content of a table, which stays known.
    pub(crate) fn get(&self, map: u32) -> Option<WrittenTable> {
        self.with(|tables| tables.get(&map).cloned())
    }

    /// Remembers the content of a table.
    pub(crate) fn put(&self, map: u32, table: WrittenTable) {
        self.with(|tables| _ = tables.insert(map, table));
    }

    /// Applies single writes to a table: runs `write`, and remembers the changes if it succeeded.
    pub(crate) fn change<E>(
        &self,
        map: u32,
        changes: impl IntoIterator<Item = (MapBytes, Option<MapBytes>)>,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let table = self.take(map);
        write()?;
        if let Some(mut table) = table {
            changes.into_iter().for_each(|(key, value)| table.set(key, value));
            self.put(map, table);
        }
        Ok(())
    }

    /// Forgets all tables but these.
    pub(crate) fn retain(&self, is_needed: impl Fn(u32) -> bool) {
        self.with(|tables| tables.retain(|map, _| is_needed(*map)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &[(u8, u8)]) -> MapEntries {
        MapEntries::new(of.iter().map(|(key, value)| ([*key], [*value])))
    }

    fn applied(table: &WrittenTable, wanted: &MapEntries) -> (Vec<(u8, u8)>, usize) {
        let mut map: BTreeMap<u8, u8> = table.entries.iter().map(|(key, value)| (key[0], value[0])).collect();
        for (key, value) in &table.changes {
            match value {
                Some(value) => _ = map.insert(key[0], value[0]),
                None => _ = map.remove(&key[0]),
            }
        }
        let TableDifference { removed, written } = table.difference(wanted);
        let operations = removed.len() + written.len();
        removed.iter().for_each(|key| assert!(map.remove(&key[0]).is_some(), "nothing is removed that is not there"));
        map.extend(written.iter().map(|(key, value)| (key[0], value[0])));
        (map.into_iter().collect(), operations)
    }

    /// All tables of three keys with two values, all wanted contents, and all single writes to two of the keys.
    #[test]
    fn a_difference_leads_from_every_content_to_every_other() {
        let contents: Vec<Vec<(u8, u8)>> = (0..27_u8)
            .map(|number| [number % 3, number / 3 % 3, number / 9])
            .map(|values| (1..).zip(values).filter(|(_, value)| *value > 0).collect())
            .collect();
        let writes = [None, Some(None), Some(Some(1)), Some(Some(2))];
        for before in &contents {
            for (first, second) in writes.iter().flat_map(|one| writes.iter().map(move |other| (one, other))) {
                let mut table = WrittenTable::new(entries(before));
                for (key, write) in [(1_u8, first), (2, second)] {
                    let change = write.map(|value| value.map(|value: u8| MapBytes::from_slice(&[value])));
                    table.changes.extend(change.map(|change| (MapBytes::from_slice(&[key]), change)));
                }
                for after in &contents {
                    assert_eq!(applied(&table, &entries(after)).0, *after, "{before:?} {first:?} {second:?}");
                }
                assert_eq!(applied(&table, &table.entries.clone()).0, *before, "shared entries");
                assert_eq!(applied(&table, &table.entries()).1, 0, "what the table has");
            }
        }
    }

    #[test]
    fn equal_entries_are_not_written_again() {
        let table = WrittenTable::new(entries(&[(1, 1), (2, 2)]));
        assert_eq!(applied(&table, &entries(&[(1, 1), (2, 3)])).1, 1);
        assert_eq!(applied(&table, &entries(&[(1, 1), (2, 2)])).1, 0);
    }

    #[test]
    fn entries_that_come_and_go_are_not_remembered() {
        let mut table = WrittenTable::new(entries(&[(1, 1)]));
        for (key, value) in [(5, Some(2)), (5, None), (1, None), (1, Some(1)), (6, Some(3))] {
            table.set(MapBytes::from_slice(&[key]), value.map(|value: u8| MapBytes::from_slice(&[value])));
        }
        assert_eq!((table.changes.len(), table.entries()), (1, entries(&[(1, 1), (6, 3)])));
    }

    #[test]
    fn a_failed_write_forgets_the_table() {
        let tables = WrittenTables::default();
        tables.put(7, WrittenTable::new(entries(&[(1, 1)])));
        let change = || [(MapBytes::from_slice(&[1]), None)];
        assert!(tables.change(7, change(), || Ok::<_, ()>(())).is_ok());
        let kept = tables.take(7).expect("it is remembered after a write that succeeded");
        assert_eq!(kept.difference(&entries(&[(1, 1)])).written, [(&[1][..], &[1][..])]);
        tables.put(7, kept);
        assert!(tables.change(7, change(), || Err(())).is_err());
        assert!(tables.take(7).is_none());
    }
}
