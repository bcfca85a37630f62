//! Redirects jumps to blocks that only jump on.
// Preserves verdicts: an empty block that jumps sets nothing and decides nothing.

use crate::ir::{BlockId, End, Program, Tables};

pub(super) fn run(program: &mut Program, _: &Tables) {
    let follow = |mut id: BlockId| {
        // This loop ends, because a verified program has no loops.
        while let Some(block) = program.blocks.get(id.index()) {
            match block.end {
                End::Jump(to) if block.insts.is_empty() => id = to,
                _ => break,
            }
        }
        id
    };
    let ends: Vec<End> = program
        .blocks
        .iter()
        .map(|block| match block.end {
            End::Jump(to) => End::Jump(follow(to)),
            End::If(test, then, otherwise) => match (follow(then), follow(otherwise)) {
                (then, otherwise) if then == otherwise => End::Jump(then),
                (then, otherwise) => End::If(test, then, otherwise),
            },
            end => end,
        })
        .collect();
    program.blocks.iter_mut().zip(ends).for_each(|(block, end)| block.end = end);
}
