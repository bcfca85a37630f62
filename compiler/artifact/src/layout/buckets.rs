//! The flow table: its layout, and why a program never takes one flow for another.
//!
//! Problem: a look-up in a kernel map is a call and several dependent cache lines. Strategy: buckets of [`WAYS`] slots
//! in one array that programs read directly. The hash of a key is the place of its *home* slot. The other slots of the
//! bucket follow by exclusive or with the way's number, so that most flows are in their home slot and all programs
//! visit the slots in the same order.
//!
//! # The protocol
//!
//! A slot's first eight bytes, its *word*, hold everything about a flow that changes, and a sequence number that grows
//! with each flow that the slot gets and loses. Every change of a word is a compare-and-swap of the whole word, so no
//! change ever hits another flow than the intended one. (Only the publication is a plain exchange: until then the slot
//! belongs to the program that has claimed it.) The rest of a slot (ends, addresses) is written only between two such
//! changes: *claimed* (not live, [`BUSY`], next number), then written, then *published* (live, the same number). The
//! time of the last packet has its own compare-and-swap, from the value that was seen.
//!
//! A reader loads the word, then the rest, then the word again. It accepts a flow only if the word is live and the two
//! numbers are equal. They are equal only if no program claimed the slot in between, so the data that was read belongs
//! to one flow. (A number repeats after 2^21 flows in one slot. At several hundred nanoseconds each, a reader would
//! have to pause for half a second between its two loads while the slot gets exactly that number of flows.)
//!
//! # Memory that is not ordered
//!
//! On arm64, loads and stores may be reordered. The protocol needs two orders, and gets both without a fence:
//! * *Claim before the rest, the rest before the publication.* Both are atomic instructions that return the old value
//!   (`BPF_CMPXCHG`, `BPF_XCHG`); those are fully ordered in the kernel's memory model, on every architecture.
//! * *Word before the rest, the rest before the word again.* Address dependencies: the address of each load of the rest
//!   is computed from the first word (`+ (word & 0)`), that of the second load of the word from all of the rest.
//!   Processors keep the order of loads whose addresses depend on each other, for any result of the arithmetic. No
//!   compiler removes the arithmetic: JITs translate instruction by instruction, and the verifier rewrites none of it.
//!
//! `compiler/codegen/src/emit/flows/slot.rs` alone emits the readers. `compiler/codegen/tests/buckets` tries all orders
//! that these rules allow, and shows that each rule is needed. Words are read in one piece wherever registers have 64
//! bits; the JITs of other machines do not support atomic operations in programs anyway.
//!
//! # Which slot a new flow gets
//!
//! A free or expired slot, if there is one. In a full bucket, a slot of the interface that has most slots there (the
//! packet's own interface if none has more): first one whose flow is not confirmed, then the one that was silent
//! longest. So a pod that opens many flows takes slots from pods that have more than itself, and otherwise from itself.
//! A flow that becomes confirmed in a bucket of confirmed flows evicts the oldest other flow of its own interface. So
//! there is always a slot for first packets, and among the flows of one interface a flood of first packets evicts only
//! other fresh flows. The hash has seeds that only this host knows (it is a sum of products of sums, which is
//! universal), so an attacker outside cannot choose keys of one bucket.
//!
//! # Cut flows
//!
//! A flow that a later generation denies keeps its slot, marked [`CUT`], until it expires. Without that trace the other
//! end's next packet would begin a new flow in the other direction, which policy may allow, and the connection would
//! continue.
//!
//! # Generations
//!
//! A word has the lower 24 bits of the epoch that decided about the flow. A flow would meet its own epoch again only
//! after 16,777,216 epochs without a packet of its own, and it expires after two hours: that would take 2,330 epochs a
//! second. The agent makes at most some tens.

use std::net::IpAddr;

use super::{FlowState, Origin, address_bytes, direction_number};
use weir_objects::address::Family;
use weir_objects::k8s::Direction;

/// The number of slots in a bucket.
pub const WAYS: u32 = 8;
/// The number of random seeds of the hash, eight bytes each.
pub const SEEDS: usize = 8;
/// The seeds until the runtime stores random ones. They are not secret, but their hash is no worse.
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

/// The multiplier that mixes the sum.
pub const MIX: u64 = 0x9fb2_1c65_1e98_df25;

/// The value of `flow_shape`. For each family, in eight bytes: the bits of a hash that are the place of a slot.
pub mod shape {
    /// IPv4.
    pub const V4: i32 = 0;
    /// IPv6.
    pub const V6: i32 = 8;
    /// The length of the value.
    pub const BYTES: u32 = 16;
}

/// The offset of the word.
pub const WORD: i16 = 0;
/// The offset of the interface; the remote port and the local port follow.
pub const IFINDEX: i16 = 8;
/// The offset of the other end's address.
pub const REMOTE: i16 = 16;

