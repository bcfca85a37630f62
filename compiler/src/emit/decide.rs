//! The decision: IR → instructions. Values live in the stack frame; sets are pointers into their maps.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::frame::{Frame, Key};
use super::parse::{address_bytes, key};
use super::verdict::own_address;
use super::{EmitError, Emitter};
use crate::address::Family;
use crate::classify::AtomSet;
use crate::ebpf::asm::Label;
use crate::ebpf::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, SwapBits};
use crate::ir::{Block, BlockId, End, Fact, Inst, Program, Reason, Test, Value};
use crate::layout::{MapName, Outcome, direction_number, endpoint};
use crate::model::Direction;
use crate::model::eval::Verdict;

// Verifier: a number lies in the upper half of its slot. There kernels up to 6.18 at least do not follow constants; in
// the lower half they would tell the leaves of the port tree apart by their atoms, and walk what comes after once for each.
const NUMBER: i16 = 4;

/// One direction's decision, for one family.
struct Decision {
    family: Family,
    allow: Label,
    deny: Label,
    /// The values that are the family's number: their tests are settled here.
    families: BTreeSet<Value>,
    labels: HashMap<BlockId, Label>,
}

/// A block that only says which atom it is, and goes on to ask whether the set has it.
///
/// Verifier: were the atom kept and the question asked in one place, everything behind it would be verified once an atom,
/// since the atom bounds an offset into the set and so no two of these states are alike (seen with 5.10 and 6.18: half a
/// second for 200 atoms). Asked here, with the atom's bit known, all go on in the same state.
struct Leaf {
    set: Value,
    atom: u32,
    then: BlockId,
    otherwise: BlockId,
}

impl Leaf {
    fn of(program: &Program, block: &Block) -> Option<Self> {
        let (&[Inst::Const(value, atom)], End::Jump(to)) = (block.insts.as_slice(), block.end) else { return None };
        let after = program.blocks.get(to.index()).filter(|after| after.insts.is_empty())?;
        match after.end {
            End::If(Test::Has(set, of), then, otherwise) if of == value => Some(Self { set, atom, then, otherwise }),
            _ => None,
        }
    }
}

