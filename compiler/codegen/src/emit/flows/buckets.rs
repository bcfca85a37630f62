//! The slot protocol: how programs read and change a slot of the flow table. [`weir_artifact::layout::buckets`] has the layout,
//! and explains why a program never takes one flow for another.
//!
//! | after a look-up | holds |
//! | --- | --- |
//! | r7 | the slot |
//! | r9 | the time of the last packet |
//! | `WORD` | the slot's word as it was accepted; every change of the word expects this value |
//! | `SLOT` | of a flow that was not found: its home |
//!
//! A hit changes only the time, at most once a tick, so it usually needs no atomic instruction.

use super::{BEYOND_EPOCH, FIN, FIN_OR_RST, RST};
use weir_objects::address::Family;
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use crate::emit::frame::{Frame, Key};
use crate::emit::parse::{TCP, key};
use crate::emit::{Emitter, map_ref};
use weir_artifact::layout::buckets::{ANSWERED, BEGUN, EPOCH_BITS, EPOCH_SHIFT, FIN_OF_BEGINNER, FIN_OF_OTHER, LIVE, SEQUENCE_SHIFT, STATE_SHIFT, WAYS, WORD, self, shape};
use weir_artifact::layout::{MapName, Outcome, State, config};
use weir_model::Direction;

/// The stack offset of the byte of `WORD` that holds the state.
const FLAGS: i16 = Frame::WORD + STATE_SHIFT as i16 / 8;

