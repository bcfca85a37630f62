//! Each operation fails with each errno that it can return, and the process dies before each operation. After that
//! either the old or the new generation is in force, and the next attach repairs the rest.
//!
//! A switch has some hundred places, and a fault at one of them takes a third of a second. So there is a short form: the
//! first place of each operation is tested (in a switch with each errno), and every fourth place of all. With
//! `WEIR_FAULTS=all` (`cargo xtask faults`) every place is tested.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_runtime::runtime::{EnforcementState, PinAccess, Request, Runtime};
use weir_runtime::sys::netlink::{Filter, NetlinkSocket};
use weir_runtime::sys::{BpfKernel, Hook};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, Failure, HookKind, StateAfterFailure, skip};

use crate::attach::{attach, names_in_force, only_port, only_port_by, request, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{agents_artifact, artifact, cluster, policy};
use crate::probe::{connect, datagram, serve};

pub(crate) type Made = (weir_artifact::Artifact, Vec<u8>);

/// A port that all policies allow.
const BOTH: u16 = 82;

/// The errnos that an operation can return, from its manual page and the kernel's source. A missing object is not a
/// fault: the methods return `None` for it, and other tests cover it.
pub(crate) fn errnos(operation: Operation) -> &'static [i32] {
    use Operation::*;
    use libc::*;
    match operation {
        CreateMap => &[EPERM, ENOMEM, EINVAL, E2BIG],
        Update => &[ENOMEM, E2BIG, EPERM, EBUSY, EAGAIN],
        UpdateBatch => &[EINVAL, ENOMEM, E2BIG, 524],
        UpdateDescriptor => &[EINVAL, ENOMEM, EPERM],
        Lookup | Entries => &[EPERM, ENOMEM, EFAULT, EINVAL],
        Delete => &[EPERM, EBUSY, EINVAL],
        Freeze => &[EBUSY, EPERM],
        WaitForPrograms => &[EINVAL],
        Load => &[EPERM, ENOMEM, EINVAL, EACCES, E2BIG, EAGAIN],
        LoadLines => &[EINVAL, EPERM],
        TestRun => &[EINVAL, ENOMEM],
        Pin => &[EEXIST, EPERM, ENOSPC, ENOMEM],
        PinnedMap | PinnedProgram | PinnedLink | NumberedMap | NumberedProgram => &[EPERM, EACCES, ENOMEM, EMFILE],
        Typed => &[EMFILE, ENOMEM, EFAULT, EINVAL],
        MapInfo | ProgramInfo | LinkInfo => &[EFAULT, EINVAL],
        Attach => &[EINVAL, ENODEV, ENOMEM, ERANGE, EOPNOTSUPP],
        AttachNative => &[EOPNOTSUPP, EINVAL, EBUSY, ENODEV],
        Replace => &[ENOLINK, EPERM, EINVAL, ENOENT],
        Detach => &[EOPNOTSUPP, EPERM],
        Query => &[EPERM, ENODEV, ENOMEM],
        Interface | Addresses => &[ENOBUFS, ENOMEM, EPERM],
        AddClsact => &[EOPNOTSUPP, EPERM, ENOMEM],
        PutFilter => &[EINVAL, ENOSPC, ENOMEM, EPERM, ENODEV],
        DeleteFilter => &[EPERM, EBUSY],
        Filters => &[ENOBUFS, ENOMEM],
        IsBpffs => &[EACCES, EIO],
        Lock => &[EINTR, ENOLCK],
        Namespace | Tick | Release => &[EACCES, EMFILE],
        Random => &[EINTR, ENOSYS],
        MakeDirectory => &[ENOSPC, EPERM, ENOMEM],
        RemoveDirectory => &[ENOTEMPTY, EPERM],
        List => &[EACCES, EMFILE],
        Rename => &[EPERM, EBUSY, ENOSPC],
        ExchangePins => &[EINVAL, EPERM],
        Unpin => &[EPERM, EBUSY],
    }
}

