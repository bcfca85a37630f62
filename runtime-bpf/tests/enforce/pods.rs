//! Pods that come and leave without a new generation.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_artifact::layout::endpoint;
use weir_runtime::closed::close_interface;
use weir_runtime::runtime::{ComingPod, EnforcementState, LeavingPod, PinAccess, Request, Runtime};
use weir_runtime::sys::Hook;
use weir_runtime::sys::netlink::NetlinkSocket;
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, skip};

use crate::attach::{attach, detach, each, request, status};
use crate::faults::{Made, errnos, places_to_test};
use crate::keeps::verdict;
use crate::net::{Layout, Node, must, pod_address, possible};
use crate::policy::{agents_artifact, cluster};
use crate::probe::{connect, serve};

/// Only p0 may connect to p1 and p2, and only to port 80. The first `pods` pods exist.
fn made(pods: usize) -> Made {
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: default}\nspec: \
                  {podSelector: {matchExpressions: [{key: pod, operator: In, values: [p1, p2]}]}, ingress: \
                  [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]}\n";
    agents_artifact(&cluster(pods, policy))
}

/// p2, which has the policy of p1.
fn coming(node: &Node, made: &Made) -> ComingPod {
    coming_like(node, made, 2, 1)
}

/// A pod that comes with the policy of a pod that is here.
pub(crate) fn coming_like(node: &Node, made: &Made, pod: usize, like: usize) -> ComingPod {
    let named = made.0.endpoints.iter().find(|it| it.name == format!("p{like}")).expect("the artifact has it");
    let subject = *named.value[endpoint::SUBJECT as usize..].first_chunk().expect("it has a class");
    let interface = node.interface(pod);
    let ifindex = node.here(|| NetlinkSocket::open().unwrap().interface_named(&interface).unwrap().ifindex);
    ComingPod {
        pod: format!("default/p{pod}"),
        uid: Some(format!("u{pod}")),
        interface,
        ifindex,
        addresses: [false, true].map(|v6| pod_address(pod, v6)).into(),
        like: format!("default/p{like}"),
        subject: u32::from_le_bytes(subject),
    }
}

fn open(node: &Node) -> Result<Runtime, Error> {
    Runtime::open(&node.bpffs(), PinAccess::Change)
}

fn add(node: &Node, pod: &ComingPod, way: HookKind) -> Result<(), Error> {
    node.here(|| open(node)?.add_pod(pod, Some(way)).map(|_| ()))
}

fn remove(node: &Node, pod: &str) -> Result<(), Error> {
    node.here(|| open(node)?.remove_pods(&[LeavingPod { pod: pod.to_owned(), is_gone: true }]))
}

fn state_of(node: &Node, pod: &str) -> Option<EnforcementState> {
    let status = status(node).unwrap();
    let state = status.endpoints.iter().find(|it| it.endpoint.pod == pod).map(|it| it.state);
    assert_eq!(status.drift, Vec::<String>::new());
    assert!(status.unattached.iter().all(|it| it.pod == pod && state.is_none()), "{status:?}");
    state
}

/// The pods of the artifact in force.
fn named(node: &Node) -> Vec<String> {
    let artifact = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.artifact_in_force()).unwrap();
    artifact.expect("a generation is in force").endpoints.iter().map(|it| it.name.clone()).collect()
}

/// Whether p0 reaches port 80 of p2, at once or later: a host that asked for the hardware address of a closed pod asks
/// again after a second.
fn reaches(node: &Node, to: IpAddr) -> bool {
    (0..8).any(|_| connect(node, 0, to, 80).is_some())
}

/// p2 accepts port 80 from p0, and nothing from p1.
fn is_enforced(node: &Node) -> bool {
    let to = [false, true].map(|v6| pod_address(2, v6));
    to.iter().all(|to| reaches(node, *to) && connect(node, 1, *to, 80).is_none())
        && connect(node, 0, to[0], 81).is_none()
}

fn node_of_three(layout: Layout) -> Node {
    let node = Node::new(layout, 3);
    [80, 81].into_iter().for_each(|port| serve(&node, 2, port));
    node
}

