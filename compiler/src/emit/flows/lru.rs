//! Flows in the kernel's own maps, which evict what was not used the longest: one map for flows that both sides have spoken
//! in, one for those that are fresh.

use super::{FIN_OR_RST, TCP, UDP};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::helper::Helper;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::emit::frame::Frame;
use crate::emit::{Emitter, map_ref};
use crate::layout::{MapName, Outcome, State, config, direction_number, flow};

impl Emitter<'_> {
    /// The map of flows that have seen both sides, and that of those that have not.
    fn flow_maps(&self, family: Family) -> (MapName, MapName) {
        match family {
            Family::V4 => (MapName::Flows4, MapName::Fresh4),
            Family::V6 => (MapName::Flows6, MapName::Fresh6),
        }
    }

    /// r7 = the value of the flow with the key on the stack.
    pub(super) fn look_up_lru(&mut self, family: Family, key: i16, miss: Label) {
        let [in_fresh, found] = ["fresh", "found"].map(|name| self.asm.label(name));
        let (open, fresh) = self.flow_maps(family);
        self.look_up(open, key);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, in_fresh);
        self.asm.jump(found);
        self.asm.bind(in_fresh);
        self.look_up(fresh, key);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, miss);
        self.asm.bind(found);
        self.asm.mov(Reg::R7, Reg::R0);
    }

    /// r8 is the time.
    pub(super) fn jump_if_lru_expired(&mut self, expired: Label) {
        self.asm.load(Size::Dw, Reg::R1, Reg::R7, flow::LAST);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R2, Reg::R1);
        self.asm.load(Size::B, Reg::R3, Reg::R7, flow::STATE);
        self.jump_if_longer(expired);
    }

    /// r7 is a flow in force: moves it through its states and passes.
    pub(super) fn go_on_lru(&mut self, family: Family) {
        let [original, answered, touch, promote] =
            ["original", "answered", "touch", "promote"].map(|name| self.asm.label(name));
        self.asm.load(Size::B, Reg::R3, Reg::R7, flow::STATE);
        self.close_tcp();
        self.asm.load(Size::B, Reg::R2, Reg::R7, flow::ANSWERED);
        self.asm.load(Size::B, Reg::R1, Reg::R7, flow::BEGUN);
        self.asm.jump_if(Cond::Eq, Reg::R1, direction_number(self.hook) as i32, original);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, answered);
        self.asm.store(Size::B, Reg::R7, flow::ANSWERED, 1);
        self.asm.jump(answered);
        self.asm.bind(original);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, answered);
        for fresh in [State::TcpFresh, State::UdpFresh, State::OtherFresh] {
            self.asm.jump_if(Cond::Eq, Reg::R3, fresh as i32, promote);
        }
        self.asm.bind(answered);
        self.asm.load(Size::Dw, Reg::R1, Reg::R7, flow::LAST);
        // A store dirties the line for every other CPU: one a tick is enough.
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R8, touch);
        self.asm.store(Size::Dw, Reg::R7, flow::LAST, Reg::R8);
        self.asm.bind(touch);
        self.pass(family, Some(Outcome::Established));
        self.asm.bind(promote);
        self.promote(family);
    }

    /// r3 is the state, before and after.
    fn close_tcp(&mut self) {
        let [closes, done] = ["closes", "not closing"].map(|name| self.asm.label(name));
        self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::TCP_FLAGS);
        self.asm.alu(AluOp::And, Reg::R2, FIN_OR_RST);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, done);
        self.asm.jump_if(Cond::Eq, Reg::R3, State::TcpOpen as i32, closes);
        self.asm.jump_if(Cond::Ne, Reg::R3, State::TcpFresh as i32, done);
        self.asm.bind(closes);
        self.asm.mov(Reg::R3, State::TcpClosing as i32);
        self.asm.store(Size::B, Reg::R7, flow::STATE, Reg::R3);
        self.asm.bind(done);
    }

    /// Both sides have spoken, and the first one again: r3 is the state.
    fn promote(&mut self, family: Family) {
        let kept = self.asm.label("stays fresh");
        let (open, fresh) = self.flow_maps(family);
        for offset in (0..flow::BYTES as i16).step_by(8) {
            self.asm.load(Size::Dw, Reg::R1, Reg::R7, offset);
            self.asm.store(Size::Dw, Reg::R10, Frame::FLOW + offset, Reg::R1);
        }
        self.asm.alu(AluOp::Add, Reg::R3, 1);
        self.asm.store(Size::B, Reg::R10, Frame::FLOW + flow::STATE, Reg::R3);
        self.asm.store(Size::Dw, Reg::R10, Frame::FLOW + flow::LAST, Reg::R8);
        self.update(open, Frame::KEY, Frame::FLOW);
        self.asm.jump_if(Cond::Ne, Reg::R0, 0, kept);
        self.delete(fresh, Frame::KEY);
        self.asm.bind(kept);
        self.pass(family, Some(Outcome::Established));
    }

    /// r7 is a flow of an older generation that is allowed in this one too.
    pub(super) fn adopt_lru(&mut self) {
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), 0);
        self.asm.load(Size::W, Reg::R1, Reg::R1, config::EPOCH as i16);
        self.asm.store(Size::W, Reg::R7, flow::EPOCH, Reg::R1);
    }

    /// A new flow: remembered as begun in the judged direction.
    pub(super) fn remember_lru(&mut self, family: Family) {
        let [tcp, udp, other, known] = ["new tcp", "new udp", "new other", "new flow"].map(|it| self.asm.label(it));
        let (_, fresh) = self.flow_maps(family);
        self.asm.store(Size::Dw, Reg::R10, Frame::FLOW + flow::LAST, Reg::R8);
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), 0);
        self.asm.load(Size::W, Reg::R1, Reg::R1, config::EPOCH as i16);
        self.asm.store(Size::W, Reg::R10, Frame::FLOW + flow::EPOCH, Reg::R1);
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::JUDGED);
        self.asm.store(Size::B, Reg::R10, Frame::FLOW + flow::BEGUN, Reg::R1);
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::OWN_NODE);
        self.asm.store(Size::B, Reg::R10, Frame::FLOW + flow::OWN_NODE, Reg::R1);
        self.asm.store(Size::B, Reg::R10, Frame::FLOW + flow::ANSWERED, 0);
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::PROTOCOL);
        self.asm.jump_if(Cond::Eq, Reg::R1, TCP, tcp);
        self.asm.jump_if(Cond::Eq, Reg::R1, UDP, udp);
        self.asm.jump(other);
        for (label, state) in [(tcp, State::TcpFresh), (udp, State::UdpFresh), (other, State::OtherFresh)] {
            self.asm.bind(label);
            self.asm.store(Size::B, Reg::R10, Frame::FLOW + flow::STATE, state as i32);
            if label != other {
                self.asm.jump(known);
            }
        }
        self.asm.bind(known);
        for offset in (0..16).step_by(8) {
            self.asm.load(Size::Dw, Reg::R1, Reg::R10, Frame::LOCAL + offset);
            self.asm.store(Size::Dw, Reg::R10, Frame::FLOW + flow::LOCAL + offset, Reg::R1);
        }
        self.update(fresh, Frame::KEY, Frame::FLOW);
    }

    /// The flow is no more.
    pub(super) fn forget_lru(&mut self, family: Family) {
        let (open, fresh) = self.flow_maps(family);
        self.delete(open, Frame::KEY);
        self.delete(fresh, Frame::KEY);
    }

    fn delete(&mut self, map: MapName, key: i16) {
        self.asm.load_map(Reg::R1, map_ref(map));
        self.stack_pointer(Reg::R2, key);
        self.asm.call(Helper::MAP_DELETE_ELEM);
    }
}