impl Emitter<'_> {
    pub(super) fn bucket_map(&self, family: Family) -> MapName {
        match family {
            Family::V4 => MapName::FlowBuckets4,
            Family::V6 => MapName::FlowBuckets6,
        }
    }

    /// Falls through with the slot of the flow whose key is at `at` on the stack, or goes to `miss`. After a hit, r8 is
    /// 0 if the packet's local address is the flow's.
    pub(in crate::emit) fn look_up_flow(&mut self, family: Family, at: i16, miss: Label) {
        let found = self.asm.label("found");
        let moved = at - Frame::KEY;
        self.hash_flow(family, moved);
        if moved == 0 {
            self.asm.store(Size::Dw, Reg::R10, Frame::SLOT, Reg::R0);
            self.store_constant(Frame::TAKES, 0);
        }
        for way in 0..WAYS {
            let next = self.asm.label("next way");
            self.step_to(Reg::R0, Reg::R4, family, way);
            self.asm.load(Size::Dw, Reg::R7, Reg::R4, buckets::IFINDEX);
            self.asm.jump_if(Cond::Ne, Reg::R7, Reg::R1, next);
            self.accept(family, moved, next);
            self.asm.jump(found);
            self.asm.bind(next);
        }
        self.asm.jump(miss);
        self.asm.bind(found);
        self.asm.mov(Reg::R7, Reg::R4);
        self.asm.store(Size::Dw, Reg::R10, Frame::WORD, Reg::R8);
        self.asm.mov(Reg::R8, Reg::R2);
    }

    /// r0 = the home slot's place, r1 = interface and ports, r3 = for IPv4 the other end's address and the pod's, r5 =
    /// the bits that the word must have: the protocol and [`LIVE`].
    fn hash_flow(&mut self, family: Family, moved: i16) {
        let key = key(family);
        self.asm.load(Size::W, Reg::R1, Reg::R10, Key::IFINDEX + moved);
        self.asm.load(Size::W, Reg::R2, Reg::R10, key.remote_port + moved);
        self.asm.load(Size::W, Reg::R5, Reg::R10, key.protocol + moved);
        self.asm.load_map_value(Reg::R4, map_ref(MapName::Config), config::SEEDS);
        self.asm.mov(Reg::R0, Reg::R1);
        self.asm.mov(Reg::R7, Reg::R2);
        self.multiply(0);
        let words = if family == Family::V4 { 1 } else { 4 };
        for pair in 1..=(words + 1) / 2 {
            let (first, second) = (2 * pair - 2, 2 * pair - 1);
            self.asm.load(Size::W, Reg::R3, Reg::R10, Key::REMOTE + moved + 4 * first);
            self.asm.mov(Reg::R9, Reg::R3);
            if second < words {
                self.asm.load(Size::W, Reg::R7, Reg::R10, Key::REMOTE + moved + 4 * second);
            } else {
                self.asm.mov(Reg::R7, Reg::R5);
            }
            self.multiply_more(pair);
        }
        if family == Family::V6 {
            self.asm.mov(Reg::R9, Reg::R5);
            self.asm.mov(Reg::R7, 0);
            self.multiply_more(3);
        }
        self.mix_hash(family);
        self.asm.alu(AluOp::Lsh, Reg::R2, 32);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::Or, Reg::R5, LIVE as i32);
        if family == Family::V4 {
            self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::LOCAL);
            self.asm.alu(AluOp::Lsh, Reg::R2, 32);
            self.asm.alu(AluOp::Or, Reg::R3, Reg::R2);
        }
    }

    /// Turns r0, a sum of products, into a place in the table. r4 is overwritten.
    pub(super) fn mix_hash(&mut self, family: Family) {
        self.asm.mov(Reg::R4, Reg::R0);
        self.asm.alu(AluOp::Rsh, Reg::R4, 32);
        self.asm.alu(AluOp::Xor, Reg::R0, Reg::R4);
        self.asm.constant(Reg::R4, buckets::MIX);
        self.asm.alu(AluOp::Mul, Reg::R0, Reg::R4);
        self.asm.alu(AluOp::Rsh, Reg::R0, 32);
        // Verifier: the table of sizes is frozen, so the verifier (from 5.5 on) takes a load from it as a known number.
        self.load_mask(family, Reg::R4);
        self.asm.alu(AluOp::And, Reg::R0, Reg::R4);
    }

    /// r0 = (r0 + seed) × (r7 + seed); r4 points to the seeds.
    fn multiply(&mut self, pair: i16) {
        let at = 16 * pair;
        self.asm.load(Size::Dw, Reg::R8, Reg::R4, at);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R8);
        self.asm.load(Size::Dw, Reg::R8, Reg::R4, at + 8);
        self.asm.alu(AluOp::Add, Reg::R7, Reg::R8);
        self.asm.alu(AluOp::Mul, Reg::R0, Reg::R7);
    }

    /// r0 += (r9 + seed) × (r7 + seed)
    fn multiply_more(&mut self, pair: i16) {
        let at = 16 * pair;
        self.asm.load(Size::Dw, Reg::R8, Reg::R4, at);
        self.asm.alu(AluOp::Add, Reg::R9, Reg::R8);
        self.asm.load(Size::Dw, Reg::R8, Reg::R4, at + 8);
        self.asm.alu(AluOp::Add, Reg::R7, Reg::R8);
        self.asm.alu(AluOp::Mul, Reg::R9, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R9);
    }

    pub(in crate::emit) fn load_mask(&mut self, family: Family, reg: Reg) {
        let at = if family == Family::V4 { shape::V4 } else { shape::V6 };
        self.asm.load_map_value(reg, map_ref(MapName::FlowShape), at);
        self.asm.load(Size::Dw, reg, reg, 0);
    }

    /// `place` = the next way of its bucket, `slot` = a pointer to it. The ways must be visited in order, from 0 on.
    pub(super) fn step_to(&mut self, place: Reg, slot: Reg, family: Family, way: u32) {
        let step = (way ^ way.saturating_sub(1)) * buckets::slot_bytes(family);
        if step != 0 {
            self.asm.alu(AluOp::Xor, place, step as i32);
        }
        self.asm.load_map_value(slot, map_ref(self.bucket_map(family)), 0);
        self.asm.alu(AluOp::Add, slot, place);
    }

    /// r4 points to a slot whose interface and ports matched. Falls through if the slot holds the flow, with its word
    /// in r8, the time in r9, and r2 = 0 if the packet's local address is the flow's too; else goes to `next`. r3 must
    /// be as [`Self::hash_flow`] has left it. r0, r1, r4 and r5 are kept.
    fn accept(&mut self, family: Family, moved: i16, next: Label) {
        self.asm.load(Size::Dw, Reg::R7, Reg::R4, WORD);
        self.asm.mov(Reg::R8, Reg::R7);
        self.asm.alu(AluOp::And, Reg::R8, (LIVE | 0xff) as i32);
        self.asm.jump_if(Cond::Ne, Reg::R8, Reg::R5, next);
        // The address of the following loads now depends on the word, so no processor performs them before the load of
        // the word.
        self.asm.mov(Reg::R9, Reg::R7);
        self.asm.alu(AluOp::And, Reg::R9, 0);
        self.asm.alu(AluOp::Add, Reg::R9, Reg::R4);
        self.asm.load(Size::Dw, Reg::R8, Reg::R9, buckets::IFINDEX);
        self.asm.alu(AluOp::Xor, Reg::R8, Reg::R1);
        match family {
            Family::V4 => self.compare_v4(next),
            Family::V6 => self.compare_v6(moved, next),
        }
        // The second load of the word depends on all of these loads, so it is performed last.
        self.asm.mov(Reg::R8, Reg::R9);
        self.asm.alu(AluOp::Or, Reg::R8, Reg::R2);
        self.asm.alu(AluOp::And, Reg::R8, 0);
        self.asm.alu(AluOp::Add, Reg::R8, Reg::R4);
        self.asm.load(Size::Dw, Reg::R8, Reg::R8, WORD);
        self.asm.alu(AluOp::Xor, Reg::R7, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R7, SEQUENCE_SHIFT as i32);
        self.asm.jump_if(Cond::Ne, Reg::R7, 0, next);
    }

    /// r8 is the difference of interface and ports. Falls through if it is zero and the other end's address is the
    /// same, else goes to `next`. Afterwards r2 depends on all the loads, and r9 is the time.
    fn compare_v4(&mut self, next: Label) {
        self.asm.load(Size::Dw, Reg::R2, Reg::R9, buckets::REMOTE);
        self.asm.load(Size::Dw, Reg::R9, Reg::R9, buckets::last(Family::V4));
        self.asm.alu(AluOp::Xor, Reg::R2, Reg::R3);
        self.asm.jump_if(Cond::Ne, Reg::R8, 0, next);
        self.asm.alu(AluOp::Or, Reg::R2, Reg::R8);
        self.asm.jump_if32(Cond::Ne, Reg::R2, 0, next);
    }

    fn compare_v6(&mut self, moved: i16, next: Label) {
        for offset in [0, 8] {
            self.asm.load(Size::Dw, Reg::R2, Reg::R9, buckets::REMOTE + offset);
            self.asm.load(Size::Dw, Reg::R3, Reg::R10, Key::REMOTE + moved + offset);
            self.asm.alu(AluOp::Xor, Reg::R2, Reg::R3);
            self.asm.alu(AluOp::Or, Reg::R8, Reg::R2);
        }
        self.asm.jump_if(Cond::Ne, Reg::R8, 0, next);
        self.asm.mov(Reg::R2, Reg::R8);
        for offset in [0, 8] {
            self.asm.load(Size::Dw, Reg::R8, Reg::R9, buckets::local(Family::V6) + offset);
            self.asm.load(Size::Dw, Reg::R3, Reg::R10, Frame::LOCAL + offset);
            self.asm.alu(AluOp::Xor, Reg::R8, Reg::R3);
            self.asm.alu(AluOp::Or, Reg::R2, Reg::R8);
        }
        self.asm.load(Size::Dw, Reg::R9, Reg::R9, buckets::last(Family::V6));
    }

    /// r7 is the slot of a flow that was just looked up. r8 = the time, r1 = the old r8. Jumps to `expired` if the flow
    /// has expired.
    pub(in crate::emit) fn jump_if_expired(&mut self, expired: Label) {
        self.asm.call(Helper::JIFFIES64);
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.mov(Reg::R8, Reg::R0);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R2, Reg::R9);
        self.asm.load(Size::B, Reg::R3, Reg::R10, FLAGS);
        self.jump_if_longer(expired);
    }

    /// Replaces the slot's word `WORD` by r3. If another CPU has changed the slot in the meantime, nothing happens, and
    /// the flow's next packet tries again.
    pub(super) fn change_word(&mut self) {
        self.asm.load(Size::Dw, Reg::R0, Reg::R10, Frame::WORD);
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, WORD, Reg::R3);
    }

    /// r7 is the slot of a flow of an older generation that this generation allows too. The flow gets the epoch
    /// `EPOCH`.
    pub(in crate::emit) fn adopt(&mut self, family: Family) {
        const BELOW: i32 = 64 - EPOCH_SHIFT as i32;
        const ABOVE: i32 = (EPOCH_SHIFT + EPOCH_BITS) as i32;
        self.load_word();
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::EPOCH);
        self.asm.alu(AluOp::Lsh, Reg::R1, BEYOND_EPOCH);
        self.asm.alu(AluOp::Rsh, Reg::R1, BEYOND_EPOCH - EPOCH_SHIFT as i32);
        for [there, back] in [[AluOp::Rsh, AluOp::Lsh], [AluOp::Lsh, AluOp::Rsh]] {
            let shift = if there == AluOp::Rsh { ABOVE } else { BELOW };
            self.asm.mov(Reg::R2, Reg::R3);
            self.asm.alu(there, Reg::R2, shift);
            self.asm.alu(back, Reg::R2, shift);
            self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        }
        self.asm.mov(Reg::R3, Reg::R1);
        self.change_word();
        self.asm.store(Size::Dw, Reg::R10, Frame::WORD, Reg::R3);
        self.asm.load(Size::Dw, Reg::R9, Reg::R7, buckets::last(family));
    }

    /// Frees the slot r7.
    pub(in crate::emit) fn forget(&mut self) {
        self.load_word();
        self.next_number(Reg::R3);
        self.change_word();
    }

    /// Turns the word in `reg` into that of a free slot with the next sequence number.
    pub(super) fn next_number(&mut self, reg: Reg) {
        self.asm.alu(AluOp::Rsh, reg, SEQUENCE_SHIFT as i32);
        self.asm.alu(AluOp::Add, reg, 1);
        self.asm.alu(AluOp::Lsh, reg, SEQUENCE_SHIFT as i32);
    }

    /// r7 is the slot of a flow in force, r8 the time, r9 the time of its last packet. Updates the flow's state and
    /// passes the packet.
    pub(super) fn go_on(&mut self, family: Family) {
        let [reply, settled, same, promote] =
            ["reply", "settled", "same word", "promote"].map(|name| self.asm.label(name));
        self.load_word();
        self.asm.mov(Reg::R5, Reg::R3);
        self.end_tcp();
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, BEGUN as i32);
        self.asm.jump_if(self.is_reply(), Reg::R2, 0, reply);
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, (ANSWERED | 1 << STATE_SHIFT) as i32);
        self.asm.jump_if(Cond::Ne, Reg::R2, ANSWERED as i32, settled);
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, 7 << STATE_SHIFT);
        self.asm.jump_if(Cond::Ne, Reg::R2, (State::TcpClosing as i32) << STATE_SHIFT, promote);
        self.asm.jump(settled);
        self.asm.bind(reply);
        self.asm.alu(AluOp::Or, Reg::R3, ANSWERED as i32);
        self.asm.bind(settled);
        self.asm.jump_if(Cond::Eq, Reg::R3, Reg::R5, same);
        self.change_word();
        self.asm.bind(same);
        self.touch_slot(family);
        self.pass(family, Some(Outcome::Established));
        self.asm.bind(promote);
        self.asm.alu(AluOp::Or, Reg::R3, 1 << STATE_SHIFT);
        self.change_word();
        self.touch_slot(family);
        self.make_room(family);
        self.pass(family, Some(Outcome::Established));
    }

    /// Changes the time of the last packet from r9 to now, r8. The compare-and-swap expects r9, so if the slot has got
    /// another flow since, that flow keeps its own time.
    pub(super) fn touch_slot(&mut self, family: Family) {
        let seen = self.asm.label("seen in this tick");
        self.asm.jump_if(Cond::Eq, Reg::R9, Reg::R8, seen);
        self.asm.mov(Reg::R0, Reg::R9);
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, buckets::last(family), Reg::R1);
        self.asm.bind(seen);
    }

    /// r3 is the word. If the packet is TCP and ends the connection on its side, updates the word accordingly. r5 is
    /// kept.
    fn end_tcp(&mut self) {
        let [ends, done] = ["ends its side", "ends nothing"].map(|name| self.asm.label(name));
        self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::PROTOCOL);
        self.asm.jump_if(Cond::Ne, Reg::R2, TCP, done);
        self.asm.load(Size::W, Reg::R4, Reg::R10, Frame::TCP_FLAGS);
        let flags = if self.hook == Direction::Egress { FIN_OR_RST } else { FIN };
        self.asm.jump_if(Cond::Set, Reg::R4, flags, ends);
        self.asm.jump(done);
        self.asm.bind(ends);
        self.add_fin();
        self.close_if_both();
        self.asm.bind(done);
    }

    /// r3 is the word, r4 holds the packet's flags. If the packet has a FIN, marks it in the word for the packet's
    /// side.
    fn add_fin(&mut self) {
        let [no_fin, other] = ["no fin", "fin of the other side"].map(|name| self.asm.label(name));
        self.asm.mov(Reg::R2, Reg::R4);
        self.asm.alu(AluOp::And, Reg::R2, FIN);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, no_fin);
        self.asm.mov(Reg::R1, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R1, BEGUN as i32);
        self.asm.mov(Reg::R2, 1);
        self.asm.alu(AluOp::Lsh, Reg::R2, FIN_OF_OTHER as i32);
        self.asm.jump_if(self.is_reply(), Reg::R1, 0, other);
        self.asm.alu(AluOp::Rsh, Reg::R2, (FIN_OF_OTHER - FIN_OF_BEGINNER) as i32);
        self.asm.bind(other);
        self.asm.alu(AluOp::Or, Reg::R3, Reg::R2);
        self.asm.bind(no_fin);
    }

    /// r3 is the word, r4 holds the packet's flags. With FINs of both sides, or with a RST from the pod, the connection
    /// is closing.
    fn close_if_both(&mut self) {
        let [closes, open] = ["closes", "half open"].map(|name| self.asm.label(name));
        if self.hook == Direction::Egress {
            self.asm.jump_if(Cond::Set, Reg::R4, RST, closes);
        }
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::Rsh, Reg::R2, FIN_OF_BEGINNER as i32);
        self.asm.alu(AluOp::And, Reg::R2, 3);
        self.asm.jump_if(Cond::Ne, Reg::R2, 3, open);
        self.asm.bind(closes);
        self.asm.alu(AluOp::And, Reg::R3, !(7 << STATE_SHIFT));
        self.asm.alu(AluOp::Or, Reg::R3, (State::TcpClosing as i32) << STATE_SHIFT);
        self.asm.bind(open);
    }
}
