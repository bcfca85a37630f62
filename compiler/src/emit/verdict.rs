//! New flows, and flows of an older generation: endpoint, source, decision.

use super::EmitError;
use super::Emitter;
use super::frame::{Frame, Key, skb};
use super::parse::{icmp_number, key};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::layout::{MapName, Outcome, direction_number, endpoint};
use crate::model::Direction;

impl Emitter<'_> {
    /// r7 is the value of a flow to be judged again, or 0; r8 is the time. A flow that is allowed again goes on at `current`.
    pub(super) fn judge(&mut self, family: Family, current: Label) -> Result<(), EmitError> {
        let [known, egress, allow, deny] = ["known flow", "judge egress", "allow", "deny"].map(|it| self.asm.label(it));
        self.look_up(MapName::Endpoints, Key::IFINDEX);
        let (no_endpoint, unfiltered) = (self.end(Outcome::NoEndpoint), self.end(Outcome::Unfiltered));
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no_endpoint);
        self.asm.mov(Reg::R9, Reg::R0);
        self.asm.jump_if(Cond::Ne, Reg::R7, 0, known);
        self.new_flow(family);
        self.asm.bind(known);
        self.asm.load(Size::H, Reg::R1, Reg::R9, endpoint::FLAGS);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, unfiltered);
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::JUDGED);
        self.asm.jump_if(Cond::Eq, Reg::R1, direction_number(Direction::Egress) as i32, egress);
        self.decide(Direction::Ingress, family, allow, deny)?;
        self.asm.bind(egress);
        self.decide(Direction::Egress, family, allow, deny)?;
        self.asm.bind(allow);
        self.allowed(family, current);
        self.asm.bind(deny);
        self.denied(family);
        Ok(())
    }

    /// What holds only for a packet that begins a flow here.
    fn new_flow(&mut self, family: Family) {
        match self.hook {
            Direction::Egress => {
                let spoofed = self.end(Outcome::Source);
                self.check_own_source(family, Reg::R9, spoofed);
            }
            Direction::Ingress => self.whence(),
        }
    }

    /// Where a packet began: on this host if it came in through no interface; in the pod itself if it came in through the
    /// pod's own. (On a bridge nothing tells what comes back to its sender from what others send: a mark on the packet would
    /// also be that of another node, where nodes are namespaces of one kernel.)
    fn whence(&mut self) {
        let [known, own] = ["whence", "from the pod itself"].map(|it| self.asm.label(it));
        self.store_constant(Frame::OWN_NODE, Frame::FROM_HOST);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::INGRESS_IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, known);
        self.asm.load(Size::W, Reg::R2, Reg::R10, Key::IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, own);
        self.hidden_zero(Reg::R2, Reg::R1);
        self.asm.store(Size::W, Reg::R10, Frame::OWN_NODE, Reg::R2);
        self.asm.jump(known);
        self.asm.bind(own);
        self.store_constant(Frame::OWN_NODE, Frame::FROM_ITSELF);
        self.asm.bind(known);
    }

    /// Goes to `spoofed` unless the source is the address of the endpoint at `base`. An endpoint without one sends nothing.
    pub(super) fn check_own_source(&mut self, family: Family, base: Reg, spoofed: Label) {
        self.check_source(family, base, own_address(family), spoofed);
        // Zeros stand for no address; no pod's begins with them.
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::LOCAL);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, spoofed);
    }

    /// `OUTCOME` says why.
    fn allowed(&mut self, family: Family, current: Label) {
        let new = self.asm.label("new");
        self.asm.jump_if(Cond::Eq, Reg::R7, 0, new);
        self.adopt(family, current);
        self.asm.bind(new);
        let passes = self.asm.label("nothing to remember");
        self.unless_question(family, passes);
        self.remember(family);
        self.asm.bind(passes);
        self.pass(family, None);
    }

    /// Goes to `passes` with ICMP that asks nothing: no flow begins with it. An answer to no question would let the question in
    /// that it answers.
    fn unless_question(&mut self, family: Family, passes: Label) {
        let question = self.asm.label("begins a flow");
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::PROTOCOL);
        self.asm.jump_if(Cond::Ne, Reg::R1, icmp_number(family), question);
        // What is asked, and by which side: see `jump_if_question`.
        self.asm.load(Size::H, Reg::R1, Reg::R10, key(family).remote_port);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, passes);
        self.asm.alu(AluOp::Rsh, Reg::R1, 8);
        self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::JUDGED);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, passes);
        self.asm.bind(question);
    }

    fn denied(&mut self, family: Family) {
        let new = self.asm.label("new, denied");
        self.asm.jump_if(Cond::Eq, Reg::R7, 0, new);
        self.forget(family);
        let cut = self.end(Outcome::Cut);
        self.asm.jump(cut);
        self.asm.bind(new);
        if self.plan.tables.is_staged {
            let would_allow = self.end(Outcome::WouldAllow);
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::OUTCOME);
            self.asm.jump_if(Cond::Eq, Reg::R1, Outcome::WouldAllow as i32, would_allow);
        }
        let denied = self.end(Outcome::Denied);
        self.asm.jump(denied);
    }
}

/// Where an endpoint's value has its address of a family.
pub(super) fn own_address(family: Family) -> i16 {
    match family {
        Family::V4 => endpoint::V4,
        Family::V6 => endpoint::V6,
    }
}