#[test]
fn a_pod_that_comes_has_the_policy_of_the_pod_that_it_is_like() {
    each(|_, way| {
        let node = &node_of_three(Layout::Routed);
        let made = made(2);
        attach(node, &made, &[0, 1], Some(way)).unwrap();
        let before = status(node).unwrap().generation.unwrap();
        node.here(|| close_interface(&node.bpffs(), &node.interface(2))).unwrap();
        assert!(connect(node, 0, pod_address(2, false), 80).is_none(), "closed");
        add(node, &coming(node, &made), way).unwrap();
        assert!(is_enforced(node));
        assert_eq!(state_of(node, "default/p2"), Some(EnforcementState::Enforced));
        assert_eq!(named(node), ["p0", "p1", "p2"]);
        let now = status(node).unwrap().generation.unwrap();
        assert_eq!((now.epoch, &now.digest), (before.epoch, &before.digest), "the same generation");
        // The next process finds the same state.
        assert_eq!(node.here(|| open(node)?.repair()).unwrap(), Vec::<String>::new());
        assert!(is_enforced(node));
        attach(node, &self::made(3), &[2], None).unwrap();
        assert!(is_enforced(node));
        assert_eq!(named(node), ["p0", "p1", "p2"]);
    });
}

#[test]
fn a_pod_that_leaves_is_neither_in_the_record_nor_in_the_artifact() {
    each(|_, way| {
        let node = &node_of_three(Layout::Routed);
        let made = made(2);
        attach(node, &made, &[0, 1], Some(way)).unwrap();
        let entries = || status(node).unwrap().maps.iter().find(|it| it.name == "endpoints").map(|it| it.entries);
        for _ in 0..2 {
            add(node, &coming(node, &made), way).unwrap();
            let refused = remove(node, "default/p2");
            assert!(matches!(refused, Err(Error::NotSinglePod { .. })), "its interface is there: {refused:?}");
            assert_eq!(entries(), Some(3));
            node.ip("link del veth2");
            remove(node, "default/p2").unwrap();
            assert_eq!((state_of(node, "default/p2"), entries()), (None, Some(2)));
            assert_eq!(named(node), ["p0", "p1"]);
            node.plug(2);
        }
        // A pod of the artifact, which then is not reported as unattached.
        node.ip("link del veth1");
        remove(node, "default/p1").unwrap();
        assert_eq!((state_of(node, "default/p1"), entries()), (None, Some(1)));
        assert_eq!(named(node), ["p0"]);
        // It is still the one that others are like.
        add(node, &coming(node, &made), way).unwrap();
        assert!(connect(node, 0, pod_address(2, false), 81).is_none());
        assert!(reaches(node, pod_address(2, false)));
    });
}

