//! Maps, with the kernel's rules and error numbers.
//!
//! A map is an index from keys to slots, and a region of values by slot. Look-ups give programs the address of the
//! value itself, as in the kernel. There are two interfaces. Programs use [`VmMap::find`] and similar methods with a
//! CPU. Callers outside use the methods of [`Vm`], which behave like the `bpf` system call (a per-CPU value consists of
//! all CPUs' values, each rounded up to eight bytes).
//!
//! Values of maps of maps and of program arrays are ids, not bytes; they have setters of their own.

mod index;
mod outside;

use super::memory::{Memory, RegionId};
use super::ring::Ring;
use super::trap::MemoryRegion;
use super::{Errno, ProgramId};
use index::SlotIndex;

/// The page size of the kernel that the machine imitates. A ring consists of whole pages.
const PAGE_BYTES: u32 = 4_096;

/// The id of a map in a machine. Programs use it where the kernel has a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapId(pub u32);

crate::named_enum! {
    /// The supported kinds of maps.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[expect(missing_docs, reason = "the kernel's names")]
    pub enum MapKind {
        Array = "array",
        PercpuArray = "percpu_array",
        Hash = "hash",
        LpmTrie = "lpm_trie",
        ProgArray = "prog_array",
        RingBuf = "ringbuf",
    }
}

/// Creation flags, with the kernel's bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapFlags(pub u32);

impl MapFlags {
    /// Entries are allocated on demand.
    pub const NO_PREALLOC: Self = Self(1);
    /// Programs may only read the values.
    pub const RDONLY_PROG: Self = Self(1 << 7);
    /// The value can be mapped into user space.
    pub const MMAPABLE: Self = Self(1 << 10);

    /// Whether all of `other`'s bits are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for MapFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Update: create or replace.
pub const ANY: u64 = 0;
/// Update: only create.
pub const NOEXIST: u64 = 1;
/// Update: only replace.
pub const EXIST: u64 = 2;

/// The parameters of a map's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// The kind of the map.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value (of one CPU's value in a per-CPU map).
    pub value_size: u32,
    /// The maximum number of entries; for a ring buffer, its bytes.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: MapFlags,
}

impl MapSpec {
    /// Whether each CPU has values of its own.
    pub fn per_cpu(&self) -> bool {
        self.kind == MapKind::PercpuArray
    }

    fn is_array(&self) -> bool {
        // All of them are indexed by a number and share `array_map_alloc_check`:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/arraymap.c
        matches!(self.kind, MapKind::Array | MapKind::PercpuArray | MapKind::ProgArray)
    }

    /// The checks that the kernel makes at creation.
    fn check(&self) -> Result<(), Errno> {
        let no_prealloc = self.flags.contains(MapFlags::NO_PREALLOC);
        if self.kind == MapKind::RingBuf {
            // The kernel wraps positions with a mask and maps whole pages:
            // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/ringbuf.c (`ringbuf_map_alloc`).
            let sound = self.max_entries.is_power_of_two()
                && self.max_entries.is_multiple_of(PAGE_BYTES)
                && self.flags == MapFlags::default();
            return if sound && (self.key_size, self.value_size) == (0, 0) { Ok(()) } else { Err(Errno::Inval) };
        }
        let sound = self.max_entries > 0
            && self.key_size > 0
            && self.value_size > 0
            // User space writes a descriptor of four bytes there; the kernel stores a pointer instead.
            && (self.kind != MapKind::ProgArray || self.value_size == 4)
            && (!self.is_array() || self.key_size == 4 && !no_prealloc);
        match self.kind {
            _ if !sound => Err(Errno::Inval),
            // Nodes are allocated one by one, and callers must say so. Keys are a length of four bytes and 1 to 256
            // bytes of data: https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/lpm_trie.c (`trie_alloc`).
            MapKind::LpmTrie if !no_prealloc || !(5..=260).contains(&self.key_size) => Err(Errno::Inval),
            _ => Ok(()),
        }
    }
}

/// The contents of a map, by slot.
#[derive(Clone, Debug)]
pub(super) enum MapContent {
    /// Values in memory.
    Values(RegionId),
    /// Programs, by slot.
    Programs(Vec<Option<ProgramId>>),
    /// A ring buffer.
    Ring(Ring),
}

/// One map.
#[derive(Clone, Debug)]
pub(super) struct VmMap {
    pub(super) id: MapId,
    pub(super) spec: MapSpec,
    pub(super) content: MapContent,
    /// The region whose address represents the map itself.
    pub(super) handle: RegionId,
    index: SlotIndex,
    frozen: bool,
    cpus: u32,
}