/// In the word: the position of the state, three bits ([`FlowState`]).
pub const STATE_SHIFT: u32 = 8;
/// In the word: the direction in which the flow began; set for egress.
pub const BEGUN: u64 = 1 << 11;
/// In the word: the position of the origin, two bits ([`Origin`]).
pub const ORIGIN_SHIFT: u32 = 12;
/// In the word: the other side has answered.
pub const ANSWERED: u64 = 1 << 14;
/// In the word: the slot holds a flow.
pub const LIVE: u64 = 1 << 15;
/// In a word that is not live: a program is writing the slot.
pub const BUSY: u64 = 1 << STATE_SHIFT;
/// In the word: the position of the epoch's lower 24 bits.
pub const EPOCH_SHIFT: u32 = 16;
/// The number of epoch bits in the word.
pub const EPOCH_BITS: u32 = 24;
/// In the word: the side that began the flow has sent a TCP FIN. For a cut flow that is neither TCP nor SCTP: the flow
/// was ended ([`ended`]).
pub const FIN_OF_BEGINNER: u32 = 40;
/// In the word: the other side has sent a TCP FIN.
pub const FIN_OF_OTHER: u32 = 41;
/// In the word: policy no longer allows the flow.
pub const CUT: u32 = 42;
/// In the word: the position of the sequence number, which takes the rest.
pub const SEQUENCE_SHIFT: u32 = 43;

/// The bytes of a slot: half a cache line for IPv4, a whole one for IPv6.
pub const fn slot_bytes(family: Family) -> u32 {
    match family {
        Family::V4 => 32,
        Family::V6 => 64,
    }
}

/// The offset of the pod's address in a slot.
pub const fn local(family: Family) -> i16 {
    match family {
        Family::V4 => 20,
        Family::V6 => 32,
    }
}

/// The offset of the last packet's time in a slot.
pub const fn last(family: Family) -> i16 {
    match family {
        Family::V4 => 24,
        Family::V6 => 48,
    }
}

/// The bits of a hash that are a slot's place, in a table of `table_bytes` bytes (a power of two).
pub const fn mask(family: Family, table_bytes: u32) -> u64 {
    (table_bytes - 1) as u64 & !(slot_bytes(family) as u64 - 1)
}

/// The size in bytes of a table for `flows` flows. It has two slots for each flow, rounded up to a power of two, but
/// no more than `most` bytes.
pub fn table_bytes(family: Family, flows: u64, most: u64) -> u32 {
    let slot = u64::from(slot_bytes(family));
    let wanted = flows.saturating_mul(2).max(u64::from(WAYS)).checked_next_power_of_two().unwrap_or(1 << 62);
    let most = most.clamp(slot * u64::from(WAYS), 1 << 29);
    let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    wanted.saturating_mul(slot).min(most) as u32
}

/// The bytes of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    words: [u64; 8],
    family: Family,
}

impl Slot {
    /// A slot from its words; `None` if there are too few.
    pub fn new(family: Family, words: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut slot = Self { words: [0; 8], family };
        let count = slot_bytes(family) as usize / 8;
        let read = slot.words.iter_mut().zip(words).take(count).map(|(to, from)| *to = from).count();
        (read == count).then_some(slot)
    }

    /// The slot's words.
    pub fn words(&self) -> &[u64] {
        self.words.get(..slot_bytes(self.family) as usize / 8).unwrap_or_default()
    }

    /// The first word.
    pub fn word(&self) -> u64 {
        self.words[0]
    }

    /// Whether the slot holds a flow.
    pub fn is_live(&self) -> bool {
        self.word() & LIVE != 0
    }

    /// The interface.
    pub fn ifindex(&self) -> u32 {
        self.words[1] as u32
    }

    /// The flow in the slot; `None` if programs never write such a state.
    pub fn flow(&self) -> Option<StoredFlow> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let port = |at: usize| bytes.get(at..).and_then(|it| it.first_chunk()).map(|it| u16::from_be_bytes(*it));
        let word = self.word();
        let bit = |shift: u32| word >> shift & 1 == 1;
        let number = |shift: u32, mask: u64| (word >> shift & mask) as usize;
        Some(StoredFlow {
            tuple: Tuple {
                ifindex: self.ifindex(),
                protocol: word as u8,
                remote: address_at(&bytes, REMOTE, self.family)?,
                local: address_at(&bytes, local(self.family), self.family)?,
                remote_port: port(IFINDEX as usize + 4)?,
                local_port: port(IFINDEX as usize + 6)?,
            },
            state: *FlowState::ALL.get(number(STATE_SHIFT, 7))?,
            begun: if word & BEGUN == 0 { Direction::Ingress } else { Direction::Egress },
            origin: *Origin::ALL.get(number(ORIGIN_SHIFT, 3))?,
            answered: word & ANSWERED != 0,
            fins: [bit(FIN_OF_BEGINNER), bit(FIN_OF_OTHER)],
            is_cut: bit(CUT),
            epoch: number(EPOCH_SHIFT, (1 << EPOCH_BITS) - 1) as u32,
            last: u64::from_le_bytes(*bytes.get(last(self.family) as usize..)?.first_chunk()?),
        })
    }

    /// The place of this flow's home slot in a table.
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

/// Reads the seeds from the value of `config`.
pub fn seeds(config: &[u8]) -> [u64; SEEDS] {
    let stored = config.get(super::config::SEEDS as usize..).unwrap_or_default();
    let mut seeds = [0; SEEDS];
    seeds.iter_mut().zip(stored.as_chunks().0).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
    seeds
}

