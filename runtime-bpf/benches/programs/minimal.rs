//! The minimal program, written by hand: it does only what any correct program must do to pass packets of known flows
//! and to judge new flows by class. It does this for TCP of one family, and supports no feature that depends on the
//! input:
//!
//! * *parse*: VLAN tag, EtherType, version and length, fragment, protocol, flags that begin or end a connection;
//! * *known flow*: a hash with seeds, eight ways, a word that is read again after the rest so that nothing torn is
//!   accepted, addresses (from the pod also its own), expiry by state, generation, the time of the last packet;
//! * *new flow*: endpoint (a kernel hash, as it changes), where it came from or its source, class of the other end in
//!   one step of a hash, atom by compares, row, bit; a slot that is claimed, filled and published by atomic
//!   instructions;
//! * *account*: packets and bytes per CPU; for drops, a limit per second and the number of drops beyond it.
//!
//! It does not support fragments, options, extension headers, other protocols, ICMP, generations in parallel, the own
//! node's addresses, prefixes, eviction or records. Packets that need them are dropped, and so are packets without a
//! flow, except SYNs.

use std::net::IpAddr;

use weir_objects::address::Family;
use weir_ebpf::asm::{Asm, Label, MapRef};
use weir_ebpf::context as field;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Insn, Reg, Size, Width};
use weir_ebpf::target::Target;
use weir_artifact::layout::buckets::{LIVE, SEQUENCE_SHIFT, WAYS, self};
use weir_model::Direction;

use crate::PORT;

/// The maps, by number: flows, endpoints, classes and rows, counters, configuration.
pub(super) const FLOWS: MapRef = MapRef(0);
pub(super) const ENDPOINTS: MapRef = MapRef(1);
pub(super) const TABLES: MapRef = MapRef(2);
pub(super) const COUNTERS: MapRef = MapRef(3);
pub(super) const CONFIG: MapRef = MapRef(4);

/// The value of an endpoint: its subject class, its addresses.
pub(super) const ENDPOINT_BYTES: u32 = 24;
const SUBJECT: i16 = 0;
const OWN: i16 = 8;
/// The tables: addresses with their classes, rows, sets.
const ADDRESS_SLOTS: i32 = 1 << 12;
const ADDRESS_SLOT: i32 = 32;
const ROWS: i32 = ADDRESS_SLOTS * ADDRESS_SLOT;
const PEERS: i32 = 256;
const SUBJECTS: i32 = 16;
const SETS: i32 = ROWS + 2 * PEERS * SUBJECTS;
const MOST_SETS: i32 = 256;
pub(super) const TABLE_BYTES: u32 = (SETS + 8 * MOST_SETS) as u32;
/// The configuration: seeds, generation, time-outs by state, and the limit: the second, drops in it, drops beyond it.
const SEEDS: i32 = 0;
const EPOCH: i16 = 64;
const TIMEOUTS: i16 = 68;
const SECOND: i16 = 104;
const WITHIN: i16 = 112;
const BEYOND: i16 = 116;
pub(super) const CONFIG_BYTES: u32 = 120;
const TICKS: i32 = 250;
const PER_SECOND: i32 = 200;

const SYN: i32 = 2;
const SYN_FIN_RST: i32 = 7;
const TCP: i32 = 6;
const STATE_SHIFT: i32 = 8;

/// The minimal program for a hook and a family, with a flow table of `flow_bytes` bytes.
pub(super) fn minimal(
    hook: Direction,
    family: Family,
    flow_bytes: u32,
    descriptor: impl Fn(MapRef) -> i32,
) -> Vec<Insn> {
    let mut asm = Asm::new(Target::BASE, "minimal");
    let [drop, pass, first] = ["drop", "pass", "first packet"].map(|name| asm.label(name));
    let mut hand = Hand { asm, hook, family, mask: buckets::mask(family, flow_bytes) as i32 };
    hand.parse(drop);
    hand.home();
    hand.find(first, drop);
    hand.asm.jump(pass);
    hand.asm.bind(first);
    hand.keep(drop);
    hand.judge(drop);
    hand.insert();
    hand.asm.bind(pass);
    hand.count(0);
    hand.asm.mov(Reg::R0, -1);
    hand.asm.exit();
    hand.asm.bind(drop);
    hand.count(1);
    hand.limit();
    hand.asm.mov(Reg::R0, 2);
    hand.asm.exit();
    hand.asm.assemble().expect("a program").link(descriptor)
}