/// The kernel does not list an interface any more that it ends, but the link at it still names it for a moment. Here
/// the interface is in another namespace until then.
#[test]
fn a_pod_whose_interface_is_ending_leaves_alone() {
    skip!(unless possible());
    let node = &node_of_three(Layout::Routed);
    let made = made(2);
    attach(node, &made, &[0, 1], Some(HookKind::Tcx)).unwrap();
    add(node, &coming(node, &made), HookKind::Tcx).unwrap();
    let elsewhere = Node::new(Layout::Routed, 0);
    node.move_to(&elsewhere, "veth2");
    let end = format!("ip -n {} link del veth2", elsewhere.name());
    let looks = AtomicUsize::new(0);
    let ends_after_a_look = move |operation: Operation| {
        if operation == Operation::Interface && looks.fetch_add(1, Ordering::Relaxed) == 0 {
            must(&end);
        }
        None
    };
    node.here(|| {
        let system = System::with_faults(Box::new(ends_after_a_look)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
        runtime.remove_pods(&[LeavingPod { pod: "default/p2".to_owned(), is_gone: true }]).unwrap();
    });
    assert_eq!(state_of(node, "default/p2"), None);
    assert_eq!(status(node).unwrap().drift, Vec::<String>::new());
}

/// An interface in another namespace is not listed either, but it carries the pod's packets.
#[test]
fn a_pod_whose_interface_moved_to_another_namespace_keeps_its_programs() {
    skip!(unless possible());
    let node = &node_of_three(Layout::Routed);
    let made = made(2);
    attach(node, &made, &[0, 1], Some(HookKind::Tcx)).unwrap();
    add(node, &coming(node, &made), HookKind::Tcx).unwrap();
    let elsewhere = Node::new(Layout::Routed, 0);
    node.move_to(&elsewhere, "veth2");
    let refused = remove(node, "default/p2");
    assert!(matches!(refused, Err(Error::NotSinglePod { .. })), "{refused:?}");
    let links = std::fs::read_dir(node.bpffs().join("links")).unwrap().count();
    assert_eq!((links, state_of(node, "default/p2")), (6, Some(EnforcementState::Enforced)));
}

/// A pod without its interface may come back: it stays in the artifact.
#[test]
fn a_pod_that_lost_its_interface_is_reported_as_unattached() {
    skip!(unless possible());
    let node = &node_of_three(Layout::Routed);
    attach(node, &made(2), &[0, 1], None).unwrap();
    node.ip("link del veth1");
    let lost = LeavingPod { pod: "default/p1".to_owned(), is_gone: false };
    node.here(|| open(node)?.remove_pods(&[lost])).unwrap();
    let status = status(node).unwrap();
    assert_eq!(status.drift, Vec::<String>::new());
    assert_eq!(status.unattached.iter().map(|it| it.pod.as_str()).collect::<Vec<_>>(), ["default/p1"]);
    assert_eq!(named(node), ["p0", "p1"]);
}

#[test]
fn a_pod_that_needs_a_generation_is_refused_before_anything_changes() {
    skip!(unless possible());
    let node = &node_of_three(Layout::Routed);
    let made = made(2);
    attach(node, &made, &[0, 1], None).unwrap();
    let right = coming(node, &made);
    let like = |like: &str| ComingPod { like: like.to_owned(), ..right.clone() };
    for (what, wrong) in [
        ("an unknown pod", like("default/p9")),
        ("a pod of another class", like("default/p0")),
        ("another interface of this name", ComingPod { ifindex: right.ifindex + 100, ..right.clone() }),
        ("a pod that is enforced", ComingPod { pod: "default/p1".to_owned(), ..right.clone() }),
    ] {
        assert!(add(node, &wrong, HookKind::Tcx).is_err(), "{what}");
        assert_eq!((state_of(node, "default/p2"), named(node)), (None, vec!["p0".into(), "p1".into()]), "{what}");
    }
    add(node, &right, HookKind::Tcx).unwrap();
    assert!(add(node, &right, HookKind::Tcx).is_err(), "twice");
}

/// The state of p2's interface before its programs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Closed,
    /// No policy closes it, and its pod runs.
    Open,
}

/// How p2 comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Alone,
    /// A generation contains it.
    InGeneration,
}

impl Way {
    fn come(self, node: &Node, runtime: &Runtime, hook: HookKind) -> Result<(), Error> {
        match self {
            Self::Alone => runtime.add_pod(&coming(node, &made(2)), Some(hook)).map(|_| ()),
            Self::InGeneration => {
                let made = made(3);
                let endpoints = vec![("default/p2".to_owned(), node.interface(2))];
                runtime.attach(&Request { endpoints, way: Some(hook), ..request(&made) })?;
                runtime.open_closed_interfaces().map(|_| ())
            }
        }
    }
}

/// An operation that fails.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The operation with this number.
    Nth(usize),
    /// After a missing link was looked for and its pin removed, for this time (from 0): the operation with this number.
    AfterMissingLink(usize, usize),
}

/// The operations that begin a new link.
const MISSING_LINK: [Operation; 2] = [Operation::PinnedLink, Operation::Unpin];

impl Place {
    /// Its number among these operations, if they are enough to know it.
    fn at(self, operations: &[Operation]) -> Option<usize> {
        match self {
            Self::Nth(nth) => Some(nth),
            Self::AfterMissingLink(time, nth) => {
                let ends = |at: &usize| operations[..*at].ends_with(&MISSING_LINK);
                (0..=operations.len()).filter(ends).nth(time).map(|begin| begin + nth)
            }
        }
    }
}