/// Fails at operation number `nth`: only that one, or all from there on.
#[derive(Clone, Copy, Debug)]
struct Fault {
    nth: usize,
    /// Index into the errnos of the operation.
    answer: usize,
    dies: bool,
}

/// The result of an attach with a fault.
struct Outcome {
    /// The operation that failed; none if there were fewer.
    failed: Option<Operation>,
    result: Result<(), Error>,
}

/// Attaches, and asks `faults` before each operation whether it fails, and with which errno.
fn attach_through(
    node: &Node,
    made: &Made,
    pods: &[usize],
    way: HookKind,
    faults: impl Fn(Operation) -> Option<i32> + Send + Sync + 'static,
) -> Result<(), Error> {
    let endpoints = pods.iter().map(|pod| (format!("default/p{pod}"), node.interface(*pod))).collect();
    let request = Request { endpoints, way: Some(way), ..request(made) };
    node.here(|| {
        let system = System::with_faults(Box::new(faults)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?;
        let runtime = runtime.without_grace().with_spare();
        runtime.attach(&request)?;
        // As an agent does, which has links.
        if way == HookKind::Tcx {
            runtime.separate()?;
        }
        runtime.reap()
    })
}

/// Attaches with a fault.
fn attach_with(node: &Node, made: &Made, pods: &[usize], way: HookKind, fault: Fault) -> Outcome {
    let asked = AtomicUsize::new(0);
    let failed = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&failed);
    let faults = move |operation: Operation| {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        if number == fault.nth {
            *seen.lock().unwrap() = Some(operation);
        }
        let fails = number == fault.nth || fault.dies && number > fault.nth;
        let answers = errnos(operation);
        fails.then(|| answers[fault.answer % answers.len()])
    };
    let result = attach_through(node, made, pods, way, faults);
    let failed = *failed.lock().unwrap();
    Outcome { failed, result }
}

/// The operations of an attach, in order.
fn operations(node: &Node, made: &Made, pods: &[usize], way: HookKind) -> Vec<Operation> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let watch = move |operation: Operation| {
        log.lock().unwrap().push(operation);
        None
    };
    attach_through(node, made, pods, way, watch).expect("an attach without faults succeeds");
    let operations = seen.lock().unwrap();
    operations.clone()
}

/// The distance between places that are tested although their operation was tested before.
pub(crate) fn stride() -> usize {
    let is_long_form = std::env::var_os("WEIR_FAULTS").is_some_and(|it| it == "all");
    if is_long_form { 1 } else { 4 }
}

/// The places to test in a series of operations, and behind them places without an operation, where no fault is felt.
pub(crate) fn places_to_test(operations: &[Operation]) -> impl Iterator<Item = usize> {
    let mut met = BTreeSet::new();
    let places = operations.iter().enumerate();
    let chosen = places.filter(|(nth, operation)| met.insert(**operation) | nth.is_multiple_of(stride()));
    let chosen: Vec<usize> = chosen.map(|(nth, _)| nth).collect();
    chosen.into_iter().chain(operations.len()..)
}

/// Attaches again without faults, so that the requested state holds after the failed attach.
fn repair(node: &Node, made: &Made, pods: &[usize], way: HookKind) -> Result<(), Error> {
    attach_through(node, made, pods, way, |_| None)
}

/// Whether a port can be reached, at once or on a second try: shows which policy is in force.
pub(crate) fn reaches(node: &Node, port: u16) -> bool {
    (0..4).any(|_| connect(node, 0, pod_address(1, false), port).is_some())
}

/// How a switch makes the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Making {
    /// The programs are others, and the spare is dropped.
    Anew,
    /// The programs are the same, and the content is written into the spare.
    InSpare,
}

/// Allows connections from p0 only, and only to [`BOTH`] and this port.
fn only_ports(port: u16, making: Making) -> Made {
    let from = "from: [{podSelector: {matchLabels: {pod: p0}}}]";
    let rules = format!("ingress: [{{{from}, ports: [{{port: {port}}}, {{port: {BOTH}}}]}}]");
    let yaml = cluster(2, &policy(1, "Ingress", &rules));
    if making == Making::Anew { artifact(&yaml) } else { agents_artifact(&yaml) }
}

