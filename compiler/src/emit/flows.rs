//! Flows: packets of a connection that was allowed pass without a look-up of policy, in both directions.
//!
//! Problem: replies have no rule of their own, and most packets belong to connections that were judged long ago. Strategy: each
//! allowed flow is remembered in a table of our own ([`crate::layout::buckets`]), under one key for both directions.
//!
//! A flow is fresh until its beginner speaks again after an answer: a flood of first packets, even answered ones, evicts only
//! other fresh flows. Programs check the expiry themselves, by protocol and state.
//!
//! # Packets that do not belong to the flow with their key
//!
//! * A SYN (or an SCTP INIT) always begins a connection: against the direction of the flow with its key, or on a flow that has ended, it
//!   is judged as any first packet.
//! * A flow that the own node began is continued only by packets of the own node ([`Emitter::check_origin`]). A client outside can
//!   get the node's address and the same port when the node's NAT has forgotten the connection before we have.
//! * A RST that comes to the pod changes nothing: its sequence number may be a guess. The pod's kernel knows; if it gives up the
//!   connection, the flow expires. A FIN counts for its own side alone, so that it takes both sides to shorten a flow's life.
//! * A flow that policy no longer allows stays as a trace ([`Emitter::refuse_cut`]): else the other end's next packet would
//!   begin a new flow in the other direction, and the connection would go on.

mod buckets;
mod fast;
mod room;

use super::frame::{Frame, Key, skb};
use super::parse::{SCTP, TCP};
use super::{Emitter, map_ref};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::helper::Helper;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::layout::buckets::{BEGUN, CUT, EPOCH_SHIFT, FIN_OF_BEGINNER, ORIGIN_SHIFT, STATE_SHIFT};
use crate::layout::{MapName, Origin, Outcome, State, config, direction_number, mark};
use crate::model::Direction;

pub(super) const FIN: i32 = 0x01;
pub(super) const SYN: i32 = 0x02;
pub(super) const RST: i32 = 0x04;
pub(super) const ACK: i32 = 0x10;
const FIN_OR_RST: i32 = FIN | RST;
const SYN_AND_ACK: i32 = SYN | ACK;
/// The bits of an epoch that a slot does not have.
pub(super) const BEYOND_EPOCH: i32 = 64 - crate::layout::buckets::EPOCH_BITS as i32;

