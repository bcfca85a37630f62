//! Measurements: the memory that enforcement takes, and the records that were lost.

use weir_artifact::layout::MapName;

use super::Runtime;
use crate::error::{Doing as _, Error};
use crate::sys::KernelMap;
use crate::system::TypedCell;

/// The map `event_limit`; the last word is the number of lost events.
pub(crate) type EventLimit = TypedCell<[u32; 4]>;

/// The name under which [`Runtime::memory`] reports the spare. No map has it.
const SPARE: &str = "spare";

impl Runtime {
    /// The maps of the generation in force, and the bytes that the kernel charges for each; and under the name `spare`,
    /// all maps of the spare together.
    pub fn memory(&self) -> Result<Vec<(String, u64)>, Error> {
        let record = self.record_here()?;
        let Some(loaded) = self.current(&record)? else { return Ok(Vec::new()) };
        let of_map = |(name, map): (&String, &KernelMap)| Some((name.clone(), charged(map)?));
        let mut memory: Vec<_> = loaded.maps.iter().filter_map(of_map).collect();
        if let Some(spare) = &record.spare {
            let held = self.held_objects();
            let open =
                |number: u32| held.map(number).map_or_else(|| self.system.numbered_map(number), |it| Ok(Some(it)));
            let maps = spare.maps.values().map(|number| open(*number).doing("open a map"));
            let maps = maps.collect::<Result<Vec<_>, _>>()?;
            memory.push((SPARE.to_owned(), maps.iter().flatten().filter_map(charged).sum()));
        }
        Ok(memory)
    }

    /// The record as JSON, for bug reports. The seeds of the flow tables' hash are left out: with them, others could
    /// choose flows that share a bucket.
    pub fn record_for_report(&self) -> Result<serde_json::Value, Error> {
        let mut record = self.record()?;
        record.seeds.clear();
        // A record is plain data, which is always JSON.
        Ok(serde_json::to_value(&record).unwrap_or_default())
    }

    /// Number of records that were not written since the first generation; wraps around after 4,294,967,295.
    pub fn lost_records(&self) -> Result<u32, Error> {
        let loaded = self.current(&*self.record_here()?)?;
        let Some(map) = loaded.as_ref().and_then(|it| it.map(MapName::EventLimit)) else { return Ok(0) };
        self.lost(&self.system.typed(map).doing("open the map event_limit")?)
    }

    pub(crate) fn lost(&self, limit: &EventLimit) -> Result<u32, Error> {
        let [.., lost] = self.system.load_cell(limit).doing("read the map event_limit")?;
        Ok(lost)
    }
}

/// The memory of a map, from its descriptor's entry in `/proc`.
fn charged(map: &KernelMap) -> Option<u64> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.descriptor())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}
