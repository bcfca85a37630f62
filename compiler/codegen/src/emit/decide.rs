//! The decision: IR → instructions. Values are in the stack frame; sets are pointers into their maps.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::access::EndpointField;
use super::frame::{FlowKey, StackFrame};
use super::parse::{address_bytes, key};
use super::verdict::own_address;
use super::{EmitError, Emitter};
use crate::emit::shapes::ExactShape;
use crate::ir::{self, BlockId, Condition, DecisionProgram, Fact, Inst, Terminator, Value, VerdictReason};
use weir_artifact::layout::{MapName, Origin, Outcome, config, direction_number};
use weir_ebpf::asm::{Label, Tag};
use weir_ebpf::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, SwapBits};
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::address::Family;

// Verifier: a number is stored in the upper half of its slot, where kernels up to 6.18 at least track no constant
// except zero (see `hidden_zero`). In the lower half they would distinguish the leaves of the port tree by their atoms,
// and walk the code that follows once for each of them.
const NUMBER: i16 = 4;

/// One direction's decision, for one family.
struct Decision {
    family: Family,
    allow: Label,
    deny: Label,
    /// The values that hold the family's number. Tests of them are resolved at emit time.
    families: BTreeSet<Value>,
    labels: HashMap<BlockId, Label>,
    /// The number that r1 holds on every entry to a block; `None` if it differs between entries.
    held: HashMap<BlockId, Option<Value>>,
}

impl Decision {
    /// A block's end, with tests of the family resolved.
    fn end(&self, end: Terminator) -> Terminator {
        match end {
            // The program is emitted once for each family, so a test of the family needs no instruction, and blocks of
            // the other family are never emitted.
            Terminator::If(Condition::Equal(value, number), then, otherwise) if self.families.contains(&value) => {
                let is_it = u32::from(self.family == Family::V6) * 2 + 4 == number;
                Terminator::Jump(if is_it { then } else { otherwise })
            }
            end => end,
        }
    }

    /// The reachable blocks in topological order. Where possible, its `otherwise` target follows a block.
    fn order(&self, program: &DecisionProgram) -> Result<Vec<BlockId>, EmitError> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        // An explicit stack instead of recursion: the depth of a decision grows with the number of port ranges in the
        // input.
        let mut open = vec![(BlockId(0), false)];
        while let Some((id, is_done)) = open.pop() {
            if is_done {
                order.push(id);
                continue;
            }
            if !seen.insert(id) {
                continue;
            }
            open.push((id, true));
            let block = program.blocks.get(id.index()).ok_or(EmitError::Decision)?;
            // The order is reversed at the end, so the target that finishes last comes first. This is `otherwise`.
            let targets: Vec<BlockId> = self.end(block.end).targets().collect();
            open.extend(targets.into_iter().rev().map(|target| (target, false)));
        }
        order.reverse();
        Ok(order)
    }

    /// Records that a block is entered with this number in r1.
    fn enter(&mut self, block: BlockId, held: Option<Value>) {
        let known = self.held.entry(block).or_insert(held);
        // Two entries with different numbers leave nothing to rely on.
        *known = known.filter(|known| Some(*known) == held);
    }
}