pub(crate) fn all_is_well(node: &Node, what: &str) {
    let status = status(node).unwrap();
    assert_eq!((status.drift, status.switching_to), (Vec::new(), None), "{what}");
    assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{what}");
    let spare = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read).unwrap().spare().unwrap());
    for (left, expected) in [("next", 0), ("old", spare.map_or(0, |it| it.objects()))] {
        let pins = std::fs::read_dir(node.bpffs().join(left)).unwrap().count();
        assert_eq!(pins, expected, "{left} after {what}");
    }
}

/// Gives the policy in force another name, with a fault at every operation in turn.
fn rename_with_faults(dies: bool) {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let names = ["default/old", "default/new"];
    let made = ["old", "new"].map(|name| only_port_by(name, 80));
    made.iter().for_each(|made| repair(&node, made, &[1], HookKind::Tcx).unwrap());
    let places = operations(&node, &made[0], &[1], HookKind::Tcx);
    let mut felt = 0;
    for (turn, nth) in (1..).zip(places_to_test(&places)) {
        let (old, new) = ((turn + 1) % 2, turn % 2);
        let outcome = attach_with(&node, &made[new], &[1], HookKind::Tcx, Fault { nth, answer: turn, dies });
        let what = format!("{:?}, {dies}", outcome.failed);
        felt += usize::from(outcome.result.is_err());
        let [in_force] = &names_in_force(&node)[..] else { panic!("one policy is in force: {what}") };
        let is_new = *in_force == names[new];
        assert!(is_new || (*in_force == names[old] && outcome.result.is_err()), "{in_force}: {what}");
        repair(&node, &made[new], &[1], HookKind::Tcx).unwrap();
        assert_eq!(names_in_force(&node), [names[new]], "{what}");
        all_is_well(&node, &what);
        if outcome.failed.is_none() {
            break;
        }
    }
    assert!(felt > 10, "{felt} faults were felt");
}

#[test]
fn renaming_survives_an_error_of_each_operation() {
    rename_with_faults(false);
}

#[test]
fn renaming_survives_a_death_before_each_operation() {
    rename_with_faults(true);
}

/// Switches from one policy to another, with a fault at every operation in turn. The first occurrence of an operation
/// is tested with each of its errnos; at its other occurrences, the errnos take turns.
fn switch_with_faults(way: HookKind, dies: bool, making: Making) {
    skip!(unless possible());
    // One endpoint is enough: more endpoints repeat the same operations.
    let node = Node::new(Layout::Routed, 2);
    // The spare is the generation before. It has other programs than the next one if three generations take turns.
    let ports: &[u16] = if making == Making::Anew { &[80, 84, 88] } else { &[80, 84] };
    ports.iter().chain([&BOTH]).for_each(|port| serve(&node, 1, *port));
    let made: Vec<Made> = ports.iter().map(|port| only_ports(*port, making)).collect();
    // After these switches and the one that is watched, the first generation is in force again.
    made.iter().for_each(|made| repair(&node, made, &[1], way).unwrap());
    let places = operations(&node, &made[0], &[1], way);
    let loads = places.iter().filter(|it| **it == Operation::Load).count();
    assert_eq!(loads, if making == Making::Anew { 2 } else { 0 }, "{making:?}");
    let mut fault = Fault { nth: 0, answer: 0, dies };
    let (mut turn, mut failed, mut met) = (0, 0, BTreeMap::new());
    loop {
        let (old, new) = (ports[turn % ports.len()], ports[(turn + 1) % ports.len()]);
        let next = &made[(turn + 1) % made.len()];
        let outcome = attach_with(&node, next, &[1], way, fault);
        let what = format!("{:?}, {fault:?}, {way:?}", outcome.failed);
        failed += usize::from(outcome.result.is_err());
        if outcome.result.is_ok() && !dies {
            assert!(reaches(&node, new), "it said that it is in force: {what}");
        } else {
            // Until the next attach, each packet is judged by one of the two generations: a port that both allow stays
            // reachable.
            assert!(reaches(&node, BOTH), "both allow it: {what}");
        }
        repair(&node, next, &[1], way).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(reaches(&node, new), "after {what}: {:?}", status(&node));
        if turn % 64 == 0 {
            assert!(connect(&node, 0, pod_address(1, false), old).is_none(), "after {what}");
        }
        all_is_well(&node, &what);
        let Some(operation) = outcome.failed else { break };
        turn += 1;
        let answered = met.entry(operation).or_insert(0);
        *answered += 1;
        let next_place = usize::from(dies || *answered >= errnos(operation).len());
        let mut nth = fault.nth + next_place;
        // An operation is tested when it has failed with each of its errnos. A place that is not in the list is behind
        // the last operation: the fault there is not felt, and ends the loop.
        let is_tested = |it: &Operation| met.get(it).is_some_and(|answered| dies || *answered >= errnos(*it).len());
        while !nth.is_multiple_of(stride()) && places.get(nth).is_some_and(is_tested) {
            nth += 1;
        }
        fault = Fault { nth, answer: if dies { turn } else { met[&operation] }, dies };
    }
    let is_tried = |it: &&Operation| met.get(it).is_some_and(|answered| dies || *answered >= errnos(**it).len());
    assert_eq!(places.iter().find(|it| !is_tried(it)), None, "{met:?}");
    println!("{way:?}: {turn} faults at {} places, {failed} felt", fault.nth);
    assert!(failed > 100 / stride(), "faults were felt: {failed} of {turn}");
}