/// Adds p2 with a fault at one operation: it alone fails, or all from there on.
fn add_with_fault(node: &Node, way: Way, hook: HookKind, place: Place, dies: bool) -> (Vec<Operation>, bool) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let faults = move |operation: Operation| {
        let mut log = log.lock().unwrap();
        // A process that another test starts has a copy of the lock until it runs its program: the runtime asks again.
        let is_again = operation == Operation::Lock && log.last() == Some(&operation);
        let number = log.len() - usize::from(is_again);
        let nth = place.at(&log);
        if !is_again {
            log.push(operation);
        }
        let is_fault = nth.is_some_and(|nth| number == nth || dies && number > nth);
        is_fault.then(|| errnos(operation)[number % errnos(operation).len()])
    };
    let result = node.here(|| {
        let system = System::with_faults(Box::new(faults)).unwrap();
        way.come(node, &Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?, hook)
    });
    let operations = seen.lock().unwrap().clone();
    (operations, result.is_ok())
}

/// The places where faults are tried, with their operations.
fn places(before: Before, way: Way, operations: &[Operation]) -> Vec<(Place, Operation)> {
    let places: Vec<Place> = match way {
        Way::Alone => {
            // Before the record has the pod, its interface does not matter.
            let recorded = operations.iter().position(|it| *it == Operation::Rename).unwrap_or_default();
            let first = if before == Before::Closed { 0 } else { recorded };
            let all = places_to_test(operations).take_while(|nth| *nth < operations.len());
            all.filter(|nth| *nth >= first).map(Place::Nth).collect()
        }
        // Other tests try faults in a generation. Here they are where the links of its programs are made.
        Way::InGeneration => {
            use Operation::{Attach, LinkInfo, Pin, PinnedLink, Query, Rename, Replace};
            let (making, number): (&[Operation], _) = match before {
                Before::Closed => (&[PinnedLink, LinkInfo, Query, Rename, Replace], 5),
                // Up to the entry of the pod.
                Before::Open => (&[Attach, Pin], 10),
            };
            let sides = (0..).map_while(|time| Some((time, Place::AfterMissingLink(time, 0).at(operations)?)));
            let made = sides.filter(|(_, begin)| operations[*begin..].starts_with(making));
            made.flat_map(|(time, _)| (0..=number).map(move |nth| Place::AfterMissingLink(time, nth))).collect()
        }
    };
    let operation = |place: Place| operations[place.at(operations).expect("it was found there")];
    places.into_iter().map(|place| (place, operation(place))).collect()
}

/// If the interface is closed before, a connection that the policy denies never succeeds, whatever fails. If it is open,
/// the pod is open or closed or has its policy, but never counts as enforced without its policy. Then the next process,
/// or the next generation, puts the policy in force.
fn come_with_faults(before: Before, way: Way, hook: HookKind) {
    skip!(unless possible());
    let node = &node_of_three(Layout::Routed);
    let (without, with) = (made(2), made(3));
    let to = pod_address(2, false);
    let is_denied = || connect(node, 1, to, 80).is_none() && connect(node, 0, to, 81).is_none();
    let begin = || {
        attach(node, &without, &[0, 1], Some(hook)).unwrap();
        if before == Before::Closed {
            node.here(|| close_interface(&node.bpffs(), &node.interface(2))).unwrap();
        }
    };
    begin();
    let (operations, is_added) = add_with_fault(node, way, hook, Place::Nth(usize::MAX), false);
    assert!(is_added && operations.len() > 20, "{operations:?}");
    let mut felt = 0;
    for (place, operation) in places(before, way, &operations) {
        for dies in [false, true] {
            detach(node, Some("default/p2")).unwrap();
            begin();
            let (seen, is_added) = add_with_fault(node, way, hook, place, dies);
            let what = format!("{before:?} {way:?} {hook:?} {operation:?} at {place:?}, dies: {dies}");
            assert_eq!(place.at(&seen).map(|at| seen[at]), Some(operation), "another operation than in {what}");
            felt += usize::from(!is_added);
            let must_be_denied = is_added || before == Before::Closed;
            assert!(!must_be_denied || is_denied(), "open after {what}");
            if is_added {
                assert!(reaches(node, to), "it said that it is in force: {what}");
            }
            // The next process: the pod is as before, or complete.
            node.here(|| open(node).and_then(|it| it.repair().and_then(|_| it.open_closed_interfaces()))).unwrap();
            let state = state_of(node, "default/p2");
            assert!(matches!(state, None | Some(EnforcementState::Enforced)), "{what}: {state:?}");
            let must_be_denied = state.is_some() || before == Before::Closed;
            assert!(!must_be_denied || is_denied(), "open after {what} and a repair");
            assert!(must_be_denied || reaches(node, to), "closed after {what} and a repair");
            attach(node, &with, &[2], Some(hook)).unwrap();
            node.here(|| open(node)?.open_closed_interfaces()).unwrap();
            assert!(reaches(node, to) && is_denied(), "{what}");
        }
    }
    println!("{before:?} {way:?} {hook:?}: {} operations, {felt} faults felt", operations.len());
    assert!(felt > 10, "faults were felt: {felt}");
}

