//! Flows: what was allowed goes on without being asked again, in both directions.
//!
//! A flow lives in a map of its own (`fresh…`) until its beginner speaks again after an answer: a flood of first packets,
//! even one that is answered, evicts only its like. Expiry is checked here, by protocol and state: a map's own eviction is
//! no policy.
//!
//! A SYN always begins a connection: against the direction of the flow it is asked about as any other, and on a flow that
//! somebody has ended it begins the next one.

use super::frame::{Frame, Key};
use super::parse::{address_bytes, fragments, key};
use super::{Emitter, map_ref};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::helper::Helper;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::layout::{MapName, Outcome, State, config, direction_number, flow};
use crate::model::Direction;

const TCP: i32 = 6;
const UDP: i32 = 17;
const FIN_OR_RST: i32 = 0x05;
const SYN: i32 = 0x02;
const SYN_AND_ACK: i32 = 0x12;

impl Emitter<'_> {
    /// The map of flows that have seen both sides, and that of those that have not.
    pub(super) fn flow_maps(&self, family: Family) -> (MapName, MapName) {
        match family {
            Family::V4 => (MapName::Flows4, MapName::Fresh4),
            Family::V6 => (MapName::Flows6, MapName::Fresh6),
        }
    }

    /// Packets of flows that are in force pass here. The others fall through: r7 is the value of a flow that has to be
    /// judged again, or 0; r8 is the time. Returns where a flow goes on that was judged again.
    pub(super) fn find_flow(&mut self, family: Family) -> Label {
        let [look_in_fresh, found, miss, miss_known_time, expired, judge] =
            ["fresh", "found", "miss", "another flow", "expired", "judge"].map(|name| self.asm.label(name));
        let current = self.asm.label("current");
        let (open, fresh) = self.flow_maps(family);
        self.look_up(open, Frame::KEY);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, look_in_fresh);
        self.asm.jump(found);
        self.asm.bind(look_in_fresh);
        self.look_up(fresh, Frame::KEY);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, miss);
        self.asm.bind(found);
        self.asm.mov(Reg::R7, Reg::R0);
        self.now();
        self.jump_if_expired(expired);
        if self.hook == Direction::Egress {
            // Another source than the flow's: whether it is one of the pod's is asked there.
            self.check_source(family, Reg::R7, flow::LOCAL, miss_known_time);
        }
        self.begin_anew(expired, miss_known_time);
        self.check_epoch(judge);
        self.asm.bind(current);
        self.go_on(family);
        self.asm.bind(expired);
        self.forget(family);
        self.asm.bind(miss);
        self.now();
        self.asm.bind(miss_known_time);
        self.asm.mov(Reg::R7, 0);
        self.asm.bind(judge);
        current
    }

    /// r8 = the time in ticks.
    pub(super) fn now(&mut self) {
        self.asm.call(Helper::JIFFIES64);
        self.asm.mov(Reg::R8, Reg::R0);
    }

    /// r7 is a flow, r8 the time.
    pub(super) fn jump_if_expired(&mut self, expired: Label) {
        self.asm.load(Size::Dw, Reg::R1, Reg::R7, flow::LAST);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R2, Reg::R1);
        self.asm.load(Size::B, Reg::R3, Reg::R7, flow::STATE);
        self.asm.alu(AluOp::And, Reg::R3, 7);
        self.asm.alu(AluOp::Lsh, Reg::R3, 2);
        self.asm.load_map_value(Reg::R4, map_ref(MapName::Config), config::TIMEOUTS);
        self.asm.alu(AluOp::Add, Reg::R4, Reg::R3);
        self.asm.load(Size::W, Reg::R3, Reg::R4, 0);
        self.asm.jump_if(Cond::Sgt, Reg::R2, Reg::R3, expired);
    }

    /// Goes to `otherwise` unless the packet's source is the address that `base` holds.
    pub(super) fn check_source(&mut self, family: Family, base: Reg, offset: i16, otherwise: Label) {
        for at in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::LOCAL + at);
            self.asm.load(Size::W, Reg::R2, base, offset + at);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, otherwise);
        }
    }

    /// r7 is a flow: goes on if this packet is of it, and not a SYN that begins another.
    fn begin_anew(&mut self, ended: Label, reversed: Label) {
        let goes_on = self.asm.label("not a syn");
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::TCP_FLAGS);
        self.asm.alu(AluOp::And, Reg::R1, SYN_AND_ACK);
        self.asm.jump_if(Cond::Ne, Reg::R1, SYN, goes_on);
        self.asm.load(Size::B, Reg::R1, Reg::R7, flow::STATE);
        self.asm.jump_if(Cond::Eq, Reg::R1, State::TcpClosing as i32, ended);
        self.asm.load(Size::B, Reg::R1, Reg::R7, flow::BEGUN);
        self.asm.jump_if(Cond::Ne, Reg::R1, direction_number(self.hook) as i32, reversed);
        self.asm.bind(goes_on);
    }

    /// A flow of an older generation is judged again, in the direction in which it began.
    fn check_epoch(&mut self, judge: Label) {
        let current = self.asm.label("in force");
        self.asm.load(Size::W, Reg::R1, Reg::R7, flow::EPOCH);
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Config), 0);
        self.asm.load(Size::W, Reg::R3, Reg::R2, config::EPOCH as i16);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R3, current);
        self.asm.load(Size::W, Reg::R3, Reg::R2, config::KEEP_ESTABLISHED as i16);
        self.asm.jump_if(Cond::Ne, Reg::R3, 0, current);
        self.asm.load(Size::B, Reg::R1, Reg::R7, flow::BEGUN);
        self.asm.store(Size::W, Reg::R10, Frame::JUDGED, Reg::R1);
        self.asm.load(Size::B, Reg::R1, Reg::R7, flow::OWN_NODE);
        self.asm.store(Size::W, Reg::R10, Frame::OWN_NODE, Reg::R1);
        self.asm.jump(judge);
        self.asm.bind(current);
    }

    /// r7 is a flow in force: moves it through its states and passes.
    fn go_on(&mut self, family: Family) {
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
    pub(super) fn adopt(&mut self, current: Label) {
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), 0);
        self.asm.load(Size::W, Reg::R1, Reg::R1, config::EPOCH as i16);
        self.asm.store(Size::W, Reg::R7, flow::EPOCH, Reg::R1);
        self.asm.jump(current);
    }

    /// A new flow: remembered as begun in the judged direction.
    pub(super) fn remember(&mut self, family: Family) {
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
    pub(super) fn forget(&mut self, family: Family) {
        let (open, fresh) = self.flow_maps(family);
        self.delete(open, Frame::KEY);
        self.delete(fresh, Frame::KEY);
    }

    /// Passes, and remembers the ports of a first fragment for those that come after it.
    pub(super) fn pass(&mut self, family: Family, outcome: Option<Outcome>) {
        let not_fragment = self.asm.label("not a first fragment");
        if let Some(outcome) = outcome {
            self.store_constant(Frame::OUTCOME, outcome as u32);
        }
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::FIRST_FRAGMENT);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, not_fragment);
        self.fragment_key(family);
        // The two ports stand together in the flow's key, as in the fragment's value.
        self.update(fragments(family), Frame::SCRATCH, key(family).remote_port);
        self.asm.bind(not_fragment);
        let end = self.pass_label();
        self.asm.jump(end);
    }

    fn update(&mut self, map: MapName, key: i16, value: i16) {
        self.asm.load_map(Reg::R1, map_ref(map));
        self.stack_pointer(Reg::R2, key);
        self.stack_pointer(Reg::R3, value);
        self.asm.mov(Reg::R4, 0);
        self.asm.call(Helper::MAP_UPDATE_ELEM);
    }

    fn delete(&mut self, map: MapName, key: i16) {
        self.asm.load_map(Reg::R1, map_ref(map));
        self.stack_pointer(Reg::R2, key);
        self.asm.call(Helper::MAP_DELETE_ELEM);
    }
}

const _: () = assert!(Key::IFINDEX == Frame::KEY, "the interface begins the key: it is also the key of its endpoint");