#[test]
fn a_switch_survives_every_errno_of_every_operation() {
    switch_with_faults(HookKind::Tcx, false, Making::Anew);
}

#[test]
fn a_switch_through_the_spare_survives_every_errno_of_every_operation() {
    switch_with_faults(HookKind::Tcx, false, Making::InSpare);
}

#[test]
fn a_switch_with_clsact_survives_every_errno_of_every_operation() {
    switch_with_faults(HookKind::Clsact, false, Making::Anew);
}

#[test]
fn a_switch_survives_death_at_every_operation() {
    switch_with_faults(HookKind::Tcx, true, Making::Anew);
}

#[test]
fn a_switch_through_the_spare_survives_death_at_every_operation() {
    switch_with_faults(HookKind::Tcx, true, Making::InSpare);
}

#[test]
fn a_switch_with_clsact_survives_death_at_every_operation() {
    switch_with_faults(HookKind::Clsact, true, Making::Anew);
}

#[test]
fn a_switch_with_clsact_through_the_spare_survives_death_at_every_operation() {
    switch_with_faults(HookKind::Clsact, true, Making::InSpare);
}

/// A kernel that cannot exchange pins takes three renames for each. Whichever of them fails, and whether the process
/// dies there or not, the artifact in force stays readable, and the next command finishes the switch.
#[test]
fn pins_that_cannot_be_exchanged_survive_a_fault_at_every_rename() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let ports = [80, 84];
    ports.iter().chain([&BOTH]).for_each(|port| serve(&node, 1, *port));
    let made = ports.map(|port| only_ports(port, Making::InSpare));
    made.iter().for_each(|made| repair(&node, made, &[1], HookKind::Tcx).unwrap());
    let mut felt = 0;
    for (nth, dies) in (0..).flat_map(|nth| [(nth, false), (nth, true)]) {
        let (port, next) = (ports[felt % 2], &made[felt % 2]);
        let renames = Arc::new(AtomicUsize::new(0));
        let met = Arc::clone(&renames);
        let faults = move |operation: Operation| match operation {
            Operation::ExchangePins => Some(libc::EINVAL),
            Operation::Rename => {
                let number = met.fetch_add(1, Ordering::Relaxed);
                (number == nth || dies && number > nth).then_some(libc::EPERM)
            }
            _ => (dies && met.load(Ordering::Relaxed) > nth).then_some(libc::EPERM),
        };
        let result = attach_through(&node, next, &[1], HookKind::Tcx, faults);
        let what = format!("rename {nth}, {dies}: {result:?}");
        let is_felt = renames.load(Ordering::Relaxed) > nth;
        assert!(reaches(&node, BOTH), "both allow it: {what}");
        let artifact = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read).unwrap().artifact_in_force());
        assert!(matches!(artifact, Ok(Some(_))), "{what}: {artifact:?}");
        repair(&node, next, &[1], HookKind::Tcx).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(reaches(&node, port), "{what}");
        all_is_well(&node, &what);
        if !is_felt {
            break;
        }
        felt += 1;
    }
    println!("{felt} faults felt");
    assert!(felt > 40, "{felt}");
}

