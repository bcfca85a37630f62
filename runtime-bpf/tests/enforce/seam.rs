//! Every kernel call of the runtime is an operation of the seam, so that fault tests reach it.

use std::fs;
use std::path::{Path, PathBuf};

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
            runtime.events().unwrap();
            runtime.counters().unwrap();
            runtime.detach(None).unwrap();
            assert_eq!(beside::calls(), opened);
        });
    });
}

/// aya's calls are not counted. But the seam's files hide its maps, so other files cannot call them.
#[test]
fn aya_is_used_only_behind_the_seam() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut users: Vec<_> = rust_files(&src).into_iter().filter(|path| uses_aya(path)).collect();
    users.sort();
    // `sys.rs` asks for the number of CPUs. `events.rs` reads the ring buffer's memory.
    assert_eq!(users, ["events.rs", "sys.rs", "system/typed.rs"].map(|it| src.join(it)));
}

fn uses_aya(path: &Path) -> bool {
    fs::read_to_string(path).unwrap().contains("aya::")
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}
