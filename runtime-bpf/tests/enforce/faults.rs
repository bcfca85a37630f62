//! Every operation refused, and the process dying before every operation: what was in force stays, or what is new is, and
//! whoever comes next puts it right.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_runtime::runtime::{Access, Request, Runtime, State};
use weir_runtime::system::System;
use weir_runtime::{Error, Way, skip};

use crate::attach::{attach, only_port, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::{connect, serve};

type Made = (weir_compiler::artifact::Artifact, Vec<u8>);

/// A port that all policies allow.
const BOTH: u16 = 82;

/// What the kernel may answer; which of them cannot depend on us.
const ERRNOS: [i32; 9] = [
    libc::EPERM,
    libc::ENOMEM,
    libc::EINVAL,
    libc::EBUSY,
    libc::ENOSPC,
    libc::E2BIG,
    libc::EIO,
    libc::EAGAIN,
    libc::ENOENT,
];

/// From the `nth` operation on: that one alone, or all.
#[derive(Clone, Copy, Debug)]
struct Fault {
    nth: usize,
    errno: i32,
    dies: bool,
}

/// Attaches with a fault; says whether it came to it.
fn attach_with(node: &Node, made: &Made, pods: &[usize], way: Way, fault: Fault) -> (bool, Result<(), Error>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let faults = move |_| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        (number == fault.nth || fault.dies && number > fault.nth).then_some(fault.errno)
    };
    let endpoints = pods.iter().map(|pod| (format!("default/p{pod}"), node.interface(*pod))).collect();
    let request = Request { artifact: &made.0, file: &made.1, endpoints, way: Some(way), keep: None };
    let result = node.here(|| {
        let system = System::with_faults(Box::new(faults)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), Access::Change)?;
        runtime.attach(&request)?;
        runtime.reap()
    });
    (asked.load(Ordering::Relaxed) > fault.nth, result)
}

/// Whether a port can be reached at once, or when asked again: what policy is in force.
fn reaches(node: &Node, port: u16) -> bool {
    (0..4).any(|_| connect(node, 0, pod_address(1, false), port).is_some())
}

/// Only from p0, only to these ports.
fn only_ports(ports: [u16; 2]) -> Made {
    let [one, other] = ports;
    let from = "from: [{podSelector: {matchLabels: {pod: p0}}}]";
    let rules = format!("ingress: [{{{from}, ports: [{{port: {one}}}, {{port: {other}}}]}}]");
    artifact(&cluster(2, &policy(1, "Ingress", &rules)))
}

fn all_is_well(node: &Node, fault: Fault) {
    let status = status(node).unwrap();
    assert_eq!((status.drift, status.switching_to), (Vec::new(), None), "{fault:?}");
    assert!(status.endpoints.iter().all(|it| it.state == State::Enforced), "{fault:?}");
    for left in ["next", "old"] {
        let pins = std::fs::read_dir(node.bpffs().join(left)).unwrap().count();
        assert_eq!(pins, 0, "{left} after {fault:?}");
    }
}

/// From one policy to another, with a fault at every place in turn.
fn switch_with_faults(way: Way, dies: bool, step: usize) {
    if let Err(reason) = possible() {
        skip!("{reason}");
    }
    let node = Node::new(Layout::Routed, 2);
    [80, 81, BOTH].into_iter().for_each(|port| serve(&node, 1, port));
    let made = [only_ports([80, BOTH]), only_ports([81, BOTH])];
    attach(&node, &made[0], &[0, 1], Some(way)).unwrap();
    let (mut turn, mut nth, mut failed) = (0, 0, 0);
    loop {
        let fault = Fault { nth, errno: ERRNOS[turn % ERRNOS.len()], dies };
        let (old, new) = ([80, 81][turn % 2], [81, 80][turn % 2]);
        let (hit, result) = attach_with(&node, &made[(turn + 1) % 2], &[0, 1], way, fault);
        failed += usize::from(result.is_err());
        if result.is_ok() && !dies {
            assert!(reaches(&node, new), "it said that it is in force: {fault:?}");
        } else {
            // Until somebody goes on with it, each packet is judged by one of the two: what both allow passes.
            assert!(reaches(&node, BOTH), "both allow it: {fault:?}");
        }
        attach(&node, &made[(turn + 1) % 2], &[], None).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        node.here(|| Runtime::open(&node.bpffs(), Access::Change)?.reap()).unwrap();
        assert!(reaches(&node, new), "after {fault:?}: {:?}", status(&node));
        if turn % 8 == 0 {
            assert!(connect(&node, 0, pod_address(1, false), old).is_none(), "after {fault:?}");
        }
        all_is_well(&node, fault);
        if !hit {
            break;
        }
        turn += 1;
        nth += step;
    }
    assert!(failed > 10, "faults were felt: {failed} of {turn}");
}

#[test]
fn a_switch_survives_every_refusal() {
    switch_with_faults(Way::Tcx, false, 5);
    switch_with_faults(Way::Clsact, false, 11);
}

#[test]
fn a_switch_survives_death_at_every_place() {
    switch_with_faults(Way::Tcx, true, 5);
    switch_with_faults(Way::Clsact, true, 11);
}

/// The first attach: nothing was in force before. Until it is, an endpoint is open as before, or closed; afterwards, all is well.
#[test]
fn a_first_attach_survives_death_at_every_place() {
    if let Err(reason) = possible() {
        skip!("{reason}");
    }
    let node = Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(&node, 1, port));
    let made = only_port(80);
    for nth in (0..).step_by(9) {
        let fault = Fault { nth, errno: libc::EIO, dies: true };
        let (hit, _) = attach_with(&node, &made, &[0, 1], Way::Tcx, fault);
        attach(&node, &made, &[0, 1], Some(Way::Tcx)).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(reaches(&node, 80), "{fault:?}");
        all_is_well(&node, fault);
        crate::attach::detach(&node, None).unwrap();
        if !hit {
            return;
        }
    }
}