struct Hand {
    asm: Asm,
    hook: Direction,
    family: Family,
    mask: i32,
}

/// On the stack: the key of a helper, the home's place, the ends, the addresses as a slot has them.
const KEY: i16 = -4;
const PLACE: i16 = -16;
const ENDS: i16 = -24;
const REMOTE: i16 = -40;
const LOCAL: i16 = -56;

impl Hand {
    fn offsets(&self) -> [i16; 4] {
        let (source, destination, next, transport) = match self.family {
            Family::V4 => (26, 30, 23, 34),
            Family::V6 => (22, 38, 20, 54),
        };
        let is_in = self.hook == Direction::Ingress;
        let (remote, local) = if is_in { (source, destination) } else { (destination, source) };
        [remote, local, next, transport]
    }

    /// r2 = packet start, r1 = interface, r7 = ports.
    fn parse(&mut self, drop: Label) {
        let [_, _, next, transport] = self.offsets();
        let asm = &mut self.asm;
        asm.mov(Reg::R6, Reg::R1);
        asm.load(Size::W, Reg::R1, Reg::R6, field::VLAN_PRESENT);
        asm.jump_if(Cond::Ne, Reg::R1, 0, drop);
        let ether_type = if self.family == Family::V4 { 0x0800_u16 } else { 0x86dd };
        asm.load(Size::W, Reg::R1, Reg::R6, field::PROTOCOL);
        asm.jump_if(Cond::Ne, Reg::R1, i32::from(ether_type.to_be()), drop);
        asm.load(Size::W, Reg::R2, Reg::R6, field::DATA);
        asm.load(Size::W, Reg::R3, Reg::R6, field::DATA_END);
        asm.mov(Reg::R4, Reg::R2);
        asm.alu(AluOp::Add, Reg::R4, i32::from(transport) + 20);
        asm.jump_if(Cond::Gt, Reg::R4, Reg::R3, drop);
        asm.load(Size::B, Reg::R1, Reg::R2, 14);
        if self.family == Family::V4 {
            asm.jump_if(Cond::Ne, Reg::R1, 0x45, drop);
            asm.load(Size::H, Reg::R1, Reg::R2, 20);
            asm.jump_if(Cond::Set, Reg::R1, i32::from(0x3fff_u16.to_be()), drop);
        } else {
            asm.alu(AluOp::Rsh, Reg::R1, 4);
            asm.jump_if(Cond::Ne, Reg::R1, 6, drop);
        }
        asm.load(Size::B, Reg::R1, Reg::R2, next);
        asm.jump_if(Cond::Ne, Reg::R1, TCP, drop);
        asm.load(Size::W, Reg::R7, Reg::R2, transport);
        if self.hook == Direction::Egress {
            asm.mov32(Reg::R3, Reg::R7);
            asm.alu32(AluOp::Rsh, Reg::R7, 16);
            asm.alu32(AluOp::Lsh, Reg::R3, 16);
            asm.alu32(AluOp::Or, Reg::R7, Reg::R3);
        }
        asm.load(Size::W, Reg::R1, Reg::R6, field::IFINDEX);
    }

