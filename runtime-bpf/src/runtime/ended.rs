//! Flows that end although nothing in their packets says so.
//!
//! A packet to a service address does not show which backend it will reach, so the programs cannot know that a flow
//! still uses a backend which its client may not reach any more (`weir_classes::departed` finds out). The runtime
//! marks such flows in the table of buckets. Each mark is a compare-and-swap of a slot's word, like every other change
//! of it, so it never affects another flow. One pass over the tables is enough for any number of flows that end.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_artifact::layout::MapName;
use weir_artifact::layout::buckets::{self, Slot, StoredFlow};
use weir_objects::address::Family;

use super::Runtime;
use crate::error::{Doing as _, Error};

/// Flows of a local pod with one port of one address.
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
        self.bring_record_back()?;
        let record = self.record_here()?;
        let loaded = self.current(&record)?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))?;
        let mut keys = BTreeSet::new();
        for flows in ended {
            let endpoints = record.endpoints.iter().filter(|it| it.pod == flows.pod);
            let EndedFlows { remote, port, protocol, .. } = *flows;
            keys.extend(endpoints.map(|it| EndedFlowKey { ifindex: it.ifindex, remote, port, protocol }));
        }
        let mut count = 0;
        for (name, family) in TABLES {
            // To map a table takes the kernel longer than to look through it.
            let is_any = keys.iter().any(|it| it.remote.is_ipv4() == (family == Family::V4));
            let Some(map) = loaded.map(name).filter(|_| is_any) else { continue };
            let which = |slot: &Slot| {
                let is_ended = slot.word() == buckets::ended(slot.word());
                !is_ended && key(slot).is_some_and(|key| keys.contains(&key))
            };
            count += self
                .system
                .change_slots(map, family, which, buckets::ended)
                .doing(format!("end flows in the map {}", name.name()))?;
        }
        Ok(count)
    }
}

/// The part of a flow's key that [`EndedFlows`] names, for one interface.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EndedFlowKey {
    ifindex: u32,
    remote: IpAddr,
    port: u16,
    protocol: u8,
}

/// The key is the same for both beginners: if the flow's first packet here came from the service, the beginner is not
/// known.
fn key(slot: &Slot) -> Option<EndedFlowKey> {
    let StoredFlow { tuple, .. } = slot.flow()?;
    Some(EndedFlowKey {
        ifindex: tuple.ifindex,
        remote: tuple.remote,
        port: tuple.remote_port,
        protocol: tuple.protocol,
    })
}
