//! The synthetic address space: every object has its own region, and every element of it has its own bounds.
//!
//! An address is `region << 44 | element << shift | byte`. `shift` gives each element at least twice its size in
//! addresses, so a pointer that runs over either end of its element points to no element: it never reaches a neighbour
//! by accident. Region 0 is no object (NULL). A look-up is one table access, not a search.
//!
//! The stack's elements are call frames. A bitmap has one bit per byte that was written.

use super::map::MapId;
use super::trap::{AccessFault, AccessSite, MemoryRegion};

// 16 TiB for each object and a million objects: no map that programs use comes near either. A search for the object of
// an address (as a tree of intervals needs it) was the alternative; it costs a branch at each level for each access.
const REGION_SHIFT: u32 = 44;
const OFFSET_MASK: u64 = (1 << REGION_SHIFT) - 1;

// `MAX_BPF_STACK`, https://github.com/torvalds/linux/blob/v6.1/include/linux/filter.h. The kernel allows it once for a
// whole call chain, this machine for each frame; `ebpf::limits` checks the sum.
/// The bytes of one frame.
pub(super) const FRAME: u32 = 512;
/// The maximum number of frames in a run.
pub(super) const FRAMES: usize = 8;

/// One call frame: its bytes, and one bit per byte that was written.
#[derive(Clone, Debug)]
pub(super) struct CallFrame {
    pub(super) bytes: [u8; FRAME as usize],
    pub(super) written: [u64; 8],
}

/// The number of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionId(u32);

impl RegionId {
    pub(super) const STACK: Self = Self(1);
    pub(super) const CONTEXT: Self = Self(2);
    // Two, so that a packet that moves gets other addresses. With one region, a pointer from before `skb_pull_data`
    // would still work here and be rejected by the kernel.
    const PACKETS: [Self; 2] = [Self(3), Self(4)];
    const FIRST_FREE: u32 = 5;

    /// The address of the region's first byte.
    pub(super) const fn base(self) -> u64 {
        (self.0 as u64) << REGION_SHIFT
    }

    /// Whether the region is neither stack nor context nor packet.
    #[inline]
    pub(super) const fn is_beyond_packets(self) -> bool {
        self.0 >= Self::FIRST_FREE
    }

    /// The region that an address is in.
    #[inline]
    pub(super) const fn of(address: u64) -> Self {
        Self((address >> REGION_SHIFT) as u32)
    }
}

/// A region's bounds and bytes.
#[derive(Clone, Debug)]
struct RegionBytes {
    what: MemoryRegion,
    writable: bool,
    /// The bytes of an element.
    size: u64,
    shift: u32,
    /// The number of existing elements.
    count: u64,
    data: Vec<u8>,
}

impl RegionBytes {
    fn new(what: MemoryRegion, size: u64, writable: bool) -> Self {
        // The next power of two above the size would do for valid programs. One bit more makes a pointer that runs over
        // the end point to no element at all instead of to the next one.
        let shift = (u64::BITS - size.leading_zeros() + 1).min(REGION_SHIFT);
        Self { what, writable, size, shift, count: 0, data: Vec::new() }
    }

    /// The element and the byte of an access. Fails if the access leaves the element.
    #[inline]
    fn locate(&self, offset: u64, bytes: u64) -> Result<(u64, u64), AccessFault> {
        let (element, byte) = (offset >> self.shift, offset & ((1 << self.shift) - 1));
        // The end counts too: an access that begins inside an element and ends behind it is outside.
        if element < self.count && byte + bytes <= self.size { Ok((element, byte)) } else { Err(AccessFault::Outside) }
    }
}

/// All memory of a machine.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    regions: Vec<RegionBytes>,
    /// For each frame, one bit per byte that was written.
    written: [[u64; 8]; FRAMES],
    /// The packet region that is in use; the other one is stale.
    packet: RegionId,
    /// Regions that were released in this run. Their addresses stay invalid until it ends.
    retired: Vec<RegionId>,
    /// The numbers of regions that were released in earlier runs; they can be reused.
    free: Vec<RegionId>,
}