    /// r0 = offset of the home bucket, r1 = the hashed ends. Values that are needed later are spilled to the stack only
    /// when no registers are left.
    fn home(&mut self) {
        let [remote, ..] = self.offsets();
        let words = if self.family == Family::V4 { 1 } else { 4 };
        let asm = &mut self.asm;
        asm.load_map_value(Reg::R4, CONFIG, SEEDS);
        asm.load(Size::Dw, Reg::R0, Reg::R4, 0);
        asm.alu(AluOp::Add, Reg::R0, Reg::R1);
        asm.load(Size::Dw, Reg::R8, Reg::R4, 8);
        asm.alu(AluOp::Add, Reg::R8, Reg::R7);
        asm.alu(AluOp::Mul, Reg::R0, Reg::R8);
        for pair in 1..=(words + 1) / 2 {
            for (half, reg) in [(0, Reg::R8), (1, Reg::R9)] {
                let word = 2 * (pair - 1) + half;
                asm.load(Size::Dw, reg, Reg::R4, 16 * pair + 8 * half);
                if word < words {
                    asm.load(Size::W, Reg::R3, Reg::R2, remote + 4 * word);
                    asm.alu(AluOp::Add, reg, Reg::R3);
                }
            }
            asm.alu(AluOp::Mul, Reg::R8, Reg::R9);
            asm.alu(AluOp::Add, Reg::R0, Reg::R8);
        }
        asm.mov(Reg::R3, Reg::R0);
        asm.alu(AluOp::Rsh, Reg::R3, 32);
        asm.alu(AluOp::Xor, Reg::R0, Reg::R3);
        asm.constant(Reg::R3, buckets::MIX);
        asm.alu(AluOp::Mul, Reg::R0, Reg::R3);
        asm.alu(AluOp::Rsh, Reg::R0, 32);
        asm.alu(AluOp::And, Reg::R0, self.mask);
        asm.alu(AluOp::Lsh, Reg::R7, 32);
        asm.alu(AluOp::Or, Reg::R1, Reg::R7);
    }

