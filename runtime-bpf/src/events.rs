//! Reads the datapath's event records (drops, and packets whose verdict would differ if audit policies were enforced)
//! and adds names.
//!
//! The kernel writes a limited number of records per second and counts the rest; each reading returns how many were
//! lost. A record carries the number of the generation that judged the packet. Its names come from that generation's
//! artifact, as long as the artifact is still pinned.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant, SystemTime};

use aya::maps::{MapData, RingBuf};
use weir_artifact::layout::{MapName, Outcome, event};

use crate::error::{Doing as _, Error};
use crate::generation_names::GenerationNames;
use crate::names::{ArtifactNames, Why, address, protocol};
use crate::observe::{GenerationInForce, port, word};
use crate::record::EnforcementRecord;
use crate::runtime::{EventLimit, Runtime};
use crate::sys::wait_readable;

/// The length of the kernel's header of a record in a ring buffer (`BPF_RINGBUF_HDR_SZ`).
const RECORD_HEADER: u32 = 8;

/// A packet that was dropped, or whose verdict would differ if audit policies were enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathEvent {
    /// The time at which the packet was judged.
    pub time: SystemTime,
    /// The pod; `None` if its endpoint is not known.
    pub pod: Option<String>,
    /// The number of its interface.
    pub ifindex: u32,
    /// `ingress` or `egress`, as the pod sees it.
    pub direction: &'static str,
    /// The outcome's name, as in counters.
    pub outcome: &'static str,
    /// Whether the packet was dropped.
    pub dropped: bool,
    /// The packet's headers; `None` if they were not parsed, or if it is not an IP packet.
    pub packet: Option<EventPacket>,
    /// 4 or 6 for an IP packet whose headers were not parsed, because no pod of the node has an address of the family.
    pub unparsed: Option<u8>,
    /// The generation that judged the packet.
    pub generation: u32,
    /// The list or the policies that denied the packet.
    pub why: Why,
}

/// The addresses, protocol and ports of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPacket {
    /// `TCP`, `UDP`, …, or the number.
    pub protocol: String,
    /// The pod's address.
    pub local: IpAddr,
    /// The other end's address.
    pub remote: IpAddr,
    /// The other end's pod, if the artifact knows it.
    pub peer: Option<String>,
    /// The pod's port and the other end's, where there are ports.
    pub ports: Option<(u16, u16)>,
}

/// A reader of event records.
pub struct Events<'a> {
    runtime: &'a Runtime,
    ring: RingBuf<MapData>,
    /// How many records the ring buffer holds.
    room: usize,
    /// Whether nothing was read yet.
    is_first: bool,
    limit: EventLimit,
    lost: u32,
    names: GenerationNames<'a>,
    ticks: u32,
    /// The kernel's number of the ring buffer, as the record has it.
    number: Option<u32>,
    /// When the record was compared last.
    checked: Instant,
}

/// The time between two looks at the record: after it, it is found that the ring buffer is not in force any more.
const RECORD: Duration = Duration::from_millis(200);

/// The result of one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// The events, in the order in which they happened.
    pub events: Vec<DatapathEvent>,
    /// Number of records that the kernel did not write since the last reading.
    pub lost: u64,
    /// Whether the buffer was full when the reader began. Packets after these records have none, and `lost` does not
    /// count them: the kernel cannot replace an old record by a new one.
    pub was_full: bool,
}

impl Runtime {
    /// Starts reading events from now on. Reading consumes records: two readers get about half of them each.
    pub fn events(&self) -> Result<Events<'_>, Error> {
        let opening = "open the map events";
        let GenerationInForce { record, loaded, .. } = self.in_force()?;
        let ticks = self.timing(&loaded)?.ticks_per_second;
        let missing = || std::io::Error::from_raw_os_error(libc::ENOENT);
        let map = |name| loaded.map(name).ok_or_else(missing);
        let ring = map(MapName::Events).doing(opening)?;
        let room = records_of(ring.definition().max_entries);
        let ring = self.system.ring(ring).doing(opening)?;
        let limit = map(MapName::EventLimit).and_then(|map| self.system.typed(map)).doing(opening)?;
        let names = GenerationNames::new(self);
        let (number, checked) = (number_of_ring(&record), Instant::now());
        let mut events =
            Events { runtime: self, ring, room, is_first: true, limit, lost: 0, names, ticks, number, checked };
        events.lost = events.lost_so_far()?;
        Ok(events)
    }
}

/// The ring buffer of a record.
fn number_of_ring(record: &EnforcementRecord) -> Option<u32> {
    record.shared.get(MapName::Events.name()).copied()
}

