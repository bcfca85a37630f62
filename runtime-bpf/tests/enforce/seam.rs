//! Every kernel call of the runtime is an operation of the seam, so that fault tests reach it.

use weir_runtime::HookKind;
use weir_runtime::runtime::{PinAccess, Request, Runtime};
use weir_runtime::sys::beside;

use crate::attach::{each, only_port, request};

#[test]
fn no_kernel_call_goes_beside_the_seam() {
    each(|node, way| {
        let other = if way == HookKind::Tcx { HookKind::Clsact } else { HookKind::Tcx };
        let endpoints: Vec<_> = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).into();
        let [first, second] = [only_port(80), only_port(81)];
        node.here(|| {
            let begun = beside::calls();
            let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().without_grace();
            let opened = beside::calls();
            assert!(opened > begun, "opening tries the system call beside the seam, and it is counted");
            runtime.attach(&Request { endpoints, way: Some(way), ..request(&first) }).unwrap();
            runtime.attach(&request(&second)).unwrap();
            runtime.attach(&Request { way: Some(other), ..request(&first) }).unwrap();
            runtime.reap().unwrap();
            runtime.status().unwrap();
            runtime.check_hooks().unwrap();
            runtime.repair().unwrap();
            runtime.artifact_in_force().unwrap();
            runtime.memory().unwrap();
            runtime.lost_records().unwrap();
            runtime.flows().unwrap();
            runtime.counters().unwrap();
            runtime.detach(None).unwrap();
            assert_eq!(beside::calls(), opened);
        });
    });
}
