//! Tests of the emitted programs in the VM, one fact at a time. `weir-runtime`'s `datapath_in_kernel` tests the same
//! facts in the kernel.

#[path = "../common/packet.rs"]
mod packet;
mod rig;

mod at_once;
mod audit;
mod flows;
mod fragments;
mod icmp;
mod mutations;
mod neighbours;
mod node;
mod parse;
mod room;
mod source;
mod vm;
mod vm_only;

/// A fresh machine with the server behind the interface.
fn on_machine(fact: impl FnOnce(&mut rig::Rig)) {
    on_parts(&rig::parts(), fact);
}

fn on_parts(parts: &rig::Parts, fact: impl FnOnce(&mut rig::Rig)) {
    let machine = vm::Machine::new(parts);
    fact(&mut rig::Rig::new(Box::new(machine), parts.pods.clone()));
}
