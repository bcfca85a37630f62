//! Pods that run when they are attached lose no packet while the kernel attaches programs.

use std::sync::{Arc, Mutex};

use weir_runtime::runtime::{PinAccess, Request, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{HookKind, skip};

use crate::attach::{attach, detach, request};
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

/// The number of pods that do not reach the next pod, each time when the kernel is to attach something.
fn losses(node: &Arc<Node>, act: impl FnOnce(&Runtime) + Send) -> Vec<usize> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observe = {
        let (node, seen) = (Arc::clone(node), Arc::clone(&seen));
        move |operation: Operation| {
            let is_lost = |from: &usize| {
                let to = (from + 1) % PODS;
                !datagram(&node, *from, to, pod_address(to, false), 53)
            };
            if matches!(operation, Operation::Attach | Operation::AddClsact) {
                seen.lock().unwrap().push((0..PODS).filter(is_lost).count());
            }
            None
        }
    };
    node.here(|| {
        let system = System::with_faults(Box::new(observe)).unwrap();
        act(&Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().without_grace());
    });
    seen.lock().unwrap().clone()
}

/// The losses for this number of new pods. To attach a TCX link takes long: meanwhile no packet is lost. A filter takes
/// no such time: before the second one of a pod, the packets in the direction of the first one are lost.
fn expected(way: HookKind, pods: usize) -> Vec<usize> {
    let of_pod = if way == HookKind::Tcx { [0, 0] } else { [0, 1] };
    of_pod.repeat(pods)
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
        let (three, all) = (made(3), made(PODS));
        assert_eq!(losses(node, |it| put(it, &all, &[0, 1, 2, 3])), expected(way, 4), "the first generation, {way:?}");
        detach(node, None).unwrap();
        attach(node, &all, &[0], Some(way)).unwrap();
        assert_eq!(losses(node, |it| put(it, &all, &[1, 2, 3])), expected(way, 3), "the same generation, {way:?}");
        detach(node, None).unwrap();
        attach(node, &three, &[1], Some(way)).unwrap();
        assert_eq!(losses(node, |it| put(it, &all, &[0, 2, 3])), expected(way, 3), "the next generation, {way:?}");
        detach(node, None).unwrap();
        attach(node, &three, &[0, 1, 2], Some(way)).unwrap();
        let coming = coming_like(node, &three, 3, 2);
        let add = |it: &Runtime| drop(it.add_pod(&coming, Some(way)).unwrap());
        assert_eq!(losses(node, add), expected(way, 1), "no generation, {way:?}");
    }
}
