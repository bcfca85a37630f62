//! Removes blocks that no path reaches and values that no instruction uses.
// Preserves verdicts: an instruction only sets its value, so removing one whose value is unused changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{BlockId, DecisionProgram, DecisionTables, Terminator, Value};

pub(super) fn run(program: &mut DecisionProgram, _: &DecisionTables) {
    keep_reached(program);
    while remove_unused(program) {}
}

fn keep_reached(program: &mut DecisionProgram) {
    let mut reached: BTreeSet<BlockId> = BTreeSet::new();
    let mut open = vec![BlockId(0)];
    while let Some(id) = open.pop() {
        if reached.insert(id) {
            open.extend(program.blocks.get(id.index()).into_iter().flat_map(|block| block.end.targets()));
        }
    }
    let numbers: BTreeMap<BlockId, BlockId> =
        reached.iter().enumerate().map(|(new, old)| (*old, BlockId(new as u32))).collect();
    let renumber = |id: BlockId| numbers.get(&id).copied().unwrap_or(id);
    let mut index = 0;
    program.blocks.retain(|_| {
        index += 1;
        reached.contains(&BlockId(index - 1))
    });
    for block in &mut program.blocks {
        block.end = match block.end {
            Terminator::Jump(to) => Terminator::Jump(renumber(to)),
            Terminator::If(test, then, otherwise) => Terminator::If(test, renumber(then), renumber(otherwise)),
            end => end,
        };
    }
}

/// Removes unused instructions. Returns whether it removed any: values that only these used may now be unused too.
fn remove_unused(program: &mut DecisionProgram) -> bool {
    let of_insts = program.blocks.iter().flat_map(|block| block.insts.iter().flat_map(|inst| inst.uses()));
    let of_ends = program.blocks.iter().flat_map(|block| block.end.uses());
    let used: BTreeSet<Value> = of_insts.chain(of_ends).collect();
    let mut removed = false;
    for block in &mut program.blocks {
        let before = block.insts.len();
        block.insts.retain(|inst| used.contains(&inst.result()));
        removed |= block.insts.len() < before;
    }
    removed
}