/// The key of a flow, and its local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// The interface.
    pub ifindex: u32,
    /// The IP protocol.
    pub protocol: u8,
    /// The other end's address.
    pub remote: IpAddr,
    /// The pod's address.
    pub local: IpAddr,
    /// The other end's port; for an ICMP query, its type and the side that sent it.
    pub remote_port: u16,
    /// The pod's port; for an ICMP query, its identifier.
    pub local_port: u16,
}

/// A flow as a slot stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFlow {
    /// The flow's key and local address.
    pub tuple: Tuple,
    /// The flow's state.
    pub state: FlowState,
    /// The direction in which it began.
    pub begun: Direction,
    /// Where the flow began.
    pub origin: Origin,
    /// Whether the other side has answered.
    pub answered: bool,
    /// Which sides have sent a TCP FIN: first the one that began the flow, then the other.
    pub fins: [bool; 2],
    /// Whether policy no longer allows it.
    pub is_cut: bool,
    /// The lower bits of the epoch that decided about the flow.
    pub epoch: u32,
    /// When its last packet was seen, in ticks.
    pub last: u64,
}

impl Tuple {
    /// A fresh flow with this key that was just allowed.
    pub fn begun(self, begun: Direction, epoch: u32, now: u64) -> StoredFlow {
        let state = match self.protocol {
            6 => FlowState::TcpFresh,
            17 => FlowState::UdpFresh,
            _ => FlowState::OtherFresh,
        };
        let origin = Origin::Elsewhere;
        StoredFlow {
            tuple: self,
            state,
            begun,
            origin,
            answered: false,
            fins: [false; 2],
            is_cut: false,
            epoch,
            last: now,
        }
    }
}

impl StoredFlow {
    /// A slot with this flow and this sequence number.
    pub fn slot(&self, sequence: u32) -> Slot {
        let family = Family::of(self.tuple.remote);
        let mut bytes = [0; 64];
        let mut put = |at: i16, from: &[u8]| {
            bytes.iter_mut().skip(at as usize).zip(from).for_each(|(to, it)| *to = *it);
        };
        put(WORD, &self.word(sequence).to_le_bytes());
        put(IFINDEX, &self.tuple.ifindex.to_le_bytes());
        put(IFINDEX + 4, &self.tuple.remote_port.to_be_bytes());
        put(IFINDEX + 6, &self.tuple.local_port.to_be_bytes());
        put(REMOTE, &address_bytes(self.tuple.remote));
        put(local(family), &address_bytes(self.tuple.local));
        put(last(family), &self.last.to_le_bytes());
        let mut words = [0; 8];
        words.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
        Slot { words, family }
    }

    fn word(&self, sequence: u32) -> u64 {
        let bit = |is: bool, shift: u32| u64::from(is) << shift;
        u64::from(self.tuple.protocol)
            | ((self.state as u64) << STATE_SHIFT)
            | (u64::from(direction_number(self.begun)) * BEGUN)
            | ((self.origin as u64) << ORIGIN_SHIFT)
            | (u64::from(self.answered) * ANSWERED)
            | LIVE
            | (u64::from(self.epoch & ((1 << EPOCH_BITS) - 1)) << EPOCH_SHIFT)
            | bit(self.fins[0], FIN_OF_BEGINNER)
            | bit(self.fins[1], FIN_OF_OTHER)
            | bit(self.is_cut, CUT)
            | (u64::from(sequence) << SEQUENCE_SHIFT)
    }
}

fn address_at(bytes: &[u8], at: i16, family: Family) -> Option<IpAddr> {
    let bytes = bytes.get(at as usize..)?;
    Some(match family {
        Family::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
    })
}

/// The word of a live slot after its flow was ended. Until it expires, no packet of either side passes, and only a new
/// TCP or SCTP connection replaces it. It expires as late as a confirmed flow, because connection tracking remembers a
/// connection for that long.
pub const fn ended(word: u64) -> u64 {
    let is_closing = (word >> STATE_SHIFT) & 7 == FlowState::TcpClosing as u64;
    let confirmed = if is_closing { 0 } else { 1 << STATE_SHIFT };
    word | confirmed | (1 << CUT) | (1 << FIN_OF_BEGINNER)
}

/// The word of a slot after it has lost the flow of the given word.
pub const fn dead(word: u64) -> u64 {
    ((word >> SEQUENCE_SHIFT) + 1) << SEQUENCE_SHIFT
}

/// The sum of products of pairs of (seed + part). A part without a partner is multiplied by a seed. If flows differ in
/// one part alone, the sum is linear in that part, so it is mixed once more.
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

/// The live slots of a table, in order.
pub fn live(family: Family, table: &[u8]) -> impl Iterator<Item = Slot> {
    let slots = table.chunks_exact(slot_bytes(family) as usize);
    let words = |slot: &[u8]| slot.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect::<Vec<_>>();
    slots.filter_map(move |slot| Slot::new(family, words(slot))).filter(Slot::is_live)
}

#[cfg(test)]
mod tests;
