//! The kernel memory of a map, computed before the map exists.
//!
//! There are two numbers. *Full* is the memory that the kernel really allocates for the map with its entries. *Charged*
//! is the figure that the kernel reports (`memlock` in `/proc/PID/fdinfo`, bpftool). They differ for maps that allocate
//! entry by entry: an LPM trie's own figure leaves out its inner nodes, allocator headers and rounding. Both numbers
//! have a part for each possible CPU of the machine, which the compiler does not know.
//!
//! The formulas are those of `…_mem_usage` in the kernel (6.4 and later; before, it guessed from key and value sizes);
//! the sizes of structures depend on the kernel's configuration and were taken from a 6.18 x86-64 kernel. A test of the
//! runtime compares them with the kernel that it runs on.
//!
//! The estimate is made for any machine, and it is part of the artifact, so it does not ask the machine of the compiler
//! for its page size: [`ASSUMED_PAGE_BYTES`].

use crate::map_image::MapImage;
use weir_ebpf::vm::{MapFlags, MapKind, MapSpec};

/// A number of bytes: one part is needed once, the other once for every possible CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySize {
    /// The bytes that are needed once.
    pub fixed: u64,
    /// The bytes that are needed for each possible CPU.
    pub per_cpu: u64,
}

impl MemorySize {
    /// The bytes on a machine with `cpus` possible CPUs.
    pub fn on(self, cpus: u64) -> u64 {
        self.fixed + self.per_cpu * cpus
    }
}

impl std::iter::Sum for MemorySize {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            fixed: sum.fixed + part.fixed,
            per_cpu: sum.per_cpu + part.per_cpu,
        })
    }
}

/// The page size that estimates assume: that of all x86-64 kernels and of most arm64 kernels. With pages of 64 KiB, the
/// kernel allocates up to 120 KiB more for each flow table and 180 KiB more for the event ring.
const ASSUMED_PAGE_BYTES: u64 = 4_096;
const POINTER: u64 = 8;
/// `struct bpf_array`
const ARRAY: u64 = 312;
/// `struct bpf_htab`
const HASH: u64 = 896;
/// `struct bucket`
const BUCKET: u64 = 16;
/// `struct htab_elem`, before key and value.
const HASH_ENTRY: u64 = 48;
/// `struct bpf_ringbuf_map`
const RING: u64 = 304;
/// Pages of a ring that hold no records: its state, and two positions.
const RING_PAGES: u64 = 3;
/// `struct lpm_trie_node`, before the address and the value.
const TRIE_NODE: u64 = 24;
/// The header that the BPF allocator keeps in front of a node.
const NODE_HEADER: u64 = 8;
/// The memory cgroup that a slab object belongs to is kept beside the object.
const NODE_OWNER: u64 = 8;

/// The kernel's own figure for the map with the entries of its image.
pub fn charged(map: &MapImage) -> MemorySize {
    match map.spec.kind {
        MapKind::LpmTrie => {
            let node = TRIE_NODE + trie_address(&map.spec) + u64::from(map.spec.value_size);
            MemorySize { fixed: node * map.entries.len() as u64, per_cpu: 0 }
        }
        _ => whole(&map.spec, map.entries.len() as u64),
    }
}

/// The memory that the kernel allocates for the map with the entries of its image. (Measured for 60,001 IPv4 prefixes:
/// 8.64 MB predicted, 8.48 MB more slab memory used.)
pub fn full(map: &MapImage) -> MemorySize {
    match map.spec.kind {
        MapKind::LpmTrie => {
            let node = NODE_HEADER + TRIE_NODE + trie_address(&map.spec) + u64::from(map.spec.value_size);
            MemorySize { fixed: (size_class(node) + NODE_OWNER) * trie_nodes(map), per_cpu: 0 }
        }
        _ => whole(&map.spec, map.entries.len() as u64),
    }
}

/// Maps for which the kernel's own figure is the allocated memory.
fn whole(spec: &MapSpec, entries: u64) -> MemorySize {
    let (key, value) = (u64::from(spec.key_size), u64::from(spec.value_size).next_multiple_of(8));
    let most = u64::from(spec.max_entries);
    match spec.kind {
        MapKind::Array if spec.flags.contains(MapFlags::MMAPABLE) => {
            MemorySize { fixed: ASSUMED_PAGE_BYTES + (most * value).next_multiple_of(ASSUMED_PAGE_BYTES), per_cpu: 0 }
        }
        MapKind::Array | MapKind::ProgArray => MemorySize { fixed: ARRAY + most * value, per_cpu: 0 },
        MapKind::PercpuArray => MemorySize { fixed: ARRAY + most * POINTER, per_cpu: most * value },
        MapKind::RingBuf => {
            let pages = most / ASSUMED_PAGE_BYTES;
            let fixed = RING + (RING_PAGES + 2 * pages) * POINTER + (RING_PAGES + pages) * ASSUMED_PAGE_BYTES;
            MemorySize { fixed, per_cpu: 0 }
        }
        MapKind::Hash => {
            let preallocated = !spec.flags.contains(MapFlags::NO_PREALLOC);
            hash(spec, if preallocated { most } else { entries }, preallocated, key.next_multiple_of(8), value)
        }
        MapKind::LpmTrie => MemorySize::default(),
    }
}