#[test]
fn a_pod_that_comes_is_never_open_whatever_fails() {
    come_with_faults(Before::Closed, Way::Alone, HookKind::Tcx);
}

#[test]
fn a_pod_that_comes_with_clsact_is_never_open_whatever_fails() {
    come_with_faults(Before::Closed, Way::Alone, HookKind::Clsact);
}

#[test]
fn a_closed_pod_in_a_generation_is_never_open_whatever_fails() {
    come_with_faults(Before::Closed, Way::InGeneration, HookKind::Tcx);
}

#[test]
fn a_running_pod_that_comes_is_open_or_has_its_policy_whatever_fails() {
    come_with_faults(Before::Open, Way::Alone, HookKind::Tcx);
}

#[test]
fn a_running_pod_that_comes_with_clsact_is_open_or_has_its_policy_whatever_fails() {
    come_with_faults(Before::Open, Way::Alone, HookKind::Clsact);
}

#[test]
fn a_running_pod_in_a_generation_is_open_or_has_its_policy_whatever_fails() {
    come_with_faults(Before::Open, Way::InGeneration, HookKind::Tcx);
}

/// The programs of p2's interface, with their links, at both hooks.
fn links(node: &Node) -> [Vec<(u32, u32)>; 2] {
    let ifindex = coming(node, &made(2)).ifindex;
    node.here(|| [Hook::Ingress, Hook::Egress].map(|hook| System::open().unwrap().query(ifindex, hook).unwrap()))
}

/// The links that close an interface.
fn closing(node: &Node) -> usize {
    std::fs::read_dir(node.bpffs().join("held/links")).map_or(0, Iterator::count)
}

#[test]
fn an_agent_closes_several_interfaces_one_after_the_other() {
    each(|_, way| {
        let node = &node_of_three(Layout::Routed);
        serve(node, 1, 80);
        let made = made(2);
        attach(node, &made, &[0], Some(way)).unwrap();
        node.here(|| {
            let runtime = open(node).unwrap().one_by_one().keeping().unwrap();
            for pod in [1, 2] {
                assert!(connect(node, 0, pod_address(pod, false), 80).is_some(), "pod {pod} is open");
                runtime.close_interface(&node.interface(pod)).unwrap();
                assert!(connect(node, 0, pod_address(pod, false), 80).is_none(), "pod {pod} is closed");
            }
            runtime.add_pod(&coming(node, &made), Some(way)).unwrap();
        });
        assert!(connect(node, 0, pod_address(1, false), 80).is_none(), "it is still closed");
        assert!(is_enforced(node));
    });
}

