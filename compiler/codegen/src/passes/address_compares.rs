//! A handful of single addresses is compared, not looked up.
// Preserves verdicts: the compares cover all of the family's single addresses, each with the class that the map gives.
// All other addresses are looked up among the prefixes, as the map does.

use std::net::IpAddr;

use crate::ir::{Block, BlockId, Condition, DecisionProgram, DecisionTables, Inst, Terminator, Value};
use crate::structures::ExactTable;
use weir_classes::PeerId;
use weir_objects::address::Family;

pub(super) fn run(program: &mut DecisionProgram, tables: &DecisionTables) {
    for family in [Family::V4, Family::V6] {
        if let Some(addresses) = few(tables, family) {
            expand(program, tables, family, &addresses);
        }
    }
}

/// The family's single addresses, if the cost model chose compares.
fn few(tables: &DecisionTables, family: Family) -> Option<Vec<(IpAddr, PeerId)>> {
    if *tables.structures.exact(family) != ExactTable::Compares {
        return None;
    }
    Some(tables.addresses.of_family(family).collect())
}

fn expand(program: &mut DecisionProgram, tables: &DecisionTables, family: Family, addresses: &[(IpAddr, PeerId)]) {
    let is_look_up = |inst: &Inst| matches!(inst, Inst::Class(_, it, _) if *it == family);
    let place = program.blocks.iter().enumerate().find_map(|(index, block)| {
        let at = block.insts.iter().position(is_look_up)?;
        Some((index, at))
    });
    let Some((index, at)) = place else { return };
    let Inst::Class(to, _, of) = program.blocks[index].insts[at] else { return };
    let rest = program.blocks[index].insts.split_off(at + 1);
    program.blocks[index].insts.pop();
    let Block { end, source, .. } = program.blocks[index];
    let after = push(program, Block { insts: rest, end, source });
    let mut next = push(program, Block::new(vec![Inst::Prefix(to, family, of)], Terminator::Jump(after)));
    for (address, peer) in addresses.iter().rev() {
        let source = tables.sources.addresses.get(address).copied();
        let found = push(program, assign(to, *peer, after).of(source));
        let test = Terminator::If(Condition::Is(of, *address), found, next);
        next = push(program, Block::new(Vec::new(), test).of(source));
    }
    program.blocks[index].end = Terminator::Jump(next);
}

fn assign(to: Value, peer: PeerId, after: BlockId) -> Block {
    Block::new(vec![Inst::Const(to, peer.0)], Terminator::Jump(after))
}

fn push(program: &mut DecisionProgram, block: Block) -> BlockId {
    program.blocks.push(block);
    BlockId(program.blocks.len() as u32 - 1)
}