impl Memory {
    pub(super) fn new() -> Self {
        let mut stack = RegionBytes::new(MemoryRegion::Stack, u64::from(FRAME), true);
        stack.data = vec![0; FRAME as usize * FRAMES];
        let [first, _] = RegionId::PACKETS;
        let regions = vec![
            // Region 0 has no elements, so NULL and small numbers need no check of their own.
            RegionBytes::new(MemoryRegion::Nothing, 0, false),
            stack,
            // Has no bytes, only a size to describe: see `skb`.
            RegionBytes::new(MemoryRegion::Context, super::skb::END, false),
            RegionBytes::new(MemoryRegion::StalePacket, 0, true),
            RegionBytes::new(MemoryRegion::StalePacket, 0, true),
        ];
        debug_assert_eq!(regions.len(), RegionId::FIRST_FREE as usize);
        Self { regions, written: [[0; 8]; FRAMES], packet: first, retired: Vec::new(), free: Vec::new() }
    }

    /// Creates a region without elements.
    pub(super) fn add(&mut self, what: MemoryRegion, size: u64, writable: bool) -> RegionId {
        // Ring-buffer records come and go with each packet. Without reuse, a long series of runs would use up the
        // numbers of regions.
        if let Some(id) = self.free.pop() {
            self.with(id, |region| *region = RegionBytes::new(what, size, writable));
            return id;
        }
        // Region 0 in the impossible case: every access to it traps.
        let id = RegionId(u32::try_from(self.regions.len()).unwrap_or(0));
        self.regions.push(RegionBytes::new(what, size, writable));
        id
    }

    fn region(&self, id: RegionId) -> Option<&RegionBytes> {
        self.regions.get(id.0 as usize)
    }

    fn with(&mut self, id: RegionId, change: impl FnOnce(&mut RegionBytes)) {
        if let Some(region) = self.regions.get_mut(id.0 as usize) {
            change(region);
        }
    }

    /// Gives a region at least this many elements; new ones are zero.
    pub(super) fn grow(&mut self, id: RegionId, count: u64) {
        self.with(id, |region| {
            // Never smaller: programs may hold addresses of elements whose entries were deleted, as in the kernel,
            // which frees them later.
            if count > region.count {
                region.data.resize((count * region.size) as usize, 0);
                region.count = count;
            }
        });
    }

    /// Takes the bytes out of a region; its addresses become invalid.
    pub(super) fn retire(&mut self, id: RegionId, what: MemoryRegion) -> Vec<u8> {
        let mut data = Vec::new();
        self.with(id, |region| {
            region.what = what;
            // No element is left, so every address in the region is outside, without looking at its kind.
            region.count = 0;
            data = std::mem::take(&mut region.data);
        });
        data
    }

    /// Allows later runs to reuse a retired region's number.
    pub(super) fn release(&mut self, id: RegionId) {
        // Not free at once: the program that runs may still hold an address in the region, and the next record must not
        // make it valid again.
        self.retired.push(id);
    }