#[test]
fn an_agents_switch_survives_every_fault() {
    let ports = [80, 84];
    agents_switch_with_faults(&ports, &ports.map(|port| only_ports(port, Making::InSpare)), false);
}

/// The programs of three generations differ, so each switch loads programs, on tables of the spare.
#[test]
fn an_agents_switch_to_other_programs_survives_every_fault() {
    agents_switch_to_other_programs_with_faults(false);
}

#[test]
fn an_agents_switch_to_other_programs_survives_death_at_every_operation() {
    agents_switch_to_other_programs_with_faults(true);
}

fn agents_switch_to_other_programs_with_faults(dies: bool) {
    let ports = [80, 84, 88];
    let others = [0, 70, 140].map(|count| (7000..).step_by(2).take(count));
    let made = std::iter::zip(ports, others).map(|(port, others)| {
        let allowed = [port, BOTH].into_iter().chain(others).map(|it| format!("{{port: {it}}}"));
        let from = "from: [{podSelector: {matchLabels: {pod: p0}}}]";
        let rules = format!("ingress: [{{{from}, ports: [{}]}}]", allowed.collect::<Vec<_>>().join(", "));
        agents_artifact(&cluster(2, &policy(1, "Ingress", &rules)))
    });
    agents_switch_with_faults(&ports, &made.collect::<Vec<_>>(), dies);
}

/// The agent holds its links, and knows the pins: a switch makes other operations than that of a command. A fault at
/// each of them leaves one of two generations in force, and the next switch succeeds: that of the same agent, or of the
/// next one if it died.
fn agents_switch_with_faults(ports: &[u16], made: &[Made], dies: bool) {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    ports.iter().chain([&BOTH]).for_each(|port| serve(&node, 1, *port));
    // The number of operations since the watch began, and the place that fails.
    let (asked, failing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let start = || {
        let (count, place) = (Arc::clone(&asked), Arc::clone(&failing));
        let faults = move |operation: Operation| {
            let (number, place) = (count.fetch_add(1, Ordering::Relaxed), place.load(Ordering::Relaxed));
            let answers = errnos(operation);
            (number == place || dies && number > place).then(|| answers[number % answers.len()])
        };
        node.here(|| {
            let system = System::with_faults(Box::new(faults)).unwrap();
            Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().without_grace().keeping().unwrap()
        })
    };
    let switch = |runtime: &Runtime, turn: usize| {
        let endpoints = vec![("default/p1".to_owned(), node.interface(1))];
        let request = Request { endpoints, way: Some(HookKind::Tcx), ..request(&made[turn % made.len()]) };
        node.here(|| runtime.attach(&request).and_then(|_| runtime.separate()).and_then(|()| runtime.reap()))
    };
    let mut runtime = start();
    (0..4).for_each(|turn| switch(&runtime, turn).unwrap());
    let (mut turn, mut failed, mut nth) = (4, 0, 0);
    loop {
        asked.store(0, Ordering::Relaxed);
        failing.store(nth, Ordering::Relaxed);
        let result = switch(&runtime, turn);
        let is_felt = asked.load(Ordering::Relaxed) > nth;
        failing.store(usize::MAX, Ordering::Relaxed);
        let port = ports[turn % ports.len()];
        match result {
            Ok(()) if !dies => assert!(reaches(&node, port), "it said that it is in force: {nth}"),
            _ => assert!(reaches(&node, BOTH), "both allow it: {nth}"),
        }
        failed += usize::from(result.is_err());
        if dies {
            drop(runtime);
            runtime = start();
        }
        switch(&runtime, turn).unwrap_or_else(|error| panic!("place {nth}: {error}"));
        assert!(reaches(&node, port), "after place {nth}");
        all_is_well(&node, &format!("place {nth}"));
        if !is_felt {
            break;
        }
        if dies {
            // A new agent knows the content of its tables after these.
            (0..made.len()).for_each(|_| {
                turn += 1;
                switch(&runtime, turn).unwrap();
            });
        }
        (turn, nth) = (turn + 1, nth + stride());
    }
    println!("{nth} places, {failed} felt");
    assert!(failed > 40 / stride(), "{failed} of {nth}");
}

/// The first attach, with no policy in force before. Until it succeeds, an endpoint is open as before, or closed; after
/// a repair, everything is in force.
#[test]
fn a_first_attach_survives_death_at_every_operation() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(&node, 1, port));
    let made = only_port(80);
    let first = operations(&node, &made, &[1], HookKind::Tcx);
    crate::attach::detach(&node, None).unwrap();
    for (answer, nth) in places_to_test(&first).enumerate() {
        let outcome = attach_with(&node, &made, &[1], HookKind::Tcx, Fault { nth, answer, dies: true });
        let what = format!("death at {:?}, {nth}", outcome.failed);
        repair(&node, &made, &[1], HookKind::Tcx).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(reaches(&node, 80), "{what}");
        all_is_well(&node, &what);
        crate::attach::detach(&node, None).unwrap();
        if outcome.failed.is_none() {
            return;
        }
    }
}

