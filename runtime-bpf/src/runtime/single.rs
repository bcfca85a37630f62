//! What an agent does between two generations: single addresses, and mending.

use std::net::IpAddr;

use weir_compiler::layout::{MapName, address_bytes};

use super::Runtime;
use crate::error::{Doing as _, Error};
use crate::generation::refused;
use crate::sys::MapType;

impl Runtime {
    /// Gives addresses other peer classes in the generation in force; `None` takes an entry out. Classes are the generation's
    /// own: whoever calls has compiled it. Entries are written before others are taken out.
    pub fn write_addresses(&self, changes: &[(IpAddr, Option<u32>)]) -> Result<(), Error> {
        let mut record = self.record()?;
        let loaded = self.current(&record)?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))?;
        if let Some(current) = record.current.as_mut().filter(|current| !current.patched) {
            // Before the first write: who compares contents has to know.
            current.patched = true;
            record.write(&self.system, &self.pins)?;
        }
        let (written, removed): (Vec<&(IpAddr, Option<u32>)>, Vec<_>) =
            changes.iter().partition(|(_, class)| class.is_some());
        for (address, class) in written.into_iter().chain(removed) {
            let name = if address.is_ipv4() { MapName::Exact4 } else { MapName::Exact6 };
            let map = loaded.map(name).filter(|map| map.definition().map_type == MapType::Hash);
            let map = map.ok_or_else(|| Error::NotSingle(name.name().to_owned()))?;
            let key = address_bytes(*address);
            match class {
                Some(class) => {
                    let written = self.system.update(map, &key, &class.to_le_bytes());
                    written.map_err(|error| refused(map, name, Some(address.to_string()), error))?;
                }
                None => self.system.delete(map, &key).doing(format!("remove from the map {}", name.name()))?,
            }
        }
        Ok(())
    }

    /// Makes so what should be so; says what was not.
    pub fn mend(&self) -> Result<Vec<String>, Error> {
        let mut record = self.record()?;
        let mut settled = self.settle(&mut record, None)?;
        self.reap_retired(&mut record)?;
        if let Some(loaded) = self.current(&record)? {
            self.move_hurried(&mut record, &loaded, &mut settled)?;
        }
        if settled.failures.is_empty() { Ok(settled.mended) } else { Err(Error::Partial(settled.failures)) }
    }
}
