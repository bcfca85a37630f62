//! How a new flow gets a slot of a bucket. [`weir_artifact::layout::buckets`] says which flows are evicted first.

use crate::emit::Emitter;
use crate::emit::frame::{FlowKey, StackFrame};
use crate::emit::parse::{TCP, UDP, address_bytes, key};
use weir_artifact::layout::buckets::{
    self, BEGUN, BUSY, CUT, EPOCH_SHIFT, LIVE, ORIGIN_SHIFT, STATE_SHIFT, WAYS, WORD,
};
use weir_artifact::layout::{FlowState, MapName, config};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use weir_objects::address::Family;

use super::BEYOND_EPOCH;

/// The bits of a word that show whether a slot is free or being written.
const FLAGS: i32 = 0xff00;
/// The positions of the parts of a slot's rank, from the top: the share of its interface, whether its flow is
/// confirmed, its last time.
const SHARE_SHIFT: i32 = 59;
const CONFIRMED_SHIFT: i32 = 58;
/// Larger than any share: two for each slot of a bucket, and one for the packet's own interface.
const MOST_SHARE: i32 = 2 * WAYS as i32 + 1;

impl Emitter<'_> {
    /// r7 is the slot of a flow with the packet's key that the packet does not belong to. The flow that the packet
    /// begins replaces it.
    pub(in crate::emit) fn take_its_slot(&mut self, family: Family) {
        self.place_of_slot(family, Reg::R1);
        self.store_frame(StackFrame::SLOT, Reg::R1);
        // The new flow must get this very slot. If it got another one, a look-up could find the old flow with the same
        // key first.
        self.store_constant(StackFrame::TAKES, 1);
    }

    /// `place` = the offset of the slot r7 in the table.
    fn place_of_slot(&mut self, family: Family, place: Reg) {
        self.asm.mov(place, Reg::R7);
        self.point_to(Reg::R2, self.bucket_map(family), 0);
        // The place was lost in calls. Verifier: a pointer minus a pointer of the same map is a number without bounds,
        // which callers mask.
        self.asm.alu(AluOp::Sub, place, Reg::R2);
    }

    /// Stores a new flow that began in the direction `JUDGED`. r8 is the time; r7 and r9 are overwritten. If another
    /// CPU takes the slot in the meantime, the flow is not stored, and its next packet needs a decision again.
    pub(in crate::emit) fn remember(&mut self, family: Family) {
        let [claim, lost] = ["claim", "claimed by another"].map(|name| self.asm.label(name));
        // The mask is loaded first. Verification follows the decision (`verify::prober`) and stops at this read, so
        // that it does not take the tests on the place for a part of the address's class.
        self.load_mask(family, Reg::R1);
        self.load_frame(Reg::R3, StackFrame::SLOT);
        // Verifier: a number from the stack has no bounds.
        self.asm.alu(AluOp::And, Reg::R3, Reg::R1);
        self.point_to(Reg::R7, self.bucket_map(family), 0);
        self.asm.alu(AluOp::Add, Reg::R7, Reg::R3);
        self.load_frame(Reg::R1, StackFrame::TAKES);
        self.hidden_zero(Reg::R2, Reg::R1);
        self.store_frame(StackFrame::TAKES, Reg::R2);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, claim);
        self.choose(family, claim);
        self.asm.bind(claim);
        // The order is the protocol: claim, write, publish. A reader on another CPU must see either the old flow or the
        // whole new one.
        self.claim(lost);
        self.fill_slot(family);
        self.publish();
        self.asm.bind(lost);
    }

    /// r3 is the place of a bucket's slot. r7 = the slot that the flow gets, `WORD` = its word. If all slots are being
    /// written, `WORD` stays -1, which no slot has.
    fn choose(&mut self, family: Family, claim: Label) {
        let chosen = self.asm.label("chosen");
        self.asm.mov(Reg::R9, -1);
        self.store_frame(StackFrame::WORD, -1);
        // The same order as readers have, from the home slot on, so that a flow is found as early as possible.
        for way in 0..WAYS {
            let next = self.asm.label("next slot");
            self.step_to(Reg::R3, Reg::R5, family, way);
            self.asm.load(Size::Dw, Reg::R4, Reg::R5, WORD);
            self.asm.mov(Reg::R1, Reg::R4);
            self.asm.alu(AluOp::And, Reg::R1, FLAGS);
            self.asm.jump_if(Cond::Eq, Reg::R1, 0, chosen);
            // A busy slot belongs to a program on another CPU, which is about to publish it.
            self.asm.jump_if(Cond::Eq, Reg::R1, BUSY as i32, next);
            self.jump_if_slot_expired(family, chosen);
            self.asm.bind(next);
        }
        self.choose_in_full_bucket(family);
        self.asm.jump(claim);
        self.asm.bind(chosen);
        self.asm.mov(Reg::R7, Reg::R5);
        self.store_frame(StackFrame::WORD, Reg::R4);
    }

    /// r5 is a live slot, r4 its word. Goes to `expired` if its flow has expired.
    fn jump_if_slot_expired(&mut self, family: Family, expired: Label) {
        self.asm.mov(Reg::R2, Reg::R4);
        self.point_to(Reg::R1, MapName::Config, config::TIMEOUTS);
        self.timeout_of(Reg::R2, Reg::R1, 0);
        self.asm.load(Size::Dw, Reg::R1, Reg::R5, buckets::last(family));
        self.asm.mov(Reg::R0, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R0, Reg::R1);
        // Signed: another CPU may have stored a later time than this program has read.
        self.asm.jump_if(Cond::Sgt, Reg::R0, Reg::R2, expired);
    }

    /// r3 is a place in a full bucket. r7 = the slot with the lowest rank, `WORD` = its word.
    fn choose_in_full_bucket(&mut self, family: Family) {
        let bytes = buckets::slot_bytes(family) as i32;
        let bucket = WAYS as i32 * bytes;
        // The ranks are compared from the bucket's first slot on, with constant offsets: one pointer serves all slots.
        self.asm.alu(AluOp::And, Reg::R3, -bucket);
        self.point_to(Reg::R7, self.bucket_map(family), 0);
        self.asm.alu(AluOp::Add, Reg::R7, Reg::R3);
        // Verifier: the offset of the best slot so far is in the upper half of a stack slot, where kernels up to 6.18
        // at least track no constant except zero, which is hidden. In a register they would walk the rest once for each
        // of the eight slots.
        self.hidden_zero(Reg::R1, Reg::R3);
        self.store_frame(StackFrame::SCRATCH + 4, Reg::R1);
        for way in 0..WAYS as i16 {
            let next = self.asm.label("ranks higher");
            self.asm.load(Size::Dw, Reg::R4, Reg::R7, way * bytes as i16 + WORD);
            self.asm.mov(Reg::R1, Reg::R4);
            self.asm.alu(AluOp::And, Reg::R1, FLAGS);
            self.asm.jump_if(Cond::Eq, Reg::R1, BUSY as i32, next);
            self.rank(family, way);
            self.asm.jump_if(Cond::Ge, Reg::R5, Reg::R9, next);
            self.asm.mov(Reg::R9, Reg::R5);
            // The first slot's offset is stored already.
            if way > 0 {
                self.store_frame(StackFrame::SCRATCH + 4, i32::from(way) * bytes);
            }
            self.store_frame(StackFrame::WORD, Reg::R4);
            self.asm.bind(next);
        }
        self.load_frame(Reg::R1, StackFrame::SCRATCH + 4);
        // Verifier: the number comes from the stack, so it has lost its bounds.
        self.asm.alu(AluOp::And, Reg::R1, bucket - bytes);
        self.asm.alu(AluOp::Add, Reg::R7, Reg::R1);
    }

    /// r5 = the rank of a slot of the bucket r7, whose word is r4. The rank is lower the more slots its interface has;
    /// among equals if the flow is not confirmed; among those the longer the flow was silent.
    fn rank(&mut self, family: Family, way: i16) {
        let bytes = buckets::slot_bytes(family) as i16;
        let ifindex = |way: i16| way * bytes + buckets::IFINDEX;
        self.asm.load(Size::W, Reg::R0, Reg::R7, ifindex(way));
        self.asm.mov(Reg::R5, MOST_SHARE);
        for other in (0..WAYS as i16).filter(|it| *it != way) {
            self.asm.load(Size::W, Reg::R1, Reg::R7, ifindex(other));
            self.is_interface(Reg::R1);
            self.asm.alu(AluOp::Lsh, Reg::R1, 1);
            self.asm.alu(AluOp::Sub, Reg::R5, Reg::R1);
        }
        // Each slot of an interface counts for two, and the packet's own interface for one more: with equal shares, a
        // flood evicts the flooding pod's own flows.
        self.load_frame(Reg::R1, FlowKey::IFINDEX);
        self.is_interface(Reg::R1);
        self.asm.alu(AluOp::Sub, Reg::R5, Reg::R1);
        self.asm.alu(AluOp::Lsh, Reg::R5, SHARE_SHIFT);
        // The trace of a cut flow ranks as high as a confirmed flow: without it the connection could continue.
        self.asm.mov(Reg::R1, Reg::R4);
        self.asm.alu(AluOp::Rsh, Reg::R1, (CUT - STATE_SHIFT) as i32);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R4);
        self.asm.alu(AluOp::Rsh, Reg::R1, STATE_SHIFT as i32);
        self.asm.alu(AluOp::And, Reg::R1, 1);
        self.asm.alu(AluOp::Lsh, Reg::R1, CONFIRMED_SHIFT);
        self.asm.alu(AluOp::Or, Reg::R5, Reg::R1);
        // The time is in ticks since boot, so it needs fewer than 58 bits for any uptime.
        self.asm.load(Size::Dw, Reg::R1, Reg::R7, way * bytes + buckets::last(family));
        self.asm.alu(AluOp::Or, Reg::R5, Reg::R1);
    }

    /// `interface` becomes 1 if it equals r0, else 0. It has no branch: the verifier would walk both ways at each of 64
    /// compares.
    fn is_interface(&mut self, interface: Reg) {
        self.asm.alu(AluOp::Xor, interface, Reg::R0);
        // The difference is below 2^32, so only 0 becomes negative, and bit 63 is the answer.
        self.asm.alu(AluOp::Sub, interface, 1);
        self.asm.alu(AluOp::Rsh, interface, 63);
    }

    /// Claims the slot r7 for this program; r9 = its next sequence number. Goes to `lost` if the slot's word is no
    /// longer `WORD`.
    fn claim(&mut self, lost: Label) {
        self.load_frame(Reg::R0, StackFrame::WORD);
        self.asm.mov(Reg::R9, Reg::R0);
        self.next_number(Reg::R9);
        // The instruction overwrites r0 with the old word; r2 keeps the expected one for the compare.
        self.asm.mov(Reg::R2, Reg::R0);
        self.asm.mov(Reg::R1, Reg::R9);
        self.asm.alu(AluOp::Or, Reg::R1, BUSY as i32);
        self.exchange_word(Reg::R7, Reg::R1);
        self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R2, lost);
    }

    /// Writes the whole slot except its word.
    fn fill_slot(&mut self, family: Family) {
        // Plain stores: the slot belongs to this program until the publication, and the atomic instructions before and
        // after order them.
        let (size, step) = if family == Family::V4 { (Size::W, 4) } else { (Size::Dw, 8) };
        self.load_frame(Reg::R1, FlowKey::IFINDEX);
        self.load_frame(Reg::R2, key(family).remote_port);
        self.asm.alu(AluOp::Lsh, Reg::R2, 32);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        self.asm.store(Size::Dw, Reg::R7, buckets::IFINDEX, Reg::R1);
        for at in (0..address_bytes(family)).step_by(step) {
            for (from, to) in [(FlowKey::REMOTE, buckets::REMOTE), (StackFrame::LOCAL, buckets::local(family))] {
                self.asm.load(size, Reg::R1, Reg::R10, from + at);
                self.asm.store(size, Reg::R7, to + at, Reg::R1);
            }
        }
        self.asm.store(Size::Dw, Reg::R7, buckets::last(family), Reg::R8);
    }

    /// Publishes the slot r7: its word gets the sequence number r9 and the flow's state.
    fn publish(&mut self) {
        let [udp, other, known] = ["new udp", "new other", "new flow"].map(|name| self.asm.label(name));
        self.load_frame(Reg::R1, StackFrame::PROTOCOL);
        self.asm.alu(AluOp::Or, Reg::R9, Reg::R1);
        self.asm.alu(AluOp::Or, Reg::R9, LIVE as i32);
        for (from, shift) in [(StackFrame::JUDGED, BEGUN.trailing_zeros()), (StackFrame::ORIGIN, ORIGIN_SHIFT)] {
            self.load_frame(Reg::R2, from);
            self.asm.alu(AluOp::Lsh, Reg::R2, shift as i32);
            self.asm.alu(AluOp::Or, Reg::R9, Reg::R2);
        }
        self.load_frame(Reg::R2, StackFrame::EPOCH);
        self.asm.alu(AluOp::Lsh, Reg::R2, BEYOND_EPOCH);
        self.asm.alu(AluOp::Rsh, Reg::R2, BEYOND_EPOCH - EPOCH_SHIFT as i32);
        self.asm.alu(AluOp::Or, Reg::R9, Reg::R2);
        const _: () = assert!(FlowState::TcpFresh as u32 == 0, "nothing to be set");
        self.asm.jump_if(Cond::Eq, Reg::R1, TCP, known);
        self.asm.jump_if(Cond::Eq, Reg::R1, UDP, udp);
        self.asm.jump(other);
        self.asm.bind(udp);
        self.asm.alu(AluOp::Or, Reg::R9, (FlowState::UdpFresh as i32) << STATE_SHIFT);
        self.asm.jump(known);
        self.asm.bind(other);
        self.asm.alu(AluOp::Or, Reg::R9, (FlowState::OtherFresh as i32) << STATE_SHIFT);
        self.asm.bind(known);
        // An exchange, not a plain store: the value is not needed, but an atomic instruction that returns a value is
        // fully ordered, so every store before it is visible first. Store-release came to BPF in Linux 6.15 only
        // (https://git.kernel.org/linus/880442305a39).
        self.asm.atomic(AtomicOp::Xchg, Width::W64, Reg::R7, WORD, Reg::R9);
    }

    /// The slot r7 holds a flow that was just confirmed. If all flows of the bucket are confirmed, the oldest other
    /// flow of the same interface is evicted, so that there is a slot for first packets.
    pub(super) fn make_room(&mut self, family: Family) {
        let room = self.asm.label("room");
        self.place_of_slot(family, Reg::R5);
        self.load_mask(family, Reg::R2);
        self.asm.alu(AluOp::And, Reg::R5, Reg::R2);
        self.asm.mov(Reg::R9, -1);
        // Verifier: r3 must be a pointer into the table on every path, also if no slot is found. It is used only if r0
        // says so.
        self.asm.mov(Reg::R3, Reg::R7);
        self.asm.mov(Reg::R0, 0);
        for way in 1..WAYS {
            let next = self.asm.label("next confirmed");
            self.step_to(Reg::R5, Reg::R4, family, way);
            self.asm.load(Size::Dw, Reg::R1, Reg::R4, WORD);
            const BOTH: i32 = (LIVE | 1 << STATE_SHIFT) as i32;
            self.asm.mov(Reg::R2, Reg::R1);
            self.asm.alu(AluOp::And, Reg::R2, BOTH);
            self.asm.jump_if(Cond::Ne, Reg::R2, BOTH, room);
            self.asm.load(Size::W, Reg::R2, Reg::R4, buckets::IFINDEX);
            self.load_frame(Reg::R8, FlowKey::IFINDEX);
            self.asm.jump_if(Cond::Ne, Reg::R2, Reg::R8, next);
            self.asm.load(Size::Dw, Reg::R2, Reg::R4, buckets::last(family));
            // The oldest one is evicted: a connection that is silent for longest is the most likely to have ended
            // unseen.
            self.asm.jump_if(Cond::Ge, Reg::R2, Reg::R9, next);
            self.asm.mov(Reg::R9, Reg::R2);
            self.asm.mov(Reg::R3, Reg::R4);
            self.asm.mov(Reg::R0, Reg::R1);
            self.asm.bind(next);
        }
        // There is no other flow of this interface, so none is evicted.
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, room);
        self.asm.mov(Reg::R1, Reg::R0);
        self.next_number(Reg::R1);
        self.exchange_word(Reg::R3, Reg::R1);
        self.asm.bind(room);
    }
}