/// A move from one kind of hook to the other: no fault at any operation leaves the endpoint unenforced.
#[test]
fn a_move_to_the_other_hooks_is_never_open() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    serve(&node, 1, 80);
    let made = only_port(80);
    let ways = [HookKind::Tcx, HookKind::Clsact];
    repair(&node, &made, &[1], ways[0]).unwrap();
    // There and back: each direction has its own operations.
    let moves = [ways[1], ways[0]].map(|way| operations(&node, &made, &[1], way));
    let mut unfelt = 0;
    let mut places = moves.each_ref().map(|operations| places_to_test(operations));
    for turn in 0.. {
        let nth = places[turn % 2].next().expect("the places have no end");
        // The process dies in every third turn.
        let fault = Fault { nth, answer: turn, dies: turn % 3 == 2 };
        let (here, there) = (ways[turn % 2], ways[(turn + 1) % 2]);
        let outcome = attach_with(&node, &made, &[1], there, fault);
        let what = format!("{:?}, {fault:?}, to {there:?}: {:?}", outcome.failed, outcome.result);
        assert!(reaches(&node, 80), "{what}");
        assert!(programs_at(&node, 1, here) + programs_at(&node, 1, there) >= 2, "{what}: open");
        repair(&node, &made, &[1], there).unwrap_or_else(|error| panic!("{what}: {error}"));
        all_is_well(&node, &what);
        assert_eq!((programs_at(&node, 1, here), programs_at(&node, 1, there)), (0, 2), "{what}");
        unfelt = if outcome.failed.is_none() { unfelt + 1 } else { 0 };
        if unfelt == 2 {
            return;
        }
    }
}

/// Attaches another endpoint, with a fault at every operation in turn: the endpoint that was enforced before is not
/// forgotten.
#[test]
fn an_endpoint_that_comes_with_a_fault_leaves_the_others_in_force() {
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = Node::new(Layout::Routed, 2);
        let made = only_port(80);
        attach(&node, &made, &[1], Some(way)).unwrap();
        let another = operations(&node, &made, &[0], way);
        crate::attach::detach(&node, Some("default/p0")).unwrap();
        for (answer, nth) in places_to_test(&another).enumerate() {
            let outcome = attach_with(&node, &made, &[0], way, Fault { nth, answer, dies: false });
            let what = format!("{:?}, {nth}, {way:?}: {:?}", outcome.failed, outcome.result);
            let endpoints = status(&node).unwrap().endpoints;
            assert!(endpoints.iter().any(|it| it.endpoint.pod == "default/p1"), "forgotten: {what}");
            // The next attach finds no pins without an owner, and takes no endpoint's programs off.
            repair(&node, &made, &[], way).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(programs_at(&node, 1, way), 2, "open: {what}");
            all_is_well(&node, &what);
            if endpoints.len() > 1 {
                crate::attach::detach(&node, Some("default/p0")).unwrap();
            }
            if outcome.failed.is_none() {
                break;
            }
        }
    }
}

