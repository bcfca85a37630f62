//! If no row depends on the peer class, the peer class is not looked up.
// Preserves verdicts: a row without entries gives its default for every peer class, so `row s p` is `default s`.

use crate::ir::{DecisionProgram, DecisionTables, Inst};

pub(super) fn run(program: &mut DecisionProgram, tables: &DecisionTables) {
    if tables.rows(program.direction).iter().any(|row| !row.entries.is_empty()) {
        return;
    }
    for inst in program.blocks.iter_mut().flat_map(|block| &mut block.insts) {
        if let Inst::Row(to, subject, _) = *inst {
            *inst = Inst::Default(to, subject);
        }
    }
}
