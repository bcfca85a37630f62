//! The agent's operations between two generations: updates of single addresses, and repairs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use weir_artifact::layout::{MapName, config};
use weir_artifact::map_image::MapBytes;

use super::Runtime;
use crate::error::{Doing as _, Error};
use crate::generation::{self, BATCH, FILE};
use crate::sys::{KernelMap, MapType};
use crate::system::TypedHash;

/// An address and its peer class; `None` removes the address's entry.
type AddressClass = (IpAddr, Option<u32>);

/// The maps that [`TABLES`] names and their numbers, as far as a generation has them.
type AddressTables = BTreeMap<MapName, (u32, KernelMap)>;

/// The tables of single addresses, and those that show which families a generation has.
const TABLES: [MapName; 4] = [MapName::Exact4, MapName::Exact6, MapName::Nodes4, MapName::Nodes6];

/// Entries that the kernel did not take, and its first error.
struct Refused<const N: usize> {
    entries: Vec<([u8; N], u32)>,
    error: Option<Error>,
}

impl Runtime {
    /// Gives addresses other peer classes in the generation in force; `None` removes an entry. The classes are those of
    /// this generation: the caller has compiled it. New entries are written before others are removed. If the kernel
    /// refuses one, all others are written and removed before the error is returned. With `again`, the epoch changes,
    /// so flows that were judged before are judged again on their next packet; `changes` may then be empty.
    ///
    /// The programs see the new epoch last. A flow gets the epoch that was in force when its judgement began, so a flow
    /// that was judged with an entry from before has an epoch from before, and is judged again.
    pub fn write_addresses(&self, changes: &[AddressClass], again: bool) -> Result<(), Error> {
        if let Some(tables) = self.patched_tables().filter(|_| !again) {
            return self.write_tables(&tables, changes);
        }
        self.bring_record_back()?;
        let written = self.write_addresses_here(changes, again);
        self.remember()?;
        written
    }

    /// The tables of an agent's generation, if its record says already that single addresses differ from the artifact.
    /// Then a write neither changes nor needs the record. If another process has removed it, the next
    /// [`Self::check_hooks`] restores it.
    fn patched_tables(&self) -> Option<AddressTables> {
        let record = self.kept_record()?;
        let current = record.current.as_ref().filter(|current| current.patched)?;
        let held = self.held_objects();
        let tables = TABLES.into_iter().filter_map(|name| Some((name, *current.maps.get(name.name())?)));
        tables.map(|(name, number)| Some((name, (number, held.map(number)?)))).collect()
    }