/// The number of programs on an interface's two hooks.
fn programs_at(node: &Node, pod: usize, way: HookKind) -> usize {
    node.here(|| {
        let socket = NetlinkSocket::open().unwrap();
        let ifindex = socket.interface_named(&node.interface(pod)).unwrap().ifindex;
        let kernel = BpfKernel::open().unwrap();
        let at = |hook| match way {
            HookKind::Tcx => kernel.query(ifindex, hook).unwrap().len(),
            HookKind::Clsact => socket.filters(ifindex, hook).unwrap().len(),
        };
        at(Hook::Ingress) + at(Hook::Egress)
    })
}

/// Removes one of the two programs of pod 1, as another root process can.
fn remove_program(node: &Node, way: HookKind, program: &str, hook: Hook) {
    let socket = NetlinkSocket::open().unwrap();
    let ifindex = socket.interface_named(&node.interface(1)).unwrap().ifindex;
    match way {
        HookKind::Tcx => {
            let pin = node.bpffs().join(format!("links/{program}_{ifindex}"));
            BpfKernel::open().unwrap().pinned_link(&pin).unwrap().detach().unwrap();
            std::fs::remove_file(pin).unwrap();
        }
        HookKind::Clsact => {
            let filter = Filter { priority: 1, handle: 0x7765_6972, name: format!("weir_{program}"), program: 0 };
            socket.delete_filter(ifindex, hook, &filter).unwrap();
        }
    }
}

/// A runtime on which no program can be attached to a hook after the first `attached` ones. Until the endpoint has lost
/// its entry, no map can be opened.
fn refusing(node: &Node, attached: usize) -> Runtime {
    let (asked, closing) = (AtomicUsize::new(0), AtomicBool::new(false));
    let faults = move |operation: Operation| match operation {
        // The first attempt to place a filter only replaces one.
        Operation::Attach | Operation::AddClsact if asked.fetch_add(1, Ordering::Relaxed) >= attached => {
            closing.store(true, Ordering::Relaxed);
            Some(libc::ENOMEM)
        }
        Operation::Delete => {
            closing.store(false, Ordering::Relaxed);
            None
        }
        Operation::Typed if closing.load(Ordering::Relaxed) => Some(libc::EMFILE),
        _ => None,
    };
    let system = System::with_faults(Box::new(faults)).unwrap();
    Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().without_grace().one_by_one()
}

#[track_caller]
fn only_failure(result: Result<impl std::fmt::Debug, Error>) -> Failure {
    match result {
        Err(Error::Partial(failures)) if failures.len() == 1 => failures[0].clone(),
        other => panic!("{other:?}"),
    }
}