impl Emitter<'_> {
    /// r9 is the endpoint; r6 to r9 are kept. Sets `OUTCOME` and goes to `allow` or `deny`.
    pub(super) fn decide(
        &mut self,
        direction: Direction,
        family: Family,
        allow: Label,
        deny: Label,
    ) -> Result<(), EmitError> {
        let program = self.plan.decisions[direction_number(direction) as usize];
        let is_family = |inst: &Inst| matches!(inst, Inst::Fact(_, Fact::Family));
        let insts = program.blocks.iter().flat_map(|block| &block.insts);
        let families = insts.filter(|inst| is_family(inst)).map(|inst| inst.result()).collect();
        let held = HashMap::new();
        let mut decision = Decision { family, allow, deny, families, labels: HashMap::new(), held };
        let order = decision.order(program)?;
        for (place, id) in order.iter().enumerate() {
            let block = program.blocks.get(id.index()).ok_or(EmitError::Decision)?;
            let label = self.block_label(&mut decision, *id);
            self.asm.bind(label);
            // The tag names the policy line that the block serves. Source 0 is tag 1, because tag 0 means none.
            let before = self.asm.set_tag(block.source.map_or(Tag::default(), |source| Tag(source.0 + 1)));
            for inst in &block.insts {
                self.inst(&decision, direction, *inst)?;
            }
            // An instruction of the block may overwrite r1, so what r1 held at its beginning is of use only to an empty
            // block. Such blocks are the inner nodes of the port tree.
            let held = decision.held.get(id).copied().flatten().filter(|_| block.insts.is_empty());
            self.block_end(&mut decision, block.end, held, order.get(place + 1).copied())?;
            self.asm.set_tag(before);
        }
        Ok(())
    }

    fn block_label(&mut self, decision: &mut Decision, id: BlockId) -> Label {
        let asm = &mut self.asm;
        *decision.labels.entry(id).or_insert_with(|| asm.label(id.to_string()))
    }

    fn inst(&mut self, decision: &Decision, direction: Direction, inst: Inst) -> Result<(), EmitError> {
        let to = slot(inst.result())?;
        match inst {
            Inst::Fact(_, fact) => self.fact(decision, direction, fact, to),
            Inst::Const(_, 0) => {
                // From the protocol and not from an address: `verify::prober` takes each number that is read here for a
                // part of the decision.
                self.load_frame(Reg::R1, StackFrame::PROTOCOL);
                self.hidden_zero(Reg::R1, Reg::R1);
                self.store_number(to, Reg::R1);
            }
            Inst::Const(_, number) => self.store_number(to, number as i32),
            Inst::Class(_, family, _) | Inst::Prefix(_, family, _) if family != decision.family => {
                self.store_number(to, 0);
            }
            // A pass turns such look-ups into compares. If one is left, the pass is wrong, and a program without it
            // would be weaker than the policy: an error, no fallback.
            Inst::Class(_, family, _) if self.plan.shapes.exact(family) == ExactShape::Compares => {
                return Err(EmitError::NotCompared(inst));
            }
            Inst::Class(..) => self.class(decision.family, to),
            Inst::Prefix(..) => self.prefix(decision.family, to),
            Inst::Row(_, subject, peer) => {
                // The record of a denial names the peer class.
                self.load_number(Reg::R1, slot(peer)?);
                self.store_frame(StackFrame::PEER.at, Reg::R1);
                self.row(direction, slot(subject)?, slot(peer)?, to);
            }
            Inst::Default(_, subject) => self.default_row(direction, slot(subject)?, to),
            Inst::Atom(_, protocol, port) => {
                if !self.atom(slot(protocol)?, slot(port)?, to) {
                    return Err(EmitError::NotCompared(inst));
                }
            }
        }
        Ok(())
    }

    fn fact(&mut self, decision: &Decision, direction: Direction, fact: Fact, to: i16) {
        match fact {
            // The address is already in the flow's key, and the family is known at emit time.
            Fact::Remote | Fact::Family => return,
            Fact::Subject => self.load_endpoint(Reg::R1, Reg::R9, EndpointField::Subject),
            Fact::Protocol => self.transport_protocol(),
            Fact::Port => {
                let key = key(decision.family);
                let port = if direction == Direction::Ingress { key.local_port } else { key.remote_port };
                self.asm.load(Size::H, Reg::R1, Reg::R10, port);
                // Ranges of ports are compared in host order; the key has the port as on the wire.
                self.asm.swap_be(SwapBits::B16, Reg::R1);
            }
            Fact::Itself => self.itself(direction, decision.family),
            Fact::OwnNode => self.own_node(direction, decision.family),
            Fact::IcmpError => self.load_frame(Reg::R1, StackFrame::ICMP_ERROR),
        }
        self.store_number(to, Reg::R1);
    }

    /// r1 = the protocol if policies can name it (TCP, UDP, SCTP), else 0.
    fn transport_protocol(&mut self) {
        let named = self.asm.label("named protocol");
        self.load_frame(Reg::R1, StackFrame::PROTOCOL);
        // Other protocols have no ports. Their number is replaced by 0, so that they share one atom.
        for protocol in [6, 17, 132] {
            self.asm.jump_if(Cond::Eq, Reg::R1, protocol, named);
        }
        self.hidden_zero(Reg::R1, Reg::R1);
        self.asm.bind(named);
    }

    /// r1 = 1 if the other end is the endpoint itself: if the packet has the endpoint's address and (for ingress) began
    /// on this host, or if it began in the pod and its source address was translated since.
    fn itself(&mut self, direction: Direction, family: Family) {
        let other = self.asm.label("other end");
        let own = own_address(family);
        if direction == Direction::Ingress {
            // A packet that comes back through the interface of its own pod is the pod's, even with another source
            // address: a service proxy may have translated it.
            self.asm.mov(Reg::R1, 1);
            self.load_frame(Reg::R3, StackFrame::ORIGIN);
            self.asm.jump_if(Cond::Eq, Reg::R3, Origin::Itself as i32, other);
            self.hidden_zero(Reg::R1, Reg::R3);
            self.asm.jump_if(Cond::Eq, Reg::R3, 0, other);
        }
        // Zeros mean that the endpoint has no address of this family.
        self.asm.load(Size::W, Reg::R3, Reg::R9, own);
        self.hidden_zero(Reg::R1, Reg::R3);
        self.asm.jump_if(Cond::Eq, Reg::R3, 0, other);
        for offset in (0..address_bytes(family)).step_by(4) {
            self.load_frame(Reg::R2, FlowKey::REMOTE + offset);
            self.asm.load(Size::W, Reg::R3, Reg::R9, own + offset);
            self.asm.jump_if(Cond::Ne, Reg::R2, Reg::R3, other);
        }
        self.asm.mov(Reg::R1, 1);
        self.asm.bind(other);
    }

    /// r1 = 1 if the packet began on this host and its source is an address of the endpoint's node. `ORIGIN`, which the
    /// flow remembers, is set to the same.
    fn own_node(&mut self, direction: Direction, family: Family) {
        if direction == Direction::Egress {
            self.asm.mov(Reg::R1, 0);
            return;
        }
        let [elsewhere, no] = ["elsewhere", "not the node's address"].map(|name| self.asm.label(name));
        self.load_frame(Reg::R2, StackFrame::ORIGIN);
        self.hidden_zero(Reg::R1, Reg::R2);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, elsewhere);
        self.load_endpoint(Reg::R2, Reg::R9, EndpointField::Node);
        self.store_frame(StackFrame::SCRATCH, Reg::R2);
        for offset in (0..address_bytes(family)).step_by(4) {
            self.load_frame(Reg::R2, FlowKey::REMOTE + offset);
            self.store_frame(StackFrame::SCRATCH + 4 + offset, Reg::R2);
        }
        let nodes = if family == Family::V4 { MapName::Nodes4 } else { MapName::Nodes6 };
        self.look_up(nodes, StackFrame::SCRATCH);
        self.hidden_zero_of_key(Reg::R1);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no);
        self.asm.mov(Reg::R1, 1);
        self.asm.bind(no);
        // A socket of this host that uses an address which is not the node's is no evidence. The flow must not remember
        // more than was proved.
        self.store_frame(StackFrame::ORIGIN, Reg::R1);
        self.asm.bind(elsewhere);
    }

    /// Emits a block's end. `held` is the number that r1 holds, `next` the block that is emitted next.
    fn block_end(
        &mut self,
        decision: &mut Decision,
        end: Terminator,
        held: Option<Value>,
        next: Option<BlockId>,
    ) -> Result<(), EmitError> {
        let (rest, held) = match decision.end(end) {
            Terminator::Verdict(verdict, reason) => {
                self.verdict(decision, verdict, reason);
                return Ok(());
            }
            Terminator::Jump(to) => (to, None),
            Terminator::If(test, then, otherwise) => {
                let to = self.block_label(decision, then);
                let held = self.test(decision, test, held, to)?;
                decision.enter(then, held);
                (otherwise, held)
            }
        };
        decision.enter(rest, held);
        // The block that follows needs no jump. `order` places the `otherwise` target there where it can, so most
        // compares cost one instruction.
        if next != Some(rest) {
            let rest = self.block_label(decision, rest);
            self.asm.jump(rest);
        }
        Ok(())
    }

    fn verdict(&mut self, decision: &Decision, verdict: Verdict, reason: VerdictReason) {
        let outcome = match (verdict, reason) {
            (Verdict::Allow, VerdictReason::UnlessAudit) => {
                self.unless_audit_decides(decision, Outcome::Denied);
                Outcome::WouldDeny
            }
            (Verdict::Deny, VerdictReason::UnlessAudit) => {
                self.unless_audit_decides(decision, Outcome::Allowed);
                Outcome::WouldAllow
            }
            (Verdict::Deny, _) => Outcome::Denied,
            (Verdict::Allow, VerdictReason::Itself) => Outcome::Itself,
            (Verdict::Allow, VerdictReason::OwnNode) => Outcome::OwnNode,
            (Verdict::Allow, VerdictReason::Policy) => Outcome::Allowed,
        };
        self.settle(decision, outcome);
    }

    /// Ends with this outcome if `config::AUDIT` says that the audit policies decide; else falls through.
    fn unless_audit_decides(&mut self, decision: &Decision, outcome: Outcome) {
        let reported = self.asm.label("reported");
        // A parameter, and no second program: verification sets it, and then tests the same bytes that are in force.
        self.load_config(Reg::R1, config::AUDIT);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, reported);
        self.settle(decision, outcome);
        self.asm.bind(reported);
    }

    fn settle(&mut self, decision: &Decision, outcome: Outcome) {
        self.store_constant(StackFrame::OUTCOME, outcome as u32);
        self.asm.jump(if outcome.drops() { decision.deny } else { decision.allow });
    }

    /// Goes to `then` if the test holds. Returns the number that r1 holds from there on.
    fn test(
        &mut self,
        decision: &Decision,
        test: Condition,
        held: Option<Value>,
        then: Label,
    ) -> Result<Option<Value>, EmitError> {
        match test {
            Condition::Equal(value, number) => return self.compare(Cond::Eq, value, held, number, then),
            Condition::Less(value, number) => return self.compare(Cond::Lt, value, held, number, then),
            Condition::Is(_, address) => self.is_address(decision.family, address, then),
            Condition::Has(set, atom) => self.has(slot(set)?, slot(atom)?, 0, then),
            Condition::Audit(set, atom) => {
                self.has(slot(set)?, slot(atom)?, 8 * self.plan.shapes.atoms.div_ceil(64) as i32, then);
            }
            Condition::Full(set) => self.is_full(slot(set)?, then),
        }
        Ok(None)
    }

    fn compare(
        &mut self,
        cond: Cond,
        value: Value,
        held: Option<Value>,
        number: u32,
        then: Label,
    ) -> Result<Option<Value>, EmitError> {
        if held != Some(value) {
            self.load_number(Reg::R1, slot(value)?);
        }
        self.asm.jump_if32(cond, Reg::R1, number as i32, then);
        Ok(Some(value))
    }

    pub(super) fn is_address(&mut self, family: Family, address: IpAddr, then: Label) {
        // The compare could never hold, so it is not emitted.
        if Family::of(address) != family {
            return;
        }
        let other = self.asm.label("another address");
        let bytes = weir_artifact::layout::address_bytes(address);
        let words: Vec<i32> =
            bytes.chunks_exact(4).map(|it| i32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect();
        for (index, word) in words.iter().enumerate() {
            self.load_frame(Reg::R1, FlowKey::REMOTE + 4 * index as i16);
            // The last word decides; each earlier one can only say no.
            if index + 1 < words.len() {
                self.asm.jump_if32(Cond::Ne, Reg::R1, *word, other);
            } else {
                self.asm.jump_if32(Cond::Eq, Reg::R1, *word, then);
            }
        }
        self.asm.bind(other);
    }

    /// Goes to `then` if the set contains the atom. The set begins `from` bytes after the pointer.
    fn has(&mut self, set: i16, atom: i16, from: i32, then: Label) {
        let words = self.plan.shapes.atoms.div_ceil(64) as i32;
        self.asm.load(Size::Dw, Reg::R1, Reg::R10, set);
        if from != 0 {
            self.asm.alu(AluOp::Add, Reg::R1, from);
        }
        self.load_number(Reg::R2, atom);
        // Up to 64 atoms a set is one word, and the bit is tested without an index.
        if words > 1 {
            let beyond = self.asm.label("no such atom");
            self.asm.mov(Reg::R3, Reg::R2);
            self.asm.alu(AluOp::Rsh, Reg::R3, 6);
            // Verifier: bounds the offset into the map's value. No atom is larger.
            self.asm.jump_if(Cond::Ge, Reg::R3, words, beyond);
            self.asm.alu(AluOp::Lsh, Reg::R3, 3);
            self.asm.alu(AluOp::Add, Reg::R1, Reg::R3);
            self.test_bit(then);
            self.asm.bind(beyond);
        } else {
            self.test_bit(then);
        }
    }

    /// Goes to `then` if bit r2 of the word at r1 is set.
    fn test_bit(&mut self, then: Label) {
        self.asm.load(Size::Dw, Reg::R1, Reg::R1, 0);
        self.asm.alu(AluOp::And, Reg::R2, 63);
        self.asm.alu(AluOp::Rsh, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::And, Reg::R1, 1);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, then);
    }

    /// `reg` = a number of the decision, from its stack slot.
    pub(super) fn load_number(&mut self, reg: Reg, value: i16) {
        self.load_frame(reg, value + NUMBER);
    }

    /// Stores a number in the stack slot of one of the decision's values.
    pub(super) fn store_number(&mut self, value: i16, number: impl Into<Operand>) {
        self.store_frame(value + NUMBER, number);
    }

    fn is_full(&mut self, set: i16, then: Label) {
        let short = self.asm.label("not full");
        // The full set is compared by its bits. Its number would do only where sets are stored once each, and kernel
        // maps of rows store a copy in every entry.
        let full = ir::full_set(self.plan.shapes.atoms, self.plan.shapes.is_audit);
        self.asm.load(Size::Dw, Reg::R1, Reg::R10, set);
        for (index, word) in full.words().iter().enumerate() {
            self.asm.load(Size::Dw, Reg::R2, Reg::R1, 8 * index as i16);
            self.asm.emit(Insn::LoadImm64 { dst: Reg::R3, value: Imm64::Value(*word) });
            self.asm.jump_if(Cond::Ne, Reg::R2, Reg::R3, short);
        }
        self.asm.jump(then);
        self.asm.bind(short);
    }
}

fn slot(value: Value) -> Result<i16, EmitError> {
    match value.0 < StackFrame::MOST_VALUES {
        true => Ok(StackFrame::value(value.0)),
        false => Err(EmitError::TooManyValues(value)),
    }
}
