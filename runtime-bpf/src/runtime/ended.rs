//! Flows that end although nothing in their packets says so.
//!
//! A packet to a service address does not show which backend it will reach, so the programs cannot know that a flow
//! still uses a backend which its client may not reach any more (`weir_compiler::departed` finds out). The runtime
//! marks such flows in the table of buckets. Each mark is a compare-and-swap of a slot's word, like every other change
//! of it, so it never lands on another flow. One pass over the tables, whatever the number of flows that end.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_compiler::address::Family;
use weir_compiler::layout::buckets::{self, Slot};
use weir_compiler::layout::{MapName, address_bytes};

use super::Runtime;
use crate::error::{Doing as _, Error};

/// Flows that a local pod has begun, to one port of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedFlows {
    /// The pod, `namespace/name`.
    pub pod: String,
    /// The address that its packets go to.
    pub remote: IpAddr,
    /// The port there.
    pub port: u16,
    /// The number of the protocol.
    pub protocol: u8,
}

const TABLES: [(MapName, Family); 2] = [(MapName::FlowBuckets4, Family::V4), (MapName::FlowBuckets6, Family::V6)];

impl Runtime {
    /// Ends flows; returns how many there were. Pods that are not attached have none.
    pub fn end_flows(&self, ended: &[EndedFlows]) -> Result<usize, Error> {
        if ended.is_empty() {
            return Ok(0);
        }
        let record = self.record()?;
        let loaded = self.current(&record)?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))?;
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        for flows in ended {
            let endpoints = record.endpoints.iter().filter(|it| it.pod == flows.pod);
            keys.extend(endpoints.map(|it| Key::new(it.ifindex, flows)));
        }
        let mut count = 0;
        for (name, family) in TABLES {
            let Some(map) = loaded.map(name) else { continue };
            let which = |slot: &Slot| Key::of(slot, family).is_some_and(|key| keys.contains(&key));
            count += self
                .system
                .change_slots(map, family, which, ended_word)
                .doing(format!("end flows in the map {}", name.name()))?;
        }
        Ok(count)
    }
}

/// The word of a slot whose flow has ended.
fn ended_word(word: u64) -> u64 {
    buckets::dead(word)
}

/// The interface, the remote address and port as they stand in a slot, and the protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u32, Vec<u8>, [u8; 2], u8);

impl Key {
    fn new(ifindex: u32, flows: &EndedFlows) -> Self {
        Self(ifindex, address_bytes(flows.remote), flows.port.to_be_bytes(), flows.protocol)
    }

    /// Of a flow that the pod has begun.
    fn of(slot: &Slot, family: Family) -> Option<Self> {
        if slot.word() & buckets::BEGUN == 0 {
            return None;
        }
        let (key, _) = slot.entry();
        let end = 4 + usize::from(family.bits() / 8);
        Some(Self(slot.ifindex(), key.get(4..end)?.to_vec(), *key.get(end..)?.first_chunk()?, *key.get(end + 4)?))
    }
}
