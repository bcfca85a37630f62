//! The index from keys to slots, for each kind of map.

use super::super::Errno;
use super::{EXIST, MapKind, MapSpec, NOEXIST};
use std::collections::{BTreeMap, HashMap};

/// The free slots. Returned slots are reused first; new ones are handed out in order.
#[derive(Clone, Debug)]
pub(super) struct FreeSlots {
    next: u32,
    free: Vec<u32>,
    limit: u32,
}

impl FreeSlots {
    fn take(&mut self) -> Option<u32> {
        // The last one first, like the kernel's free lists. A value that programs still point to is then reused early,
        // which finds such mistakes.
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        (self.next < self.limit).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// The index of one map.
#[derive(Clone, Debug)]
pub(super) enum SlotIndex {
    /// The key is the number of the slot.
    Array {
        entries: u32,
    },
    Hash {
        keys: HashMap<Box<[u8]>, u32>,
        slots: FreeSlots,
    },
    /// One table per prefix length; its keys are the masked data.
    Lpm {
        lengths: BTreeMap<u32, HashMap<Box<[u8]>, u32>>,
        slots: FreeSlots,
        bits: u32,
    },
    /// The map has no keys.
    None,
}

/// The maximum data of a prefix key, in bytes.
const LPM_DATA: usize = 256;

impl SlotIndex {
    pub(super) fn new(spec: &MapSpec) -> Self {
        let slots = FreeSlots { next: 0, free: Vec::new(), limit: spec.max_entries };
        match spec.kind {
            _ if spec.is_array() => Self::Array { entries: spec.max_entries },
            MapKind::LpmTrie => Self::Lpm { lengths: BTreeMap::new(), slots, bits: (spec.key_size - 4) * 8 },
            MapKind::RingBuf => Self::None,
            _ => Self::Hash { keys: HashMap::new(), slots },
        }
    }

    /// The slot that a look-up finds.
    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        match self {
            // Array keys are numbers in the machine's byte order.
            Self::Array { entries } => array_slot(key).filter(|slot| slot < entries),
            Self::Hash { keys, .. } => keys.get(key).copied(),
            Self::Lpm { lengths, bits, .. } => longest_match(lengths, *bits, key),
            Self::None => None,
        }
    }

    /// The slot that an update writes. Returns true if it is new.
    pub(super) fn slot_for(&mut self, key: &[u8], flags: u64) -> Result<(u32, bool), Errno> {
        match self {
            Self::Array { entries } => {
                // The order of the checks is the kernel's, because programs see which error comes first:
                // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/arraymap.c (`array_map_update_elem`).
                let slot = array_slot(key).filter(|slot| slot < entries).ok_or(Errno::TooBig)?;
                if flags == NOEXIST { Err(Errno::Exist) } else { Ok((slot, false)) }
            }
            Self::Hash { keys, slots } => match keys.get(key) {
                Some(_) if flags == NOEXIST => Err(Errno::Exist),
                Some(slot) => Ok((*slot, false)),
                None if flags == EXIST => Err(Errno::NoEnt),
                None => {
                    let slot = slots.take().ok_or(Errno::TooBig)?;
                    keys.insert(key.into(), slot);
                    Ok((slot, true))
                }
            },
            Self::Lpm { lengths, slots, bits } => {
                // A prefix longer than the map's keys is "invalid" to an update, but "not found" to a look-up (`find`),
                // as in the kernel.
                let (length, data) = prefix(key, *bits).ok_or(Errno::Inval)?;
                let table = lengths.entry(length).or_default();
                match table.get(data.as_slice(key)) {
                    // Kernels without the fix of December 2024 ("bpf: Handle BPF_EXIST and BPF_NOEXIST for LPM trie")
                    // ignore both flags for tries. Callers that must load there use neither.
                    Some(_) if flags == NOEXIST => Err(Errno::Exist),
                    // Also in a full map. Older kernels answer ENOSPC here, because they count before they search:
                    // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/lpm_trie.c (`trie_update_elem`).
                    Some(&slot) => Ok((slot, false)),
                    None if flags == EXIST => Err(Errno::NoEnt),
                    None => {
                        // ENOSPC for tries and E2BIG for hashes: two files of the kernel, two habits.
                        let slot = slots.take().ok_or(Errno::NoSpc)?;
                        table.insert(data.as_slice(key).into(), slot);
                        Ok((slot, true))
                    }
                }
            }
            Self::None => Err(Errno::Inval),
        }
    }

    /// Removes an entry and frees its slot.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<u32, Errno> {
        let (slot, slots) = match self {
            // All elements of an array exist as long as the array does.
            Self::Array { .. } | Self::None => return Err(Errno::Inval),
            Self::Hash { keys, slots } => (keys.remove(key).ok_or(Errno::NoEnt)?, slots),
            Self::Lpm { lengths, slots, bits } => {
                let (length, data) = prefix(key, *bits).ok_or(Errno::Inval)?;
                let table = lengths.get_mut(&length).ok_or(Errno::NoEnt)?;
                (table.remove(data.as_slice(key)).ok_or(Errno::NoEnt)?, slots)
            }
        };
        // The bytes stay until the slot is used again: the kernel reuses preallocated elements without a grace period,
        // and programs must cope with that.
        slots.free.push(slot);
        Ok(slot)
    }

    /// All keys, sorted.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = match self {
            Self::Array { entries } => return (0..*entries).map(|slot| slot.to_le_bytes().to_vec()).collect(),
            Self::Hash { keys, .. } => keys.keys().map(|key| key.to_vec()).collect(),
            Self::Lpm { lengths, .. } => {
                let keys = lengths.iter().flat_map(|(length, table)| table.keys().map(move |data| (length, data)));
                keys.map(|(length, data)| [&length.to_le_bytes(), data.as_ref()].concat()).collect()
            }
            Self::None => Vec::new(),
        };
        // The order of a hash map must not reach a caller.
        keys.sort_unstable();
        keys
    }
}

fn array_slot(key: &[u8]) -> Option<u32> {
    key.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// A prefix's data, with the bits beyond its length cleared.
struct Masked([u8; LPM_DATA]);

impl Masked {
    fn new(data: &[u8], length: u32) -> Self {
        let mut masked = [0; LPM_DATA];
        for (index, (to, from)) in masked.iter_mut().zip(data).enumerate() {
            // The number of bits of this byte that belong to the prefix, 0 to 8.
            let kept = length.saturating_sub(index as u32 * 8).min(8);
            // In 16 bits, because a shift of a byte by eight is an error.
            *to = from & !(0xff_u16 >> kept) as u8;
        }
        Self(masked)
    }

    /// The masked data, as long as the data of `key`.
    fn as_slice(&self, key: &[u8]) -> &[u8] {
        self.0.get(..key.len().saturating_sub(4)).unwrap_or_default()
    }
}

/// The length and the masked data of a key; `None` if the prefix is longer than the map's keys.
fn prefix(key: &[u8], bits: u32) -> Option<(u32, Masked)> {
    let (length, data) = key.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    (length <= bits).then(|| (length, Masked::new(data, length)))
}

fn longest_match(lengths: &BTreeMap<u32, HashMap<Box<[u8]>, u32>>, bits: u32, key: &[u8]) -> Option<u32> {
    let (longest, _) = prefix(key, bits)?;
    let data = key.get(4..)?;
    // From the longest length on, so the first hit is the longest match. A trie would need fewer steps and more code;
    // there are at most 128 lengths and usually a dozen.
    lengths.range(..=longest).rev().find_map(|(&length, table)| {
        let masked = Masked::new(data, length);
        table.get(masked.as_slice(key)).copied()
    })
}
