//! The kernel helpers that the machine supports.
//!
//! Each helper checks its arguments as the verifier would (a map where a map is expected, readable keys, writable
//! buffers) and traps where the verifier would reject the program. Where the kernel returns an error, the helper
//! returns the same error.

use super::errno::{Errno, to_r0};
use super::exec::Execution;
use super::map::{MapContent, MapId, MapKind};
use super::memory::RegionId;
use super::trap::{AccessKind, Cause, MemoryRegion};
use super::{MAX_TAIL_CALLS, POISON};
use crate::helper::Helper;

/// A record that a program has reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    region: RegionId,
    ring: MapId,
    position: u64,
}

// `RINGBUF_MAX_RECORD_SZ` in https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/ringbuf.c; the offset's limit is in
// `bpf_skb_load_bytes`, https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c. Older kernels stop at 65,535.
/// The longest reservation and the largest offset, as in the kernel.
const MAX_RECORD: u64 = u32::MAX as u64 / 4;
const MAX_OFFSET: u64 = i32::MAX as u64;

impl Execution<'_> {
    /// Calls a helper. Returns its result, or `None` if a tail call replaced the program.
    pub(super) fn helper(&mut self, helper: Helper) -> Result<Option<u64>, Cause> {
        // These need an `sk_buff`, which XDP runs too early to have:
        // https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c (`xdp_func_proto` has none of them).
        let is_for_tc = [Helper::SKB_LOAD_BYTES, Helper::SKB_LOAD_BYTES_RELATIVE, Helper::SKB_PULL_DATA];
        if self.is_xdp && is_for_tc.contains(&helper) {
            return Err(Cause::Argument { helper, argument: 1, expected: "the context of a tc program" });
        }
        let r0 = match helper {
            Helper::MAP_LOOKUP_ELEM => self.map_lookup(helper),
            Helper::MAP_UPDATE_ELEM => self.map_update(helper),
            Helper::MAP_DELETE_ELEM => self.map_delete(helper),
            // One clock for all three: a machine that was never suspended, with a tick of a nanosecond. Time stands
            // still during a run, so no result depends on the machine's speed.
            Helper::KTIME_GET_NS | Helper::KTIME_GET_BOOT_NS | Helper::KTIME_GET_COARSE_NS => Ok(self.host.ktime_ns),
            Helper::JIFFIES64 => Ok(self.host.jiffies),
            Helper::GET_PRANDOM_U32 => Ok(u64::from(self.host.next_random())),
            Helper::GET_SMP_PROCESSOR_ID => Ok(u64::from(self.host.cpu)),
            Helper::SKB_LOAD_BYTES => self.skb_load_bytes(helper),
            Helper::SKB_LOAD_BYTES_RELATIVE => self.skb_load_bytes_relative(helper),
            Helper::SKB_PULL_DATA => self.skb_pull_data(helper),
            Helper::RINGBUF_OUTPUT => self.ringbuf_output(helper),
            Helper::RINGBUF_RESERVE => self.ringbuf_reserve(helper),
            Helper::RINGBUF_SUBMIT => self.ringbuf_finish(helper, true),
            Helper::RINGBUF_DISCARD => self.ringbuf_finish(helper, false),
            Helper::RINGBUF_QUERY => self.ringbuf_query(helper),
            // The only one that may not return to its caller.
            Helper::TAIL_CALL => return self.tail_call(helper),
            // A trap instead of a made-up result: verification must not pass because a helper happened to return 0.
            _ => Err(Cause::UnknownHelper(helper)),
        };
        r0.map(Some)
    }

    fn check_context(&self, helper: Helper) -> Result<(), Cause> {
        // The exact address: the verifier rejects a context pointer to which something was added.
        if self.argument(1) == RegionId::CONTEXT.base() {
            Ok(())
        } else {
            Err(Cause::Argument { helper, argument: 1, expected: "the context" })
        }
    }

    /// The map in an argument, if the helper accepts its kind.
    fn map_argument(&self, helper: Helper, argument: u8, kinds: &[MapKind]) -> Result<usize, Cause> {
        // By address and not by id, so a number that happens to be small is no map.
        let map = self.memory.map(self.argument(argument)).map(|id| id.0 as usize);
        let found = map.and_then(|index| Some((index, self.maps.get(index)?.spec.kind)));
        let (index, kind) = found.ok_or(Cause::Argument { helper, argument, expected: "a map" })?;
        // Which helper works on which type is fixed in the kernel too:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`check_map_func_compatibility`).
        if kinds.contains(&kind) { Ok(index) } else { Err(Cause::WrongMap { helper, kind }) }
    }

    fn read(&self, address: u64, bytes: u64) -> Result<&[u8], Cause> {
        let slice = self.memory.slice(address, bytes);
        slice.map_err(|fault| self.refuse_bytes(fault, AccessKind::Read, address, bytes))
    }

    /// Fills the buffer at an address with the bytes, or with zeros.
    fn fill(&mut self, address: u64, bytes: u64, with: Option<&[u8]>) -> Result<(), Cause> {
        match self.memory.slice_mut(address, bytes) {
            Ok(slice) => {
                match with {
                    Some(from) => slice.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
                    // The verifier counts the buffer as written even if the helper fails, so the kernel's helpers clear
                    // it (`err_clear`). Otherwise a program could read stack that it never wrote.
                    None => slice.fill(0),
                }
                Ok(())
            }
            Err(fault) => Err(self.refuse_bytes(fault, AccessKind::Write, address, bytes)),
        }
    }

    fn key(&self, map: usize) -> Result<&[u8], Cause> {
        let size = self.maps.get(map).map_or(0, |map| map.spec.key_size);
        self.read(self.argument(2), u64::from(size))
    }

    fn map_lookup(&mut self, helper: Helper) -> Result<u64, Cause> {
        let map = self.map_argument(helper, 1, &WITH_VALUES)?;
        let size = self.maps.get(map).map_or(0, |map| u64::from(map.spec.key_size));
        // Taken out before the match: it borrows memory for the key and the map at the same time.
        let (address, cpu) = (self.argument(2), self.host.cpu);
        let found = match (self.memory.slice(address, size), self.maps.get_mut(map)) {
            (Ok(key), Some(map)) => map.find(key, cpu, self.memory),
            (Err(fault), _) => return Err(self.refuse_bytes(fault, AccessKind::Read, address, size)),
            (_, None) => None,
        };
        // NULL, and not an error: a program that does not check it traps at its first access in region 0.
        Ok(found.unwrap_or(0))
    }

    fn map_for_write(&self, helper: Helper) -> Result<usize, Cause> {
        let index = self.map_argument(helper, 1, &WITH_VALUES)?;
        // `BPF_F_RDONLY_PROG` also stops helpers that write:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`record_func_map`, "write into map
        // forbidden").
        match self.maps.get(index).filter(|map| map.is_read_only()) {
            Some(map) => Err(Cause::ReadOnlyMap { helper, map: map.id }),
            None => Ok(index),
        }
    }

    fn map_update(&mut self, helper: Helper) -> Result<u64, Cause> {
        let index = self.map_for_write(helper)?;
        // Copied, because the key may be on the stack and the update needs memory for writing.
        let key = self.key(index)?.to_vec();
        let size = self.maps.get(index).map_or(0, |map| map.spec.value_size);
        // A value may be that of another entry of the same map. The kernel copies from it directly; here a copy keeps
        // reading and writing apart.
        let value = self.read(self.argument(3), u64::from(size))?.to_vec();
        let (flags, cpu) = (self.argument(4), self.host.cpu);
        let map = self.maps.get_mut(index);
        Ok(to_r0(map.map_or(Err(Errno::Inval), |map| map.put(&key, &value, flags, cpu, self.memory))))
    }

    fn map_delete(&mut self, helper: Helper) -> Result<u64, Cause> {
        let index = self.map_for_write(helper)?;
        let key = self.key(index)?.to_vec();
        Ok(to_r0(self.maps.get_mut(index).map_or(Err(Errno::Inval), |map| map.remove(&key))))
    }

    /// Fills the buffer in argument 3 from the packet, or with zeros if the packet is too short.
    fn load_packet(&mut self, start: u64, within: usize) -> Result<u64, Cause> {
        let (to, bytes) = (self.argument(3), self.argument(4) & u64::from(u32::MAX));
        // `u64::MAX` as a start is how callers say "out of range": it stays out of range when the length is added.
        let range = start as usize..start.saturating_add(bytes) as usize;
        let (packet, _) = self.memory.packet();
        // All or nothing. The kernel does not copy the part that is there either.
        let found = packet.get(..within).and_then(|packet| packet.get(range)).map(<[u8]>::to_vec);
        self.fill(to, bytes, found.as_deref())?;
        Ok(to_r0(found.map(|_| ()).ok_or(Errno::Fault)))
    }

    fn skb_load_bytes(&mut self, helper: Helper) -> Result<u64, Cause> {
        self.check_context(helper)?;
        let offset = self.argument(2) & u64::from(u32::MAX);
        let all = self.memory.packet().0.len();
        // Reaches into fragments: `skb_header_pointer` copies from them.
        self.load_packet(if offset > MAX_OFFSET { u64::MAX } else { offset }, all)
    }

    fn skb_load_bytes_relative(&mut self, helper: Helper) -> Result<u64, Cause> {
        self.check_context(helper)?;
        let offset = self.argument(2) & u64::from(u32::MAX);
        let start = match self.argument(5) & u64::from(u32::MAX) {
            // This helper kept its old limit: https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c
            // (`bpf_skb_load_bytes_relative`).
            _ if offset > 0xffff => u64::MAX,
            0 => offset,
            1 => offset + self.skb.network_offset as u64,
            _ => u64::MAX,
        };
        // It compares with `skb_tail_pointer`, so bytes in fragments are out of its reach. Programs that need them must
        // pull first.
        let (_, linear) = self.memory.packet();
        self.load_packet(start, linear)
    }

    fn skb_pull_data(&mut self, helper: Helper) -> Result<u64, Cause> {
        self.check_context(helper)?;
        let (packet, linear) = self.memory.packet();
        // A length of 0 pulls nothing: the code takes `skb_headlen`, although `bpf-helpers(7)` once promised the whole
        // packet.
        let (all, wanted) = (packet.len(), (self.argument(2) & u64::from(u32::MAX)) as usize);
        // Old pointers become invalid even if the call fails.
        // The verifier does not know whether the call will fail, so pointers from before it are invalid on both paths.
        self.memory.move_packet(if wanted <= all { linear.max(wanted) } else { linear });
        // From `skb_ensure_writable`, https://github.com/torvalds/linux/blob/v6.1/net/core/skbuff.c: a packet that is
        // too short is "no memory".
        Ok(to_r0(if wanted <= all { Ok(()) } else { Err(Errno::NoMem) }))
    }

    fn tail_call(&mut self, helper: Helper) -> Result<Option<u64>, Cause> {
        // "tail_call would lead to reference leak", even if the call fails:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`check_helper_call`). Since 6.1 the kernel
        // checks only calls in the outermost function (`check_reference_leak`), older kernels those in every function.
        // Programs must load on both.
        if !self.records.is_empty() {
            return Err(Cause::LeakedRecords(self.records.len()));
        }
        self.check_context(helper)?;
        let map = self.map_argument(helper, 2, &[MapKind::ProgArray])?;
        // 32 bits, as the kernel takes it: a larger number in the register must not select another program.
        let index = self.argument(3) as u32;
        let program = self.maps.get(map).and_then(|map| map.program(index));
        // An empty entry, an index out of range and a call too many all fall through to the next instruction:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/core.c (`JMP_TAIL_CALL`).
        match program.filter(|_| self.tail_calls < MAX_TAIL_CALLS) {
            Some(program) => {
                self.tail_calls += 1;
                self.enter_program(program);
                Ok(None)
            }
            // The helper returns nothing (`RET_VOID`), so the verifier does not let programs read R0 after it.
            None => Ok(Some(POISON)),
        }
    }

    /// The number of the ring in argument 1.
    fn ring(&mut self, helper: Helper) -> Result<usize, Cause> {
        self.map_argument(helper, 1, &[MapKind::RingBuf])
    }

    fn reserve(&mut self, map: usize, bytes: u64) -> Result<u64, Errno> {
        match self.maps.get_mut(map).map(|map| &mut map.content) {
            Some(MapContent::Ring(ring)) => ring.reserve(bytes),
            _ => Err(Errno::Inval),
        }
    }

    fn ringbuf_output(&mut self, helper: Helper) -> Result<u64, Cause> {
        let map = self.ring(helper)?;
        let (address, bytes) = (self.argument(2), self.argument(3));
        // Read before the flags are looked at: the verifier checks the memory of a call in any case, also if the helper
        // fails.
        let data = self.read(address, bytes)?.to_vec();
        // Only the two flags about waking the reader: https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/ringbuf.c
        // (`bpf_ringbuf_output`).
        if self.argument(4) & !3 != 0 {
            return Ok(Errno::Inval.negative());
        }
        let reserved = self.reserve(map, bytes);
        if let (Ok(position), Some(MapContent::Ring(ring))) =
            (reserved, self.maps.get_mut(map).map(|map| &mut map.content))
        {
            ring.finish(position, Some(data));
        }
        Ok(to_r0(reserved.map(|_| ())))
    }

    fn ringbuf_reserve(&mut self, helper: Helper) -> Result<u64, Cause> {
        let map = self.ring(helper)?;
        let (bytes, flags) = (self.argument(2), self.argument(3));
        // NULL and no error number: this helper has no other way to fail (`bpf_ringbuf_reserve`).
        if flags != 0 || bytes > MAX_RECORD {
            return Ok(0);
        }
        let Ok(position) = self.reserve(map, bytes) else { return Ok(0) };
        let ring = MapId(map as u32);
        // A region of its own, so that the program is kept within its record and cannot reach its neighbours in the
        // ring.
        let region = self.memory.add(MemoryRegion::Record(ring), bytes, true);
        self.memory.grow(region, 1);
        self.records.push(Reserved { region, ring, position });
        Ok(region.base())
    }

    fn ringbuf_finish(&mut self, helper: Helper, submit: bool) -> Result<u64, Cause> {
        let record = self.memory.record(self.argument(1));
        // By region and not only by address: a record that was released already is no longer held, so a second release
        // traps.
        let held = record.and_then(|(_, region)| self.records.iter().position(|held| held.region == region));
        let held = held.ok_or(Cause::Argument { helper, argument: 1, expected: "a reserved record" })?;
        // Their order does not matter here: the ring keeps records by position.
        let record = self.records.swap_remove(held);
        self.finish_record(record, submit);
        Ok(POISON)
    }

    /// Submits or discards a record; its address becomes stale.
    pub(super) fn finish_record(&mut self, record: Reserved, submit: bool) {
        // Under a name of its own, so that a later access is reported as one to a released record and not as one to
        // nothing.
        let data = self.memory.retire(record.region, MemoryRegion::StaleRecord(record.ring));
        if let Some(MapContent::Ring(ring)) = self.maps.get_mut(record.ring.0 as usize).map(|map| &mut map.content) {
            ring.finish(record.position, submit.then_some(data));
        }
        self.memory.release(record.region);
    }

    fn ringbuf_query(&mut self, helper: Helper) -> Result<u64, Cause> {
        let map = self.ring(helper)?;
        let what = self.argument(2);
        match self.maps.get(map).map(|map| &map.content) {
            Some(MapContent::Ring(ring)) => Ok(ring.query(what)),
            // An unknown question is answered with 0, not with an error: `bpf_ringbuf_query`.
            _ => Ok(0),
        }
    }
}

/// Maps in which programs may look up and write.
const WITH_VALUES: [MapKind; 4] = [MapKind::Array, MapKind::PercpuArray, MapKind::Hash, MapKind::LpmTrie];
