//! A handful of single addresses is compared, not looked up.
// Preserves verdicts: the compares are the whole of the family's map, each with the class that the map gives.

use std::net::IpAddr;

use crate::address::Family;
use crate::classify::PeerId;
use crate::ir::{Block, BlockId, End, Inst, Program, Tables, Test, Value};

/// Up to here a chain of compares costs less than a hash look-up and takes no map.
const MOST: usize = 8;

pub(super) fn run(program: &mut Program, tables: &Tables) {
    for family in [Family::V4, Family::V6] {
        if let Some(addresses) = few(tables, family) {
            expand(program, family, &addresses);
        }
    }
}

/// The family's whole map, if it is a few single addresses.
fn few(tables: &Tables, family: Family) -> Option<Vec<(IpAddr, PeerId)>> {
    let stretches = &tables.addresses.stretches;
    if stretches.iter().any(|it| Family::of(it.first) == family && it.peer != PeerId(0)) {
        return None;
    }
    let of_family = tables.addresses.exact.iter().filter(|(address, _)| Family::of(*address) == family);
    let found: Vec<_> = of_family.copied().take(MOST + 1).collect();
    (found.len() <= MOST).then_some(found)
}

fn expand(program: &mut Program, family: Family, addresses: &[(IpAddr, PeerId)]) {
    let is_look_up = |inst: &Inst| matches!(inst, Inst::Class(_, it, _) if *it == family);
    let place = program.blocks.iter().enumerate().find_map(|(index, block)| {
        let at = block.insts.iter().position(is_look_up)?;
        Some((index, at))
    });
    let Some((index, at)) = place else { return };
    let Inst::Class(to, _, of) = program.blocks[index].insts[at] else { return };
    let rest = program.blocks[index].insts.split_off(at + 1);
    program.blocks[index].insts.pop();
    let end = program.blocks[index].end;
    let after = push(program, Block { insts: rest, end });
    let mut next = push(program, assign(to, PeerId(0), after));
    for (address, peer) in addresses.iter().rev() {
        let found = push(program, assign(to, *peer, after));
        next = push(program, Block { insts: Vec::new(), end: End::If(Test::Is(of, *address), found, next) });
    }
    program.blocks[index].end = End::Jump(next);
}

fn assign(to: Value, peer: PeerId, after: BlockId) -> Block {
    Block { insts: vec![Inst::Const(to, peer.0)], end: End::Jump(after) }
}

fn push(program: &mut Program, block: Block) -> BlockId {
    program.blocks.push(block);
    BlockId(program.blocks.len() as u32 - 1)
}
