//! The mid-end: specialises the general decision to the input.
//!
//! Each pass turns a program into one with the same verdicts over the same tables. The result is verified after each
//! pass.

mod address_compares;
mod constant_rows;
mod dead_code;
mod families;
mod full_sets;
mod jumps;
mod port_tree;

use crate::ir::{DecisionProgram, DecisionTables, VerifyError, verify};

/// A pass over a program.
pub type Pass = fn(&mut DecisionProgram, &DecisionTables);

/// The passes, in order. First they remove look-ups whose result no row depends on and families without classified
/// addresses; then small sets become compares; finally unused code is removed.
pub const PASSES: &[(&str, Pass)] = &[
    ("constant-rows", constant_rows::run),
    ("full-sets", full_sets::run),
    ("families", families::run),
    ("address-compares", address_compares::run),
    ("port-tree", port_tree::run),
    ("jumps", jumps::run),
    ("dead-code", dead_code::run),
];

/// A pass that produced a malformed program: a bug in the compiler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass {pass}: {error}")]
pub struct PassError {
    /// The name of the pass.
    pub pass: &'static str,
    /// The error in the program that the pass left.
    pub error: VerifyError,
}

/// Runs every pass, verifying after each.
pub fn optimize(program: &mut DecisionProgram, tables: &DecisionTables) -> Result<(), PassError> {
    for (pass, run) in PASSES {
        run(program, tables);
        verify(program).map_err(|error| PassError { pass, error })?;
    }
    Ok(())
}
