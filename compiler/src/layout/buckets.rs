//! Flows in a table of our own: what stands where, and why nobody ever takes one flow for another.
//!
//! Problem: a look-up in a kernel map is a call and several dependent cache lines. Strategy: buckets of [`WAYS`] slots in one
//! array that programs read directly. A key's hash is the place of its *home* slot; the others of the bucket follow by
//! exclusive or, so that a flow mostly stands at home and everybody asks in the same order.
//!
//! # The protocol
//!
//! A slot's first eight bytes, its *word*, hold everything about a flow that changes, and a sequence number that grows with each
//! flow that the slot gets and loses. Every change of a word is a compare-and-swap of the whole of it, so no change ever
//! lands on another flow than the one that it was meant for. The rest of a slot (ends, addresses) is written only between
//! two such changes: *claimed* (not live, [`BUSY`], next number), then written, then *published* (live, the same number).
//! The time of the last packet is changed by itself, from the value that was seen.
//!
//! A reader takes the word, then the rest, then the word again: a flow is accepted only if it is live and the numbers are
//! equal. They are equal only if nobody claimed the slot in between; so what was read is of one flow, the reader's own.
//! (A number comes back after 2^31 flows in one slot, which no reader waits for.)
//!
//! # Memory that is not ordered
//!
//! On arm64 loads and stores pass each other. What the protocol needs is there without a fence:
//! * *Claim before the rest, the rest before the publication.* Both are atomic instructions that return the old value
//!   (`BPF_CMPXCHG`, `BPF_XCHG`); those are fully ordered in the kernel's memory model, on every architecture.
//! * *Word before the rest, the rest before the word again.* Address dependencies: the address of each load of the rest is
//!   computed from the first word (`+ (word & 0)`), that of the second load of the word from all of the rest. Processors
//!   keep the order of loads whose address depends on one another whatever the arithmetic gives; no compiler stands
//!   between us and the processor that would know better (JITs translate instruction by instruction, and the verifier rewrites
//!   no arithmetic).
//!
//! `compiler/tests/buckets` tries all orders that these rules leave, and shows that each of them is needed. Words are read in one
//! piece wherever registers have 64 bits; the JITs of other machines have no atomic operations for programs anyway.
//!
//! # Which slot a new flow gets
//!
//! One that is free or expired; else the one of an unconfirmed flow that was silent the longest. Confirmed flows (both sides
//! have spoken, and the first again) give way only to one that becomes confirmed, if all of the bucket are: so there is always
//! a slot that is not confirmed, and a flood of first packets evicts only its like. The hash has seeds that only this host
//! knows (a sum of products of sums, which is universal): nobody outside can choose keys of one
//! bucket.

use std::net::IpAddr;

use super::{State, address_bytes, flow};
use crate::address::Family;

/// Slots of a bucket.
pub const WAYS: u32 = 8;
/// Random numbers of eight bytes that the hash takes.
pub const SEEDS: usize = 8;
/// What stands there until the runtime has put random ones in: no secret, and no worse a hash.
pub const KNOWN_SEEDS: [u64; SEEDS] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
];

/// What the sum is mixed with.
pub const MIX: u64 = 0x9fb2_1c65_1e98_df25;

/// The value of `flow_shape`: by family, the bits of a hash that are the place of a slot, in eight bytes.
pub mod shape {
    /// IPv4.
    pub const V4: i32 = 0;
    /// IPv6.
    pub const V6: i32 = 8;
    /// All of it.
    pub const BYTES: u32 = 16;
}

/// The word.
pub const WORD: i16 = 0;
/// The interface; the remote port and the local one follow.
pub const IFINDEX: i16 = 8;
/// The other end's address.
pub const REMOTE: i16 = 16;

/// In the word: 3 bits, [`State`].
pub const STATE_SHIFT: u32 = 8;
/// In the word: who began it.
pub const BEGUN: u64 = 1 << 11;
/// In the word: two bits, as [`flow::OWN_NODE`].
pub const OWN_NODE_SHIFT: u32 = 12;
/// In the word: the other side has answered.
pub const ANSWERED: u64 = 1 << 14;
/// In the word: there is a flow.
pub const LIVE: u64 = 1 << 15;
/// In a word that is not live: somebody writes here.
pub const BUSY: u64 = 1 << STATE_SHIFT;
/// In the word: 16 bits, the lower half of the generation. (A flow is silent for two hours at most; so many generations
/// there are not.)
pub const EPOCH_SHIFT: u32 = 16;
/// In the word: its beginner has spoken after an answer.
pub const CONFIRMED_SHIFT: u32 = 32;
/// In the word: the sequence number, from here on.
pub const SEQUENCE_SHIFT: u32 = 33;

