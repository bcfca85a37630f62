//! Replaces look-ups in a family without any classified address by class 0.
// Preserves verdicts: if no address of a family is in the map, all of them have class 0.

use crate::ir::{DecisionProgram, DecisionTables, Inst};

pub(super) fn run(program: &mut DecisionProgram, tables: &DecisionTables) {
    for inst in program.blocks.iter_mut().flat_map(|block| &mut block.insts) {
        if let Inst::Class(to, family, _) | Inst::Prefix(to, family, _) = *inst
            && !tables.has_family(family)
        {
            *inst = Inst::Const(to, 0);
        }
    }
}