impl Emitter<'_> {
    /// Packets of flows that are in force pass here. The others fall through: r7 is a flow that has to be judged again, or
    /// 0; r8 is the time. Returns where a flow goes on that was judged again.
    pub(super) fn find_flow(&mut self, family: Family) -> Label {
        let [miss, another, new, expired, judge, current, cut] =
            ["miss", "another flow", "no flow", "expired", "judge", "current", "cut flow"].map(|it| self.asm.label(it));
        self.look_up_flow(family, Frame::KEY, miss);
        self.jump_if_expired(expired);
        // Another local address than the flow's: whether it is the pod's is asked there.
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, another);
        self.load_word();
        self.begin_anew(another);
        self.load_bit(CUT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, cut);
        if self.hook == Direction::Ingress {
            self.check_origin(family, another);
        }
        self.check_epoch(family, judge);
        self.asm.bind(current);
        self.go_on(family);
        self.asm.bind(cut);
        self.refuse_cut(family, another);
        self.asm.bind(expired);
        self.forget();
        self.asm.bind(miss);
        self.now();
        self.asm.jump(new);
        self.asm.bind(another);
        self.take_its_slot(family);
        self.asm.bind(new);
        self.asm.mov(Reg::R7, 0);
        self.asm.bind(judge);
        current
    }

    /// r8 = the time in ticks.
    pub(super) fn now(&mut self) {
        self.asm.call(Helper::JIFFIES64);
        self.asm.mov(Reg::R8, Reg::R0);
    }

    /// r3 = the flow's word, as it was accepted.
    pub(super) fn load_word(&mut self) {
        self.asm.load(Size::Dw, Reg::R3, Reg::R10, Frame::WORD);
    }

    /// r2 = a bit of the word r3.
    fn load_bit(&mut self, shift: u32) {
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::Rsh, Reg::R2, shift as i32);
        self.asm.alu(AluOp::And, Reg::R2, 1);
    }

    /// r2 = a field of the word r3 within its lower half, where it is.
    fn load_field(&mut self, mask: u64) {
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, mask as i32);
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

    /// Goes to `otherwise` unless the packet's local address is the one that `base` holds.
    pub(super) fn check_local(&mut self, family: Family, base: Reg, offset: i16, otherwise: Label) {
        for at in (0..super::parse::address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::LOCAL + at);
            self.asm.load(Size::W, Reg::R2, base, offset + at);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, otherwise);
        }
    }

    /// Goes to `otherwise` unless the packet begins a connection: a SYN, an SCTP INIT.
    pub(super) fn unless_begins(&mut self, otherwise: Label) {
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::TCP_FLAGS);
        self.asm.alu(AluOp::And, Reg::R1, SYN_AND_ACK);
        self.asm.jump_if(Cond::Ne, Reg::R1, SYN, otherwise);
    }

    /// Goes to `otherwise` unless the packet is of TCP or SCTP: protocols in which a packet says whether it begins a connection.
    pub(super) fn unless_connects(&mut self, otherwise: Label) {
        let connects = self.asm.label("tcp or sctp");
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::PROTOCOL);
        self.asm.jump_if(Cond::Eq, Reg::R1, TCP, connects);
        self.asm.jump_if(Cond::Ne, Reg::R1, SCTP, otherwise);
        self.asm.bind(connects);
    }

    /// r3 is the word of a flow: goes to `another` with a packet that begins a connection, unless it is the first packet of this one, sent
    /// again. r3 is kept.
    fn begin_anew(&mut self, another: Label) {
        let goes_on = self.asm.label("begins nothing");
        self.unless_begins(goes_on);
        self.load_field(7 << STATE_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R2, (State::TcpClosing as i32) << STATE_SHIFT, another);
        self.load_field(3 << ORIGIN_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R2, (Origin::MidStream as i32) << ORIGIN_SHIFT, another);
        self.load_field(BEGUN);
        let begun = direction_number(self.hook) * BEGUN as u32;
        self.asm.jump_if(Cond::Ne, Reg::R2, begun as i32, another);
        self.load_bit(CUT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, another);
        self.asm.bind(goes_on);
    }

    /// r3 is the word of a flow: goes to `another` with a packet that comes from elsewhere than the flow does. r3 is kept.
    ///
    /// A packet of the own node may be one that no socket sent (a RST for a connection that is gone), so no socket is asked for
    /// here. What this leaves to forwarded packets that lose their interface is IPv6 fragments alone.
    fn check_origin(&mut self, family: Family, another: Label) {
        let [itself, same] = ["of the pod itself", "same origin"].map(|it| self.asm.label(it));
        self.load_field(3 << ORIGIN_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, same);
        self.asm.jump_if(Cond::Eq, Reg::R2, (Origin::MidStream as i32) << ORIGIN_SHIFT, same);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::INGRESS_IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R2, (Origin::Itself as i32) << ORIGIN_SHIFT, itself);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, another);
        self.unless_stamped(another);
        self.unless_fragment_v6(family, another);
        self.asm.jump(same);
        self.asm.bind(itself);
        self.asm.load(Size::W, Reg::R2, Reg::R10, Key::IFINDEX);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, another);
        self.asm.bind(same);
    }

    /// Goes to `stamped` with a packet that a `from_pod` of this host has seen.
    pub(super) fn unless_stamped(&mut self, stamped: Label) {
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::TC_INDEX);
        self.asm.alu(AluOp::And, Reg::R1, mark::STAMP as i32);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, stamped);
    }

    /// Goes to `fragment` with a packet that has an IPv6 fragment header.
    pub(super) fn unless_fragment_v6(&mut self, family: Family, fragment: Label) {
        if family == Family::V6 {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::FRAGMENT);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, fragment);
        }
    }

    /// r3 is the word of a flow. One of an older generation is judged again, in the direction in which it began; where that is not
    /// known, in both.
    fn check_epoch(&mut self, family: Family, judge: Label) {
        let [current, kept, known] = ["in force", "kept", "known origin"].map(|it| self.asm.label(it));
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Config), 0);
        self.asm.load(Size::W, Reg::R1, Reg::R2, config::EPOCH as i16);
        self.asm.store(Size::W, Reg::R10, Frame::EPOCH, Reg::R1);
        self.asm.load(Size::W, Reg::R4, Reg::R2, config::KEEP_ESTABLISHED as i16);
        self.epoch_differs(Reg::R1, Reg::R2);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, current);
        self.asm.jump_if(Cond::Ne, Reg::R4, 0, kept);
        self.load_field(BEGUN);
        self.asm.alu(AluOp::Rsh, Reg::R2, BEGUN.trailing_zeros() as i32);
        self.asm.store(Size::W, Reg::R10, Frame::JUDGED, Reg::R2);
        self.load_field(3 << ORIGIN_SHIFT);
        self.asm.alu(AluOp::Rsh, Reg::R2, ORIGIN_SHIFT as i32);
        self.asm.store(Size::W, Reg::R10, Frame::ORIGIN, Reg::R2);
        self.asm.jump_if(Cond::Ne, Reg::R2, Origin::MidStream as i32, known);
        self.store_constant(Frame::ORIGIN, Origin::Elsewhere as u32);
        self.store_constant(Frame::BOTH, 1);
        self.asm.bind(known);
        self.asm.jump(judge);
        self.asm.bind(kept);
        self.adopt(family);
        self.asm.bind(current);
    }

    /// The flow that was looked up just now is in force: of this generation (or kept, whatever its generation), and not cut. Else goes to
    /// `otherwise`.
    pub(super) fn unless_in_force(&mut self, otherwise: Label) {
        let in_force = self.asm.label("flow in force");
        self.load_word();
        self.load_bit(CUT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, otherwise);
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Config), 0);
        self.asm.load(Size::W, Reg::R4, Reg::R2, config::KEEP_ESTABLISHED as i16);
        self.asm.jump_if(Cond::Ne, Reg::R4, 0, in_force);
        self.asm.load(Size::W, Reg::R1, Reg::R2, config::EPOCH as i16);
        self.epoch_differs(Reg::R1, Reg::R2);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, otherwise);
        self.asm.bind(in_force);
    }

    /// `epoch`, an epoch, becomes 0 if it is that of the word r3. `scratch` is lost.
    fn epoch_differs(&mut self, epoch: Reg, scratch: Reg) {
        self.asm.mov(scratch, Reg::R3);
        self.asm.alu(AluOp::Rsh, scratch, EPOCH_SHIFT as i32);
        self.asm.alu(AluOp::Xor, epoch, scratch);
        self.asm.alu(AluOp::Lsh, epoch, BEYOND_EPOCH);
    }

    /// r7 is the slot of a cut flow and r3 its word: drops the packet, or goes to `another` with one that begins a flow of its own.
    ///
    /// A packet of TCP or SCTP says itself whether it begins a connection. Of other protocols, a packet in the flow's direction is a new question,
    /// which policy answers; one against it may still be a reply to the old one, and as long as there are such replies the trace
    /// stays.
    fn refuse_cut(&mut self, family: Family, another: Label) {
        let [other, reply] = ["cut, no connection", "reply of a cut flow"].map(|it| self.asm.label(it));
        let cut = self.end(Outcome::Cut);
        self.unless_connects(other);
        self.asm.jump(cut);
        self.asm.bind(other);
        self.load_field(BEGUN);
        self.asm.jump_if(self.is_reply(), Reg::R2, 0, reply);
        self.load_bit(FIN_OF_BEGINNER);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, cut);
        self.asm.jump(another);
        self.asm.bind(reply);
        self.touch_slot(family);
        self.asm.jump(cut);
    }

    /// How the bit [`BEGUN`] compares with 0 if this hook's packets go against the flow's direction.
    fn is_reply(&self) -> Cond {
        if self.hook == Direction::Egress { Cond::Eq } else { Cond::Ne }
    }

    /// r7 is a flow of another generation that this one does not allow. r8 is the time; the packet is dropped.
    ///
    /// While two generations are in force, the flow is not marked: this may be the older one, and the newer one allows the flow. It is
    /// judged again with each packet then.
    pub(super) fn cut_flow(&mut self, family: Family) {
        let [cut, marked] = [self.end(Outcome::Cut), self.asm.label("marked")];
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), config::OTHER);
        self.asm.load(Size::W, Reg::R1, Reg::R1, 0);
        self.asm.jump_if(Cond::Ne, Reg::R1, mark::NONE as i32, marked);
        self.load_word();
        self.asm.mov(Reg::R1, 1);
        self.asm.alu(AluOp::Lsh, Reg::R1, CUT as i32);
        self.asm.alu(AluOp::Or, Reg::R3, Reg::R1);
        self.change_word();
        self.asm.bind(marked);
        let touches = self.asm.label("keeps the trace");
        self.unless_connects(touches);
        self.asm.jump(cut);
        self.asm.bind(touches);
        self.load_word();
        self.load_field(BEGUN);
        let asks = if self.is_reply() == Cond::Eq { Cond::Ne } else { Cond::Eq };
        self.asm.jump_if(asks, Reg::R2, 0, cut);
        self.asm.load(Size::Dw, Reg::R9, Reg::R7, crate::layout::buckets::last(family));
        self.touch_slot(family);
        self.asm.jump(cut);
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
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::FRAGMENT);
        self.asm.jump_if(Cond::Ne, Reg::R1, Frame::FIRST, not_fragment);
        self.remember_fragment(family);
        self.asm.bind(not_fragment);
        let end = self.pass_label();
        self.asm.jump(end);
    }
}

const _: () = assert!(Key::IFINDEX == Frame::KEY, "the interface begins the key: it is also the key of its endpoint");