fn hash(spec: &MapSpec, entries: u64, preallocated: bool, key: u64, value: u64) -> MemorySize {
    let entry = HASH_ENTRY + key + value;
    let fixed = HASH + BUCKET * u64::from(spec.max_entries).next_power_of_two() + entry * entries;
    // A preallocated hash map keeps one spare entry for each CPU, so that an update of a full map can replace an entry.
    MemorySize { fixed, per_cpu: if preallocated { entry + POINTER } else { 0 } }
}

/// The number of bytes of an address in a trie's key.
fn trie_address(spec: &MapSpec) -> u64 {
    u64::from(spec.key_size).saturating_sub(4)
}

/// The allocator's size class for `bytes`.
fn size_class(bytes: u64) -> u64 {
    const BETWEEN: [u64; 2] = [96, 192];
    let power = bytes.next_power_of_two();
    BETWEEN.into_iter().find(|size| (bytes..power).contains(size)).unwrap_or(power)
}

/// The number of entries and inner nodes. An inner node is needed where two neighbours in order diverge and neither
/// covers the other, once for each depth on a path.
fn trie_nodes(map: &MapImage) -> u64 {
    let mut prefixes: Vec<(&[u8], u32)> = map.entries.iter().filter_map(|(key, _)| prefix(key)).collect();
    prefixes.sort_unstable();
    let mut inner = 0;
    // Lengths of the nodes on the path to the last prefix.
    let mut path: Vec<u32> = Vec::new();
    let mut last: Option<(&[u8], u32)> = None;
    for (address, length) in prefixes {
        let common = last.map_or(0, |(of_last, its)| common_bits(of_last, address).min(its).min(length));
        while path.last().is_some_and(|deepest| *deepest > common) {
            path.pop();
        }
        if last.is_some() && path.last() != Some(&common) && common < length {
            inner += 1;
            path.push(common);
        }
        path.push(length);
        last = Some((address, length));
    }
    map.entries.len() as u64 + inner
}

/// A trie's key: length, address.
fn prefix(key: &[u8]) -> Option<(&[u8], u32)> {
    let (length, address) = key.split_first_chunk::<4>()?;
    Some((address, u32::from_le_bytes(*length)))
}

fn common_bits(a: &[u8], b: &[u8]) -> u32 {
    let different = a.iter().zip(b).position(|(a, b)| a != b);
    different.map_or(8 * a.len() as u32, |at| 8 * at as u32 + (a[at] ^ b[at]).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::MapEntries;
    use crate::layout::MapName;

    #[track_caller]
    fn check_nodes(prefixes: &[([u8; 4], u32)], nodes: u64) {
        let entry = |(address, length): &([u8; 4], u32)| ([length.to_le_bytes(), *address].concat(), [0_u8; 4]);
        let spec = MapSpec {
            kind: MapKind::LpmTrie,
            key_size: 8,
            value_size: 4,
            max_entries: 100,
            flags: MapFlags::NO_PREALLOC,
        };
        let map = MapImage { name: MapName::Prefixes4, spec, entries: MapEntries::new(prefixes.iter().map(entry)) };
        assert_eq!(trie_nodes(&map), nodes);
    }

    #[test]
    fn prefixes_that_part_need_an_inner_node() {
        check_nodes(&[], 0);
        check_nodes(&[([10, 0, 0, 0], 8)], 1);
        check_nodes(&[([10, 0, 0, 0], 8), ([10, 1, 0, 0], 16)], 2);
        check_nodes(&[([10, 0, 0, 0], 8), ([11, 0, 0, 0], 8)], 3);
        check_nodes(&[([10, 0, 0, 0], 8), ([11, 0, 0, 0], 8), ([64, 0, 0, 0], 8)], 5);
        check_nodes(&[([0, 0, 0, 0], 0), ([10, 0, 0, 0], 8), ([200, 0, 0, 0], 8)], 3);
        check_nodes(&[([10, 0, 0, 0], 7), ([10, 0, 0, 0], 8), ([11, 0, 0, 0], 8)], 3);
    }

    #[test]
    fn an_allocator_has_few_sizes() {
        assert_eq!([9, 32, 33, 48, 65, 97, 129, 200].map(size_class), [16, 32, 64, 64, 96, 128, 192, 256]);
    }
}