    fn write_addresses_here(&self, changes: &[AddressClass], again: bool) -> Result<(), Error> {
        let mut record = self.record_here()?;
        let loaded = self.current(&record)?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))?;
        let last = record.last_epoch;
        let patches = !changes.is_empty();
        if record.current.as_ref().is_some_and(|current| again || (patches && !current.patched)) {
            let record = Arc::make_mut(&mut record);
            // Before the first write: `status` compares the tables with the artifact, and `attach` reads whether they
            // differ. The epoch comes before it is in force, so that a process that dies in between leaves it to
            // `reconcile`.
            if let Some(current) = &mut record.current {
                current.patched |= patches;
                if again {
                    current.epoch = last.wrapping_add(1);
                    record.last_epoch = current.epoch;
                }
            }
            self.write_record(record)?;
        }
        let number = |name: MapName| loaded.generation.maps.get(name.name()).copied();
        let table = |name| Some((name, (number(name)?, loaded.map(name)?.clone())));
        let tables = TABLES.into_iter().filter_map(table);
        let written = self.write_tables(&tables.collect(), changes);
        // Also if an entry was refused: the others isolate.
        let begun = match &record.current {
            Some(current) if again => self.set_config(&loaded, config::EPOCH, current.epoch),
            _ => Ok(()),
        };
        written.and(begun)
    }

    fn write_tables(&self, tables: &AddressTables, changes: &[AddressClass]) -> Result<(), Error> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (address, class) in changes {
            match address {
                IpAddr::V4(address) => v4.push((address.octets(), *class)),
                IpAddr::V6(address) => v6.push((address.octets(), *class)),
            }
        }
        let of_v4 = self.write_family(tables, [MapName::Exact4, MapName::Nodes4], &v4);
        let of_v6 = self.write_family(tables, [MapName::Exact6, MapName::Nodes6], &v6);
        of_v4.and(of_v6)
    }

    fn write_family<const N: usize>(
        &self,
        tables: &AddressTables,
        [name, nodes]: [MapName; 2],
        changes: &[([u8; N], Option<u32>)],
    ) -> Result<(), Error>
    where
        [u8; N]: Into<IpAddr>,
    {
        // If no local endpoint has an address of the family, the programs never look one up.
        if changes.is_empty() || !tables.contains_key(&nodes) {
            return Ok(());
        }
        let table = tables.get(&name).filter(|(_, map)| map.definition().map_type == MapType::Hash);
        let (number, map) = table.ok_or_else(|| Error::NotSingle(name.name().to_owned()))?;
        let Some(tables) = &self.written else { return self.write_changes(name, map, changes) };
        let bytes = |class: &u32| MapBytes::from_slice(&class.to_le_bytes());
        let of_table = |(at, class): &([u8; N], Option<u32>)| (MapBytes::from_slice(at), class.as_ref().map(bytes));
        tables.change(*number, changes.iter().map(of_table), || self.write_changes(name, map, changes))
    }

    fn write_changes<const N: usize>(
        &self,
        name: MapName,
        map: &KernelMap,
        changes: &[([u8; N], Option<u32>)],
    ) -> Result<(), Error>
    where
        [u8; N]: Into<IpAddr>,
    {
        let single: TypedHash<[u8; N], u32> = self.system.typed(map).doing(format!("open the map {}", name.name()))?;
        let written: Vec<_> = changes.iter().filter_map(|(address, class)| Some((*address, (*class)?))).collect();
        let refused = self.insert(name, map, &single, &written);
        let (mut has_room, mut failed) = (false, None);
        for (address, _) in changes.iter().filter(|(_, class)| class.is_none()) {
            match self.system.remove(&single, address) {
                Ok(()) => has_room = true,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // The kernel may have room for them now.
        let refused = if has_room { self.insert(name, map, &single, &refused.entries) } else { refused };
        match (refused.error, failed) {
            (Some(error), _) => Err(error),
            (None, Some(error)) => Err(error).doing(format_args!("remove from the map {}", name.name())),
            (None, None) => Ok(()),
        }
    }

    /// Writes all entries that the kernel takes.
    fn insert<const N: usize>(
        &self,
        name: MapName,
        map: &KernelMap,
        single: &TypedHash<[u8; N], u32>,
        entries: &[([u8; N], u32)],
    ) -> Refused<N>
    where
        [u8; N]: Into<IpAddr>,
    {
        let mut refused = Refused { entries: Vec::new(), error: None };
        for batch in entries.chunks(BATCH) {
            let keys: Vec<u8> = batch.iter().flat_map(|(address, _)| *address).collect();
            let values: Vec<u8> = batch.iter().flat_map(|(_, class)| class.to_le_bytes()).collect();
            let done = batch.len() > 1 && self.system.update_batch(map, &keys, &values).is_ok();
            // The kernel has no batches, or refuses one of the entries: written one by one, the error names the entry.
            for (address, class) in batch.iter().filter(|_| !done) {
                if let Err(error) = self.system.insert(single, address, class) {
                    let about = || Some((*address).into().to_string());
                    refused.entries.push((*address, *class));
                    refused.error.get_or_insert_with(|| generation::refused(map, name, about(), error));
                }
            }
        }
        refused
    }

    /// The epoch of the generation in force; 0 if no generation is in force.
    pub fn epoch(&self) -> Result<u32, Error> {
        self.epoch_and_file().map(|(epoch, _)| epoch)
    }

    /// The epoch, and the number of the map with the file of the generation in force. The file can be replaced under one
    /// epoch, by one with other names.
    pub fn epoch_and_file(&self) -> Result<(u32, Option<u32>), Error> {
        self.bring_record_back()?;
        let record = self.shared_record()?;
        let current = record.as_ref().and_then(|record| record.current.as_ref());
        Ok(current.map_or((0, None), |current| (current.epoch, current.maps.get(FILE).copied())))
    }

    /// Reconciles the kernel with the record, and returns the repairs.
    pub fn repair(&self) -> Result<Vec<String>, Error> {
        let mut repaired = self.kept_during(|| self.repair_here())?;
        repaired.extend(self.take_restored());
        Ok(repaired)
    }

    fn repair_here(&self) -> Result<Vec<String>, Error> {
        let mut record = self.record()?;
        let mut reconciled = self.reconcile(&mut record, None)?;
        reconciled.repaired.extend(self.reap_retired(&mut record)?);
        reconciled.failures.extend(self.take_failed_moves());
        match reconciled.unreadable {
            _ if !reconciled.failures.is_empty() => Err(Error::Partial(reconciled.failures)),
            Some(unreadable) => {
                self.distrust()?;
                Err(unreadable)
            }
            None => Ok(reconciled.repaired),
        }
    }
}
