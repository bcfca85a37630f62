//! Checks that a program is well formed. Runs after every pass, in every build.

use std::collections::BTreeMap;

use super::{BlockId, Condition, DecisionProgram, Fact, Inst, Terminator, Value};

/// Why a program is not well formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The program has no block, so it has no entry.
    #[error("no block at all")]
    Empty,
    /// A block jumps to a block that does not exist.
    #[error("{0} goes on to {1}, which is not there")]
    NoSuchBlock(BlockId, BlockId),
    /// A block can reach itself. A decision has no loops.
    #[error("{0} can be reached from itself")]
    Loop(BlockId),
    /// A value is used that is not set on every path to the block.
    #[error("{0} uses {1}, which is not set on every path")]
    Unset(BlockId, Value),
    /// A value has another kind than the instruction needs.
    #[error("{0}: {1} is a {2:?} where a {3:?} is needed")]
    Kind(BlockId, Value, ValueKind, ValueKind),
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A number.
    Number,
    /// An address.
    Address,
    /// A set of atoms.
    Set,
}

/// Checks that a program is well formed.
pub fn verify(program: &DecisionProgram) -> Result<(), VerifyError> {
    if program.blocks.is_empty() {
        return Err(VerifyError::Empty);
    }
    let order = topological(program)?;
    let mut known: BTreeMap<BlockId, BTreeMap<Value, ValueKind>> = BTreeMap::from([(BlockId(0), BTreeMap::new())]);
    for id in order {
        let Some(mut values) = known.get(&id).cloned() else { continue };
        check_block(program, id, &mut values)?;
        for target in program.blocks[id.index()].end.targets() {
            match known.get_mut(&target) {
                Some(before) => before.retain(|value, kind| values.get(value) == Some(kind)),
                None => _ = known.insert(target, values.clone()),
            }
        }
    }
    Ok(())
}

fn check_block(
    program: &DecisionProgram,
    id: BlockId,
    values: &mut BTreeMap<Value, ValueKind>,
) -> Result<(), VerifyError> {
    let block = &program.blocks[id.index()];
    for inst in &block.insts {
        for (value, kind) in wanted(*inst) {
            need(id, values, value, kind)?;
        }
        values.insert(inst.result(), result(*inst));
    }
    if let Terminator::If(test, _, _) = block.end {
        for (value, kind) in asked(test) {
            need(id, values, value, kind)?;
        }
    }
    Ok(())
}

fn need(id: BlockId, values: &BTreeMap<Value, ValueKind>, value: Value, wanted: ValueKind) -> Result<(), VerifyError> {
    match values.get(&value) {
        None => Err(VerifyError::Unset(id, value)),
        Some(kind) if *kind != wanted => Err(VerifyError::Kind(id, value, *kind, wanted)),
        Some(_) => Ok(()),
    }
}

fn wanted(inst: Inst) -> Vec<(Value, ValueKind)> {
    match inst {
        Inst::Fact(..) | Inst::Const(..) => Vec::new(),
        Inst::Class(_, _, of) | Inst::Prefix(_, _, of) => vec![(of, ValueKind::Address)],
        Inst::Default(_, subject) => vec![(subject, ValueKind::Number)],
        Inst::Row(_, a, b) | Inst::Atom(_, a, b) => vec![(a, ValueKind::Number), (b, ValueKind::Number)],
    }
}

fn result(inst: Inst) -> ValueKind {
    match inst {
        Inst::Fact(_, Fact::Remote) => ValueKind::Address,
        Inst::Row(..) | Inst::Default(..) => ValueKind::Set,
        _ => ValueKind::Number,
    }
}

fn asked(test: Condition) -> Vec<(Value, ValueKind)> {
    match test {
        Condition::Equal(value, _) | Condition::Less(value, _) => vec![(value, ValueKind::Number)],
        Condition::Is(value, _) => vec![(value, ValueKind::Address)],
        Condition::Has(set, atom) | Condition::Audit(set, atom) => {
            vec![(set, ValueKind::Set), (atom, ValueKind::Number)]
        }
        Condition::Full(set) => vec![(set, ValueKind::Set)],
    }
}

/// The blocks in topological order.
fn topological(program: &DecisionProgram) -> Result<Vec<BlockId>, VerifyError> {
    let count = program.blocks.len();
    let mut incoming = vec![0usize; count];
    for (index, block) in program.blocks.iter().enumerate() {
        for target in block.end.targets() {
            let known = incoming.get_mut(target.index());
            *known.ok_or(VerifyError::NoSuchBlock(BlockId(index as u32), target))? += 1;
        }
    }
    let mut ready: Vec<usize> = (0..count).filter(|index| incoming[*index] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(index) = ready.pop() {
        order.push(BlockId(index as u32));
        for target in program.blocks[index].end.targets() {
            incoming[target.index()] -= 1;
            if incoming[target.index()] == 0 {
                ready.push(target.index());
            }
        }
    }
    match incoming.iter().position(|count| *count > 0) {
        Some(index) => Err(VerifyError::Loop(BlockId(index as u32))),
        None => Ok(order),
    }
}