/// Bytes of a slot: half a cache line, a whole one.
pub const fn slot_bytes(family: Family) -> u32 {
    match family {
        Family::V4 => 32,
        Family::V6 => 64,
    }
}

/// Where a slot has the pod's address.
pub const fn local(family: Family) -> i16 {
    match family {
        Family::V4 => 20,
        Family::V6 => 32,
    }
}

/// Where a slot has the time of the last packet.
pub const fn last(family: Family) -> i16 {
    match family {
        Family::V4 => 24,
        Family::V6 => 48,
    }
}

/// The bits of a hash that are a slot's place, in a table of so many bytes (a power of two).
pub const fn mask(family: Family, table_bytes: u32) -> u64 {
    (table_bytes - 1) as u64 & !(slot_bytes(family) as u64 - 1)
}

/// The bytes of a table with room for so many flows: twice the slots, a power of two, at most so many bytes.
pub fn table_bytes(family: Family, flows: u64, most: u64) -> u32 {
    let slot = u64::from(slot_bytes(family));
    let wanted = flows.saturating_mul(2).max(u64::from(WAYS)).checked_next_power_of_two().unwrap_or(1 << 62);
    let most = most.clamp(slot * u64::from(WAYS), 1 << 29);
    let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    wanted.saturating_mul(slot).min(most) as u32
}

/// A slot's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    words: [u64; 8],
    family: Family,
}

impl Slot {
    /// From its words; `None` if there are too few.
    pub fn new(family: Family, words: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut slot = Self { words: [0; 8], family };
        let count = slot_bytes(family) as usize / 8;
        let read = slot.words.iter_mut().zip(words).take(count).map(|(to, from)| *to = from).count();
        (read == count).then_some(slot)
    }

    /// A live flow, from its key and value as a kernel map has them: the first with this sequence number.
    pub fn of(family: Family, key: &[u8], value: &[u8], sequence: u32) -> Option<Self> {
        let address = usize::from(family.bits() / 8);
        let byte = |at: i16| value.get(at as usize).map(|it| u64::from(*it));
        let ports = key.get(4 + address..8 + address)?;
        let state = byte(flow::STATE)?;
        let epoch = u64::from(u16::from_le_bytes(*value.get(flow::EPOCH as usize..)?.first_chunk()?));
        let word = u64::from(*key.get(8 + address)?)
            | (state << STATE_SHIFT)
            | (byte(flow::BEGUN)? * BEGUN)
            | (byte(flow::OWN_NODE)? << OWN_NODE_SHIFT)
            | (byte(flow::ANSWERED)? * ANSWERED)
            | LIVE
            | (epoch << EPOCH_SHIFT)
            | (u64::from(is_open(state as u8)) << CONFIRMED_SHIFT)
            | (u64::from(sequence) << SEQUENCE_SHIFT);
        let mut bytes = [0; 64];
        let mut put =
            |at: i16, from: &[u8]| bytes.iter_mut().skip(at as usize).zip(from).for_each(|(to, it)| *to = *it);
        put(WORD, &word.to_le_bytes());
        put(IFINDEX, key.get(..4)?);
        put(IFINDEX + 4, ports);
        put(REMOTE, key.get(4..4 + address)?);
        put(local(family), value.get(flow::LOCAL as usize..)?.get(..address)?);
        put(last(family), value.get(flow::LAST as usize..)?.get(..8)?);
        Self::new(family, bytes.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)))
    }

    /// Its words.
    pub fn words(&self) -> &[u64] {
        self.words.get(..slot_bytes(self.family) as usize / 8).unwrap_or_default()
    }

    /// Its first word.
    pub fn word(&self) -> u64 {
        self.words[0]
    }

    /// Whether there is a flow.
    pub fn is_live(&self) -> bool {
        self.word() & LIVE != 0
    }

    /// Whether its beginner has spoken after an answer.
    pub fn is_confirmed(&self) -> bool {
        self.word() >> CONFIRMED_SHIFT & 1 == 1
    }

    /// The interface.
    pub fn ifindex(&self) -> u32 {
        self.words[1] as u32
    }

    /// The flow's key and value, as a kernel map would have them. Of the generation there are only the lower bits.
    pub fn entry(&self) -> (Vec<u8>, Vec<u8>) {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let address = usize::from(self.family.bits() / 8);
        let at = |offset: i16, count: usize| bytes.get(offset as usize..offset as usize + count).unwrap_or_default();
        let mut key = [at(IFINDEX, 4), at(REMOTE, address), at(IFINDEX + 4, 4), at(WORD, 1)].concat();
        key.resize(if self.family == Family::V4 { 16 } else { 32 }, 0);
        let word = self.word();
        let bits = |shift: u32, mask: u64| (word >> shift & mask) as u8;
        let flags = [
            u8::from(word & BEGUN != 0),
            bits(STATE_SHIFT, 7),
            bits(OWN_NODE_SHIFT, 3),
            u8::from(word & ANSWERED != 0),
        ];
        let epoch = [at(2, 2), &[0, 0]].concat();
        let mut value = [at(last(self.family), 8), &epoch, &flags, at(local(self.family), address)].concat();
        value.resize(flow::BYTES as usize, 0);
        (key, value)
    }

    /// Where a table has this flow's home.
    pub fn home(&self, seeds: &[u64; SEEDS], mask: u64) -> u64 {
        let (low, high) = (|word: u64| word & 0xffff_ffff, |word: u64| word >> 32);
        let (ends, protocol) = (self.words[1], self.word() & 0xff);
        let mut parts = vec![low(ends), high(ends), low(self.words[2])];
        if self.family == Family::V6 {
            parts.extend([high(self.words[2]), low(self.words[3]), high(self.words[3])]);
        }
        parts.push(protocol);
        hash(seeds, &parts) & mask
    }
}

