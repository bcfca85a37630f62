//! Flows: packets of a connection that was allowed pass without a policy look-up, in both directions.
//!
//! Problem: no rule allows replies, and most packets belong to connections that were decided long ago. Strategy: the
//! flow table ([`weir_artifact::layout::buckets`]) remembers each allowed flow, under one key for both directions.
//!
//! A flow is fresh until the side that began it sends again after an answer. So a flood of first packets, even of
//! answered ones, evicts only other fresh flows. Programs check the expiry themselves, by protocol and state.
//!
//! # Packets that do not belong to the flow with their key
//!
//! * A SYN (or an SCTP INIT) always begins a connection. If it goes against the direction of the flow with its key, or
//!   if that flow has ended, it is decided like any first packet.
//! * A flow that the pod's own node began is continued only by packets of that node ([`Emitter::check_origin`]). The
//!   node's NAT may forget the connection before the flow table does, and then give the node's address and the same
//!   port to an outside client.
//! * A RST to the pod does not change the flow, because its sequence number may be a guess. Only the pod's kernel can
//!   check it; if it gives up the connection, the flow expires. A FIN counts for its own side alone, so only both sides
//!   together shorten a flow's life.
//! * A flow that policy no longer allows stays as a trace ([`Emitter::refuse_cut`]). Otherwise the other end's next
//!   packet would begin a new flow in the other direction, and the connection would continue.

mod buckets;
mod fast;
mod room;
mod slot;

use super::Emitter;
use super::frame::{FlowKey, StackFrame, skb};
use super::parse::{SCTP, TCP};
use weir_artifact::layout::buckets::{BEGUN, CUT, EPOCH_SHIFT, FIN_OF_BEGINNER, ORIGIN_SHIFT, STATE_SHIFT};
use weir_artifact::layout::{FlowState, MapName, Origin, Outcome, config, direction_number, mark};
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;
use weir_objects::address::Family;

pub(super) const FIN: i32 = 0x01;
pub(super) const SYN: i32 = 0x02;
pub(super) const RST: i32 = 0x04;
pub(super) const ACK: i32 = 0x10;
const FIN_OR_RST: i32 = FIN | RST;
const SYN_AND_ACK: i32 = SYN | ACK;
/// How far to shift a 64-bit word to the left so that only an epoch's lowest bits, those that a slot holds, are left.
pub(super) const BEYOND_EPOCH: i32 = 64 - weir_artifact::layout::buckets::EPOCH_BITS as i32;