    /// Continues if the packet belongs to a flow in force; jumps to `first` if the packet is a SYN, else to `drop`.
    fn find(&mut self, first: Label, drop: Label) {
        let [found, seen] = ["found", "seen"].map(|name| self.asm.label(name));
        let transport = self.offsets()[3];
        self.asm.load(Size::B, Reg::R3, Reg::R2, transport + 13);
        self.asm.alu(AluOp::And, Reg::R3, SYN_FIN_RST);
        self.asm.jump_if(Cond::Eq, Reg::R3, SYN, first);
        self.asm.jump_if(Cond::Ne, Reg::R3, 0, drop);
        self.ways(found);
        self.asm.jump(drop);
        self.asm.bind(found);
        self.accept(drop);
        let asm = &mut self.asm;
        asm.call(Helper::JIFFIES64);
        asm.load_map_value(Reg::R3, CONFIG, 0);
        asm.mov(Reg::R2, Reg::R8);
        asm.alu(AluOp::Rsh, Reg::R2, STATE_SHIFT - 2);
        asm.alu(AluOp::And, Reg::R2, 28);
        asm.alu(AluOp::Add, Reg::R2, Reg::R3);
        asm.load(Size::W, Reg::R2, Reg::R2, TIMEOUTS);
        asm.mov(Reg::R1, Reg::R0);
        asm.alu(AluOp::Sub, Reg::R1, Reg::R9);
        asm.jump_if(Cond::Sgt, Reg::R1, Reg::R2, drop);
        asm.alu(AluOp::Rsh, Reg::R8, 16);
        asm.alu(AluOp::And, Reg::R8, 0xffff);
        asm.load(Size::H, Reg::R2, Reg::R3, EPOCH);
        asm.jump_if(Cond::Ne, Reg::R8, Reg::R2, drop);
        asm.jump_if(Cond::Eq, Reg::R1, 0, seen);
        asm.mov(Reg::R1, Reg::R0);
        asm.mov(Reg::R0, Reg::R9);
        asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, buckets::last(self.family), Reg::R1);
        asm.bind(seen);
    }

    /// Saves the values that a new flow needs later, and jumps to `drop` if the flow exists already (a repeated first
    /// packet). r0 = the time.
    fn keep(&mut self, drop: Label) {
        let [remote, local, ..] = self.offsets();
        let asm = &mut self.asm;
        asm.store(Size::Dw, Reg::R10, PLACE, Reg::R0);
        asm.store(Size::Dw, Reg::R10, ENDS, Reg::R1);
        let (size, step, bytes) = if self.family == Family::V4 { (Size::W, 4, 4) } else { (Size::Dw, 8, 16) };
        for at in (0..bytes).step_by(step) {
            for (from, to) in [(remote, REMOTE), (local, LOCAL)] {
                asm.load(size, Reg::R3, Reg::R2, from + at);
                asm.store(size, Reg::R10, to + at, Reg::R3);
            }
        }
        self.ways(drop);
        self.asm.call(Helper::JIFFIES64);
    }

    fn step(&mut self, place: Reg, slot: Reg, way: u32) {
        let step = (way ^ way.saturating_sub(1)) * buckets::slot_bytes(self.family);
        if step != 0 {
            self.asm.alu(AluOp::Xor, place, step as i32);
        }
        self.asm.load_map_value(slot, FLOWS, 0);
        self.asm.alu(AluOp::Add, slot, place);
    }

    /// r4 = the slot whose ends are those in r1.
    fn ways(&mut self, found: Label) {
        for way in 0..WAYS {
            self.step(Reg::R0, Reg::R4, way);
            self.asm.load(Size::Dw, Reg::R7, Reg::R4, buckets::IFINDEX);
            self.asm.jump_if(Cond::Eq, Reg::R7, Reg::R1, found);
        }
    }

    /// r7 = the slot, r8 = its word, r9 = the time of its last packet.
    fn accept(&mut self, miss: Label) {
        let [remote, local, ..] = self.offsets();
        let asm = &mut self.asm;
        asm.load(Size::Dw, Reg::R7, Reg::R4, buckets::WORD);
        asm.mov(Reg::R8, Reg::R7);
        asm.alu(AluOp::And, Reg::R8, (LIVE | 0xff) as i32);
        asm.jump_if(Cond::Ne, Reg::R8, LIVE as i32 | TCP, miss);
        asm.mov(Reg::R9, Reg::R7);
        asm.alu(AluOp::And, Reg::R9, 0);
        asm.alu(AluOp::Add, Reg::R9, Reg::R4);
        asm.load(Size::Dw, Reg::R8, Reg::R9, buckets::IFINDEX);
        asm.alu(AluOp::Xor, Reg::R8, Reg::R1);
        let (size, step, bytes) = if self.family == Family::V4 { (Size::W, 4, 4) } else { (Size::Dw, 8, 16) };
        let sides = [(remote, buckets::REMOTE), (local, buckets::local(self.family))];
        for (of_packet, of_slot) in sides.into_iter().take(if self.hook == Direction::Egress { 2 } else { 1 }) {
            for at in (0..bytes).step_by(step) {
                asm.load(size, Reg::R3, Reg::R9, of_slot + at);
                asm.load(size, Reg::R5, Reg::R2, of_packet + at);
                asm.alu(AluOp::Xor, Reg::R3, Reg::R5);
                asm.alu(AluOp::Or, Reg::R8, Reg::R3);
            }
        }
        asm.load(Size::Dw, Reg::R9, Reg::R9, buckets::last(self.family));
        asm.jump_if(Cond::Ne, Reg::R8, 0, miss);
        asm.alu(AluOp::Or, Reg::R8, Reg::R9);
        asm.alu(AluOp::And, Reg::R8, 0);
        asm.alu(AluOp::Add, Reg::R8, Reg::R4);
        asm.load(Size::Dw, Reg::R8, Reg::R8, buckets::WORD);
        asm.alu(AluOp::Xor, Reg::R7, Reg::R8);
        asm.alu(AluOp::Rsh, Reg::R7, SEQUENCE_SHIFT as i32);
        asm.jump_if(Cond::Ne, Reg::R7, 0, miss);
        asm.mov(Reg::R7, Reg::R4);
    }

    /// Endpoint, source, class, atom, row, bit; r0 is the time, and then r8.
    fn judge(&mut self, drop: Label) {
        let asm = &mut self.asm;
        let words = if self.family == Family::V4 { 1 } else { 4 };
        let [other_port, known_port] = ["another port", "atom"].map(|name| asm.label(name));
        asm.mov(Reg::R8, Reg::R0);
        asm.load(Size::W, Reg::R1, Reg::R6, field::IFINDEX);
        asm.store(Size::W, Reg::R10, KEY, Reg::R1);
        asm.load_map(Reg::R1, ENDPOINTS);
        asm.mov(Reg::R2, Reg::R10);
        asm.alu(AluOp::Add, Reg::R2, i32::from(KEY));
        asm.call(Helper::MAP_LOOKUP_ELEM);
        asm.jump_if(Cond::Eq, Reg::R0, 0, drop);
        if self.hook == Direction::Egress {
            for word in 0..words {
                asm.load(Size::W, Reg::R1, Reg::R10, LOCAL + 4 * word);
                asm.load(Size::W, Reg::R2, Reg::R0, OWN + 4 * word);
                asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, drop);
            }
        } else {
            asm.load(Size::W, Reg::R1, Reg::R6, field::INGRESS_IFINDEX);
            asm.jump_if(Cond::Eq, Reg::R1, 0, drop);
        }
        asm.load(Size::W, Reg::R9, Reg::R0, SUBJECT);
        asm.mov(Reg::R1, 0);
        asm.constant(Reg::R2, buckets::MIX);
        for word in 0..words {
            asm.load(Size::W, Reg::R3, Reg::R10, REMOTE + 4 * word);
            asm.alu(AluOp::Xor, Reg::R1, Reg::R3);
            asm.alu(AluOp::Mul, Reg::R1, Reg::R2);
        }
        asm.alu(AluOp::Rsh, Reg::R1, 32);
        asm.alu(AluOp::And, Reg::R1, ADDRESS_SLOT * (ADDRESS_SLOTS - 1));
        asm.load_map_value(Reg::R2, TABLES, 0);
        asm.alu(AluOp::Add, Reg::R2, Reg::R1);
        for word in 0..words {
            asm.load(Size::W, Reg::R3, Reg::R10, REMOTE + 4 * word);
            asm.load(Size::W, Reg::R4, Reg::R2, 4 * word);
            asm.jump_if(Cond::Ne, Reg::R3, Reg::R4, drop);
        }
        asm.load(Size::W, Reg::R1, Reg::R2, 16);
        asm.jump_if(Cond::Ge, Reg::R1, PEERS, drop);
        asm.jump_if(Cond::Ge, Reg::R9, SUBJECTS, drop);
        asm.alu(AluOp::Mul, Reg::R9, PEERS);
        asm.alu(AluOp::Add, Reg::R9, Reg::R1);
        asm.alu(AluOp::Lsh, Reg::R9, 1);
        asm.load_map_value(Reg::R2, TABLES, ROWS);
        asm.alu(AluOp::Add, Reg::R2, Reg::R9);
        asm.load(Size::H, Reg::R1, Reg::R2, 0);
        asm.jump_if(Cond::Ge, Reg::R1, MOST_SETS, drop);
        asm.alu(AluOp::Lsh, Reg::R1, 3);
        asm.load_map_value(Reg::R2, TABLES, SETS);
        asm.alu(AluOp::Add, Reg::R2, Reg::R1);
        asm.load(Size::Dw, Reg::R1, Reg::R2, 0);
        let port = if self.hook == Direction::Ingress { ENDS + 6 } else { ENDS + 4 };
        asm.load(Size::H, Reg::R2, Reg::R10, port);
        asm.swap_be(weir_ebpf::insn::SwapBits::B16, Reg::R2);
        // The comparisons of a binary tree with 16 leaves.
        asm.jump_if(Cond::Gt, Reg::R2, i32::from(PORT) + 4_000, other_port);
        asm.jump_if(Cond::Lt, Reg::R2, i32::from(PORT) - 4_000, other_port);
        asm.jump_if(Cond::Gt, Reg::R2, i32::from(PORT) + 400, other_port);
        asm.jump_if(Cond::Lt, Reg::R2, i32::from(PORT) - 400, other_port);
        asm.alu(AluOp::Rsh, Reg::R1, 3);
        asm.jump(known_port);
        asm.bind(other_port);
        asm.alu(AluOp::Rsh, Reg::R1, 2);
        asm.bind(known_port);
        asm.alu(AluOp::And, Reg::R1, 1);
        asm.jump_if(Cond::Eq, Reg::R1, 0, drop);
    }

    /// Writes the flow into the first free slot of the bucket; if the bucket is full, the flow is not stored. r8 is the
    /// time.
    fn insert(&mut self) {
        let [free, done] = ["free", "not kept"].map(|name| self.asm.label(name));
        self.asm.load(Size::Dw, Reg::R0, Reg::R10, PLACE);
        self.asm.alu(AluOp::And, Reg::R0, self.mask);
        for way in 0..WAYS {
            self.step(Reg::R0, Reg::R7, way);
            self.asm.load(Size::Dw, Reg::R9, Reg::R7, buckets::WORD);
            self.asm.mov(Reg::R1, Reg::R9);
            self.asm.alu(AluOp::And, Reg::R1, 0xff00);
            self.asm.jump_if(Cond::Eq, Reg::R1, 0, free);
        }
        self.asm.jump(done);
        self.asm.bind(free);
        let asm = &mut self.asm;
        asm.mov(Reg::R0, Reg::R9);
        asm.alu(AluOp::Rsh, Reg::R9, SEQUENCE_SHIFT as i32);
        asm.alu(AluOp::Add, Reg::R9, 1);
        asm.alu(AluOp::Lsh, Reg::R9, SEQUENCE_SHIFT as i32);
        asm.mov(Reg::R1, Reg::R9);
        asm.alu(AluOp::Or, Reg::R1, 1 << STATE_SHIFT);
        asm.mov(Reg::R2, Reg::R0);
        asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, buckets::WORD, Reg::R1);
        asm.jump_if(Cond::Ne, Reg::R0, Reg::R2, done);
        asm.load(Size::Dw, Reg::R1, Reg::R10, ENDS);
        asm.store(Size::Dw, Reg::R7, buckets::IFINDEX, Reg::R1);
        let (size, step, bytes) = if self.family == Family::V4 { (Size::W, 4, 4) } else { (Size::Dw, 8, 16) };
        for at in (0..bytes).step_by(step) {
            for (from, to) in [(REMOTE, buckets::REMOTE), (LOCAL, buckets::local(self.family))] {
                asm.load(size, Reg::R1, Reg::R10, from + at);
                asm.store(size, Reg::R7, to + at, Reg::R1);
            }
        }
        asm.store(Size::Dw, Reg::R7, buckets::last(self.family), Reg::R8);
        asm.load_map_value(Reg::R1, CONFIG, 0);
        asm.load(Size::H, Reg::R1, Reg::R1, EPOCH);
        asm.alu(AluOp::Lsh, Reg::R1, 16);
        asm.alu(AluOp::Or, Reg::R9, Reg::R1);
        asm.alu(AluOp::Or, Reg::R9, LIVE as i32 | TCP);
        asm.atomic(AtomicOp::Xchg, Width::W64, Reg::R7, buckets::WORD, Reg::R9);
        asm.bind(done);
    }

    fn count(&mut self, number: i32) {
        let asm = &mut self.asm;
        let done = asm.label("counted");
        asm.store(Size::W, Reg::R10, KEY, number);
        asm.load_map(Reg::R1, COUNTERS);
        asm.mov(Reg::R2, Reg::R10);
        asm.alu(AluOp::Add, Reg::R2, i32::from(KEY));
        asm.call(Helper::MAP_LOOKUP_ELEM);
        asm.jump_if(Cond::Eq, Reg::R0, 0, done);
        asm.load(Size::Dw, Reg::R1, Reg::R0, 0);
        asm.alu(AluOp::Add, Reg::R1, 1);
        asm.store(Size::Dw, Reg::R0, 0, Reg::R1);
        asm.load(Size::W, Reg::R2, Reg::R6, field::LEN);
        asm.load(Size::Dw, Reg::R1, Reg::R0, 8);
        asm.alu(AluOp::Add, Reg::R1, Reg::R2);
        asm.store(Size::Dw, Reg::R0, 8, Reg::R1);
        asm.bind(done);
    }

    /// The limit for records per second. No records are written here; drops are only counted.
    fn limit(&mut self) {
        let asm = &mut self.asm;
        let [within, beyond, done] = ["within the second", "beyond", "told"].map(|name| asm.label(name));
        asm.call(Helper::JIFFIES64);
        asm.load_map_value(Reg::R7, CONFIG, 0);
        asm.load(Size::Dw, Reg::R1, Reg::R7, SECOND);
        asm.mov(Reg::R2, Reg::R0);
        asm.alu(AluOp::Sub, Reg::R2, Reg::R1);
        asm.jump_if(Cond::Lt, Reg::R2, TICKS, within);
        asm.store(Size::Dw, Reg::R7, SECOND, Reg::R0);
        asm.store(Size::W, Reg::R7, WITHIN, 0);
        asm.bind(within);
        asm.load(Size::W, Reg::R1, Reg::R7, WITHIN);
        asm.jump_if(Cond::Ge, Reg::R1, PER_SECOND, beyond);
        asm.mov(Reg::R1, 1);
        asm.atomic(AtomicOp::Add, Width::W32, Reg::R7, WITHIN, Reg::R1);
        asm.jump(done);
        asm.bind(beyond);
        asm.mov(Reg::R1, 1);
        asm.atomic(AtomicOp::Add, Width::W32, Reg::R7, BEYOND, Reg::R1);
        asm.bind(done);
    }
}

