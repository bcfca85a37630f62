//! A ring buffer: records in the order of their reservation, each ready, discarded or busy (still being written).

use super::Errno;
use std::collections::VecDeque;

// `BPF_RINGBUF_HDR_SZ`. It counts towards the size, so fewer records fit than their bytes suggest.
/// Bytes of the kernel's header before each record.
const HEADER: u64 = 8;

#[derive(Clone, Debug)]
enum RingRecord {
    Busy,
    Ready(Vec<u8>),
    Discarded,
}

#[derive(Clone, Debug)]
struct ReservedRecord {
    position: u64,
    bytes: u64,
    state: RingRecord,
}

/// One ring.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    size: u64,
    producer: u64,
    consumer: u64,
    records: VecDeque<ReservedRecord>,
}

impl Ring {
    pub(super) fn new(size: u32) -> Self {
        Self { size: u64::from(size), producer: 0, consumer: 0, records: VecDeque::new() }
    }

    /// Reserves space. The returned position identifies the record until it is finished.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, Errno> {
        let taken = bytes.saturating_add(HEADER).next_multiple_of(8);
        let end = self.producer + taken;
        // The kernel never fills the ring completely.
        // Otherwise an empty ring and a full one would have equal positions modulo the size.
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/ringbuf.c (`__bpf_ringbuf_reserve`)
        if taken > self.size || end - self.consumer > self.size - 1 {
            return Err(Errno::Again);
        }
        let position = std::mem::replace(&mut self.producer, end);
        self.records.push_back(ReservedRecord { position, bytes: taken, state: RingRecord::Busy });
        Ok(position)
    }

    /// Finishes a record: it is ready with data, discarded without.
    pub(super) fn finish(&mut self, position: u64, data: Option<Vec<u8>>) {
        // Sorted by position, because records are only added at the end.
        let found = self.records.binary_search_by_key(&position, |record| record.position);
        if let Some(record) = found.ok().and_then(|index| self.records.get_mut(index)) {
            // A discarded record keeps its place: the reader skips it, and only then its bytes are free again.
            record.state = data.map_or(RingRecord::Discarded, RingRecord::Ready);
        }
    }

    /// Takes the records that a reader gets: all before the first busy record.
    pub(super) fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut drained = Vec::new();
        while let Some(record) = self.records.pop_front() {
            match record.state {
                RingRecord::Busy => {
                    // A reader stops at the first busy record even if later ones are ready: it follows headers, and
                    // this one has no final length.
                    self.records.push_front(record);
                    break;
                }
                RingRecord::Ready(data) => drained.push(data),
                RingRecord::Discarded => {}
            }
            // After each record, as libbpf's reader does, so writers get room as early as they do in the kernel.
            self.consumer = record.position + record.bytes;
        }
        drained
    }

    /// `bpf_ringbuf_query`.
    pub(super) fn query(&self, what: u64) -> u64 {
        match what {
            0 => self.producer - self.consumer,
            1 => self.size,
            2 => self.consumer,
            3 => self.producer,
            _ => 0,
        }
    }
}
