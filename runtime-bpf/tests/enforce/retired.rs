//! How long a replaced generation is kept, and who waits for it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_runtime::runtime::{PinAccess, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{HookKind, skip};

use crate::net::possible;
use crate::spare::{agent_counting, assert_in_force, attach, only_port, with_servers};

/// Two waits for each generation: for its packets, and after the separation for its programs.
#[test]
fn threads_wait_for_a_retired_generation() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, waits) = agent_counting(Operation::WaitForPrograms, node);
        let asked = || waits.swap(0, Ordering::Relaxed);
        let attach = |port| {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            assert_in_force(node, &runtime, port, 161 - port, "it is in force");
        };
        attach(80);
        runtime.separate().unwrap();
        runtime.reap().unwrap();
        assert_eq!(asked(), 0, "no generation was replaced");
        for port in [81, 80] {
            attach(port);
            assert_eq!(asked(), 1, "for packets");
            runtime.separate().unwrap();
            runtime.separate().unwrap();
            assert_in_force(node, &runtime, port, 161 - port, "it is separated");
            assert_eq!(asked(), 1, "for programs");
            runtime.reap().unwrap();
            assert_eq!(asked(), 0, "the threads have waited");
            assert!(runtime.spare().unwrap().is_some());
            assert_in_force(node, &runtime, port, 161 - port, "it is the spare");
        }
        attach(81);
        runtime.separate().unwrap();
        attach(80);
        assert_eq!(asked(), 3, "the next switch makes it the spare, and has begun its own wait");
        runtime.reap().unwrap();
        assert_eq!(asked(), 1, "for programs");
    });
}

/// The packets that a generation has stamped can be in queues.
#[test]
fn a_retired_generation_is_kept_for_a_time() {
    skip!(unless possible());
    let node = &with_servers();
    let grace = Duration::from_millis(400);
    let waiting = |fails: bool, wait: fn(&Runtime)| {
        node.here(|| {
            let refuse = move |it| (fails && it == Operation::WaitForPrograms).then_some(libc::EINVAL);
            let system = System::with_faults(Box::new(refuse)).unwrap();
            let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
            let runtime = runtime.with_grace(grace).keeping().unwrap();
            attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
            let begun = Instant::now();
            attach(&runtime, node, &only_port(81), HookKind::Tcx).unwrap();
            wait(&runtime);
            let waited = begun.elapsed();
            runtime.detach(None).unwrap();
            waited
        })
    };
    let waits: [fn(&Runtime); 2] = [|it| it.separate().unwrap(), |it| it.reap().unwrap()];
    for wait in waits {
        assert!(waiting(false, wait) >= grace);
        assert!(waiting(true, wait) >= 2 * grace, "the kernel cannot wait for packets that are in no queue");
    }
}

/// A repair pairs the two generations again, so packets can enter the one that was separated.
#[test]
fn a_generation_that_is_paired_again_is_waited_for_again() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, waits) = agent_counting(Operation::WaitForPrograms, node);
        for port in [80, 81] {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
        }
        runtime.separate().unwrap();
        waits.store(0, Ordering::Relaxed);
        assert_eq!(runtime.repair().unwrap(), Vec::<String>::new());
        assert!(runtime.spare().unwrap().is_some());
        assert_eq!(waits.load(Ordering::Relaxed), 2);
        assert_in_force(node, &runtime, 81, 80, "it is separated for good");
    });
}
