//! The interpreter of programs: engine `ir`.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{
    BlockId, Condition, DecisionProgram, DecisionTables, Fact, Inst, PacketFacts, Terminator, Value, VerdictReason,
    protocol_number,
};
use weir_classes::{AtomSetId, PeerId};
use weir_model::Protocol;
use weir_model::eval::Verdict;
use weir_objects::address::Family;

/// Why a run failed. Verified programs over complete tables do not fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpError {
    /// The program reads a value that is not set or has another kind; [`super::verify`] rejects such programs.
    #[error("{0}: {1} is not set, or is something else")]
    Value(BlockId, Value),
    /// The program looks up an entry that the table does not have.
    #[error("{0}: no table has {1}")]
    Table(BlockId, u32),
    /// The program does not end.
    #[error("it does not end")]
    Endless,
}

#[derive(Clone, Copy)]
enum ValueContent {
    Number(u32),
    Address(IpAddr),
    Set(AtomSetId),
}

/// Runs a program on the facts of a packet.
pub fn run(
    program: &DecisionProgram,
    tables: &DecisionTables,
    facts: &PacketFacts,
) -> Result<(Verdict, VerdictReason), InterpError> {
    let mut machine = IrMachine { program, tables, facts, values: HashMap::new(), at: BlockId(0) };
    for _ in 0..=program.blocks.len() {
        if let Some(done) = machine.block()? {
            return Ok(done);
        }
    }
    Err(InterpError::Endless)
}

struct IrMachine<'a> {
    program: &'a DecisionProgram,
    tables: &'a DecisionTables,
    facts: &'a PacketFacts,
    values: HashMap<Value, ValueContent>,
    at: BlockId,
}

impl IrMachine<'_> {
    fn block(&mut self) -> Result<Option<(Verdict, VerdictReason)>, InterpError> {
        let block = self.program.blocks.get(self.at.index()).ok_or(InterpError::Endless)?;
        for inst in &block.insts {
            let content = self.inst(*inst)?;
            self.values.insert(inst.result(), content);
        }
        match block.end {
            Terminator::Verdict(verdict, reason) => return Ok(Some((verdict, reason))),
            Terminator::Jump(to) => self.at = to,
            Terminator::If(test, then, otherwise) => self.at = if self.test(test)? { then } else { otherwise },
        }
        Ok(None)
    }

    fn inst(&self, inst: Inst) -> Result<ValueContent, InterpError> {
        Ok(match inst {
            Inst::Fact(_, fact) => self.fact(fact),
            Inst::Const(_, number) => ValueContent::Number(number),
            Inst::Class(_, _, of) => ValueContent::Number(self.tables.addresses.find(self.address(of)?).0),
            Inst::Prefix(_, _, of) => ValueContent::Number(self.tables.addresses.find_range(self.address(of)?).0),
            Inst::Row(_, subject, peer) => {
                let (subject, peer) = (self.number(subject)?, self.number(peer)?);
                ValueContent::Set(self.row(subject)?.find(PeerId(peer)))
            }
            Inst::Default(_, subject) => ValueContent::Set(self.row(self.number(subject)?)?.default),
            Inst::Atom(_, protocol, port) => {
                let (protocol, port) = (self.number(protocol)?, self.number(port)?);
                ValueContent::Number(find_atom(self.tables, protocol, port))
            }
        })
    }

    fn fact(&self, fact: Fact) -> ValueContent {
        let facts = self.facts;
        ValueContent::Number(match fact {
            Fact::Remote => return ValueContent::Address(facts.remote),
            Fact::Subject => facts.subject,
            Fact::Family => match Family::of(facts.remote) {
                Family::V4 => 4,
                Family::V6 => 6,
            },
            Fact::Protocol => facts.protocol.map_or(0, |protocol| u32::from(protocol_number(protocol))),
            Fact::Port => u32::from(facts.port),
            Fact::Itself => u32::from(facts.itself),
            Fact::OwnNode => u32::from(facts.own_node),
            Fact::IcmpError => u32::from(facts.icmp_error),
        })
    }

    fn test(&self, test: Condition) -> Result<bool, InterpError> {
        Ok(match test {
            Condition::Equal(value, number) => self.number(value)? == number,
            Condition::Less(value, number) => self.number(value)? < number,
            Condition::Is(value, address) => self.address(value)? == address,
            Condition::Has(set, atom) => {
                let atom = weir_classes::AtomId(self.number(atom)?);
                self.set(set)?.contains(atom)
            }
            Condition::Audit(set, atom) => {
                let behind = 64 * self.tables.atoms.div_ceil(64) as u32;
                self.set(set)?.contains(weir_classes::AtomId(behind + self.number(atom)?))
            }
            Condition::Full(set) => *self.set(set)? == self.tables.full_set(),
        })
    }

    fn row(&self, subject: u32) -> Result<&weir_classes::Row, InterpError> {
        let rows = self.tables.rows(self.program.direction);
        rows.get(subject as usize).ok_or(InterpError::Table(self.at, subject))
    }

    fn set(&self, value: Value) -> Result<&weir_classes::AtomSet, InterpError> {
        match self.values.get(&value) {
            Some(ValueContent::Set(id)) => self.tables.sets.get(id.index()).ok_or(InterpError::Table(self.at, id.0)),
            _ => Err(InterpError::Value(self.at, value)),
        }
    }

    fn number(&self, value: Value) -> Result<u32, InterpError> {
        match self.values.get(&value) {
            Some(ValueContent::Number(number)) => Ok(*number),
            _ => Err(InterpError::Value(self.at, value)),
        }
    }

    fn address(&self, value: Value) -> Result<IpAddr, InterpError> {
        match self.values.get(&value) {
            Some(ValueContent::Address(address)) => Ok(*address),
            _ => Err(InterpError::Value(self.at, value)),
        }
    }
}

/// The atom of a protocol number and a port.
fn find_atom(tables: &DecisionTables, protocol: u32, port: u32) -> u32 {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = all.into_iter().find(|it| u32::from(protocol_number(*it)) == protocol);
    let found = tables.ports.iter().find(|it| {
        let within = u32::from(it.spec.first) <= port && port <= u32::from(it.spec.last);
        Some(it.spec.protocol) == protocol && within
    });
    found.map_or(0, |it| it.atom.0)
}