impl Emitter<'_> {
    fn leaf(&mut self, decision: &mut Decision, leaf: Leaf) -> Result<[BlockId; 2], EmitError> {
        let then = self.block_label(decision, leaf.then);
        let otherwise = self.block_label(decision, leaf.otherwise);
        self.asm.load(Size::Dw, Reg::R1, Reg::R10, slot(leaf.set)?);
        self.asm.load(Size::W, Reg::R1, Reg::R1, 4 * (leaf.atom / 32) as i16);
        self.asm.jump_if(Cond::Set, Reg::R1, 1_i32 << (leaf.atom % 32), then);
        self.asm.jump(otherwise);
        Ok([leaf.then, leaf.otherwise])
    }

    /// r9 is the endpoint; r6 to r9 are kept. Goes to `allow` or `deny` with `OUTCOME` set.
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
        let mut decision = Decision { family, allow, deny, families, labels: HashMap::new() };
        let mut open = vec![BlockId(0)];
        let mut done = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !done.insert(id) {
                continue;
            }
            let label = self.block_label(&mut decision, id);
            self.asm.bind(label);
            let block = program.blocks.get(id.index()).ok_or(EmitError::Decision)?;
            if let Some(leaf) = Leaf::of(program, block) {
                open.extend(self.leaf(&mut decision, leaf)?);
                continue;
            }
            for inst in &block.insts {
                self.inst(&decision, direction, *inst)?;
            }
            // The block that is emitted next is the one on top of the stack.
            open.extend(self.block_end(&mut decision, block.end)?);
        }
        Ok(())
    }

    fn block_label(&mut self, decision: &mut Decision, id: BlockId) -> Label {
        let asm = &mut self.asm;
        *decision.labels.entry(id).or_insert_with(|| asm.label(&id.to_string()))
    }

    fn inst(&mut self, decision: &Decision, direction: Direction, inst: Inst) -> Result<(), EmitError> {
        let to = slot(inst.result())?;
        match inst {
            Inst::Fact(_, fact) => self.fact(decision, direction, fact, to),
            Inst::Const(_, number) => self.store_number(to, number as i32),
            Inst::Class(_, family, _) if family != decision.family => {
                self.store_number(to, 0);
            }
            Inst::Class(..) => {
                self.class(decision.family, to);
                self.load_number(Reg::R1, to);
                self.asm.store(Size::W, Reg::R10, Frame::PEER, Reg::R1);
            }
            Inst::Row(_, subject, peer) => self.row(direction, slot(subject)?, slot(peer)?, to),
            Inst::Default(_, subject) => self.default_row(direction, slot(subject)?, to),
            Inst::Atom(..) => return Err(EmitError::PortLookUp),
        }
        Ok(())
    }

    fn fact(&mut self, decision: &Decision, direction: Direction, fact: Fact, to: i16) {
        match fact {
            // The address lives in the flow's key, the family is known here.
            Fact::Remote | Fact::Family => return,
            Fact::Subject => self.asm.load(Size::W, Reg::R1, Reg::R9, endpoint::SUBJECT),
            Fact::Protocol => self.transport_protocol(),
            Fact::Port => {
                let key = key(decision.family);
                let port = if direction == Direction::Ingress { key.local_port } else { key.remote_port };
                self.asm.load(Size::H, Reg::R1, Reg::R10, port);
                self.asm.swap_be(SwapBits::B16, Reg::R1);
            }
            Fact::Itself => self.itself(decision.family),
            Fact::OwnNode => self.own_node(direction, decision.family),
        }
        self.store_number(to, Reg::R1);
    }

    /// r1 = the protocol if policies can name it, else 0.
    fn transport_protocol(&mut self) {
        let named = self.asm.label("named protocol");
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::PROTOCOL);
        for protocol in [6, 17, 132] {
            self.asm.jump_if(Cond::Eq, Reg::R1, protocol, named);
        }
        self.asm.mov(Reg::R1, 0);
        self.asm.bind(named);
    }

    /// r1 = 1 if the other end is the endpoint's own address.
    fn itself(&mut self, family: Family) {
        let other = self.asm.label("somebody else");
        let own = own_address(family);
        self.asm.mov(Reg::R1, 0);
        // Zeros stand for no address.
        self.asm.load(Size::W, Reg::R3, Reg::R9, own);
        self.asm.jump_if(Cond::Eq, Reg::R3, 0, other);
        for offset in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R2, Reg::R10, Key::REMOTE + offset);
            self.asm.load(Size::W, Reg::R3, Reg::R9, own + offset);
            self.asm.jump_if(Cond::Ne, Reg::R2, Reg::R3, other);
        }
        self.asm.mov(Reg::R1, 1);
        self.asm.bind(other);
    }

    /// r1 = 1 if the packet began on this host and is from an address of the endpoint's node. The flow remembers it.
    fn own_node(&mut self, direction: Direction, family: Family) {
        self.asm.mov(Reg::R1, 0);
        if direction == Direction::Egress {
            return;
        }
        let [elsewhere, no] = ["elsewhere", "not the node's address"].map(|name| self.asm.label(name));
        self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::OWN_NODE);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, elsewhere);
        self.asm.load(Size::W, Reg::R2, Reg::R9, endpoint::NODE);
        self.asm.store(Size::W, Reg::R10, Frame::SCRATCH, Reg::R2);
        for offset in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R2, Reg::R10, Key::REMOTE + offset);
            self.asm.store(Size::W, Reg::R10, Frame::SCRATCH + 4 + offset, Reg::R2);
        }
        let nodes = if family == Family::V4 { MapName::Nodes4 } else { MapName::Nodes6 };
        self.look_up(nodes, Frame::SCRATCH);
        self.asm.mov(Reg::R1, 0);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no);
        self.asm.mov(Reg::R1, 1);
        self.asm.bind(no);
        self.asm.store(Size::W, Reg::R10, Frame::OWN_NODE, Reg::R1);
        self.asm.bind(elsewhere);
    }

    /// Emits a block's end; returns the blocks that it goes on to, the one to be emitted next last.
    fn block_end(&mut self, decision: &mut Decision, end: End) -> Result<Vec<BlockId>, EmitError> {
        let (test, then, otherwise) = match end {
            End::Verdict(verdict, reason) => {
                self.verdict(decision, verdict, reason);
                return Ok(Vec::new());
            }
            End::Jump(to) => (None, to, to),
            End::If(Test::Equal(value, number), then, otherwise) if decision.families.contains(&value) => {
                let is_it = u32::from(decision.family == Family::V6) * 2 + 4 == number;
                let to = if is_it { then } else { otherwise };
                (None, to, to)
            }
            End::If(test, then, otherwise) => (Some(test), then, otherwise),
        };
        let to = self.block_label(decision, then);
        if let Some(test) = test {
            self.test(decision, test, to)?;
        }
        let rest = self.block_label(decision, otherwise);
        self.asm.jump(rest);
        Ok(if test.is_some() { vec![then, otherwise] } else { vec![otherwise] })
    }

    fn verdict(&mut self, decision: &Decision, verdict: Verdict, reason: Reason) {
        let outcome = match (verdict, reason) {
            (Verdict::Deny, _) => Outcome::Denied,
            (Verdict::Allow, Reason::Itself) => Outcome::Itself,
            (Verdict::Allow, Reason::OwnNode) => Outcome::OwnNode,
            (Verdict::Allow, Reason::Policy) => Outcome::Allowed,
        };
        self.store_constant(Frame::OUTCOME, outcome as u32);
        let to = if verdict == Verdict::Allow { decision.allow } else { decision.deny };
        self.asm.jump(to);
    }

    /// Goes to `then` if the test holds.
    fn test(&mut self, decision: &Decision, test: Test, then: Label) -> Result<(), EmitError> {
        match test {
            Test::Equal(value, number) => self.compare(Cond::Eq, slot(value)?, number, then),
            Test::Less(value, number) => self.compare(Cond::Lt, slot(value)?, number, then),
            Test::Is(_, address) => self.is_address(decision.family, address, then),
            Test::Has(set, atom) => self.has(slot(set)?, slot(atom)?, then),
            Test::Full(set) => self.is_full(slot(set)?, then),
        }
        Ok(())
    }

    fn compare(&mut self, cond: Cond, value: i16, number: u32, then: Label) {
        self.load_number(Reg::R1, value);
        self.asm.jump_if32(cond, Reg::R1, number as i32, then);
    }

    fn is_address(&mut self, family: Family, address: IpAddr, then: Label) {
        if Family::of(address) != family {
            return;
        }
        let other = self.asm.label("another address");
        let bytes = crate::layout::address_bytes(address);
        let words: Vec<i32> =
            bytes.chunks_exact(4).map(|it| i32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect();
        for (index, word) in words.iter().enumerate() {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Key::REMOTE + 4 * index as i16);
            if index + 1 < words.len() {
                self.asm.jump_if32(Cond::Ne, Reg::R1, *word, other);
            } else {
                self.asm.jump_if32(Cond::Eq, Reg::R1, *word, then);
            }
        }
        self.asm.bind(other);
    }

    fn has(&mut self, set: i16, atom: i16, then: Label) {
        let words = self.plan.tables.atoms.div_ceil(64) as i32;
        self.asm.load(Size::Dw, Reg::R1, Reg::R10, set);
        self.load_number(Reg::R2, atom);
        if words > 1 {
            let beyond = self.asm.label("no such atom");
            self.asm.mov(Reg::R3, Reg::R2);
            self.asm.alu(AluOp::Rsh, Reg::R3, 6);
            // Verifier: bounds the offset into the map's value; no atom is beyond it.
            self.asm.jump_if(Cond::Ge, Reg::R3, words, beyond);
            self.asm.alu(AluOp::Lsh, Reg::R3, 3);
            self.asm.alu(AluOp::Add, Reg::R1, Reg::R3);
            self.test_bit(then);
            self.asm.bind(beyond);
        } else {
            self.test_bit(then);
        }
    }

    /// Bit r2 of the word at r1.
    fn test_bit(&mut self, then: Label) {
        self.asm.load(Size::Dw, Reg::R1, Reg::R1, 0);
        self.asm.alu(AluOp::And, Reg::R2, 63);
        self.asm.alu(AluOp::Rsh, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::And, Reg::R1, 1);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, then);
    }

    /// `reg = a value of the decision that is a number`.
    pub(super) fn load_number(&mut self, reg: Reg, value: i16) {
        self.asm.load(Size::W, reg, Reg::R10, value + NUMBER);
    }

    /// Sets a value of the decision to a number.
    pub(super) fn store_number(&mut self, value: i16, number: impl Into<Operand>) {
        self.asm.store(Size::W, Reg::R10, value + NUMBER, number);
    }

    fn is_full(&mut self, set: i16, then: Label) {
        let short = self.asm.label("not full");
        let full = AtomSet::all(self.plan.tables.atoms);
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
    match value.0 < Frame::MOST_VALUES {
        true => Ok(Frame::value(value.0)),
        false => Err(EmitError::TooManyValues(value)),
    }
}
