//! Where every set in use is all or nothing, the port does not matter.
// Preserves verdicts: an atom is always below the number of atoms, so a full set has it and an empty one has not.

use crate::classify::AtomSet;
use crate::ir::{End, Program, Tables, Test};

pub(super) fn run(program: &mut Program, tables: &Tables) {
    // Beside a set that is all or nothing there may be any.
    if tables.is_staged {
        return;
    }
    let full = AtomSet::all(tables.atoms);
    let rows = tables.rows(program.direction).iter();
    let mut in_use = rows.flat_map(|row| row.entries.iter().map(|(_, set)| *set).chain([row.default]));
    let all_or_nothing = |set: &AtomSet| *set == full || set.is_empty();
    if !in_use.all(|id| tables.sets.get(id.index()).is_some_and(all_or_nothing)) {
        return;
    }
    for block in &mut program.blocks {
        if let End::If(Test::Has(set, _), then, otherwise) = block.end {
            block.end = End::If(Test::Full(set), then, otherwise);
        }
    }
}