    /// Ends a run: no program holds an address any more, so released regions become free.
    pub(super) fn end_run(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// The address of an element.
    pub(super) fn element(&self, id: RegionId, element: u64) -> u64 {
        let shift = self.region(id).map_or(0, |region| region.shift);
        id.base() | element << shift
    }

    /// The map whose handle the address is, if it is one.
    #[inline]
    pub(super) fn map(&self, address: u64) -> Option<MapId> {
        match self.region(RegionId::of(address))?.what {
            // The exact address only: the verifier allows no arithmetic on a pointer to a map.
            MemoryRegion::Map(map) if address & OFFSET_MASK == 0 => Some(map),
            _ => None,
        }
    }

    /// The ring and the region of a record, if the address is the record's first byte.
    pub(super) fn record(&self, address: u64) -> Option<(MapId, RegionId)> {
        let id = RegionId::of(address);
        match self.region(id)?.what {
            // A record is released by the address that `ringbuf_reserve` returned; the verifier rejects any other
            // (`release_reference`).
            MemoryRegion::Record(map) if address & OFFSET_MASK == 0 => Some((map, id)),
            _ => None,
        }
    }

    /// An element's bytes, without the checks for programs.
    pub(super) fn bytes(&self, id: RegionId, element: u64) -> &[u8] {
        let region = self.region(id);
        let found = region.and_then(|region| {
            let start = (element * region.size) as usize;
            region.data.get(start..start + region.size as usize)
        });
        found.unwrap_or_default()
    }

    /// An element's bytes for writing, without the checks for programs.
    pub(super) fn bytes_mut(&mut self, id: RegionId, element: u64) -> &mut [u8] {
        let region = self.regions.get_mut(id.0 as usize);
        let found = region.and_then(|region| {
            let start = (element * region.size) as usize;
            region.data.get_mut(start..start + region.size as usize)
        });
        found.unwrap_or_default()
    }

    /// Sets the number of frames to `count`; the last one is new, so none of its bytes counts as written.
    pub(super) fn enter_frame(&mut self, count: usize) {
        self.with(RegionId::STACK, |stack| stack.count = count as u64);
        // The bytes keep their old values, only the bits are cleared. That is enough, since every read asks for the
        // bits first, and cheaper than 512 zeros for each call.
        if let Some(written) = count.checked_sub(1).and_then(|frame| self.written.get_mut(frame)) {
            *written = [0; 8];
        }
    }

    /// Sets the number of frames to `count`; the last one is unchanged.
    pub(super) fn leave_frame(&mut self, count: usize) {
        self.with(RegionId::STACK, |stack| stack.count = count as u64);
    }

    /// The bit position of the element's number in a region's addresses.
    pub(super) fn shift(&self, id: RegionId) -> u32 {
        self.region(id).map_or(0, |region| region.shift)
    }

    /// A copy of a frame.
    pub(super) fn frame(&self, frame: usize) -> Option<CallFrame> {
        let bytes = self.region(RegionId::STACK)?.data.get(frame * FRAME as usize..)?.first_chunk()?;
        Some(CallFrame { bytes: *bytes, written: *self.written.get(frame)? })
    }

    /// Restores a frame from a copy.
    pub(super) fn set_frame(&mut self, frame: usize, from: &CallFrame) {
        let stack = self.regions.get_mut(RegionId::STACK.0 as usize);
        let bytes = stack.and_then(|stack| stack.data.get_mut(frame * FRAME as usize..)?.first_chunk_mut());
        if let (Some(bytes), Some(written)) = (bytes, self.written.get_mut(frame)) {
            (*bytes, *written) = (from.bytes, from.written);
        }
    }

    /// For an address in a map's value: the map, the number of the entry and the byte of its value.
    #[inline]
    pub(super) fn value(&self, address: u64) -> Option<(MapId, u64, u64)> {
        let region = self.region(RegionId::of(address))?;
        let MemoryRegion::Value(map) = region.what else { return None };
        let offset = address & OFFSET_MASK;
        Some((map, offset >> region.shift, offset & ((1 << region.shift) - 1)))
    }

    /// The frame pointer of a frame: one past its last byte.
    pub(super) fn frame_pointer(&self, frame: usize) -> u64 {
        // One past the end is within the element's addresses (see `shift`), so the frame pointer belongs to its own
        // frame although nothing can be read there.
        self.element(RegionId::STACK, frame as u64) + u64::from(FRAME)
    }

    /// Sets the packet; its first `linear` bytes are addressable.
    pub(super) fn set_packet(&mut self, data: Vec<u8>, linear: usize) {
        // A caller's `Skb` may say more than there is; then the whole packet is linear.
        let linear = linear.min(data.len()) as u64;
        self.with(self.packet, |region| {
            // The size is the linear part, the data is everything: programs reach fragments through helpers only.
            *region = RegionBytes::new(MemoryRegion::Packet, linear, true);
            region.count = 1;
            region.data = data;
        });
    }

    /// Takes the packet out; its addresses become stale.
    pub(super) fn take_packet(&mut self) -> Vec<u8> {
        self.retire(self.packet, MemoryRegion::StalePacket)
    }

    /// Moves the packet to new addresses, with `linear` linear bytes. Old pointers become stale.
    pub(super) fn move_packet(&mut self, linear: usize) {
        let data = self.take_packet();
        let [first, second] = RegionId::PACKETS;
        // Even if the kernel did not really move the data: after such a helper the verifier forgets all packet pointers
        // (https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c, `clear_all_pkt_pointers`).
        self.packet = if self.packet == first { second } else { first };
        self.set_packet(data, linear);
    }

    /// All bytes of the packet, and how many of them are linear.
    pub(super) fn packet(&self) -> (&[u8], usize) {
        self.region(self.packet).map_or((&[], 0), |region| (region.data.as_slice(), region.size as usize))
    }

    /// The addresses of the packet's first linear byte and of the one after the last.
    #[inline]
    pub(super) fn packet_pointers(&self) -> (u64, u64) {
        let start = self.packet.base();
        (start, start + self.region(self.packet).map_or(0, |region| region.size))
    }

    #[inline]
    fn find(&self, address: u64, bytes: u64) -> Result<(&RegionBytes, u64, u64), AccessFault> {
        // One access to a vector for any address: this runs for every load and store of every packet.
        let region = self.region(RegionId::of(address)).ok_or(AccessFault::Outside)?;
        let (element, byte) = region.locate(address & OFFSET_MASK, bytes)?;
        Ok((region, element, byte))
    }

    /// Reads `N` bytes as an instruction does.
    #[inline]
    pub(super) fn load<const N: usize>(&self, address: u64) -> Result<[u8; N], AccessFault> {
        let (region, element, byte) = self.find(address, N as u64)?;
        // Only the stack must be aligned: the verifier tracks its content by aligned slots
        // (https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c, `check_ptr_alignment`). Packets and map
        // values may be read anywhere on machines with efficient unaligned access.
        if RegionId::of(address) == RegionId::STACK {
            if byte % N as u64 != 0 {
                return Err(AccessFault::Misaligned);
            }
            // Stricter than new kernels, which let privileged programs read such bytes since 6.3
            // (https://github.com/torvalds/linux/commit/6715df8d5d24655b9fd368e904028112b54c7de1). The programs must
            // load on older ones, and the bytes differ from run to run.
            self.check_written(element, byte, N as u64)?;
        }
        let start = (element * region.size + byte) as usize;
        region.data.get(start..).and_then(|data| data.first_chunk()).copied().ok_or(AccessFault::Outside)
    }

    /// Writes `N` bytes as an instruction does.
    #[inline]
    pub(super) fn store<const N: usize>(&mut self, address: u64, value: [u8; N]) -> Result<(), AccessFault> {
        let (region, element, byte) = self.find(address, N as u64)?;
        if !region.writable {
            // Before the stack's bits are marked: a write that fails must not make its bytes readable.
            return Err(AccessFault::ReadOnly);
        }
        let start = (element * region.size + byte) as usize;
        if RegionId::of(address) == RegionId::STACK {
            if byte % N as u64 != 0 {
                return Err(AccessFault::Misaligned);
            }
            // By byte, because programs write fields of a key one after the other, and a helper reads all of it.
            self.mark_written(element, byte, N as u64);
        }
        let region = self.regions.get_mut(RegionId::of(address).0 as usize).ok_or(AccessFault::Outside)?;
        let chunk = region.data.get_mut(start..).and_then(|data| data.first_chunk_mut::<N>());
        *chunk.ok_or(AccessFault::Outside)? = value;
        Ok(())
    }

    /// Checks that an atomic operation is aligned, and in a map's value, on the stack or in a ring-buffer record.
    #[inline]
    pub(super) fn check_atomic(&self, address: u64, bytes: u64) -> Result<(), AccessFault> {
        let (region, _, byte) = self.find(address, bytes)?;
        match region.what {
            // The kernel rejects atomic operations on packet, context and sockets, and unaligned ones everywhere:
            // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`check_atomic`).
            MemoryRegion::Stack | MemoryRegion::Value(_) | MemoryRegion::Record(_) if byte % bytes == 0 => Ok(()),
            MemoryRegion::Stack | MemoryRegion::Value(_) | MemoryRegion::Record(_) => Err(AccessFault::Misaligned),
            _ => Err(AccessFault::NotAllowed),
        }
    }

    /// Reads the bytes of a helper's argument.
    pub(super) fn slice(&self, address: u64, bytes: u64) -> Result<&[u8], AccessFault> {
        let (region, element, byte) = self.find(address, bytes)?;
        if RegionId::of(address) == RegionId::STACK {
            // A key or value that a helper reads must be complete, padding included: uninitialised padding in a key
            // makes look-ups fail at random.
            self.check_written(element, byte, bytes)?;
        }
        let start = (element * region.size + byte) as usize;
        region.data.get(start..start + bytes as usize).ok_or(AccessFault::Outside)
    }

    /// The bytes of a buffer that a helper fills. On the stack they count as written.
    pub(super) fn slice_mut(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], AccessFault> {
        let (region, element, byte) = self.find(address, bytes)?;
        if !region.writable {
            return Err(AccessFault::ReadOnly);
        }
        let start = (element * region.size + byte) as usize;
        if RegionId::of(address) == RegionId::STACK {
            // Before the helper has filled it. That is sound because helpers fill their whole buffer, with zeros if
            // they fail.
            self.mark_written(element, byte, bytes);
        }
        let region = self.regions.get_mut(RegionId::of(address).0 as usize).ok_or(AccessFault::Outside)?;
        region.data.get_mut(start..start + bytes as usize).ok_or(AccessFault::Outside)
    }

    #[inline]
    fn check_written(&self, frame: u64, byte: u64, bytes: u64) -> Result<(), AccessFault> {
        let written = self.written.get(frame as usize).ok_or(AccessFault::Outside)?;
        // Word by word and not bit by bit: a key of 40 bytes is one or two steps.
        let all = words(byte, bytes).all(|(word, mask)| written.get(word).is_some_and(|bits| bits & mask == mask));
        if all { Ok(()) } else { Err(AccessFault::Uninitialised) }
    }

    #[inline]
    fn mark_written(&mut self, frame: u64, byte: u64, bytes: u64) {
        let Some(written) = self.written.get_mut(frame as usize) else { return };
        for (word, mask) in words(byte, bytes) {
            if let Some(bits) = written.get_mut(word) {
                *bits |= mask;
            }
        }
    }

    /// Decodes an address for a trap.
    pub(super) fn describe(&self, address: u64) -> AccessSite {
        let mut id = RegionId::of(address);
        let mut offset = (address & OFFSET_MASK) as i64;
        // Half of a region's addresses are no element of it, so either reading is possible. Programs subtract too much
        // by a few bytes; they do not add terabytes.
        if offset >= 1 << (REGION_SHIFT - 1) {
            // The address is a little below a region rather than far above the one before it.
            (id, offset) = (RegionId(id.0 + 1), offset - (1 << REGION_SHIFT));
        }
        let (region, size, shift) = match self.region(id) {
            Some(region) => (region.what, region.size, region.shift),
            None => (MemoryRegion::Nothing, 0, REGION_SHIFT),
        };
        if offset < 0 {
            return AccessSite { address, region, element: 0, offset, size };
        }
        AccessSite { address, region, element: offset as u64 >> shift, offset: offset & ((1 << shift) - 1), size }
    }
}

/// The words and masks of a bitmap that cover a range of bytes.
#[inline]
fn words(byte: u64, bytes: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = byte + bytes;
    // Without bytes there is no word. The range below would otherwise begin and end in the same word and yield a shift
    // by 64.
    let last = if bytes == 0 { 0 } else { end.div_ceil(64) };
    (byte / 64..last).map(move |word| {
        let (from, to) = (byte.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
        (word as usize, (u64::MAX >> (64 - (to - from))) << from)
    })
}

#[cfg(test)]
mod tests;
