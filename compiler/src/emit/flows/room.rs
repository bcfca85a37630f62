//! Which slot of a bucket a flow gets, and how it gets it.

use super::{TCP, UDP};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use crate::emit::frame::{Frame, Key};
use crate::emit::parse::{address_bytes, key};
use crate::emit::{Emitter, map_ref};
use crate::layout::buckets::{
    self, BEGUN, BUSY, CONFIRMED_SHIFT, EPOCH_SHIFT, LIVE, OWN_NODE_SHIFT, STATE_SHIFT, WAYS, WORD,
};
use crate::layout::{MapName, State, config};

/// Somebody else may have been faster; a third one hardly.
const ATTEMPTS: usize = 2;
/// The bits of a word's flags.
const FLAGS: i32 = 0xff00;
/// Of a slot's worth: a confirmed flow is worth more than any time.
const CONFIRMED_WORTH: i32 = 62;

impl Emitter<'_> {
    /// r7 is a flow that this packet is not of, with the same key: the one that it begins is to have its slot.
    pub(super) fn take_its_slot(&mut self, family: Family) {
        self.place_of_slot(family, Reg::R1);
        self.asm.store(Size::Dw, Reg::R10, Frame::SLOT, Reg::R1);
        self.store_constant(Frame::TAKES, 1);
    }

    /// `place` = where the slot r7 is in the table.
    fn place_of_slot(&mut self, family: Family, place: Reg) {
        self.asm.mov(place, Reg::R7);
        self.asm.load_map_value(Reg::R2, map_ref(self.bucket_map(family)), 0);
        self.asm.alu(AluOp::Sub, place, Reg::R2);
    }

    /// A new flow, begun in the judged direction. r8 is the time; r7 and r9 are lost.
    pub(super) fn remember_in_buckets(&mut self, family: Family) {
        let remembered = self.asm.label("remembered");
        for _ in 0..ATTEMPTS {
            let [claim, lost] = ["claim", "claimed by another"].map(|name| self.asm.label(name));
            // The mask first: whoever follows the decision (`verify::prober`) stops at this read, and does not take the
            // place for something that the decision asks of an address.
            self.load_mask(family, Reg::R1);
            self.asm.load(Size::Dw, Reg::R3, Reg::R10, Frame::SLOT);
            // Verifier: what comes from the stack has no bounds.
            self.asm.alu(AluOp::And, Reg::R3, Reg::R1);
            self.asm.load_map_value(Reg::R7, map_ref(self.bucket_map(family)), 0);
            self.asm.alu(AluOp::Add, Reg::R7, Reg::R3);
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::TAKES);
            self.store_constant(Frame::TAKES, 0);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, claim);
            self.choose(family);
            self.asm.bind(claim);
            self.claim(lost);
            self.fill_slot(family);
            self.publish();
            self.asm.jump(remembered);
            self.asm.bind(lost);
        }
        self.asm.bind(remembered);
    }

    /// r7 = the slot that is worth least of the bucket with the place r3, `WORD` = its word. If all are being written, no word.
    fn choose(&mut self, family: Family) {
        let [chosen, done] = ["chosen", "least"].map(|name| self.asm.label(name));
        self.asm.mov(Reg::R9, -1);
        self.asm.store(Size::Dw, Reg::R10, Frame::WORD, -1);
        for way in 0..WAYS {
            let next = self.asm.label("next slot");
            self.step_to(Reg::R3, Reg::R5, family, way);
            self.asm.load(Size::Dw, Reg::R4, Reg::R5, WORD);
            self.asm.mov(Reg::R1, Reg::R4);
            self.asm.alu(AluOp::And, Reg::R1, FLAGS);
            self.asm.jump_if(Cond::Eq, Reg::R1, 0, chosen);
            self.asm.jump_if(Cond::Eq, Reg::R1, BUSY as i32, next);
            self.weigh(family, chosen);
            self.asm.jump_if(Cond::Ge, Reg::R1, Reg::R9, next);
            self.asm.mov(Reg::R9, Reg::R1);
            self.asm.mov(Reg::R7, Reg::R5);
            self.asm.store(Size::Dw, Reg::R10, Frame::WORD, Reg::R4);
            self.asm.bind(next);
        }
        self.asm.jump(done);
        self.asm.bind(chosen);
        self.asm.mov(Reg::R7, Reg::R5);
        self.asm.store(Size::Dw, Reg::R10, Frame::WORD, Reg::R4);
        self.asm.bind(done);
    }

    /// r5 is a live slot, r4 its word: r1 = its worth. What has expired is worth nothing and goes to `chosen`.
    fn weigh(&mut self, family: Family, chosen: Label) {
        self.asm.mov(Reg::R2, Reg::R4);
        self.asm.alu(AluOp::Rsh, Reg::R2, STATE_SHIFT as i32 - 2);
        self.asm.alu(AluOp::And, Reg::R2, 7 << 2);
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), config::TIMEOUTS);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R2);
        self.asm.load(Size::W, Reg::R2, Reg::R1, 0);
        self.asm.load(Size::Dw, Reg::R1, Reg::R5, buckets::last(family));
        self.asm.mov(Reg::R0, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R0, Reg::R1);
        self.asm.jump_if(Cond::Sgt, Reg::R0, Reg::R2, chosen);
        self.asm.mov(Reg::R2, Reg::R4);
        self.asm.alu(AluOp::Rsh, Reg::R2, CONFIRMED_SHIFT as i32);
        self.asm.alu(AluOp::And, Reg::R2, 1);
        self.asm.alu(AluOp::Lsh, Reg::R2, CONFIRMED_WORTH);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
    }

    /// From here on the slot r7 is ours: r9 = its next number. If its word is no longer `WORD`, goes to `lost`.
    fn claim(&mut self, lost: Label) {
        self.asm.load(Size::Dw, Reg::R0, Reg::R10, Frame::WORD);
        self.asm.mov(Reg::R9, Reg::R0);
        self.next_number(Reg::R9);
        self.asm.mov(Reg::R2, Reg::R0);
        self.asm.mov(Reg::R1, Reg::R9);
        self.asm.alu(AluOp::Or, Reg::R1, BUSY as i32);
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, WORD, Reg::R1);
        self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R2, lost);
    }

    /// All of the slot but its word.
    fn fill_slot(&mut self, family: Family) {
        let (size, step) = if family == Family::V4 { (Size::W, 4) } else { (Size::Dw, 8) };
        self.asm.load(Size::W, Reg::R1, Reg::R10, Key::IFINDEX);
        self.asm.load(Size::W, Reg::R2, Reg::R10, key(family).remote_port);
        self.asm.alu(AluOp::Lsh, Reg::R2, 32);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        self.asm.store(Size::Dw, Reg::R7, buckets::IFINDEX, Reg::R1);
        for at in (0..address_bytes(family)).step_by(step) {
            for (from, to) in [(Key::REMOTE, buckets::REMOTE), (Frame::LOCAL, buckets::local(family))] {
                self.asm.load(size, Reg::R1, Reg::R10, from + at);
                self.asm.store(size, Reg::R7, to + at, Reg::R1);
            }
        }
        self.asm.store(Size::Dw, Reg::R7, buckets::last(family), Reg::R8);
    }

    /// The slot r7 has a flow with the number r9.
    fn publish(&mut self) {
        let [udp, other, known] = ["new udp", "new other", "new flow"].map(|name| self.asm.label(name));
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::PROTOCOL);
        self.asm.alu(AluOp::Or, Reg::R9, Reg::R1);
        self.asm.alu(AluOp::Or, Reg::R9, LIVE as i32);
        for (from, shift) in [(Frame::JUDGED, BEGUN.trailing_zeros()), (Frame::OWN_NODE, OWN_NODE_SHIFT)] {
            self.asm.load(Size::W, Reg::R2, Reg::R10, from);
            self.asm.alu(AluOp::Lsh, Reg::R2, shift as i32);
            self.asm.alu(AluOp::Or, Reg::R9, Reg::R2);
        }
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Config), 0);
        self.asm.load(Size::H, Reg::R2, Reg::R2, config::EPOCH as i16);
        self.asm.alu(AluOp::Lsh, Reg::R2, EPOCH_SHIFT as i32);
        self.asm.alu(AluOp::Or, Reg::R9, Reg::R2);
        const _: () = assert!(State::TcpFresh as u32 == 0, "nothing to be set");
        self.asm.jump_if(Cond::Eq, Reg::R1, TCP, known);
        self.asm.jump_if(Cond::Eq, Reg::R1, UDP, udp);
        self.asm.jump(other);
        self.asm.bind(udp);
        self.asm.alu(AluOp::Or, Reg::R9, (State::UdpFresh as i32) << STATE_SHIFT);
        self.asm.jump(known);
        self.asm.bind(other);
        self.asm.alu(AluOp::Or, Reg::R9, (State::OtherFresh as i32) << STATE_SHIFT);
        self.asm.bind(known);
        self.asm.atomic(AtomicOp::Xchg, Width::W64, Reg::R7, WORD, Reg::R9);
    }

    /// The slot r7 has become that of a confirmed flow: if all of the bucket are, the one that was silent longest goes.
    pub(super) fn make_room(&mut self, family: Family) {
        let room = self.asm.label("room");
        self.place_of_slot(family, Reg::R5);
        self.load_mask(family, Reg::R2);
        self.asm.alu(AluOp::And, Reg::R5, Reg::R2);
        for way in 1..WAYS {
            let next = self.asm.label("next confirmed");
            self.step_to(Reg::R5, Reg::R4, family, way);
            self.asm.load(Size::Dw, Reg::R1, Reg::R4, WORD);
            self.asm.mov(Reg::R2, Reg::R1);
            // Bits of both, brought together.
            self.asm.alu(AluOp::Rsh, Reg::R2, LIVE.trailing_zeros() as i32);
            const BOTH: i32 = 1 | 1 << (CONFIRMED_SHIFT - LIVE.trailing_zeros());
            self.asm.alu(AluOp::And, Reg::R2, BOTH);
            self.asm.jump_if(Cond::Ne, Reg::R2, BOTH, room);
            self.asm.load(Size::Dw, Reg::R2, Reg::R4, buckets::last(family));
            if way > 1 {
                self.asm.jump_if(Cond::Ge, Reg::R2, Reg::R9, next);
            }
            self.asm.mov(Reg::R9, Reg::R2);
            self.asm.mov(Reg::R3, Reg::R4);
            self.asm.mov(Reg::R0, Reg::R1);
            self.asm.bind(next);
        }
        self.asm.mov(Reg::R1, Reg::R0);
        self.next_number(Reg::R1);
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R3, WORD, Reg::R1);
        self.asm.bind(room);
    }
}
