//! The decision about new flows and flows of an older generation: endpoint, addresses, policy.

use super::EmitError;
use super::Emitter;
use super::access::EndpointField;
use super::flows::RST;
use super::frame::{FlowKey, StackFrame, skb};
use super::parse::{icmp_number, key};
use weir_artifact::layout::{MapName, Origin, Outcome, config, direction_number, endpoint};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;
use weir_objects::address::Family;

impl Emitter<'_> {
    /// r7 is the slot of a flow that needs a new decision, or 0; r8 is the time. Jumps to `current` if such a flow is
    /// allowed again.
    ///
    /// A packet that needs a decision in both directions (`BOTH`) goes through the egress decision first, then through
    /// the ingress decision.
    pub(super) fn judge(&mut self, family: Family, current: Label) -> Result<(), EmitError> {
        let [known, ingress, egress, egress_allows, allow, deny] =
            ["known flow", "judge ingress", "judge egress", "egress allows", "allow", "deny"]
                .map(|it| self.asm.label(it));
        // The epoch is read before any table. Otherwise a flow that was decided with old tables could get the epoch of
        // new ones.
        self.load_config(Reg::R1, config::EPOCH);
        self.store_frame(StackFrame::EPOCH, Reg::R1);
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.look_up_or(MapName::Endpoints, FlowKey::IFINDEX, no_endpoint);
        self.asm.mov(Reg::R9, Reg::R0);
        self.asm.jump_if(Cond::Ne, Reg::R7, 0, known);
        self.new_flow(family);
        self.asm.bind(known);
        self.store_constant(StackFrame::OUTCOME, Outcome::Unfiltered as u32);
        self.load_endpoint(Reg::R1, Reg::R9, EndpointField::Flags);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, allow);
        self.load_frame(Reg::R1, StackFrame::BOTH);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, egress);
        self.load_frame(Reg::R1, StackFrame::JUDGED);
        self.asm.jump_if(Cond::Eq, Reg::R1, direction_number(Direction::Ingress) as i32, ingress);
        self.asm.bind(egress);
        self.decide(Direction::Egress, family, egress_allows, deny)?;
        self.asm.bind(egress_allows);
        self.load_frame(Reg::R1, StackFrame::BOTH);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, allow);
        self.load_frame(Reg::R1, StackFrame::OUTCOME);
        // The ingress decision overwrites the outcome.
        self.store_frame(StackFrame::FIRST_OUTCOME, Reg::R1);
        self.asm.bind(ingress);
        self.decide(Direction::Ingress, family, allow, deny)?;
        self.asm.bind(allow);
        self.allowed(family, current);
        self.asm.bind(deny);
        self.denied(family);
        Ok(())
    }

    /// Emits the checks that apply only to a packet without a flow. r9 is the endpoint.
    fn new_flow(&mut self, family: Family) {
        self.check_own_address(family, Reg::R9);
        if self.hook == Direction::Ingress {
            self.find_origin(family);
        }
        self.mid_stream();
    }

    /// A packet of TCP or SCTP that begins no connection is in the middle of one that this node has never seen or has
    /// forgotten. The packet does not show which side began the connection, so both directions must allow it.
    fn mid_stream(&mut self) {
        let [begins_nothing, done] = ["begins nothing", "begins"].map(|it| self.asm.label(it));
        // UDP and others have no beginning that a packet could show: their first packet is taken as the beginning.
        self.unless_connects(done);
        self.unless_begins(begins_nothing);
        self.asm.jump(done);
        self.asm.bind(begins_nothing);
        self.store_constant(StackFrame::BOTH, 1);
        self.asm.bind(done);
    }

    /// `ORIGIN` = where a packet began: in the pod itself if it came in through the pod's own interface; on this host
    /// if a socket owns it and it came in through no interface.
    ///
    /// Neither fact alone is proof. A forwarded packet can lose its interface: `ip6_fragment` builds new packets
    /// without one (`ip6_copy_metadata` does not copy `skb_iif`, `ip_copy_metadata` does), and with connection tracking
    /// on the node the sender decides whether that happens. A bridged packet can still have its sender's socket from
    /// another network namespace: since 4.20 a packet keeps it when it crosses namespaces. Packets from enforced pods
    /// have their generation's stamp, which fragments inherit. IPv6 fragments are never taken for the host's, because
    /// both facts can be wrong for them. A packet that lacks any of this evidence is not taken for the host's.
    ///
    /// On a bridge, a packet that comes back to its sender looks like a packet of another sender. (A mark would not
    /// help where several nodes are namespaces of one kernel: they would all set the same mark.)
    fn find_origin(&mut self, family: Family) {
        let [known, itself] = ["origin", "from the pod itself"].map(|it| self.asm.label(it));
        self.load_context(Reg::R1, skb::INGRESS_IFINDEX);
        self.load_frame(Reg::R2, FlowKey::IFINDEX);
        // First, because it needs no other evidence: only the pod's own packets come in through the pod's interface.
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, itself);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, known);
        self.load_context(Reg::R1, skb::SK);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, known);
        self.unless_stamped(known);
        self.unless_fragment_v6(family, known);
        self.store_constant(StackFrame::ORIGIN, Origin::Host as u32);
        self.asm.jump(known);
        self.asm.bind(itself);
        self.store_constant(StackFrame::ORIGIN, Origin::Itself as u32);
        self.asm.bind(known);
    }

    /// Drops the packet unless the pod's end of it fits the endpoint at `base`.
    pub(super) fn check_own_address(&mut self, family: Family, base: Reg) {
        match self.hook {
            Direction::Egress => {
                let spoofed = self.end(Outcome::Source);
                self.check_own_source(family, base, spoofed);
            }
            Direction::Ingress => {
                let stray = self.end(Outcome::Stray);
                self.check_own_destination(family, base, stray);
            }
        }
    }

    /// Goes to `spoofed` unless the source is the address of the endpoint at `base`. An endpoint without an address may
    /// send nothing.
    fn check_own_source(&mut self, family: Family, base: Reg, spoofed: Label) {
        self.check_local(family, base, own_address(family), spoofed);
        // Zeros mean that the endpoint has no address of this family. No pod's address begins with zeros.
        self.load_frame(Reg::R1, StackFrame::LOCAL);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, spoofed);
    }

    /// Goes to `stray` unless the destination is the address of the endpoint at `base`, multicast, broadcast or
    /// link-local. A bridge that does not know the port of an address floods the packet to every port.
    fn check_own_destination(&mut self, family: Family, base: Reg, stray: Label) {
        let [other, own] = ["another destination", "own destination"].map(|it| self.asm.label(it));
        self.check_local(family, base, own_address(family), other);
        // Zeros mean that the endpoint has no address of this family.
        self.load_frame(Reg::R1, StackFrame::LOCAL);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, own);
        self.asm.bind(other);
        if family == Family::V6 {
            self.asm.load(Size::H, Reg::R1, Reg::R10, StackFrame::LOCAL);
            self.if_link_local(Reg::R1, own);
        }
        self.unless_group(family, StackFrame::LOCAL, stray);
        self.asm.bind(own);
    }

    /// Goes to `own` if an IPv6 address is link-local (fe80::/10); `reg` holds its first two bytes.
    pub(super) fn if_link_local(&mut self, reg: Reg, own: Label) {
        self.asm.alu(AluOp::And, reg, i32::from(0xffc0_u16.to_be()));
        self.asm.jump_if(Cond::Eq, reg, i32::from(0xfe80_u16.to_be()), own);
    }

    /// Goes to `one` unless the address on the stack is multicast or broadcast.
    pub(super) fn unless_group(&mut self, family: Family, address: i16, one: Label) {
        let first = if family == Family::V4 { 0xe0 } else { 0xff };
        self.asm.load(Size::B, Reg::R1, Reg::R10, address);
        self.asm.jump_if(Cond::Lt, Reg::R1, first, one);
    }

    /// Passes an allowed packet and stores its flow. `OUTCOME` says why it is allowed.
    fn allowed(&mut self, family: Family, current: Label) {
        let new = self.asm.label("new");
        self.asm.jump_if(Cond::Eq, Reg::R7, 0, new);
        // Nothing else changes: the flow keeps its state, its origin and its time.
        self.adopt(family);
        self.asm.jump(current);
        self.asm.bind(new);
        self.pass_icmp_error();
        let [passes, remembered] = ["nothing to remember", "remember"].map(|it| self.asm.label(it));
        self.would_deny_in_either();
        self.unless_question(family, passes);
        // Verification follows the decision up to the first read of the flow table's shape (`verify::prober`). The test
        // of the address below is not part of the decision. If it came before this read, it would split each peer class
        // by the first byte of its addresses.
        self.load_mask(family, Reg::R1);
        let remote_or_local = if self.hook == Direction::Egress { FlowKey::REMOTE } else { StackFrame::LOCAL };
        self.unless_group(family, remote_or_local, remembered);
        self.asm.jump(passes);
        self.asm.bind(remembered);
        self.remember_mid_stream(passes);
        self.remember(family);
        self.asm.bind(passes);
        self.pass(family, None);
    }

    /// Passes an ICMP error about a live flow. It begins no flow.
    fn pass_icmp_error(&mut self) {
        if self.hook == Direction::Ingress && self.plan.shapes.judges_icmp_errors {
            let related = self.end(Outcome::Related);
            self.load_frame(Reg::R1, StackFrame::ICMP_ERROR);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, related);
        }
    }

    /// A packet in the middle of a connection begins a flow of unknown origin, unless the own node sent it. A RST
    /// begins no flow.
    fn remember_mid_stream(&mut self, passes: Label) {
        let begins = self.asm.label("begins, or known origin");
        self.load_frame(Reg::R1, StackFrame::BOTH);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, begins);
        self.load_frame(Reg::R1, StackFrame::TCP_FLAGS);
        // A RST ends a connection. A flow for it would let the packets after it pass without a decision.
        self.asm.jump_if(Cond::Set, Reg::R1, RST, passes);
        self.load_frame(Reg::R1, StackFrame::ORIGIN);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, begins);
        self.store_constant(StackFrame::ORIGIN, Origin::MidStream as u32);
        self.asm.bind(begins);
    }

    /// If both directions were decided, audit policies may deny in either of them: keeps the first outcome if it is
    /// `WouldDeny`.
    fn would_deny_in_either(&mut self) {
        if !self.plan.shapes.is_audit {
            return;
        }
        let as_it_is = self.asm.label("as the last direction says");
        self.load_frame(Reg::R1, StackFrame::FIRST_OUTCOME);
        self.asm.jump_if(Cond::Ne, Reg::R1, Outcome::WouldDeny as i32, as_it_is);
        self.store_constant(StackFrame::OUTCOME, Outcome::WouldDeny as u32);
        self.asm.bind(as_it_is);
    }

    /// Goes to `passes` if the packet is ICMP but not a query: it begins no flow. Otherwise an unsolicited reply would
    /// begin a flow, through which the query that it answers could come in.
    fn unless_question(&mut self, family: Family, passes: Label) {
        let question = self.asm.label("begins a flow");
        self.load_frame(Reg::R1, StackFrame::PROTOCOL);
        self.asm.jump_if(Cond::Ne, Reg::R1, icmp_number(family), question);
        // The query's type and the side that asked: see `jump_if_question`.
        self.asm.load(Size::H, Reg::R1, Reg::R10, key(family).remote_port);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, passes);
        self.asm.alu(AluOp::Rsh, Reg::R1, 8);
        self.load_frame(Reg::R2, StackFrame::JUDGED);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, passes);
        self.asm.bind(question);
    }

    fn denied(&mut self, family: Family) {
        let new = self.asm.label("new, denied");
        self.asm.jump_if(Cond::Eq, Reg::R7, 0, new);
        self.cut_flow(family);
        self.asm.bind(new);
        if self.plan.shapes.is_audit {
            let would_allow = self.end(Outcome::WouldAllow);
            self.load_frame(Reg::R1, StackFrame::OUTCOME);
            self.asm.jump_if(Cond::Eq, Reg::R1, Outcome::WouldAllow as i32, would_allow);
        }
        let denied = self.end(Outcome::Denied);
        self.asm.jump(denied);
    }
}

/// The offset of a family's address in an endpoint's value.
pub(super) fn own_address(family: Family) -> i16 {
    match family {
        Family::V4 => endpoint::V4,
        Family::V6 => endpoint::V6,
    }
}