/// The tables, with the addresses that may begin flows. Two addresses must not hash to the same place.
pub(super) fn tables(allowed: &[IpAddr]) -> Vec<u8> {
    const CLASS: u32 = 3;
    const SET: u16 = 5;
    let mut bytes = vec![0; TABLE_BYTES as usize];
    for address in allowed {
        let octets = weir_artifact::layout::address_bytes(*address);
        let words = octets.as_chunks().0.iter().map(|it| u64::from(u32::from_le_bytes(*it)));
        let mixed = words.fold(0u64, |sum, word| (sum ^ word).wrapping_mul(buckets::MIX));
        let place = (mixed >> 32) as usize & (ADDRESS_SLOT * (ADDRESS_SLOTS - 1)) as usize;
        assert!(bytes[place..place + 20].iter().all(|it| *it == 0), "another place for each");
        bytes[place..place + octets.len()].copy_from_slice(&octets);
        bytes[place + 16..place + 20].copy_from_slice(&CLASS.to_le_bytes());
    }
    let row = ROWS as usize + 2 * CLASS as usize;
    bytes[row..row + 2].copy_from_slice(&SET.to_le_bytes());
    let set = SETS as usize + 8 * SET as usize;
    bytes[set..set + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    bytes
}

/// The seeds, and time-outs that no flow reaches.
pub(super) fn config() -> Vec<u8> {
    let mut bytes: Vec<u8> = buckets::KNOWN_SEEDS.iter().flat_map(|it| it.to_le_bytes()).collect();
    bytes.resize(CONFIG_BYTES as usize, 0);
    for state in 0..8 {
        let at = TIMEOUTS as usize + 4 * state;
        bytes[at..at + 4].copy_from_slice(&1_000_000_u32.to_le_bytes());
    }
    bytes
}

/// An endpoint of subject class 0 with this address.
pub(super) fn endpoint(own: IpAddr) -> Vec<u8> {
    let mut bytes = vec![0; ENDPOINT_BYTES as usize];
    let octets = weir_artifact::layout::address_bytes(own);
    bytes[OWN as usize..OWN as usize + octets.len()].copy_from_slice(&octets);
    bytes
}
