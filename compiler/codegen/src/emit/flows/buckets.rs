//! The slot protocol: how programs read and change a slot of the flow table. [`weir_artifact::layout::buckets`] has the
//! layout, and explains why a program never takes one flow for another.
//!
//! | after a look-up | holds |
//! | --- | --- |
//! | r7 | the slot |
//! | r9 | the time of the last packet |
//! | `WORD` | the slot's word as it was accepted; every change of the word expects this value |
//! | `SLOT` | of a flow that was not found: its home |
//!
//! A hit changes only the time, at most once a tick, so it usually needs no atomic instruction.

use super::slot::{self, SlotReader};
use super::{BEYOND_EPOCH, FIN, FIN_OR_RST, RST};
use crate::emit::Emitter;
use crate::emit::frame::{FlowKey, StackFrame};
use crate::emit::parse::{TCP, key};
use weir_artifact::layout::buckets::{
    self, ANSWERED, BEGUN, EPOCH_BITS, EPOCH_SHIFT, FIN_OF_BEGINNER, FIN_OF_OTHER, STATE_SHIFT, WAYS,
};
use weir_artifact::layout::{FlowState, MapName, Outcome, config};
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;
use weir_objects::address::Family;

impl Emitter<'_> {
    /// Falls through with the slot of the flow whose key is at `at` on the stack, or goes to `miss`. After a hit, r8 is
    /// 0 if the packet's local address is the flow's.
    pub(in crate::emit) fn look_up_flow(&mut self, family: Family, at: i16, miss: Label) {
        let found = self.asm.label("found");
        let moved = at - StackFrame::KEY;
        let reader = SlotReader::on_stack(family, moved);
        let key = key(family);
        self.load_frame(slot::ENDS, FlowKey::IFINDEX + moved);
        self.load_frame(slot::PORTS, key.remote_port + moved);
        // Only the key of a quoted packet contains its protocol.
        match moved {
            0 => self.load_frame(slot::WANTED, StackFrame::PROTOCOL),
            _ => self.load_frame(slot::WANTED, key.protocol + moved),
        }
        self.find_home(reader);
        // Only the packet's own flow may be stored later. A quoted packet never begins a flow, so its place is of no
        // use.
        if moved == 0 {
            self.store_frame(StackFrame::SLOT, slot::PLACE);
        }
        // Unlike the fast path, this one continues after a refused slot: the same ends may belong to a flow of another
        // protocol or with another remote address.
        for way in 0..WAYS {
            let next = self.asm.label("next way");
            self.compare_ends(reader, way, Cond::Ne, next);
            self.accept_slot(reader, next);
            self.asm.jump(found);
            self.asm.bind(next);
        }
        self.asm.jump(miss);
        self.asm.bind(found);
        self.asm.mov(Reg::R7, slot::SLOT);
        self.store_frame(StackFrame::WORD, slot::AGAIN);
        // The difference of the local addresses moves to r8, because the next call overwrites r2.
        self.asm.mov(Reg::R8, Reg::R2);
    }

    /// r7 is the slot of a flow that was just looked up. r8 = the time, r1 = the old r8. Jumps to `expired` if the flow
    /// has expired.
    pub(in crate::emit) fn jump_if_expired(&mut self, expired: Label) {
        // Jiffies, and no clock in nanoseconds: the helper reads one variable, and time-outs are whole seconds. A finer
        // clock would also make each packet write its slot.
        self.asm.call(Helper::JIFFIES64);
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.mov(Reg::R8, Reg::R0);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R2, Reg::R9);
        self.load_word();
        self.point_to(Reg::R4, MapName::Config, config::TIMEOUTS);
        self.timeout_of(Reg::R3, Reg::R4, 0);
        // Signed: another CPU may have stored a later time than this one has read, and the difference is then negative.
        self.asm.jump_if(Cond::Sgt, Reg::R2, Reg::R3, expired);
    }

    /// Replaces the slot's word `WORD` by r3. If another CPU has changed the slot in the meantime, nothing happens, and
    /// the flow's next packet tries again.
    pub(super) fn change_word(&mut self) {
        // r0 is the expected value by definition of the instruction
        // (https://git.kernel.org/linus/5ffa25502b5ab3d639829a2d1e316cff7f59a41e, Linux 5.12).
        self.load_frame(Reg::R0, StackFrame::WORD);
        self.exchange_word(Reg::R7, Reg::R3);
    }

    /// r7 is the slot of a flow of an older generation that this generation allows too. The flow gets the epoch
    /// `EPOCH`.
    pub(in crate::emit) fn adopt(&mut self, family: Family) {
        const BELOW: i32 = 64 - EPOCH_SHIFT as i32;
        const ABOVE: i32 = (EPOCH_SHIFT + EPOCH_BITS) as i32;
        self.load_word();
        self.load_frame(Reg::R1, StackFrame::EPOCH);
        self.asm.alu(AluOp::Lsh, Reg::R1, BEYOND_EPOCH);
        self.asm.alu(AluOp::Rsh, Reg::R1, BEYOND_EPOCH - EPOCH_SHIFT as i32);
        // The new word takes the epoch from r1 and all other bits from the old word. Masks of 64 bits would need an
        // `ld_imm64` of two slots each; two shifts take the same room and no register.
        for [there, back] in [[AluOp::Rsh, AluOp::Lsh], [AluOp::Lsh, AluOp::Rsh]] {
            let shift = if there == AluOp::Rsh { ABOVE } else { BELOW };
            self.asm.mov(Reg::R2, Reg::R3);
            self.asm.alu(there, Reg::R2, shift);
            self.asm.alu(back, Reg::R2, shift);
            self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        }
        self.asm.mov(Reg::R3, Reg::R1);
        self.change_word();
        // The packet then continues as one of a flow in force, and may change the word again. That change must expect
        // the new word, not the old one.
        self.store_frame(StackFrame::WORD, Reg::R3);
        // The decision has overwritten r9.
        self.asm.load(Size::Dw, Reg::R9, Reg::R7, buckets::last(family));
    }

    /// Frees the slot r7.
    pub(in crate::emit) fn forget(&mut self) {
        self.load_word();
        self.next_number(Reg::R3);
        self.change_word();
    }

    /// r7 is the slot of a flow in force, r8 the time, r9 the time of its last packet. Updates the flow's state and
    /// passes the packet.
    pub(super) fn go_on(&mut self, family: Family) {
        let [reply, settled, same, promote] =
            ["reply", "settled", "same word", "promote"].map(|name| self.asm.label(name));
        self.load_word();
        self.asm.mov(Reg::R5, Reg::R3);
        // r5 keeps the word as it was. If nothing changes, there is no atomic instruction.
        self.end_tcp();
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, BEGUN as i32);
        self.asm.jump_if(self.is_reply(), Reg::R2, 0, reply);
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, (ANSWERED | 1 << STATE_SHIFT) as i32);
        // Only an answered flow whose beginner sends again is confirmed. One answered packet would not do: a host that
        // answers everything would let a flood of first packets fill the table with confirmed flows.
        self.asm.jump_if(Cond::Ne, Reg::R2, ANSWERED as i32, settled);
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, 7 << STATE_SHIFT);
        // `TcpClosing` is even, like the fresh states, but it must not become confirmed.
        self.asm.jump_if(Cond::Ne, Reg::R2, (FlowState::TcpClosing as i32) << STATE_SHIFT, promote);
        self.asm.jump(settled);
        self.asm.bind(reply);
        self.asm.alu(AluOp::Or, Reg::R3, ANSWERED as i32);
        self.asm.bind(settled);
        self.asm.jump_if(Cond::Eq, Reg::R3, Reg::R5, same);
        self.change_word();
        self.asm.bind(same);
        self.touch_slot(family, Reg::R8);
        self.pass(family, Some(Outcome::Established));
        self.asm.bind(promote);
        // Each confirmed state is the number after its fresh one, so one bit confirms a flow of any protocol.
        self.asm.alu(AluOp::Or, Reg::R3, 1 << STATE_SHIFT);
        self.change_word();
        self.touch_slot(family, Reg::R8);
        self.make_room(family);
        self.pass(family, Some(Outcome::Established));
    }

    /// r3 is the word. If the packet is TCP and ends the connection on its side, updates the word accordingly. r5 is
    /// kept.
    fn end_tcp(&mut self) {
        let [ends, done] = ["ends its side", "ends nothing"].map(|name| self.asm.label(name));
        self.load_frame(Reg::R2, StackFrame::PROTOCOL);
        self.asm.jump_if(Cond::Ne, Reg::R2, TCP, done);
        self.load_frame(Reg::R4, StackFrame::TCP_FLAGS);
        // A RST to the pod may be forged: its sequence number is checked by the pod's kernel alone. So only a RST of
        // the pod ends a flow here.
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
        // Shifting the constant costs one instruction less than a second constant, whose bit is beyond an immediate
        // value.
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
        // Both FINs are needed. If one were enough, a forged FIN to the pod would shorten a connection to the time-out
        // of a closed one.
        self.asm.jump_if(Cond::Ne, Reg::R2, 3, open);
        self.asm.bind(closes);
        self.asm.alu(AluOp::And, Reg::R3, !(7 << STATE_SHIFT));
        self.asm.alu(AluOp::Or, Reg::R3, (FlowState::TcpClosing as i32) << STATE_SHIFT);
        self.asm.bind(open);
    }
}