/// The seeds in the value of `config`.
pub fn seeds(config: &[u8]) -> [u64; SEEDS] {
    let stored = config.get(super::config::SEEDS as usize..).unwrap_or_default();
    let mut seeds = [0; SEEDS];
    seeds.iter_mut().zip(stored.as_chunks().0).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
    seeds
}

/// The word of a slot that has lost the flow that this was of.
pub const fn dead(word: u64) -> u64 {
    ((word >> SEQUENCE_SHIFT) + 1) << SEQUENCE_SHIFT
}

/// The sum of products of pairs of (seed + part); a part that has no other is multiplied with a seed. Where only one part
/// differs that is a straight line, so it is mixed once more.
fn hash(seeds: &[u64; SEEDS], parts: &[u64]) -> u64 {
    let mut sum = 0u64;
    for (part, seed) in parts.chunks(2).zip(seeds.chunks(2)) {
        let [first, second] = [0, 1].map(|at| {
            let seed = seed.get(at).copied().unwrap_or_default();
            seed.wrapping_add(part.get(at).copied().unwrap_or_default())
        });
        sum = sum.wrapping_add(first.wrapping_mul(second));
    }
    (sum ^ sum >> 32).wrapping_mul(MIX) >> 32
}

/// Whether a state is one of a flow that is confirmed; one that is closing may be, here it is.
fn is_open(state: u8) -> bool {
    [State::TcpOpen, State::TcpClosing, State::UdpOpen, State::OtherOpen].iter().any(|it| *it as u8 == state)
}

/// Live slots of a table, in order.
pub fn live(family: Family, table: &[u8]) -> impl Iterator<Item = Slot> {
    let slots = table.chunks_exact(slot_bytes(family) as usize);
    let words = |slot: &[u8]| slot.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect::<Vec<_>>();
    slots.filter_map(move |slot| Slot::new(family, words(slot))).filter(Slot::is_live)
}

/// The key that a kernel map would have.
pub fn key(ifindex: u32, remote: IpAddr, [remote_port, local_port]: [u16; 2], protocol: u8) -> Vec<u8> {
    let mut key = ifindex.to_le_bytes().to_vec();
    key.extend(address_bytes(remote));
    key.extend(remote_port.to_be_bytes());
    key.extend(local_port.to_be_bytes());
    key.push(protocol);
    key.resize(if remote.is_ipv4() { 16 } else { 32 }, 0);
    key
}

#[cfg(test)]
mod tests;
