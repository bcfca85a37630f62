//! Facts about the emitted programs, one packet sequence each. `weir-codegen` tests them in the VM, and `weir-runtime`
//! in the kernel.
//!
//! A test binary defines `MACHINES`, a [`Machines`], at its root and calls `datapath_tests!` there.

#[macro_use]
mod tests;

pub mod audit;
pub mod flows;
pub mod fragments;
pub mod icmp;
pub mod mutations;
pub mod neighbours;
pub mod node;
pub mod parse;
pub mod rig;
pub mod room;
pub mod source;
pub mod vm;
pub mod vm_only;

use rig::{Parts, Rig};

/// Where the facts run: in the VM or in the kernel.
pub trait Machines {
    /// Runs a fact with the pod `server` of [`rig::parts`], without flows. If the machine is missing on this computer,
    /// the fact is skipped.
    fn on_machine(&self, fact: &mut dyn FnMut(&mut Rig));
    /// The same with other parts.
    fn on_parts(&self, parts: &Parts, fact: &mut dyn FnMut(&mut Rig));
}
