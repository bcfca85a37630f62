//! Pods that run when they are attached lose no packet while the kernel attaches programs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_runtime::runtime::{EnforcementState, PinAccess, Request, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{HookKind, skip};

use crate::attach::{attach, detach, request, status};
use crate::faults::Made;
use crate::net::{Layout, Node, pod_address, possible};
use crate::pods::coming_like;
use crate::policy::{agents_artifact, cluster, policy};
use crate::probe::datagram;

const PODS: usize = 4;

/// The first `pods` pods. Only p0 may send to p1; nothing isolates the others.
fn made(pods: usize) -> Made {
    agents_artifact(&cluster(
        pods,
        &policy(1, "Ingress", "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}]}]"),
    ))
}

/// The same, but p0 may send to this port only.
fn made_with(pods: usize, port: u16) -> Made {
    let allowed = format!(
        "ingress: [{{from: [{{podSelector: {{matchLabels: {{pod: p0}}}}}}], ports: [{{port: {port}, protocol: UDP}}]}}]"
    );
    agents_artifact(&cluster(pods, &policy(1, "Ingress", &allowed)))
}

/// The operations that can take the kernel long.
const SLOW: [Operation; 2] = [Operation::Attach, Operation::AddClsact];

/// Each time when the kernel is to attach something: the number of pods that do not reach the next pod.
fn losses(node: &Arc<Node>, act: impl FnOnce(&Runtime) + Send) -> Vec<usize> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observe = {
        let (node, seen) = (Arc::clone(node), Arc::clone(&seen));
        move |operation: Operation| {
            let is_lost = |from: &usize| {
                let to = (from + 1) % PODS;
                !datagram(&node, *from, to, pod_address(to, false), 53)
            };
            if SLOW.contains(&operation) {
                seen.lock().unwrap().push((0..PODS).filter(is_lost).count());
            }
            None
        }
    };
    node.here(|| act(&runtime(node, observe)));
    seen.lock().unwrap().clone()
}

fn runtime(node: &Node, observe: impl Fn(Operation) -> Option<i32> + Send + Sync + 'static) -> Runtime {
    let system = System::with_faults(Box::new(observe)).unwrap();
    Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().without_grace()
}

#[test]
fn pods_that_run_lose_no_packet_while_they_are_attached() {
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = &Arc::new(Node::new(Layout::Routed, PODS));
        let asked = |pods: &[usize]| pods.iter().map(|it| (format!("default/p{it}"), node.interface(*it))).collect();
        let put = |runtime: &Runtime, made: &Made, pods: &[usize]| {
            runtime.attach(&Request { endpoints: asked(pods), way: Some(way), ..request(made) }).unwrap();
        };
        // Two programs for each new pod.
        let none_for = |pods: usize| vec![0; 2 * pods];
        let all = made(PODS);
        assert_eq!(losses(node, |it| put(it, &all, &[0, 1, 2, 3])), none_for(4), "the first generation, {way:?}");
        detach(node, None).unwrap();
        attach(node, &all, &[0], Some(way)).unwrap();
        assert_eq!(losses(node, |it| put(it, &all, &[1, 2, 3])), none_for(3), "the same generation, {way:?}");
        detach(node, None).unwrap();
        // The pod that is enforced already sends to new ones, also if its interface has a higher number.
        for enforced in [0, 3] {
            let new: Vec<usize> = (0..PODS).filter(|pod| *pod != enforced).collect();
            attach(node, &made_with(PODS, 80), &[enforced], Some(way)).unwrap();
            assert_eq!(losses(node, |it| put(it, &all, &new)), none_for(3), "after p{enforced}, {way:?}");
            detach(node, None).unwrap();
        }
        let three = made(3);
        attach(node, &three, &[0, 1, 2], Some(way)).unwrap();
        let coming = coming_like(node, &three, 3, 2);
        let add = |it: &Runtime| drop(it.add_pod(&coming, Some(way)).unwrap());
        assert_eq!(losses(node, add), none_for(1), "no generation, {way:?}");
    }
}