impl Emitter<'_> {
    /// Passes packets of flows that are in force. The others fall through: r7 is the slot of a flow that needs a new
    /// decision, or 0; r8 is the time. Returns the label where the packet of a flow continues after the new decision
    /// allowed it.
    pub(super) fn find_flow(&mut self, family: Family) -> Label {
        let [miss, another, new, expired, judge, current, cut] =
            ["miss", "another flow", "no flow", "expired", "judge", "current", "cut flow"].map(|it| self.asm.label(it));
        self.look_up_flow(family, StackFrame::KEY, miss);
        // Expiry is checked by each reader. No thread sweeps the table: a slot of an expired flow is reused by the next
        // flow that needs one.
        self.jump_if_expired(expired);
        // The packet has another local address than the flow. The slow path checks whether it is the pod's.
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, another);
        self.load_word();
        // Before the cut: a new connection may replace the trace of a cut flow.
        self.begin_anew(another);
        self.load_bit(CUT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, cut);
        if self.hook == Direction::Ingress {
            self.check_origin(family, another);
        }
        // Last, because it is the only check after which the flow may still be used: a flow of an older generation is
        // decided again and then continues at `current`.
        self.check_epoch(family, judge);
        self.asm.bind(current);
        self.go_on(family);
        self.asm.bind(cut);
        self.refuse_cut(family, another);
        self.asm.bind(expired);
        // If the packet is denied, no new flow takes the slot. It would be shown as a flow until another flow needs it.
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

    /// r3 = the flow's word as it was accepted.
    pub(super) fn load_word(&mut self) {
        self.load_frame(Reg::R3, StackFrame::WORD);
    }

    /// r2 = a bit of the word r3.
    fn load_bit(&mut self, shift: u32) {
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::Rsh, Reg::R2, shift as i32);
        self.asm.alu(AluOp::And, Reg::R2, 1);
    }

    /// r2 = a field in the lower half of the word r3, not shifted.
    fn load_field(&mut self, mask: u64) {
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R2, mask as i32);
    }

    /// Goes to `otherwise` unless the packet's local address equals the one at `base + offset`.
    pub(super) fn check_local(&mut self, family: Family, base: Reg, offset: i16, otherwise: Label) {
        for at in (0..super::parse::address_bytes(family)).step_by(4) {
            self.load_frame(Reg::R1, StackFrame::LOCAL + at);
            self.asm.load(Size::W, Reg::R2, base, offset + at);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, otherwise);
        }
    }

    /// Goes to `otherwise` unless the packet begins a connection (TCP SYN or SCTP INIT).
    pub(super) fn unless_begins(&mut self, otherwise: Label) {
        self.load_frame(Reg::R1, StackFrame::TCP_FLAGS);
        self.asm.alu(AluOp::And, Reg::R1, SYN_AND_ACK);
        self.asm.jump_if(Cond::Ne, Reg::R1, SYN, otherwise);
    }

    /// Goes to `otherwise` unless the packet is TCP or SCTP: in these protocols a packet says whether it begins a
    /// connection.
    pub(super) fn unless_connects(&mut self, otherwise: Label) {
        let connects = self.asm.label("tcp or sctp");
        self.load_frame(Reg::R1, StackFrame::PROTOCOL);
        self.asm.jump_if(Cond::Eq, Reg::R1, TCP, connects);
        self.asm.jump_if(Cond::Ne, Reg::R1, SCTP, otherwise);
        self.asm.bind(connects);
    }

    /// r3 is the word of a flow. Goes to `another` if the packet begins a connection, unless it is a retransmission of
    /// this flow's first packet. r3 is kept.
    fn begin_anew(&mut self, another: Label) {
        let goes_on = self.asm.label("begins nothing");
        self.unless_begins(goes_on);
        // After both FINs or a RST of the pod, the same ports may begin a new connection at once.
        self.load_field(7 << STATE_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R2, (FlowState::TcpClosing as i32) << STATE_SHIFT, another);
        // A flow whose beginning was not seen has no known direction, so the SYN cannot be compared with it.
        self.load_field(3 << ORIGIN_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R2, (Origin::MidStream as i32) << ORIGIN_SHIFT, another);
        self.load_field(BEGUN);
        // A SYN against the flow's direction asks for a connection that policy has not decided about, although the
        // ports are the same.
        let begun = direction_number(self.hook) * BEGUN as u32;
        self.asm.jump_if(Cond::Ne, Reg::R2, begun as i32, another);
        self.load_bit(CUT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, another);
        self.asm.bind(goes_on);
    }

    /// r3 is the word of a flow. Goes to `another` if the packet has another origin than the flow. r3 is kept.
    ///
    /// A packet of the own node may have no socket (a RST for a connection that is gone), so this check does not
    /// require one. Without a socket as evidence, a forwarded packet that lost its interface looks like the node's;
    /// these are IPv6 fragments alone, which therefore go to `another`.
    fn check_origin(&mut self, family: Family, another: Label) {
        let [itself, same] = ["of the pod itself", "same origin"].map(|it| self.asm.label(it));
        self.load_field(3 << ORIGIN_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, same);
        self.asm.jump_if(Cond::Eq, Reg::R2, (Origin::MidStream as i32) << ORIGIN_SHIFT, same);
        self.load_context(Reg::R1, skb::INGRESS_IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R2, (Origin::Itself as i32) << ORIGIN_SHIFT, itself);
        // A packet that came in through an interface is not the host's own. This keeps an outside client out that the
        // node's NAT has given the port of an older connection of the node.
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, another);
        self.unless_stamped(another);
        self.unless_fragment_v6(family, another);
        self.asm.jump(same);
        self.asm.bind(itself);
        self.load_frame(Reg::R2, FlowKey::IFINDEX);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, another);
        self.asm.bind(same);
    }

    /// Goes to `stamped` if a `from_pod` of this host has seen the packet.
    pub(super) fn unless_stamped(&mut self, stamped: Label) {
        self.load_context(Reg::R1, skb::TC_INDEX);
        self.asm.alu(AluOp::And, Reg::R1, mark::STAMP as i32);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, stamped);
    }

    /// Goes to `fragment` if the packet has an IPv6 fragment header.
    pub(super) fn unless_fragment_v6(&mut self, family: Family, fragment: Label) {
        if family == Family::V6 {
            self.load_frame(Reg::R1, StackFrame::FRAGMENT);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, fragment);
        }
    }

    /// r3 is the word of a flow. A flow of an older generation needs a new decision, in the direction in which it
    /// began. If that direction is unknown, it needs a decision in both.
    fn check_epoch(&mut self, family: Family, judge: Label) {
        let [current, kept, known] = ["in force", "kept", "known origin"].map(|it| self.asm.label(it));
        self.point_to(Reg::R2, MapName::Config, 0);
        self.load_config_at(Reg::R1, Reg::R2, config::EPOCH);
        self.store_frame(StackFrame::EPOCH, Reg::R1);
        // Both parameters are read at once, before r2 is used for other things: they are in one cache line.
        self.load_config_at(Reg::R4, Reg::R2, config::KEEP_ESTABLISHED);
        self.epoch_differs(Reg::R1, Reg::R2);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, current);
        self.asm.jump_if(Cond::Ne, Reg::R4, 0, kept);
        // The new decision must be about the direction in which the flow began: for a reply, the policies of the other
        // direction say nothing.
        self.load_field(BEGUN);
        self.asm.alu(AluOp::Rsh, Reg::R2, BEGUN.trailing_zeros() as i32);
        self.store_frame(StackFrame::JUDGED, Reg::R2);
        self.load_field(3 << ORIGIN_SHIFT);
        self.asm.alu(AluOp::Rsh, Reg::R2, ORIGIN_SHIFT as i32);
        self.store_frame(StackFrame::ORIGIN, Reg::R2);
        self.asm.jump_if(Cond::Ne, Reg::R2, Origin::MidStream as i32, known);
        // `Elsewhere`, the origin with the fewest rights.
        const _: () = assert!(Origin::Elsewhere as u32 == 0, "stored as zero");
        self.hidden_zero(Reg::R2, Reg::R3);
        self.store_frame(StackFrame::ORIGIN, Reg::R2);
        self.store_constant(StackFrame::BOTH, 1);
        self.asm.bind(known);
        self.asm.jump(judge);
        self.asm.bind(kept);
        self.adopt(family);
        self.asm.bind(current);
    }

    /// Goes to `otherwise` unless the flow that was just looked up is in force: it is not cut, and it is of this
    /// generation or of one whose flows are kept.
    pub(super) fn unless_in_force(&mut self, otherwise: Label) {
        let in_force = self.asm.label("flow in force");
        self.load_word();
        self.load_bit(CUT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, otherwise);
        self.point_to(Reg::R2, MapName::Config, 0);
        self.load_config_at(Reg::R4, Reg::R2, config::KEEP_ESTABLISHED);
        self.asm.jump_if(Cond::Ne, Reg::R4, 0, in_force);
        self.load_config_at(Reg::R1, Reg::R2, config::EPOCH);
        self.epoch_differs(Reg::R1, Reg::R2);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, otherwise);
        self.asm.bind(in_force);
    }

    /// `epoch` becomes 0 if it equals the epoch in the word r3. `scratch` is overwritten.
    fn epoch_differs(&mut self, epoch: Reg, scratch: Reg) {
        self.asm.mov(scratch, Reg::R3);
        self.asm.alu(AluOp::Rsh, scratch, EPOCH_SHIFT as i32);
        self.asm.alu(AluOp::Xor, epoch, scratch);
        // Only the lowest bits can be compared: the slot has no more of them. The shift drops the rest of both words,
        // with no mask of more than 32 bits to load.
        self.asm.alu(AluOp::Lsh, epoch, BEYOND_EPOCH);
    }

    /// r7 is the slot of a cut flow and r3 its word. Drops the packet, or goes to `another` if it begins a flow of its
    /// own.
    ///
    /// A packet of TCP or SCTP says itself whether it begins a connection. In other protocols, a packet in the flow's
    /// direction is a new request, and policy decides about it. A packet in the other direction may still be a reply to
    /// the old request, and the trace stays as long as such replies arrive.
    fn refuse_cut(&mut self, family: Family, another: Label) {
        let [other, reply] = ["cut, no connection", "reply of a cut flow"].map(|it| self.asm.label(it));
        let cut = self.end(Outcome::Cut);
        self.unless_connects(other);
        self.asm.jump(cut);
        self.asm.bind(other);
        self.load_field(BEGUN);
        self.asm.jump_if(self.is_reply(), Reg::R2, 0, reply);
        // A flow that the runtime ended stays ended in both directions until it expires. Without this test its next
        // packet would begin it again.
        self.load_bit(FIN_OF_BEGINNER);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, cut);
        self.asm.jump(another);
        self.asm.bind(reply);
        // The trace must live as long as replies arrive, or the connection would continue after it. Packets that ask
        // for something new do not prolong it.
        self.touch_slot(family, Reg::R8);
        self.asm.jump(cut);
    }

    /// The condition under which the bit [`BEGUN`], compared with 0, says that this hook's packets go against the
    /// flow's direction.
    fn is_reply(&self) -> Cond {
        if self.hook == Direction::Egress { Cond::Eq } else { Cond::Ne }
    }

    /// r7 is the slot of a flow of another generation that this generation denies, r8 the time. Marks the flow as cut
    /// and drops the packet.
    ///
    /// While two generations are in force, the flow is not marked: this program may belong to the older one, and the
    /// newer one may allow the flow. Each packet then needs a new decision.
    pub(super) fn cut_flow(&mut self, family: Family) {
        let [cut, marked] = [self.end(Outcome::Cut), self.asm.label("marked")];
        // Marking is final for the flow: no later packet brings it back.
        self.load_config(Reg::R1, config::OTHER);
        self.asm.jump_if(Cond::Ne, Reg::R1, mark::NONE as i32, marked);
        self.load_word();
        // The bit is beyond the 32 bits of an immediate value, so it is shifted into place.
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
        // The decision has overwritten r9, so it is read again. If another flow has taken the slot in the meantime, only
        // that flow's time is set to the present, which is harmless.
        self.asm.load(Size::Dw, Reg::R9, Reg::R7, weir_artifact::layout::buckets::last(family));
        self.touch_slot(family, Reg::R8);
        self.asm.jump(cut);
    }

    /// Passes the packet, and remembers the ports of a first fragment for the fragments that follow.
    pub(super) fn pass(&mut self, family: Family, outcome: Option<Outcome>) {
        let not_fragment = self.asm.label("not a first fragment");
        if let Some(outcome) = outcome {
            let reported = self.asm.label("to be reported");
            // `WouldDeny` must not be overwritten by `Established` or `Allowed`: it is the outcome that the user of
            // audit mode waits for.
            self.if_would_deny(reported);
            self.store_constant(StackFrame::OUTCOME, outcome as u32);
            if self.plan.shapes.is_audit {
                self.asm.bind(reported);
            }
        }
        self.load_frame(Reg::R1, StackFrame::FRAGMENT);
        self.asm.jump_if(Cond::Ne, Reg::R1, StackFrame::FIRST, not_fragment);
        self.remember_fragment(family);
        self.asm.bind(not_fragment);
        // The outcome is stored already, so this is the end without a block of its own.
        let end = self.pass_label();
        self.asm.jump(end);
    }
}

const _: () =
    assert!(FlowKey::IFINDEX == StackFrame::KEY, "the interface begins the key: it is also the key of its endpoint");
