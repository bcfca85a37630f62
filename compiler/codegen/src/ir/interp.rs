//! The interpreter of programs: engine `ir`.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{BlockId, End, Fact, Facts, Inst, Program, Reason, Tables, Test, Value, protocol_number};
use weir_objects::address::Family;
use weir_classes::{AtomSetId, PeerId};
use weir_model::Protocol;
use weir_model::eval::Verdict;

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
enum Content {
    Number(u32),
    Address(IpAddr),
    Set(AtomSetId),
}

/// Runs a program on the facts of a packet.
pub fn run(program: &Program, tables: &Tables, facts: &Facts) -> Result<(Verdict, Reason), InterpError> {
    let mut machine = Machine { program, tables, facts, values: HashMap::new(), at: BlockId(0) };
    for _ in 0..=program.blocks.len() {
        if let Some(done) = machine.block()? {
            return Ok(done);
        }
    }
    Err(InterpError::Endless)
}

struct Machine<'a> {
    program: &'a Program,
    tables: &'a Tables,
    facts: &'a Facts,
    values: HashMap<Value, Content>,
    at: BlockId,
}

impl Machine<'_> {
    fn block(&mut self) -> Result<Option<(Verdict, Reason)>, InterpError> {
        let block = self.program.blocks.get(self.at.index()).ok_or(InterpError::Endless)?;
        for inst in &block.insts {
            let content = self.inst(*inst)?;
            self.values.insert(inst.result(), content);
        }
        match block.end {
            End::Verdict(verdict, reason) => return Ok(Some((verdict, reason))),
            End::Jump(to) => self.at = to,
            End::If(test, then, otherwise) => self.at = if self.test(test)? { then } else { otherwise },
        }
        Ok(None)
    }

    fn inst(&self, inst: Inst) -> Result<Content, InterpError> {
        Ok(match inst {
            Inst::Fact(_, fact) => self.fact(fact),
            Inst::Const(_, number) => Content::Number(number),
            Inst::Class(_, _, of) => Content::Number(self.tables.addresses.find(self.address(of)?).0),
            Inst::Prefix(_, _, of) => Content::Number(self.tables.addresses.find_stretch(self.address(of)?).0),
            Inst::Row(_, subject, peer) => {
                let (subject, peer) = (self.number(subject)?, self.number(peer)?);
                Content::Set(self.row(subject)?.find(PeerId(peer)))
            }
            Inst::Default(_, subject) => Content::Set(self.row(self.number(subject)?)?.default),
            Inst::Atom(_, protocol, port) => {
                let (protocol, port) = (self.number(protocol)?, self.number(port)?);
                Content::Number(find_atom(self.tables, protocol, port))
            }
        })
    }

    fn fact(&self, fact: Fact) -> Content {
        let facts = self.facts;
        Content::Number(match fact {
            Fact::Remote => return Content::Address(facts.remote),
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

    fn test(&self, test: Test) -> Result<bool, InterpError> {
        Ok(match test {
            Test::Equal(value, number) => self.number(value)? == number,
            Test::Less(value, number) => self.number(value)? < number,
            Test::Is(value, address) => self.address(value)? == address,
            Test::Has(set, atom) => {
                let atom = weir_classes::AtomId(self.number(atom)?);
                self.set(set)?.contains(atom)
            }
            Test::Staged(set, atom) => {
                let behind = 64 * self.tables.atoms.div_ceil(64) as u32;
                self.set(set)?.contains(weir_classes::AtomId(behind + self.number(atom)?))
            }
            Test::Full(set) => *self.set(set)? == self.tables.full_set(),
        })
    }

    fn row(&self, subject: u32) -> Result<&weir_classes::Row, InterpError> {
        let rows = self.tables.rows(self.program.direction);
        rows.get(subject as usize).ok_or(InterpError::Table(self.at, subject))
    }

    fn set(&self, value: Value) -> Result<&weir_classes::AtomSet, InterpError> {
        match self.values.get(&value) {
            Some(Content::Set(id)) => self.tables.sets.get(id.index()).ok_or(InterpError::Table(self.at, id.0)),
            _ => Err(InterpError::Value(self.at, value)),
        }
    }

    fn number(&self, value: Value) -> Result<u32, InterpError> {
        match self.values.get(&value) {
            Some(Content::Number(number)) => Ok(*number),
            _ => Err(InterpError::Value(self.at, value)),
        }
    }

    fn address(&self, value: Value) -> Result<IpAddr, InterpError> {
        match self.values.get(&value) {
            Some(Content::Address(address)) => Ok(*address),
            _ => Err(InterpError::Value(self.at, value)),
        }
    }
}

/// The atom of a protocol number and a port.
fn find_atom(tables: &Tables, protocol: u32, port: u32) -> u32 {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = all.into_iter().find(|it| u32::from(protocol_number(*it)) == protocol);
    let found = tables.ports.iter().find(|it| {
        let within = u32::from(it.spec.first) <= port && port <= u32::from(it.spec.last);
        Some(it.spec.protocol) == protocol && within
    });
    found.map_or(0, |it| it.atom.0)
}