impl Events<'_> {
    /// Counts the records that were lost since the ring buffer exists, and not only those from now on.
    pub fn count_all_losses(&mut self) {
        self.lost = 0;
    }

    /// Whether the programs in force still write to this ring buffer. `detach` removes it, and the next `attach` makes
    /// another one. The record is read five times a second. Fails with [`Error::Nothing`] if nothing is in force.
    pub fn is_in_force(&mut self) -> Result<bool, Error> {
        if self.checked.elapsed() < RECORD {
            return Ok(true);
        }
        self.checked = Instant::now();
        Ok(number_of_ring(&*self.runtime.record_here()?) == self.number)
    }

    /// Returns the waiting records. If no record is waiting, waits for one for at most `at_most`.
    pub fn read(&mut self, at_most: Duration) -> Result<EventBatch, Error> {
        let records = self.records();
        let records = if records.is_empty() { self.wait(at_most)? } else { records };
        let now = (SystemTime::now(), self.runtime.ticks()?);
        let was_full = std::mem::take(&mut self.is_first) && records.len() >= self.room;
        let mut read = EventBatch { was_full, ..EventBatch::default() };
        for record in records {
            read.events.push(self.event(&record, now)?);
        }
        let lost = self.lost_so_far()?;
        read.lost = u64::from(lost.wrapping_sub(self.lost));
        self.lost = lost;
        Ok(read)
    }

    fn wait(&mut self, at_most: Duration) -> Result<Vec<Vec<u8>>, Error> {
        wait_readable([self.ring.as_fd()], at_most).doing("wait for events")?;
        Ok(self.records())
    }

    fn records(&mut self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while let Some(item) = self.ring.next() {
            records.push(item.to_vec());
        }
        records
    }

    fn lost_so_far(&self) -> Result<u32, Error> {
        self.runtime.lost(&self.limit)
    }

    fn event(&mut self, record: &[u8], (now, ticks): (SystemTime, u32)) -> Result<DatapathEvent, Error> {
        let generation = word(record, event::EPOCH as usize);
        let ifindex = word(record, event::IFINDEX as usize);
        match self.names.learn(generation, ifindex) {
            // The last records of programs that were removed. They have the names that are known already.
            Err(Error::Nothing(_)) => {}
            learned => learned?,
        }
        let since = ticks.wrapping_sub(word(record, event::TIME as usize));
        let byte = |at: i16| record.get(at as usize).copied().unwrap_or(0);
        let direction = if byte(event::HOOK) == 1 { "egress" } else { "ingress" };
        let outcome = Outcome::ALL.into_iter().find(|it| *it as u8 == byte(event::OUTCOME));
        let pod = self.names.pod(ifindex).map(str::to_owned);
        let names = self.names.of(generation);
        let why = match (names, &pod, outcome) {
            (Some(names), Some(pod), Some(Outcome::Denied | Outcome::Cut)) => {
                names.why_denied(pod, direction, word(record, event::PEER as usize))
            }
            (Some(names), Some(pod), Some(Outcome::WouldDeny | Outcome::WouldAllow)) => {
                names.why_otherwise(pod, direction)
            }
            _ => Why::default(),
        };
        Ok(DatapathEvent {
            time: now - Duration::from_secs(1) * since / self.ticks,
            pod,
            ifindex,
            direction,
            outcome: outcome.map_or("unknown", Outcome::name),
            dropped: outcome.is_none_or(Outcome::drops),
            packet: packet(record, names),
            unparsed: record.get(event::FAMILY as usize).copied().filter(|it| *it != 0 && !is_parsed(record)),
            generation,
            why,
        })
    }
}

/// How many records a ring buffer of this size holds. The kernel puts a header before each record, and leaves at least
/// one byte free: https://github.com/torvalds/linux/blob/v5.14/kernel/bpf/ringbuf.c (`__bpf_ringbuf_reserve`).
fn records_of(bytes: u32) -> usize {
    (bytes.saturating_sub(1) / (RECORD_HEADER + event::BYTES)) as usize
}

/// Whether a record has addresses. The unspecified address as both ends is no packet's: a pod cannot send it, and no
/// packet to a pod has it.
fn is_parsed(record: &[u8]) -> bool {
    let ends = record.get(event::REMOTE as usize..event::REMOTE_PORT as usize).unwrap_or_default();
    ends.iter().any(|byte| *byte != 0)
}

fn packet(record: &[u8], names: Option<&ArtifactNames>) -> Option<EventPacket> {
    let v6 = match record.get(event::FAMILY as usize)? {
        4 => false,
        6 => true,
        _ => return None,
    };
    if !is_parsed(record) {
        return None;
    }
    let number = *record.get(event::PROTOCOL as usize)?;
    let remote = address(record.get(event::REMOTE as usize..)?, v6)?;
    let ports = (port(record, event::LOCAL_PORT as usize)?, port(record, event::REMOTE_PORT as usize)?);
    Some(EventPacket {
        protocol: protocol(number),
        local: address(record.get(event::LOCAL as usize..)?, v6)?,
        remote,
        peer: names.and_then(|names| names.pod_at(remote)).map(str::to_owned),
        ports: matches!(number, 6 | 17 | 132).then_some(ports),
    })
}
