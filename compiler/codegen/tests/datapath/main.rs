//! Tests of the emitted programs in the VM, one fact at a time. `weir-runtime`'s `datapath_in_kernel` tests the same
//! facts in the kernel; [`at_once`] and [`vm_only`] need the VM.

mod at_once;
mod slots;

use weir_testing::datapath::rig::{Parts, Rig, parts};
use weir_testing::datapath::{Machines, vm};

/// A fresh VM for each fact.
struct InVm;

const MACHINES: InVm = InVm;

impl Machines for InVm {
    fn on_machine(&self, fact: &mut dyn FnMut(&mut Rig)) {
        self.on_parts(&parts(), fact);
    }

    fn on_parts(&self, parts: &Parts, fact: &mut dyn FnMut(&mut Rig)) {
        fact(&mut Rig::new(Box::new(vm::Machine::new(parts)), parts.pods.clone()));
    }
}

weir_testing::datapath_tests!();

mod vm_only {
    weir_testing::vm_only_facts!();
    weir_testing::vm_only_tests!();
}