/// The process dies while it attaches pods, in the first generation or in one that is in force; the next one continues.
#[test]
fn pods_that_run_lose_no_packet_when_an_interrupted_attach_continues() {
    skip!(unless possible());
    let made = made(PODS);
    for (way, enforced) in [(HookKind::Tcx, 0), (HookKind::Tcx, 1), (HookKind::Clsact, 0), (HookKind::Clsact, 1)] {
        let mut dies_at = 0;
        loop {
            let node = &Arc::new(Node::new(Layout::Routed, PODS));
            if enforced > 0 {
                attach(node, &made, &[0], Some(way)).unwrap();
            }
            let what = format!("{way:?}, {enforced} enforced, dies at {dies_at}");
            let endpoints = (0..PODS).map(|it| (format!("default/p{it}"), node.interface(it))).collect();
            let begun = AtomicUsize::new(0);
            // Counts from the first program that is attached.
            let dies = move |operation: Operation| {
                let counts = SLOW.contains(&operation) || begun.load(Ordering::Relaxed) > 0;
                let number = if counts { begun.fetch_add(1, Ordering::Relaxed) } else { 0 };
                (counts && number >= dies_at).then_some(libc::EIO)
            };
            let wanted = Request { endpoints, way: Some(way), ..request(&made) };
            let is_attached = node.here(|| runtime(node, dies).attach(&wanted).is_ok());
            let lost = losses(node, |it| drop(it.repair().unwrap()));
            assert!(lost.iter().all(|lost| *lost == 0), "{what}: {lost:?}");
            let status = status(node).unwrap();
            let states: Vec<_> = status.endpoints.iter().map(|it| it.state).collect();
            assert_eq!((states, &status.drift), (vec![EnforcementState::Enforced; PODS], &Vec::new()), "{what}");
            if is_attached {
                println!("{what}: the last one");
                assert!(dies_at > 20, "{what}");
                break;
            }
            dies_at += 5;
        }
    }
}

/// In a switch, the hook of an enforced pod refuses its program, so the pod loses its entry, and then the process dies.
/// The next process continues the switch, and fails at another pod: the first one keeps its programs.
#[test]
fn a_pod_that_lost_its_entry_keeps_its_programs_when_the_continued_switch_fails_too() {
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = &Arc::new(Node::new(Layout::Routed, PODS));
        attach(node, &made(PODS), &[0, 1, 2, 3], Some(way)).unwrap();
        let reaches = || datagram(node, 3, 0, pod_address(0, false), 53);
        assert!(reaches());
        let exchange = if way == HookKind::Tcx { Operation::Replace } else { Operation::PutFilter };
        // The exchange with this number fails, and every operation after `dies_after` exchanges.
        let faults = move |nth: usize, dies_after: usize| {
            let exchanges = AtomicUsize::new(0);
            move |operation: Operation| {
                let before = exchanges.fetch_add(usize::from(operation == exchange), Ordering::Relaxed);
                (operation == exchange && before == nth || before >= dies_after).then_some(libc::EIO)
            }
        };
        let endpoints = (0..PODS).map(|it| (format!("default/p{it}"), node.interface(it))).collect();
        let made = made_with(PODS, 80);
        let wanted = Request { endpoints, way: Some(way), ..request(&made) };
        // The first exchange is at p0. The process dies after the two of p1.
        let failed = node.here(|| runtime(node, faults(0, 3)).one_by_one().attach(&wanted));
        assert!(failed.is_err(), "{way:?}: {failed:?}");
        assert!(!reaches(), "p0 has no entry, {way:?}");
        // Now p2 fails, so all go back to the first generation.
        let failed = node.here(|| runtime(node, faults(2, usize::MAX)).repair());
        assert!(failed.is_err(), "{way:?}: {failed:?}");
        let states = || status(node).unwrap().endpoints.iter().map(|it| it.state).collect::<Vec<_>>();
        let mut expected = vec![EnforcementState::Enforced; PODS];
        expected[0] = EnforcementState::Closed;
        assert_eq!(states(), expected, "{way:?}");
        node.here(|| runtime(node, |_| None).repair()).unwrap();
        assert_eq!(states(), vec![EnforcementState::Enforced; PODS], "{way:?}, repaired");
    }
}
