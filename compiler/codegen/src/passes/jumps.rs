//! Redirects jumps to blocks that only jump on.
// Preserves verdicts: an empty block that jumps sets nothing and decides nothing.

use crate::ir::{BlockId, DecisionProgram, DecisionTables, Terminator};

pub(super) fn run(program: &mut DecisionProgram, _: &DecisionTables) {
    let follow = |mut id: BlockId| {
        // This loop ends, because a verified program has no loops.
        while let Some(block) = program.blocks.get(id.index()) {
            match block.end {
                Terminator::Jump(to) if block.insts.is_empty() => id = to,
                _ => break,
            }
        }
        id
    };
    let ends: Vec<Terminator> = program
        .blocks
        .iter()
        .map(|block| match block.end {
            Terminator::Jump(to) => Terminator::Jump(follow(to)),
            Terminator::If(test, then, otherwise) => match (follow(then), follow(otherwise)) {
                (then, otherwise) if then == otherwise => Terminator::Jump(then),
                (then, otherwise) => Terminator::If(test, then, otherwise),
            },
            end => end,
        })
        .collect();
    program.blocks.iter_mut().zip(ends).for_each(|(block, end)| block.end = end);
}