impl VmMap {
    fn new(id: MapId, spec: MapSpec, cpus: u32, memory: &mut Memory) -> Result<Self, Errno> {
        spec.check()?;
        // One element for each entry and CPU, side by side, so that a look-up on a CPU is a multiplication and an
        // addition.
        let cpus = if spec.per_cpu() { cpus } else { 1 };
        let content = match spec.kind {
            MapKind::RingBuf => MapContent::Ring(Ring::new(spec.max_entries)),
            MapKind::ProgArray => MapContent::Programs(vec![None; spec.max_entries as usize]),
            _ => {
                // A property of the region, so that plain stores are stopped as well as helpers.
                let writable = !spec.flags.contains(MapFlags::RDONLY_PROG);
                let region = memory.add(MemoryRegion::Value(id), u64::from(spec.value_size), writable);
                // Arrays have all elements from the start, and they are zero. Hashes get elements as they grow: a map
                // for a million entries is mostly empty in a test.
                if spec.is_array() {
                    memory.grow(region, u64::from(spec.max_entries) * u64::from(cpus));
                }
                MapContent::Values(region)
            }
        };
        // A region of its own instead of the first value's address: "pointer to map" and "pointer to value" are
        // different types to the verifier.
        let handle = memory.add(MemoryRegion::Map(id), 0, false);
        Ok(Self { id, spec, content, handle, index: SlotIndex::new(&spec), frozen: false, cpus })
    }

    /// The number of an entry's element in the region of values.
    fn element(&self, slot: u32, cpu: u32) -> u64 {
        // The remainder guards against a host with more CPUs than the machine was made for.
        u64::from(slot) * u64::from(self.cpus) + u64::from(if self.cpus == 1 { 0 } else { cpu % self.cpus })
    }

    /// A program's look-up: the address of the value.
    pub(super) fn find(&self, key: &[u8], cpu: u32, memory: &Memory) -> Option<u64> {
        let slot = self.index.find(key)?;
        match &self.content {
            MapContent::Values(region) => Some(memory.element(*region, self.element(slot, cpu))),
            // The kernel returns NULL or an error for these; helpers have rejected such maps before.
            MapContent::Programs(_) | MapContent::Ring(_) => None,
        }
    }

    /// A program's update, which writes one CPU's value.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u64,
        cpu: u32,
        memory: &mut Memory,
    ) -> Result<(), Errno> {
        let slot = self.slot_for(key, flags, memory)?;
        let MapContent::Values(region) = self.content else { return Err(Errno::Inval) };
        let bytes = memory.bytes_mut(region, self.element(slot, cpu));
        // Always equal for checked arguments; `copy_from_slice` would panic otherwise.
        if bytes.len() == value.len() {
            bytes.copy_from_slice(value);
        }
        Ok(())
    }

    /// Finds or creates the slot that an update writes.
    fn slot_for(&mut self, key: &[u8], flags: u64, memory: &mut Memory) -> Result<u32, Errno> {
        // Also rejects `BPF_F_LOCK`: values with spin locks are not modelled.
        if flags > EXIST {
            return Err(Errno::Inval);
        }
        let (slot, new) = self.index.slot_for(key, flags)?;
        if let MapContent::Values(region) = &mut self.content
            && new
        {
            // Slots are handed out in order, so one element more is enough.
            memory.grow(*region, (u64::from(slot) + 1) * u64::from(self.cpus));
        }
        Ok(slot)
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<(), Errno> {
        self.index.remove(key).map(|_| ())
    }

    /// The address of a byte of the value of an array's only element.
    pub(super) fn direct(&self, offset: i32) -> Option<u64> {
        let offset = u32::try_from(offset).ok().filter(|&offset| offset < self.spec.value_size)?;
        match (self.spec.kind, self.spec.max_entries, &self.content) {
            // The condition of the kernel: https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/arraymap.c
            // (`array_map_direct_value_addr`). With one element, the offset needs no element number.
            (MapKind::Array, 1, MapContent::Values(region)) => Some(region.base() + u64::from(offset)),
            _ => None,
        }
    }

    /// The program at an index of a program array.
    pub(super) fn program(&self, index: u32) -> Option<ProgramId> {
        match &self.content {
            MapContent::Programs(programs) => programs.get(index as usize).copied().flatten(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
