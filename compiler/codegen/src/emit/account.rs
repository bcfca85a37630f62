//! The ends of a program: count the packet, record it if it is dropped, and return.

use super::access::EndpointField;
use super::frame::{FlowKey, StackFrame, skb};
use super::parse::{family_number, key};
use super::{Emitter, map_ref};
use weir_artifact::layout::{
    AUDIT_SHIFT, FILTERS_EGRESS, FILTERS_INGRESS, MapName, OUTCOMES, Outcome, config, direction_number, event,
};
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use weir_model::Direction;
use weir_objects::address::Family;

/// `TCX_NEXT`: the next program on the hook runs. clsact has the same number (`TC_ACT_UNSPEC`).
const NEXT: i32 = -1;
/// `TC_ACT_SHOT`: the kernel drops the packet.
const SHOT: i32 = 2;
/// The maximum number of records in a second.
const EVENTS_PER_SECOND: i32 = 200;

impl Emitter<'_> {
    /// The label for packets that pass and whose `OUTCOME` is already set.
    pub(super) fn pass_label(&mut self) -> Label {
        self.end_of_stored(Outcome::Allowed)
    }

    /// The label of an outcome that is already stored. `Allowed` has no block that stores its constant: its label is
    /// the common end of all packets that pass.
    fn end_of_stored(&mut self, outcome: Outcome) -> Label {
        self.end(outcome)
    }

    /// Emits the blocks of all ends that were jumped to.
    pub(super) fn ends(&mut self) {
        let (pass, drop) = (self.pass_label(), self.asm.label("drop"));
        // These blocks come first, because they jump to ends that `self.ends` must contain when they are emitted below.
        for (outcome, label) in std::mem::take(&mut self.unless_open) {
            self.drop_where_filtered(outcome, label);
        }
        // A bridge floods packets for unknown destinations to every port. With a record for each, they would use up the
        // limit of records, and no drop that matters would be recorded.
        let silent = self.asm.label("dropped without a record");
        let has_stray = self.ends.contains_key(&Outcome::Stray);
        for (outcome, label) in std::mem::take(&mut self.ends) {
            if label == pass {
                continue;
            }
            self.asm.bind(label);
            self.store_constant(StackFrame::OUTCOME, outcome as u32);
            // Each outcome is a store and a jump, however many places lead here. All packets that pass share one
            // counter block, and so do all that are dropped.
            self.asm.jump(match outcome {
                Outcome::Stray => silent,
                it if it.drops() => drop,
                _ => pass,
            });
        }
        if has_stray {
            self.asm.bind(silent);
            self.count();
            self.asm.mov(Reg::R0, SHOT);
            self.asm.exit();
        }
        let reported = self.asm.label("reported");
        self.asm.bind(pass);
        self.count();
        self.if_would_deny(reported);
        self.next();
        self.asm.bind(drop);
        self.count();
        self.asm.bind(reported);
        self.record();
        // The outcome is compared again after the record. Keeping the result in a register would cost one of r6 to r9
        // on every path: a call overwrites the others.
        let passes = self.asm.label("reported, and passes");
        self.if_would_deny(passes);
        self.asm.mov(Reg::R0, SHOT);
        self.asm.exit();
        if self.plan.shapes.is_audit {
            self.asm.bind(passes);
            self.next();
        }
    }

    /// Jumps to `to` if the outcome is `WouldDeny`.
    pub(super) fn if_would_deny(&mut self, to: Label) {
        if self.plan.shapes.is_audit {
            self.load_frame(Reg::R1, StackFrame::OUTCOME);
            self.asm.jump_if(Cond::Eq, Reg::R1, Outcome::WouldDeny as i32, to);
        }
    }

    /// A packet that the program cannot classify is dropped if the endpoint is isolated in this direction, and passes
    /// otherwise.
    fn drop_where_filtered(&mut self, outcome: Outcome, label: Label) {
        self.asm.bind(label);
        self.look_up(MapName::Endpoints, FlowKey::IFINDEX);
        let (no_endpoint, open) = (self.end(Outcome::NoEndpoint), self.end(Outcome::Unfiltered));
        let here = self.end(outcome);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no_endpoint);
        self.load_endpoint(Reg::R1, Reg::R0, EndpointField::Flags);
        let filters = match self.hook {
            Direction::Ingress => FILTERS_INGRESS,
            Direction::Egress => FILTERS_EGRESS,
        };
        self.asm.jump_if(Cond::Set, Reg::R1, filters as i32, here);
        // A pod that no policy isolates may still not send from another pod's address.
        let open = if self.plan.shapes.is_audit { self.asm.label("open") } else { open };
        self.check_own_address_if_known(open);
        if self.plan.shapes.is_audit {
            self.asm.bind(open);
            self.open_unless_audit(filters);
        } else {
            self.asm.jump(open);
        }
    }

    /// At an open endpoint, a packet that the program cannot classify passes. It is counted as `WouldDeny` if the
    /// audit policies would isolate the endpoint.
    fn open_unless_audit(&mut self, filters: u32) {
        let (open, would_deny) = (self.end(Outcome::Unfiltered), self.end(Outcome::WouldDeny));
        let unknown = self.asm.label("no endpoint any more");
        self.look_up_or(MapName::Endpoints, FlowKey::IFINDEX, unknown);
        self.load_endpoint(Reg::R1, Reg::R0, EndpointField::Flags);
        self.asm.jump_if(Cond::Set, Reg::R1, (filters << AUDIT_SHIFT) as i32, would_deny);
        self.asm.bind(unknown);
        self.asm.jump(open);
    }

    /// r0 is the endpoint. Before a packet passes an open endpoint without a decision, checks that it has the pod's
    /// address, if the parser got as far as the addresses.
    fn check_own_address_if_known(&mut self, open: Label) {
        self.load_frame(Reg::R3, StackFrame::FAMILY);
        for family in [Family::V4, Family::V6] {
            // 0 means that the parser did not get as far as the addresses: there is nothing to check.
            let other = self.asm.label("another family");
            self.asm.jump_if(Cond::Ne, Reg::R3, family_number(family) as i32, other);
            self.check_own_address(family, Reg::R0);
            self.asm.jump(open);
            self.asm.bind(other);
        }
    }

    /// Counts the packet and its bytes, by hook and outcome.
    fn count(&mut self) {
        self.load_frame(Reg::R1, StackFrame::OUTCOME);
        self.asm.alu(AluOp::Add, Reg::R1, (direction_number(self.hook) * OUTCOMES) as i32);
        self.store_frame(StackFrame::SCRATCH, Reg::R1);
        self.count_number();
    }

    /// Counts the packet under an outcome that is known at emit time.
    pub(super) fn count_constant(&mut self, outcome: Outcome) {
        self.store_constant(StackFrame::SCRATCH, direction_number(self.hook) * OUTCOMES + outcome as u32);
        self.count_number();
    }

    /// Returns [`NEXT`]: the packet passes.
    pub(super) fn next(&mut self) {
        self.asm.mov(Reg::R0, NEXT);
        self.asm.exit();
    }

    /// Adds one packet and its bytes to the counter whose number is at `SCRATCH`.
    fn count_number(&mut self) {
        let done = self.asm.label("counted");
        self.look_up_or(MapName::Counters, StackFrame::SCRATCH, done);
        // The counters are per CPU, so plain additions are enough. An atomic addition to a counter that all CPUs share
        // would make the fast path wait for a cache line of another CPU.
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 0);
        self.asm.alu(AluOp::Add, Reg::R1, 1);
        self.asm.store(Size::Dw, Reg::R0, 0, Reg::R1);
        self.load_context(Reg::R2, skb::LEN);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 8);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R2);
        self.asm.store(Size::Dw, Reg::R0, 8, Reg::R1);
        self.asm.bind(done);
    }

    /// Writes a record of the packet, at most [`EVENTS_PER_SECOND`] times a second. Further records are counted as
    /// lost.
    fn record(&mut self) {
        let [within, lost, done] = ["within the second", "lost", "recorded"].map(|name| self.asm.label(name));
        self.now();
        self.point_to(Reg::R7, MapName::EventLimit, 0);
        self.asm.load(Size::Dw, Reg::R1, Reg::R7, 0);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Sub, Reg::R2, Reg::R1);
        self.load_config(Reg::R3, config::TICKS);
        // Two CPUs may both find that a second is over and reset the count. A few records more than the limit are then
        // written, which does no harm: the limit protects the reader of the ring buffer and CPU time.
        self.asm.jump_if(Cond::Lt, Reg::R2, Reg::R3, within);
        self.asm.store(Size::Dw, Reg::R7, 0, Reg::R8);
        self.asm.store(Size::W, Reg::R7, 8, 0);
        self.asm.bind(within);
        self.asm.load(Size::W, Reg::R1, Reg::R7, 8);
        // One limit for all drops of this node: it bounds the work of the reader, however many pods are flooded.
        self.asm.jump_if(Cond::Ge, Reg::R1, EVENTS_PER_SECOND, lost);
        self.add_one(8);
        self.asm.load_map(Reg::R1, map_ref(MapName::Events));
        self.asm.mov(Reg::R2, event::BYTES as i32);
        self.asm.mov(Reg::R3, 0);
        self.asm.call(Helper::RINGBUF_RESERVE);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, lost);
        self.fill_record();
        self.asm.jump(done);
        self.asm.bind(lost);
        self.add_one(12);
        self.asm.bind(done);
    }

    fn add_one(&mut self, offset: i16) {
        self.asm.mov(Reg::R1, 1);
        self.asm.atomic(AtomicOp::Add, Width::W32, Reg::R7, offset, Reg::R1);
    }

    /// Fills and submits the record that r0 points to; r8 is the time.
    fn fill_record(&mut self) {
        // The kernel does not clear a reserved record. All of its 64 bytes are written, so that no reader sees parts of
        // an older record.
        self.asm.store(Size::Dw, Reg::R0, event::TIME, Reg::R8);
        self.load_frame(Reg::R1, FlowKey::IFINDEX);
        self.asm.store(Size::W, Reg::R0, event::IFINDEX, Reg::R1);
        self.asm.store(Size::B, Reg::R0, event::HOOK, direction_number(self.hook) as i32);
        let bytes = [
            (StackFrame::OUTCOME, event::OUTCOME),
            (StackFrame::FAMILY, event::FAMILY),
            (StackFrame::PROTOCOL, event::PROTOCOL),
        ];
        for (from, to) in bytes {
            self.load_frame(Reg::R1, from);
            self.asm.store(Size::B, Reg::R0, to, Reg::R1);
        }
        for offset in (0..16).step_by(4) {
            for (from, to) in [(FlowKey::REMOTE, event::REMOTE), (StackFrame::LOCAL, event::LOCAL)] {
                self.load_frame(Reg::R1, from + offset);
                self.asm.store(Size::W, Reg::R0, to + offset, Reg::R1);
            }
        }
        self.record_ports();
        // The epoch in force now, and not the one in the frame: a packet that was dropped by the parser never reached a
        // decision, and `EPOCH` is not cleared.
        self.load_config(Reg::R1, config::EPOCH);
        self.asm.store(Size::W, Reg::R0, event::EPOCH, Reg::R1);
        self.load_frame(Reg::R1, StackFrame::PEER);
        self.asm.store(Size::Dw, Reg::R0, event::PEER, Reg::R1);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.mov(Reg::R2, 0);
        self.asm.call(Helper::RINGBUF_SUBMIT);
    }

    /// Copies the ports into the record. Each family's key has them at another offset.
    fn record_ports(&mut self) {
        let [v6, done] = ["v6 ports", "ports"].map(|name| self.asm.label(name));
        self.load_frame(Reg::R1, StackFrame::FAMILY);
        self.asm.jump_if(Cond::Eq, Reg::R1, 6, v6);
        self.record_ports_of(Family::V4);
        self.asm.jump(done);
        self.asm.bind(v6);
        self.record_ports_of(Family::V6);
        self.asm.bind(done);
    }

    fn record_ports_of(&mut self, family: Family) {
        let key = key(family);
        for (from, to) in [(key.remote_port, event::REMOTE_PORT), (key.local_port, event::LOCAL_PORT)] {
            self.asm.load(Size::H, Reg::R1, Reg::R10, from);
            self.asm.store(Size::H, Reg::R0, to, Reg::R1);
        }
    }
}
