//! New connections, found in the flow tables.
//!
//! Problem: the programs write no records of packets that pass, because a record of each new connection would cost its
//! first packet time, also when no command reads. Strategy: the reader looks at the flow tables again and again. Each slot
//! has a number that grows with every flow that the slot gets and loses, so a slot whose number has changed has a new
//! flow. The packets pay nothing, any number of readers can look, and no switch stays on when a reader is killed.
//!
//! Invariants: a flow that is in the table at two looks is shown once. A flow that came and went between two looks is
//! not shown, but the slot's number has grown by more than one: such flows are counted ([`ConnectionBatch::missed`]).

use std::time::{Duration, Instant, SystemTime};

use weir_artifact::layout::buckets::{Slot, StoredFlow};
use weir_artifact::layout::{MapName, Origin, Outcome};
use weir_objects::k8s::Direction;

use crate::error::{Doing as _, Error};
use crate::events::{DatapathEvent, EventPacket};
use crate::generation_names::GenerationNames;
use crate::names::protocol;
use crate::observe::{BUCKETS, whole};
use crate::runtime::Runtime;
use crate::sys::MappedFlowTable;

/// The time between two looks at the record: after it, tables that another `attach` created are found.
const RECORD: Duration = Duration::from_secs(1);

/// A reader of new connections.
pub struct Connections<'a> {
    runtime: &'a Runtime,
    names: GenerationNames<'a>,
    tables: Vec<WatchedTable>,
    ticks: u32,
    epoch: u32,
    checked: Instant,
}

/// A flow table, and the number of each of its slots at the last look.
struct WatchedTable {
    name: MapName,
    /// The kernel's number of the map.
    number: u32,
    table: MappedFlowTable,
    seen: Vec<u32>,
}

/// The result of one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionBatch {
    /// The connections, sorted by time.
    pub connections: Vec<DatapathEvent>,
    /// At most this many further connections began and ended since the last reading.
    pub missed: u64,
}

impl Runtime {
    /// Starts looking for connections that begin from now on.
    pub fn connections(&self) -> Result<Connections<'_>, Error> {
        let loaded = self.in_force()?.loaded;
        let ticks = self.timing(&loaded)?.ticks_per_second;
        let mut connections = Connections {
            runtime: self,
            names: GenerationNames::new(self),
            tables: Vec::new(),
            ticks,
            epoch: loaded.generation.epoch,
            checked: Instant::now(),
        };
        connections.open_tables()?;
        Ok(connections)
    }
}

impl Connections<'_> {
    /// Returns the connections that began since the last reading.
    pub fn read(&mut self) -> Result<ConnectionBatch, Error> {
        if self.checked.elapsed() >= RECORD {
            self.checked = Instant::now();
            self.open_tables()?;
        }
        let mut batch = ConnectionBatch::default();
        let mut begun = Vec::new();
        for it in &mut self.tables {
            let found = it.table.begun(&mut it.seen);
            batch.missed += found.missed;
            begun.extend(found.slots);
        }
        // Most looks find nothing. The kernel's time costs a test run, so it is asked for only if something began.
        if begun.is_empty() {
            return Ok(batch);
        }
        let now = (SystemTime::now(), self.runtime.ticks()?);
        for flow in begun.iter().filter_map(Slot::flow).filter(|it| !it.is_cut) {
            batch.connections.push(self.event(&flow, now)?);
        }
        batch.connections.sort_by_key(|it| it.time);
        Ok(batch)
    }

    /// Opens the tables that exist now. Flows that are in a table at the first look are not new.
    fn open_tables(&mut self) -> Result<(), Error> {
        let record = self.runtime.record_here()?;
        self.epoch = record.current.as_ref().map_or(self.epoch, |it| it.epoch);
        let known = |name: MapName| record.shared.get(name.name()).copied();
        let is_open = |it: &WatchedTable| known(it.name) == Some(it.number);
        if !self.tables.iter().all(is_open) {
            // Enforcement was removed and came back: the numbers of its generations begin again.
            self.names = GenerationNames::new(self.runtime);
        }
        self.tables.retain(is_open);
        for (name, family) in BUCKETS {
            let Some(number) = known(name).filter(|_| !self.tables.iter().any(|it| it.name == name)) else { continue };
            let opening = || format!("open the map {}", name.name());
            let Some(map) = self.runtime.system.numbered_map(number).doing(opening())? else { continue };
            let table = self.runtime.system.flow_table(&map, family).doing(opening())?;
            let mut seen = vec![0; table.room()];
            table.begun(&mut seen);
            self.tables.push(WatchedTable { name, number, table, seen });
        }
        Ok(())
    }

    fn event(&mut self, flow: &StoredFlow, (now, ticks): (SystemTime, u32)) -> Result<DatapathEvent, Error> {
        let tuple = &flow.tuple;
        let generation = whole(flow.epoch, self.epoch);
        self.names.learn(generation, tuple.ifindex)?;
        let names = self.names.of(generation);
        let pod = self.names.pod(tuple.ifindex).map(str::to_owned);
        let direction = if flow.begun == Direction::Egress { "egress" } else { "ingress" };
        let why = names.zip(pod.as_deref()).map(|(names, pod)| names.why_allowed(pod, direction)).unwrap_or_default();
        let outcome = match flow.origin {
            Origin::Host => Outcome::OwnNode,
            Origin::Itself => Outcome::Itself,
            // Without the names, it is not known whether a policy isolates the pod.
            Origin::Elsewhere | Origin::MidStream
                if names.is_some() && pod.is_some() && why.policies.is_empty() && why.tiers.is_empty() =>
            {
                Outcome::Unfiltered
            }
            Origin::Elsewhere | Origin::MidStream => Outcome::Allowed,
        };
        let since = ticks.wrapping_sub(flow.last as u32);
        // A packet can arrive between the look at the table and the look at the clock.
        let since = if since > u32::MAX / 2 { 0 } else { since };
        Ok(DatapathEvent {
            time: now - Duration::from_secs(1) * since / self.ticks,
            ifindex: tuple.ifindex,
            direction,
            outcome: outcome.name(),
            dropped: false,
            packet: Some(EventPacket {
                protocol: protocol(tuple.protocol),
                local: tuple.local,
                remote: tuple.remote,
                peer: names.and_then(|names| names.pod_at(tuple.remote)).map(str::to_owned),
                ports: matches!(tuple.protocol, 6 | 17 | 132).then_some((tuple.local_port, tuple.remote_port)),
            }),
            unparsed: None,
            pod,
            generation,
            why,
        })
    }
}
