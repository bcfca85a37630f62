//! The value of a map as memory of this process: [`weir_artifact::layout::buckets`] while programs run on it.
//!
//! Words are read and changed with atomic operations, as the protocol there requires. If the map cannot be mapped, the
//! error is that of the system call.
//!
//! Mapped memory counts as the process's. One pass over a table maps it in parts ([`KernelMap::flow_table_parts`]), so
//! that a small agent with a large table stays small.

use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_artifact::layout::buckets::{self, Slot};
use weir_objects::address::Family;

use super::{KernelMap, beside};

/// The bits of a slot's sequence number.
const SEQUENCE_BITS: u32 = 64 - buckets::SEQUENCE_SHIFT;
/// The bytes of a part of a table: whole slots, and whole pages on every architecture.
const PART: usize = 1 << 20;
/// Number of times that a slot is read again if it changes meanwhile.
const ATTEMPTS: usize = 16;

/// The flows that a table got since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BegunFlows {
    /// The new flows.
    pub slots: Vec<Slot>,
    /// At most this many flows came and went between the two looks.
    pub missed: u64,
}

/// A table of flows, or a part of one.
#[derive(Debug)]
pub struct MappedFlowTable {
    start: NonNull<AtomicU64>,
    words: usize,
    family: Family,
}

impl KernelMap {
    /// Maps the table of buckets that is this map's only value.
    pub fn flow_table(&self, family: Family) -> io::Result<MappedFlowTable> {
        self.flow_table_part(family, 0, self.definition().value_size as usize)
    }

    /// Maps one part of the table of buckets after the other.
    pub fn flow_table_parts(&self, family: Family) -> impl Iterator<Item = io::Result<MappedFlowTable>> {
        let bytes = self.definition().value_size as usize;
        let starts = (0..bytes).step_by(PART);
        starts.map(move |start| self.flow_table_part(family, start, PART.min(bytes - start)))
    }

    fn flow_table_part(&self, family: Family, at: usize, bytes: usize) -> io::Result<MappedFlowTable> {
        beside::count();
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = self.fd.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice; it ends within the map's value.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, fd, at as libc::off_t) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        Ok(MappedFlowTable { start, words: bytes / 8, family })
    }
}

impl Drop for MappedFlowTable {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `flow_table` has mapped; no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}

impl MappedFlowTable {
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: `words` words are mapped and page-aligned as long as `self` lives. The kernel's programs and all
        // processes change them with atomic operations only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    fn slots(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.all().chunks_exact(buckets::slot_bytes(self.family) as usize / 8)
    }

    /// The number of flows that the table has room for.
    pub fn room(&self) -> usize {
        self.words * 8 / buckets::slot_bytes(self.family) as usize
    }

    /// The slots that have a flow at the moment. Most slots of a table are free, and their first word shows it without a
    /// call of [`read`].
    fn used_slots(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.slots().filter(|slot| slot.first().is_some_and(|word| word.load(Ordering::SeqCst) & buckets::LIVE != 0))
    }

    /// The live flows.
    pub fn live(&self) -> Vec<Slot> {
        self.used_slots().filter_map(|slot| self.read(slot)).collect()
    }

    /// The flows that the slots got since the last look; `seen` has the sequence number of each slot at that look.
    pub fn begun(&self, seen: &mut [u32]) -> BegunFlows {
        begun_in(self.slots(), seen, self.family)
    }

    /// A live slot as it was at one moment.
    fn read(&self, slot: &[AtomicU64]) -> Option<Slot> {
        read(slot, self.family)
    }

    /// Removes the flows for which `gone` is true. If a flow changes meanwhile, `gone` is called again.
    pub fn remove(&self, gone: impl Fn(&Slot) -> bool) {
        self.change(gone, buckets::dead);
    }

    /// Changes the word of each flow for which `which` is true, unless the flow changes meanwhile: then `which` is
    /// called again. Returns the number of changed flows.
    pub fn change(&self, which: impl Fn(&Slot) -> bool, to: impl Fn(u64) -> u64) -> usize {
        self.used_slots().filter(|slot| self.change_slot(slot, &which, &to)).count()
    }

    fn change_slot(&self, slot: &[AtomicU64], which: impl Fn(&Slot) -> bool, to: impl Fn(u64) -> u64) -> bool {
        for _ in 0..ATTEMPTS {
            let Some(seen) = self.read(slot).filter(&which) else { return false };
            let (Some(word), old) = (slot.first(), seen.word()) else { return false };
            if word.compare_exchange(old, to(old), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return true;
            }
        }
        false
    }
}

