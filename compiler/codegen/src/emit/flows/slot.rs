//! A slot of the flow table: the one emitter of the protocol by which programs find, read and change a slot.
//! [`weir_artifact::layout::buckets`] explains the protocol, and why a program never takes one flow for another.
//!
//! Problem: the fast path finds a flow by the packet's headers, before the stack is in use. The slow path and ICMP
//! errors find it by a key on the stack. A protocol without locks must not be written twice: a mistake in one copy is
//! a race that no ordinary test meets. Strategy: a [`SlotReader`] says where the key is and which register is free, and
//! everything else is emitted by the same functions for both paths.
//!
//! | register | holds |
//! | --- | --- |
//! | r0 | [`PLACE`]: the place of the slot in the table |
//! | r1 | [`ENDS`]: interface and ports, as a slot has them |
//! | r3 | [`ADDRESSES`]: for IPv4, the other end's address, and the pod's in the upper half |
//! | r4 | [`SLOT`]: the slot that is read |
//! | r5 | [`WANTED`]: the bits that the word must have, the protocol and [`LIVE`] |
//! | r7 | [`FIRST`]: the word as it was read first |
//! | r8 | [`AGAIN`]: the word as it was read again |
//! | r9 | [`REST`]: the pointer to the rest of the slot; afterwards the time of the last packet |
//!
//! Tests: `compiler/codegen/tests/buckets` (the protocol, in all orders), `compiler/codegen/tests/datapath/slots.rs`
//! (both paths, with a slot that changes between any two reads), `runtime-bpf/tests/stress` (in the kernel, on all
//! CPUs).

use crate::emit::Emitter;
use crate::emit::frame::{FlowKey, StackFrame};
use crate::emit::hash::HashPart;
use weir_artifact::layout::MapName;
use weir_artifact::layout::buckets::{self, LIVE, SEQUENCE_SHIFT, STATE_SHIFT, WORD, shape};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use weir_objects::address::Family;

pub(super) const PLACE: Reg = Reg::R0;
pub(super) const ENDS: Reg = Reg::R1;
const ADDRESSES: Reg = Reg::R3;
pub(super) const SLOT: Reg = Reg::R4;
pub(super) const WANTED: Reg = Reg::R5;
pub(super) const FIRST: Reg = Reg::R7;
pub(super) const AGAIN: Reg = Reg::R8;
pub(super) const REST: Reg = Reg::R9;
/// The ports, until they are part of [`ENDS`]. [`FIRST`] takes their place.
pub(super) const PORTS: Reg = Reg::R7;

/// What differs between the readers of a slot: where the key's addresses are, and what happens to the pod's address.
#[derive(Clone, Copy)]
pub(super) struct SlotReader {
    family: Family,
    /// The memory that holds the addresses: the packet or the stack.
    base: Reg,
    /// The offset of the other end's address in it.
    remote: i16,
    /// The offset of the pod's address in it.
    local: i16,
    /// A register for a part of the slot.
    part: Reg,
    /// Whether a slot with another local address is refused. Otherwise `part` is 0 afterwards if the address is the
    /// flow's too.
    refuses_other_local: bool,
}

impl SlotReader {
    /// The fast path: r2 points to the packet, with the addresses at these offsets.
    pub(super) fn in_packet(family: Family, remote: i16, local: i16) -> Self {
        // IPv6 addresses are compared from the packet, so r2 is in use. r0 is not: a packet whose slot is refused takes
        // the slow path, and that does not need the place. For IPv4, r0 would do as well.
        let part = if family == Family::V4 { Reg::R2 } else { Reg::R0 };
        Self { family, base: Reg::R2, remote, local, part, refuses_other_local: true }
    }

    /// The slow path: a key on the stack, `moved` bytes after that of the packet. The local address is the packet's.
    pub(super) fn on_stack(family: Family, moved: i16) -> Self {
        // r0 must be kept: if the slot is refused, the reader continues with the next way. The local address is
        // reported, because a packet to another address of the flow's interface may begin a flow that replaces this
        // one.
        let (remote, local) = (FlowKey::REMOTE + moved, StackFrame::LOCAL);
        Self { family, base: Reg::R10, remote, local, part: Reg::R2, refuses_other_local: false }
    }
}

