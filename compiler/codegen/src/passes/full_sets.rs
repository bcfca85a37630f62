//! If every set in use contains all ports or none, the port is not looked up.
// Preserves verdicts: a port's atom is never that of ICMP errors, and is below the number of atoms. So a full set has
// it, and a set that is empty or has ICMP errors alone does not. The test of the ICMP errors' own atom is left as it
// is.

use crate::ir::{Block, Condition, DecisionProgram, DecisionTables, Inst, Terminator};
use weir_classes::AtomSet;

pub(super) fn run(program: &mut DecisionProgram, tables: &DecisionTables) {
    // A set that is all or nothing may have any audit set beside it.
    if tables.is_audit {
        return;
    }
    let full = AtomSet::all(tables.atoms);
    let mut only_errors = AtomSet::none(tables.atoms);
    tables.icmp_errors.into_iter().for_each(|atom| only_errors.insert(atom));
    let rows = tables.rows(program.direction).iter();
    let mut in_use = rows.flat_map(|row| row.entries.iter().map(|(_, set)| *set).chain([row.default]));
    let all_or_nothing = |set: &AtomSet| *set == full || *set == only_errors || set.is_empty();
    if !in_use.all(|id| tables.sets.get(id.index()).is_some_and(all_or_nothing)) {
        return;
    }
    for block in program.blocks.iter_mut().filter(|block| !judges_errors(block, tables)) {
        if let Terminator::If(Condition::Has(set, _), then, otherwise) = block.end {
            block.end = Terminator::If(Condition::Full(set), then, otherwise);
        }
    }
}

fn judges_errors(block: &Block, tables: &DecisionTables) -> bool {
    let is_their_atom =
        |inst: &Inst| matches!(inst, Inst::Const(_, atom) if tables.icmp_errors.is_some_and(|it| it.0 == *atom));
    block.insts.iter().any(is_their_atom)
}
