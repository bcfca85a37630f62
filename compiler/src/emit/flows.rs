//! Flows: what was allowed goes on without being asked again, in both directions.
//!
//! A seam: *look up, touch, remember, forget* are of one of two tables, [`lru`] or [`buckets`]; what they mean is said here.
//! A flow is fresh until its beginner speaks again after an answer: a flood of first packets, even one that is answered, evicts
//! only its like. Expiry is checked here, by protocol and state: a table's own eviction is no policy.
//!
//! A SYN always begins a connection: against the direction of the flow it is asked about as any other, and on a flow that
//! somebody has ended it begins the next one.

mod buckets;
mod fast;
mod lru;
mod room;

use super::frame::{Frame, Key};
use super::parse::{address_bytes, fragments, key};
use super::{Emitter, map_ref};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::helper::Helper;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::layout::{MapName, Outcome, State, config, direction_number, flow};
use crate::model::Direction;
use crate::structures::Flows;

const TCP: i32 = 6;
const UDP: i32 = 17;
const FIN_OR_RST: i32 = 0x05;
const SYN: i32 = 0x02;
const SYN_AND_ACK: i32 = 0x12;

impl Emitter<'_> {
    fn is_in_buckets(&self) -> bool {
        self.plan.tables.structures.flows == Flows::Buckets
    }

    /// Packets of flows that are in force pass here. The others fall through: r7 is a flow that has to be judged again, or
    /// 0; r8 is the time. Returns where a flow goes on that was judged again.
    pub(super) fn find_flow(&mut self, family: Family) -> Label {
        let [miss, another, new, expired, judge, current] =
            ["miss", "another flow", "no flow", "expired", "judge", "current"].map(|name| self.asm.label(name));
        self.look_up_flow(family, Frame::KEY, miss);
        self.jump_if_expired(expired);
        if self.hook == Direction::Egress {
            // Another source than the flow's: whether it is one of the pod's is asked there.
            self.check_flow_source(family, another);
        }
        self.begin_anew(expired, another);
        self.check_epoch(judge);
        self.asm.bind(current);
        match self.is_in_buckets() {
            true => self.go_on_in_buckets(family),
            false => self.go_on_lru(family),
        }
        self.asm.bind(expired);
        self.forget(family);
        self.asm.bind(miss);
        self.now();
        if self.is_in_buckets() {
            self.asm.jump(new);
        }
        self.asm.bind(another);
        if self.is_in_buckets() {
            self.take_its_slot(family);
        }
        self.asm.bind(new);
        self.asm.mov(Reg::R7, 0);
        self.asm.bind(judge);
        current
    }

    /// Goes on with r7 = the flow with the key on the stack, or to `miss`.
    pub(super) fn look_up_flow(&mut self, family: Family, key: i16, miss: Label) {
        match self.is_in_buckets() {
            true => self.look_up_in_buckets(family, key, miss),
            false => self.look_up_lru(family, key, miss),
        }
    }

    /// r8 = the time in ticks.
    pub(super) fn now(&mut self) {
        self.asm.call(Helper::JIFFIES64);
        self.asm.mov(Reg::R8, Reg::R0);
    }

    /// r7 is a flow that was looked up just now; r8 = the time.
    pub(super) fn jump_if_expired(&mut self, expired: Label) {
        match self.is_in_buckets() {
            true => self.jump_if_expired_in_buckets(expired),
            false => {
                self.now();
                self.jump_if_lru_expired(expired);
            }
        }
    }

    /// r2 is how long a flow was silent, r3 holds its state in the lower three bits.
    fn jump_if_longer(&mut self, expired: Label) {
        self.asm.alu(AluOp::And, Reg::R3, 7);
        self.asm.alu(AluOp::Lsh, Reg::R3, 2);
        self.asm.load_map_value(Reg::R4, map_ref(MapName::Config), config::TIMEOUTS);
        self.asm.alu(AluOp::Add, Reg::R4, Reg::R3);
        self.asm.load(Size::W, Reg::R3, Reg::R4, 0);
        self.asm.jump_if(Cond::Sgt, Reg::R2, Reg::R3, expired);
    }

    /// r7 is a flow that was looked up just now: goes to `otherwise` unless the packet's source is its own.
    pub(super) fn check_flow_source(&mut self, family: Family, otherwise: Label) {
        match self.is_in_buckets() {
            true => self.asm.jump_if(Cond::Ne, Reg::R1, 0, otherwise),
            false => self.check_source(family, Reg::R7, flow::LOCAL, otherwise),
        }
    }

    /// Goes to `otherwise` unless the packet's source is the address that `base` holds.
    pub(super) fn check_source(&mut self, family: Family, base: Reg, offset: i16, otherwise: Label) {
        for at in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::LOCAL + at);
            self.asm.load(Size::W, Reg::R2, base, offset + at);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, otherwise);
        }
    }

    /// r1 = a flow's [`State`].
    fn load_state(&mut self) {
        match self.is_in_buckets() {
            true => self.load_bucket_state(),
            false => self.asm.load(Size::B, Reg::R1, Reg::R7, flow::STATE),
        }
    }

    /// r1 = the direction in which a flow began.
    fn load_begun(&mut self) {
        match self.is_in_buckets() {
            true => self.load_bucket_begun(),
            false => self.asm.load(Size::B, Reg::R1, Reg::R7, flow::BEGUN),
        }
    }

    /// r7 is a flow: goes on if this packet is of it, and not a SYN that begins another.
    fn begin_anew(&mut self, ended: Label, reversed: Label) {
        let goes_on = self.asm.label("not a syn");
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::TCP_FLAGS);
        self.asm.alu(AluOp::And, Reg::R1, SYN_AND_ACK);
        self.asm.jump_if(Cond::Ne, Reg::R1, SYN, goes_on);
        self.load_state();
        self.asm.jump_if(Cond::Eq, Reg::R1, State::TcpClosing as i32, ended);
        self.load_begun();
        self.asm.jump_if(Cond::Ne, Reg::R1, direction_number(self.hook) as i32, reversed);
        self.asm.bind(goes_on);
    }

    /// A flow of an older generation is judged again, in the direction in which it began.
    fn check_epoch(&mut self, judge: Label) {
        let current = self.asm.label("in force");
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Config), 0);
        match self.is_in_buckets() {
            true => self.load_bucket_epochs(),
            false => {
                self.asm.load(Size::W, Reg::R1, Reg::R7, flow::EPOCH);
                self.asm.load(Size::W, Reg::R3, Reg::R2, config::EPOCH as i16);
            }
        }
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R3, current);
        self.asm.load(Size::W, Reg::R3, Reg::R2, config::KEEP_ESTABLISHED as i16);
        self.asm.jump_if(Cond::Ne, Reg::R3, 0, current);
        self.load_begun();
        self.asm.store(Size::W, Reg::R10, Frame::JUDGED, Reg::R1);
        match self.is_in_buckets() {
            true => self.load_bucket_own_node(),
            false => self.asm.load(Size::B, Reg::R1, Reg::R7, flow::OWN_NODE),
        }
        self.asm.store(Size::W, Reg::R10, Frame::OWN_NODE, Reg::R1);
        self.asm.jump(judge);
        self.asm.bind(current);
    }

    /// r7 is a flow of an older generation that is allowed in this one too.
    pub(super) fn adopt(&mut self, family: Family, current: Label) {
        match self.is_in_buckets() {
            true => self.adopt_in_buckets(family),
            false => self.adopt_lru(),
        }
        self.asm.jump(current);
    }

    /// A new flow: remembered as begun in the judged direction.
    pub(super) fn remember(&mut self, family: Family) {
        match self.is_in_buckets() {
            true => self.remember_in_buckets(family),
            false => self.remember_lru(family),
        }
    }

    /// The flow r7 is no more.
    pub(super) fn forget(&mut self, family: Family) {
        match self.is_in_buckets() {
            true => self.forget_in_buckets(),
            false => self.forget_lru(family),
        }
    }

    /// Passes, and remembers the ports of a first fragment for those that come after it.
    pub(super) fn pass(&mut self, family: Family, outcome: Option<Outcome>) {
        let not_fragment = self.asm.label("not a first fragment");
        if let Some(outcome) = outcome {
            let told = self.asm.label("to be told");
            self.if_would_deny(told);
            self.store_constant(Frame::OUTCOME, outcome as u32);
            if self.plan.tables.is_staged {
                self.asm.bind(told);
            }
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
}

const _: () = assert!(Key::IFINDEX == Frame::KEY, "the interface begins the key: it is also the key of its endpoint");