impl Emitter<'_> {
    pub(super) fn bucket_map(&self, family: Family) -> MapName {
        match family {
            Family::V4 => MapName::FlowBuckets4,
            Family::V6 => MapName::FlowBuckets6,
        }
    }

    /// `reg` = the bits of a hash that are the place of a slot.
    // Verifier: the table of sizes is frozen, so the verifier takes a load from it as a known number since Linux 5.5
    // (https://git.kernel.org/linus/a23740ec43ba022dbfd139d0fe3eff193216272b). Thus the sizes of the tables can change
    // without another program, and places still have bounds.
    pub(in crate::emit) fn load_mask(&mut self, family: Family, reg: Reg) {
        let at = if family == Family::V4 { shape::V4 } else { shape::V6 };
        self.point_to(reg, MapName::FlowShape, at);
        self.asm.load(Size::Dw, reg, reg, 0);
    }

    /// r1 is the interface, r7 the ports, r5 the protocol. r0 = the home slot's place; r1, r3 and r5 as in the table
    /// above. r7 to r9 are overwritten.
    pub(super) fn find_home(&mut self, reader: SlotReader) {
        let SlotReader { family, base, remote, local, .. } = reader;
        self.load_seeds();
        let ends = [HashPart::Kept { part: ENDS, into: Reg::R0 }, HashPart::Kept { part: PORTS, into: Reg::R8 }];
        self.first_product(ends, Reg::R8);
        match family {
            Family::V4 => {
                self.asm.load(Size::W, ADDRESSES, base, remote);
                let [address, protocol] = [(ADDRESSES, Reg::R8), (WANTED, Reg::R9)];
                let parts = [address, protocol].map(|(part, into)| HashPart::Kept { part, into });
                self.add_product(1, parts, Reg::R8);
            }
            Family::V6 => {
                for pair in 1..=2 {
                    let at = remote + 8 * (pair - 1);
                    self.asm.load(Size::W, Reg::R3, base, at);
                    self.asm.load(Size::W, Reg::R9, base, at + 4);
                    let words = [HashPart::Kept { part: Reg::R3, into: Reg::R8 }, HashPart::Spent(Reg::R9)];
                    self.add_product(pair, words, Reg::R3);
                }
                let protocol = HashPart::Kept { part: WANTED, into: Reg::R8 };
                self.add_product(3, [protocol, HashPart::Absent { into: Reg::R9 }], Reg::R3);
            }
        }
        self.mix_sum(Reg::R4);
        // The best mixed bits of a product are the upper ones.
        self.asm.alu(AluOp::Rsh, PLACE, 32);
        self.load_mask(family, Reg::R4);
        self.asm.alu(AluOp::And, PLACE, Reg::R4);
        self.asm.alu(AluOp::Lsh, PORTS, 32);
        self.asm.alu(AluOp::Or, ENDS, PORTS);
        self.asm.alu(AluOp::Or, WANTED, LIVE as i32);
        if family == Family::V4 {
            self.asm.load(Size::W, Reg::R9, base, local);
            self.asm.alu(AluOp::Lsh, Reg::R9, 32);
            self.asm.alu(AluOp::Or, ADDRESSES, Reg::R9);
        }
    }

    /// `place` = the next way of its bucket, `slot` = a pointer to it. The ways must be visited in order, from 0 on.
    // The way's number is combined by exclusive or: the slots stay in the bucket wherever the home slot is, all
    // programs visit them in the same order, and the place needs no mask again.
    pub(super) fn step_to(&mut self, place: Reg, slot: Reg, family: Family, way: u32) {
        // From way `n - 1` to way `n`, all bits change in which the two numbers differ.
        let step = (way ^ way.saturating_sub(1)) * buckets::slot_bytes(family);
        if step != 0 {
            self.asm.alu(AluOp::Xor, place, step as i32);
        }
        // The pointer is made from the map each time. Verifier: it forbids exclusive or with a pointer.
        self.point_to(slot, self.bucket_map(family), 0);
        self.asm.alu(AluOp::Add, slot, place);
    }

    /// Steps to this way and goes to `to` if its interface and ports compare with the packet's like this.
    // This load is outside of the protocol: it only chooses the slot that is worth reading. A stale value costs a miss,
    // never a wrong hit, because `accept_slot` reads the field again.
    pub(super) fn compare_ends(&mut self, reader: SlotReader, way: u32, cond: Cond, to: Label) {
        self.step_to(PLACE, SLOT, reader.family, way);
        self.asm.load(Size::Dw, FIRST, SLOT, buckets::IFINDEX);
        self.asm.jump_if(cond, FIRST, ENDS, to);
    }

    /// Reads the slot r4. Falls through if it holds the flow: r8 is its word, r9 the time of its last packet. Else goes
    /// to `refused`. r1, r4 and r5 are kept, r3 and r0 unless they are the reader's scratch.
    pub(super) fn accept_slot(&mut self, reader: SlotReader, refused: Label) {
        self.asm.load(Size::Dw, FIRST, SLOT, WORD);
        // The protocol number is in the word's lowest byte, so one compare checks it and that the slot is live.
        self.asm.mov(AGAIN, FIRST);
        self.asm.alu(AluOp::And, AGAIN, (LIVE | 0xff) as i32);
        self.asm.jump_if(Cond::Ne, AGAIN, WANTED, refused);
        // The address of the following loads now depends on the word, so no processor performs them before the load of
        // the word. A branch would not do: arm64 may load ahead of an undecided branch (*Control dependencies* in
        // https://github.com/torvalds/linux/blob/v6.18/Documentation/memory-barriers.txt). BPF got a load with acquire
        // semantics in Linux 6.15 only (https://git.kernel.org/linus/880442305a39), and it has no instruction for a
        // read barrier.
        self.asm.mov(REST, FIRST);
        self.depend_on(REST);
        self.asm.load(Size::Dw, AGAIN, REST, buckets::IFINDEX);
        self.asm.alu(AluOp::Xor, AGAIN, ENDS);
        let difference = self.compare_addresses(reader, refused);
        // The second load of the word depends on all of these loads, so it is performed last.
        if difference == AGAIN {
            self.asm.alu(AluOp::Or, AGAIN, REST);
        } else {
            self.asm.mov(AGAIN, REST);
            self.asm.alu(AluOp::Or, AGAIN, difference);
        }
        self.depend_on(AGAIN);
        self.asm.load(Size::Dw, AGAIN, AGAIN, WORD);
        // Only the sequence numbers are compared. The rest of the word may change while the slot keeps its flow, and a
        // change of it since is no reason to refuse the slot.
        self.asm.alu(AluOp::Xor, FIRST, AGAIN);
        self.asm.alu(AluOp::Rsh, FIRST, SEQUENCE_SHIFT as i32);
        self.asm.jump_if(Cond::Ne, FIRST, 0, refused);
    }

    /// `reg` = r4, computed from the value in `reg`.
    fn depend_on(&mut self, reg: Reg) {
        self.asm.alu(AluOp::And, reg, 0);
        self.asm.alu(AluOp::Add, reg, SLOT);
    }

    /// r8 is the difference of interface and ports. Falls through if it is zero and the addresses are the packet's,
    /// else goes to `refused`. r9 = the time. Returns the register that depends on all loads but that of the time.
    fn compare_addresses(&mut self, reader: SlotReader, refused: Label) -> Reg {
        let SlotReader { family, remote, local, part, refuses_other_local, .. } = reader;
        match family {
            // One load for both addresses: they are next to each other, the other end's in the lower half.
            Family::V4 => {
                self.asm.load(Size::Dw, part, REST, buckets::REMOTE);
                self.asm.alu(AluOp::Xor, part, ADDRESSES);
            }
            Family::V6 => self.add_difference(reader, [AGAIN, part], buckets::REMOTE, remote),
        }
        let difference = if refuses_other_local { AGAIN } else { part };
        if !refuses_other_local {
            self.asm.jump_if(Cond::Ne, AGAIN, 0, refused);
        }
        match (family, refuses_other_local) {
            (Family::V4, true) => self.asm.alu(AluOp::Or, AGAIN, part),
            (Family::V4, false) => {
                self.asm.alu(AluOp::Or, part, AGAIN);
                self.asm.jump_if32(Cond::Ne, part, 0, refused);
            }
            (Family::V6, true) => self.add_difference(reader, [AGAIN, part], buckets::local(family), local),
            (Family::V6, false) => {
                self.asm.mov(part, AGAIN);
                self.add_difference(reader, [part, AGAIN], buckets::local(family), local);
            }
        }
        self.asm.load(Size::Dw, REST, REST, buckets::last(family));
        if refuses_other_local {
            self.asm.jump_if(Cond::Ne, AGAIN, 0, refused);
        }
        difference
    }

    /// `sum` |= the difference between an IPv6 address of the slot and the packet's; `part` is overwritten.
    fn add_difference(&mut self, reader: SlotReader, [sum, part]: [Reg; 2], of_slot: i16, of_packet: i16) {
        for offset in [0, 8] {
            self.asm.load(Size::Dw, part, REST, of_slot + offset);
            self.asm.load(Size::Dw, Reg::R3, reader.base, of_packet + offset);
            self.asm.alu(AluOp::Xor, part, Reg::R3);
            self.asm.alu(AluOp::Or, sum, part);
        }
    }

    /// `word` = the time-out of the state in the word. `config` points to the configuration, whose time-outs are at
    /// `offset`.
    pub(super) fn timeout_of(&mut self, word: Reg, config: Reg, offset: i16) {
        // The state is shifted to the place of an index of four bytes, and masked there: one instruction less than to
        // extract it first. Verifier: the mask bounds the offset.
        self.asm.alu(AluOp::Rsh, word, STATE_SHIFT as i32 - 2);
        self.asm.alu(AluOp::And, word, 7 << 2);
        self.asm.alu(AluOp::Add, word, config);
        self.asm.load(Size::W, word, word, offset);
    }

    /// Replaces the word of `slot` by `new` if it is r0; r0 = the old word.
    // Every change of a word goes through this instruction (the publication alone does not need to compare). A plain
    // store could hit a flow that another CPU has put into the slot since.
    pub(super) fn exchange_word(&mut self, slot: Reg, new: Reg) {
        // Fully ordered, on success (https://github.com/torvalds/linux/blob/v6.18/Documentation/atomic_t.txt): what
        // follows a claim is not written before it.
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, slot, WORD, new);
    }

    /// Turns the word in `reg` into that of a free slot with the next sequence number.
    pub(super) fn next_number(&mut self, reg: Reg) {
        self.asm.alu(AluOp::Rsh, reg, SEQUENCE_SHIFT as i32);
        self.asm.alu(AluOp::Add, reg, 1);
        self.asm.alu(AluOp::Lsh, reg, SEQUENCE_SHIFT as i32);
    }

    /// r7 is the slot. Changes the time of the last packet from r9 to `now`. The compare-and-swap expects r9, so if the
    /// slot has got another flow since, that flow keeps its own time. r0 and r1 are overwritten.
    pub(super) fn touch_slot(&mut self, family: Family, now: Reg) {
        let seen = self.asm.label("seen in this tick");
        // At most one write a tick: an atomic instruction on a shared cache line costs more than the rest of the fast
        // path if several CPUs carry the same flow.
        self.asm.jump_if(Cond::Eq, Reg::R9, now, seen);
        self.asm.mov(Reg::R1, now);
        self.asm.mov(Reg::R0, Reg::R9);
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, buckets::last(family), Reg::R1);
        self.asm.bind(seen);
    }
}
