//! The mid-end: from the general decision to what this input needs.
//!
//! Each pass takes a program to one with the same verdicts over the same tables, and is verified after.

mod address_compares;
mod constant_rows;
mod dead_code;
mod families;
mod full_sets;
mod jumps;
mod port_tree;

use crate::ir::{Program, Tables, VerifyError, verify};

/// One step.
pub type Pass = fn(&mut Program, &Tables);

/// The steps, in order. Read aloud: what no row tells apart is not looked up; what no address has is not asked; then
/// small sets become compares, and what is left over goes.
pub const PASSES: &[(&str, Pass)] = &[
    ("constant-rows", constant_rows::run),
    ("full-sets", full_sets::run),
    ("families", families::run),
    ("address-compares", address_compares::run),
    ("port-tree", port_tree::run),
    ("jumps", jumps::run),
    ("dead-code", dead_code::run),
];

/// A pass that broke a program: our own bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass {pass}: {error}")]
pub struct PassError {
    /// Which.
    pub pass: &'static str,
    /// How.
    pub error: VerifyError,
}

/// Runs every pass, verifying after each.
pub fn optimize(program: &mut Program, tables: &Tables) -> Result<(), PassError> {
    for (pass, run) in PASSES {
        run(program, tables);
        verify(program).map_err(|error| PassError { pass, error })?;
    }
    Ok(())
}