/// One of the two programs is gone and cannot be attached again. The packets of its direction pass, so the endpoint
/// must not be reported as closed; and the other program must drop all packets of its own direction.
#[test]
fn an_endpoint_with_one_program_is_reported_half_open_and_loses_its_entry() {
    skip!(unless possible());
    let made = only_port(80);
    let server = pod_address(1, false);
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = &Node::new(Layout::Routed, 2);
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        attach(node, &made, &[1], Some(way)).unwrap();
        assert!(reaches(node, 80), "{way:?}: neighbours know each other from here on");
        for (program, hook) in [("to_pod", Hook::Egress), ("from_pod", Hook::Ingress)] {
            let what = format!("without {program}, {way:?}");
            let failure = node.here(|| {
                remove_program(node, way, program, hook);
                only_failure(refusing(node, 0).repair())
            });
            assert_eq!((failure.pod.as_str(), failure.now), ("default/p1", StateAfterFailure::HalfOpen), "{what}");
            assert!(failure.why.contains(program), "{what}: {failure:?}");
            let passes = [datagram(node, 0, 1, server, 81), datagram(node, 1, 0, pod_address(0, false), 81)];
            assert_eq!(passes, [program == "to_pod", program == "from_pod"], "{what}: to the pod, from the pod");
            assert!(connect(node, 0, server, 80).is_none(), "{what}: no connection without its entry");
            assert_eq!(status(node).unwrap().endpoints[0].state, EnforcementState::Open, "{what}");
            node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().repair().unwrap());
            assert!(reaches(node, 80) && connect(node, 0, server, 81).is_none(), "{what}");
            all_is_well(node, &what);
        }
        let both = node.here(|| {
            [("to_pod", Hook::Egress), ("from_pod", Hook::Ingress)]
                .into_iter()
                .for_each(|(program, hook)| remove_program(node, way, program, hook));
            only_failure(refusing(node, 0).repair())
        });
        assert_eq!(both.now, StateAfterFailure::Open, "{way:?}: {both:?}");
    }
}

/// The kernel takes the first program of a new endpoint and refuses the second one.
#[test]
fn a_new_endpoint_with_one_program_is_reported_half_open() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    serve(node, 1, 80);
    let made = only_port(80);
    let endpoints = vec![("default/p1".to_owned(), node.interface(1))];
    // The first time with a new generation, then with the one that is already in force.
    for turn in ["new generation", "same generation"] {
        let request = Request { endpoints: endpoints.clone(), way: Some(HookKind::Tcx), ..request(&made) };
        let failure = node.here(|| only_failure(refusing(node, 1).attach(&request)));
        assert_eq!(failure.now, StateAfterFailure::HalfOpen, "{turn}: {failure:?}");
        assert!(connect(node, 0, pod_address(1, false), 80).is_none(), "{turn}: it has no entry");
        if turn == "new generation" {
            crate::attach::detach(node, None).unwrap();
            attach(node, &made, &[0], Some(HookKind::Tcx)).unwrap();
        }
    }
    repair(node, &made, &[1], HookKind::Tcx).unwrap();
    // The refused connections have left the pod's neighbours unresolved, which can outlast one connection's patience.
    assert!((0..3).any(|_| reaches(node, 80)));
    all_is_well(node, "after the repair");
}

/// A pod can end at any time, also after its interface was found and before its programs are attached to it. No packet
/// passes an interface that does not exist, so this is not a pod without enforcement.
#[test]
fn a_pod_that_ends_before_its_programs_are_attached_is_reported_gone() {
    skip!(unless possible());
    let made = only_port(80);
    for way in [HookKind::Tcx, HookKind::Clsact] {
        for is_new in [true, false] {
            let node = &Node::new(Layout::Routed, 2);
            if !is_new {
                attach(node, &made, &[0], Some(way)).unwrap();
            }
            let interface = node.interface(1);
            let endpoints = vec![("default/p1".to_owned(), interface.clone())];
            let faults = move |operation: Operation| {
                if matches!(operation, Operation::Attach | Operation::AddClsact) {
                    // It fails if the interface is gone already.
                    _ = std::process::Command::new("ip").args(["link", "delete", &interface]).output();
                }
                None
            };
            let failure = node.here(|| {
                let system = System::with_faults(Box::new(faults)).unwrap();
                let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
                let runtime = runtime.without_grace().one_by_one();
                only_failure(runtime.attach(&Request { endpoints, way: Some(way), ..request(&made) }))
            });
            let what = format!("{way:?}, a new generation: {is_new}: {failure:?}");
            assert_eq!((failure.pod.as_str(), failure.now), ("default/p1", StateAfterFailure::Gone), "{what}");
            node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().repair().unwrap());
            let endpoints = status(node).unwrap().endpoints;
            assert!(endpoints.iter().all(|it| it.endpoint.pod != "default/p1"), "it stays recorded: {what}");
        }
    }
}
