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

/// The supported kinds of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the kernel's names")]
pub enum MapKind {
    Array,
    PercpuArray,
    Hash,
    PercpuHash,
    LruHash,
    LpmTrie,
    ArrayOfMaps,
    HashOfMaps,
    ProgArray,
    RingBuf,
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
    /// A map of maps may replace this map by one of another size.
    pub const INNER_MAP: Self = Self(1 << 12);

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
        matches!(self.kind, MapKind::PercpuArray | MapKind::PercpuHash)
    }

    fn is_array(&self) -> bool {
        // All of them are indexed by a number and share `array_map_alloc_check`:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/arraymap.c
        matches!(self.kind, MapKind::Array | MapKind::PercpuArray | MapKind::ArrayOfMaps | MapKind::ProgArray)
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
        let ids = matches!(self.kind, MapKind::ArrayOfMaps | MapKind::HashOfMaps | MapKind::ProgArray);
        let sound = self.max_entries > 0
            && self.key_size > 0
            && self.value_size > 0
            // User space writes a descriptor of four bytes there; the kernel stores a pointer instead.
            && (!ids || self.value_size == 4)
            && (!self.is_array() || self.key_size == 4 && !no_prealloc);
        match self.kind {
            // An LRU map takes its entries from lists that are filled when it is created:
            // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/hashtab.c (`htab_map_alloc_check`).
            MapKind::LruHash if no_prealloc => Err(Errno::NotSupp),
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
    /// Maps, by slot.
    Maps(Vec<Option<MapId>>),
    /// Programs, by slot.
    Programs(Vec<Option<ProgramId>>),
    /// A ring buffer.
    Ring(Ring),
}

/// The result of a look-up.
pub(super) enum MapLookup {
    /// A value's address.
    Value(u64),
    /// An inner map.
    Map(MapId),
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
        let entries = spec.max_entries as usize;
        let content = match spec.kind {
            MapKind::RingBuf => MapContent::Ring(Ring::new(spec.max_entries)),
            MapKind::ArrayOfMaps => MapContent::Maps(vec![None; entries]),
            MapKind::HashOfMaps => MapContent::Maps(Vec::new()),
            MapKind::ProgArray => MapContent::Programs(vec![None; entries]),
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

    /// A program's look-up.
    pub(super) fn find(&mut self, key: &[u8], cpu: u32, memory: &Memory) -> Option<MapLookup> {
        let slot = self.index.find(key)?;
        // Only here, for look-ups of programs. A look-up by system call must not change the order of eviction:
        // https://github.com/torvalds/linux/commit/50b045a8c0cc
        self.index.touch(slot);
        match &self.content {
            MapContent::Values(region) => Some(MapLookup::Value(memory.element(*region, self.element(slot, cpu)))),
            MapContent::Maps(inner) => inner.get(slot as usize).copied().flatten().map(MapLookup::Map),
            // The kernel returns NULL or an error for these; helpers have rejected such maps before.
            MapContent::Programs(_) | MapContent::Ring(_) => None,
        }
    }

    /// A program's update, which writes one CPU's value. The other CPUs' values of a new entry become zero.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u64,
        cpu: u32,
        memory: &mut Memory,
    ) -> Result<(), Errno> {
        let (slot, new) = self.slot_for(key, flags, memory)?;
        let MapContent::Values(region) = self.content else { return Err(Errno::Inval) };
        // A slot may have belonged to a deleted entry. Kernels since 5.10 clear the other CPUs' values of a new entry,
        // because a program could not know them:
        // https://github.com/torvalds/linux/commit/d3bec0138bfbe58606fc1d6f57a4cdc1a20218db
        if new {
            (0..self.cpus).for_each(|cpu| memory.bytes_mut(region, self.element(slot, cpu)).fill(0));
        }
        let bytes = memory.bytes_mut(region, self.element(slot, cpu));
        // Always equal for checked arguments; `copy_from_slice` would panic otherwise.
        if bytes.len() == value.len() {
            bytes.copy_from_slice(value);
        }
        Ok(())
    }

    /// Finds or creates the slot that an update writes. Returns true if it is new.
    fn slot_for(&mut self, key: &[u8], flags: u64, memory: &mut Memory) -> Result<(u32, bool), Errno> {
        // Also rejects `BPF_F_LOCK`: values with spin locks are not modelled.
        if flags > EXIST {
            return Err(Errno::Inval);
        }
        let (slot, new) = self.index.slot_for(key, flags)?;
        match &mut self.content {
            // Slots are handed out in order, so one element more is enough.
            MapContent::Values(region) if new => memory.grow(*region, (u64::from(slot) + 1) * u64::from(self.cpus)),
            MapContent::Maps(inner) if inner.len() <= slot as usize => inner.resize(slot as usize + 1, None),
            _ => {}
        }
        Ok((slot, new))
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