fn read(slot: &[AtomicU64], family: Family) -> Option<Slot> {
    let word = slot.first()?;
    for _ in 0..ATTEMPTS {
        let before = word.load(Ordering::SeqCst);
        if before & buckets::LIVE == 0 {
            return None;
        }
        let rest = slot.iter().skip(1).map(|it| it.load(Ordering::SeqCst));
        let seen = Slot::new(family, std::iter::once(before).chain(rest))?;
        if word.load(Ordering::SeqCst) == before {
            return Some(seen);
        }
    }
    None
}

// A slot's number grows by one when it gets a flow, and by one if it loses the flow before it gets the next. So a step
// of more than one can mean flows that no look has seen, and their number is at most that of the further steps.
fn begun_in<'s>(slots: impl Iterator<Item = &'s [AtomicU64]>, seen: &mut [u32], family: Family) -> BegunFlows {
    let number = |word: u64| (word >> buckets::SEQUENCE_SHIFT) as u32;
    let mut found = BegunFlows::default();
    for (slot, seen) in slots.zip(seen) {
        let word = slot.first().map_or(0, |it| it.load(Ordering::Relaxed));
        // A slot that a program is writing has its new number already: it is read at the next look.
        let is_written = word & (buckets::LIVE | buckets::BUSY) == buckets::BUSY;
        if number(word) == *seen || is_written {
            continue;
        }
        let live = read(slot, family);
        let now = live.as_ref().map_or(number(word), |it| number(it.word()));
        let steps = now.wrapping_sub(*seen) & (u32::MAX >> (32 - SEQUENCE_BITS));
        found.missed += u64::from(steps.saturating_sub(1));
        found.slots.extend(live);
        *seen = now;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_artifact::layout::buckets::{LIVE, Tuple, dead};
    use weir_objects::k8s::Direction;

    use super::*;

    /// A table in ordinary memory, with the flow of each port in one slot, at a sequence number.
    fn slots(flows: &[(u16, u32, bool)]) -> Vec<u64> {
        let mut words = Vec::new();
        for (port, sequence, is_live) in flows {
            let [remote, local] = [2, 1].map(|it| IpAddr::from([10, 0, 0, it]));
            let tuple = Tuple { ifindex: 1, protocol: 6, remote, local, remote_port: *port, local_port: 80 };
            let slot = tuple.begun(Direction::Ingress, 1, 0).slot(*sequence);
            let start = words.len();
            words.extend_from_slice(slot.words());
            if !is_live {
                words[start] = dead(u64::from(*sequence) << buckets::SEQUENCE_SHIFT | LIVE);
            }
        }
        words
    }

    /// The result of a look: the ports of new flows, and the number of missed ones.
    fn look(words: &mut [u64], seen: &mut [u32]) -> (Vec<u16>, u64) {
        let atomics: Vec<AtomicU64> = words.iter().map(|it| AtomicU64::new(*it)).collect();
        let slots = atomics.chunks_exact(buckets::slot_bytes(Family::V4) as usize / 8);
        let found = begun_in(slots, seen, Family::V4);
        let ports = found.slots.iter().filter_map(Slot::flow).map(|it| it.tuple.remote_port).collect();
        (ports, found.missed)
    }

    #[test]
    fn flow_that_came_and_went_is_counted() {
        let mut seen = vec![0; 3];
        assert_eq!(look(&mut slots(&[(1, 1, true), (2, 0, true), (3, 1, true)]), &mut seen), (vec![1, 3], 0));
        // The same table again: nothing is new.
        assert_eq!(look(&mut slots(&[(1, 1, true), (2, 0, true), (3, 1, true)]), &mut seen), (vec![], 0));
        // The first slot lost its flow, the second got one, and the third may have had a flow between its two flows.
        assert_eq!(look(&mut slots(&[(1, 1, false), (2, 1, true), (3, 3, true)]), &mut seen), (vec![2, 3], 1));
        // A flow came and went: the slot is free again, and its number has grown by two.
        assert_eq!(look(&mut slots(&[(1, 3, false), (2, 1, true), (3, 3, true)]), &mut seen), (vec![], 1));
    }

    #[test]
    fn slot_that_is_being_written_is_read_at_the_next_look() {
        let mut words = slots(&[(1, 1, true)]);
        words[0] = 1 << buckets::SEQUENCE_SHIFT | buckets::BUSY;
        let mut seen = vec![0];
        assert_eq!(look(&mut words, &mut seen), (vec![], 0));
        assert_eq!(look(&mut slots(&[(1, 1, true)]), &mut seen), (vec![1], 0));
    }

    #[test]
    fn sequence_numbers_wrap() {
        let last = u32::MAX >> (32 - SEQUENCE_BITS);
        let mut seen = vec![last];
        assert_eq!(look(&mut slots(&[(1, 0, true)]), &mut seen), (vec![1], 0));
    }
}