#[test]
fn a_closing_link_becomes_that_of_the_policy_if_it_runs_first() {
    skip!(unless possible());
    for way in [Way::Alone, Way::InGeneration] {
        let node = &node_of_three(Layout::Routed);
        attach(node, &made(2), &[0, 1], Some(HookKind::Tcx)).unwrap();
        let close = || node.here(|| close_interface(&node.bpffs(), &node.interface(2))).unwrap();
        let come = || node.here(|| way.come(node, &open(node)?, HookKind::Tcx)).unwrap();
        close();
        let ids = |links: [Vec<(u32, u32)>; 2]| links.map(|it| it.iter().map(|(_, link)| *link).collect::<Vec<_>>());
        let before = ids(links(node));
        assert_eq!((before.each_ref().map(Vec::len), closing(node)), ([1, 1], 2));
        come();
        assert_eq!((ids(links(node)), closing(node)), (before, 0), "{way:?}");
        assert!(is_enforced(node));
        detach(node, Some("default/p2")).unwrap();
        // Another program is put before the one that closes, in one direction.
        close();
        let before = ids(links(node));
        let ifindex = coming(node, &made(2)).ifindex;
        let other = node.here(|| System::open().unwrap().attach(&verdict(-1), ifindex, Hook::Egress)).unwrap();
        attach(node, &made(2), &[0, 1], Some(HookKind::Tcx)).unwrap();
        come();
        // A link without references ends a moment later.
        let now = (0..100).find_map(|_| {
            let now = ids(links(node));
            let is_over = now[1].len() == 2;
            if !is_over {
                std::thread::sleep(Duration::from_millis(20));
            }
            is_over.then_some(now)
        });
        let now = now.unwrap_or_else(|| panic!("{way:?}: the closing link ends: {:?}", links(node)));
        assert_eq!((&now[0], closing(node)), (&before[0], 0), "{way:?}");
        assert_eq!(
            now[1][1],
            System::open().unwrap().link_info(&other).unwrap().id,
            "a new link is before the other program: {way:?}"
        );
        assert_ne!(now[1][0], before[1][0], "{way:?}");
        assert_eq!(state_of(node, "default/p2"), Some(EnforcementState::Enforced));
        assert!(is_enforced(node));
        drop(other);
    }
}

/// A process died that had attached one of two programs. Then the interface gets another address, as udev does it.
#[test]
fn a_pod_with_one_link_is_not_gone_although_its_interface_has_another_address() {
    skip!(unless possible());
    for side in ["to_pod", "from_pod"] {
        let node = &node_of_three(Layout::Routed);
        attach(node, &made(3), &[0, 1, 2], Some(HookKind::Tcx)).unwrap();
        let pin = node.bpffs().join(format!("links/{side}_{}", coming(node, &made(2)).ifindex));
        std::fs::remove_file(pin).unwrap();
        node.ip("link set veth2 address 02:00:00:00:00:77");
        let repaired = node.here(|| open(node)?.repair()).unwrap();
        assert_eq!((repaired.len(), state_of(node, "default/p2")), (1, Some(EnforcementState::Enforced)), "{side}");
        assert!(connect(node, 1, pod_address(2, false), 80).is_none(), "{side}");
    }
}

/// The next operation completes a removal.
#[test]
fn a_pod_that_leaves_is_gone_after_a_repair_whatever_fails() {
    skip!(unless possible());
    let node = &node_of_three(Layout::Routed);
    let made = made(2);
    attach(node, &made, &[0, 1], Some(HookKind::Tcx)).unwrap();
    for nth in 0.. {
        add(node, &coming(node, &made), HookKind::Tcx).unwrap();
        node.ip("link del veth2");
        let asked = AtomicUsize::new(0);
        let count = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&count);
        let faults = move |operation: Operation| {
            seen.fetch_add(1, Ordering::Relaxed);
            (asked.fetch_add(1, Ordering::Relaxed) >= nth).then(|| errnos(operation)[0])
        };
        _ = node.here(|| {
            let system = System::with_faults(Box::new(faults)).unwrap();
            let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?;
            runtime.remove_pods(&[LeavingPod { pod: "default/p2".to_owned(), is_gone: true }])
        });
        node.here(|| open(node)?.repair()).unwrap();
        let status = status(node).unwrap();
        assert_eq!(status.drift, Vec::<String>::new(), "death at {nth}");
        assert!(status.endpoints.iter().all(|it| it.endpoint.pod != "default/p2"), "death at {nth}");
        node.plug(2);
        if count.load(Ordering::Relaxed) <= nth {
            return;
        }
        // The process can die before the record says that the pod is gone. The agent then removes it again.
        _ = remove(node, "default/p2");
    }
}
