//! Single addresses that get another class between two generations.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use weir_artifact::Artifact;
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::{PeerId, Scope, classify};
use weir_codegen::structures::StructureOptions as Structures;
use weir_runtime::runtime::{PinAccess, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, skip};

use crate::attach::{attach, request, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact_with, cluster, policy};
use crate::probe::{connect, is_alive, serve};

/// Number of listed addresses: enough for the stored artifact to leave their table out.
const LISTED: u32 = 10_000;

/// p0 may reach port 80 of p1; and a list.
fn yaml() -> String {
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
    let mut yaml = cluster(2, &policy(1, "Ingress", rules));
    yaml.push_str(
        "apiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {name: bad}\nspec: {action: Deny, cidrs: [",
    );
    (0..LISTED).for_each(|number| _ = write!(yaml, "{}, ", listed(number)));
    yaml + "198.51.100.1]}\n"
}

/// Every other address, so that no two of them form a range.
fn listed(number: u32) -> IpAddr {
    IpAddr::from((0xcb00_0000 + 2 * number).to_be_bytes())
}

fn made() -> (Artifact, Vec<u8>) {
    let forced = vec![(LookupSet::Exact4, Structure::Layered), (LookupSet::Exact6, Structure::Layered)];
    artifact_with(&yaml(), Structures { forced, ..Structures::default() })
}

/// The peer classes of p0 and of a listed address.
fn classes() -> [PeerId; 2] {
    let cluster = weir_testing::yaml::cluster(&yaml());
    let classes = classify(&cluster, &Scope::node(&cluster, "here").unwrap()).unwrap();
    [pod_address(0, false), listed(7)].map(|address| classes.peer_at(address))
}

fn write(node: &Node, changes: &[(IpAddr, PeerId)], again: bool) -> Result<(), Error> {
    let changes: Vec<_> = changes.iter().map(|(address, class)| (*address, Some(class.0))).collect();
    change(node, &changes, again)
}

/// The same; `None` removes an address.
fn change(node: &Node, changes: &[(IpAddr, Option<u32>)], again: bool) -> Result<(), Error> {
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.write_addresses(changes, again))
}

/// A node whose p1 serves port 80 and is isolated.
fn enforced() -> Node {
    let node = Node::new(Layout::Routed, 2);
    serve(&node, 1, 80);
    attach(&node, &made(), &[1], Some(HookKind::Clsact)).unwrap();
    node
}

#[test]
fn a_newly_listed_address_is_denied_and_its_flows_end() {
    skip!(unless possible());
    let node = &enforced();
    let [allowed, denied] = classes();
    let (p0, p1) = (pod_address(0, false), pod_address(1, false));
    let mut stream = connect(node, 0, p1, 80).expect("80 is allowed");
    assert!(is_alive(&mut stream));
    let before = status(node).unwrap().generation.unwrap().epoch;

    write(node, &[(p0, denied)], false).unwrap();
    assert!(connect(node, 0, p1, 80).is_none(), "denied from now on");
    assert!(is_alive(&mut stream), "what was judged before is not asked again");
    write(node, &[(p0, denied)], true).unwrap();
    assert!(!is_alive(&mut stream), "it is asked again, and denied");
    let now = status(node).unwrap();
    assert_eq!((now.drift, now.generation.unwrap().epoch), (Vec::new(), before + 1));

    write(node, &[(p0, allowed)], true).unwrap();
    assert!(connect(node, 0, p1, 80).is_some());
}

/// The number of the generation that judged p0's connection to p1 last.
fn judged_by(node: &Node) -> u32 {
    let flows = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.flows()).unwrap();
    let found = flows.iter().find(|it| it.remote.ip == pod_address(0, false) && it.local.port == Some(80));
    found.unwrap_or_else(|| panic!("{flows:#?}")).generation
}

/// A write into a generation that is patched already makes no other operations than those of the write. If another
/// process has removed the record, the next check restores it, and it says that the generation is patched.
#[test]
fn a_single_write_takes_effect_without_the_record() {
    skip!(unless possible());
    let node = &enforced();
    let [allowed, denied] = classes();
    let (p0, p1) = (pod_address(0, false), pod_address(1, false));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let watch = move |operation| {
        log.lock().unwrap().push(operation);
        None
    };
    let record = node.bpffs().join("record");
    node.here(|| {
        let system = System::with_faults(Box::new(watch)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        let write = |class: PeerId| {
            seen.lock().unwrap().clear();
            runtime.write_addresses(&[(p0, Some(class.0))], false).unwrap();
            seen.lock().unwrap().clone()
        };
        assert!(write(denied).contains(&Operation::Rename), "the first write changes the record");
        assert!(connect(node, 0, p1, 80).is_none());
        std::fs::remove_file(&record).unwrap();
        assert_eq!(write(allowed), [Operation::Typed, Operation::Update]);
        assert!(connect(node, 0, p1, 80).is_some());
        assert!(!record.exists());
        assert_eq!(runtime.check_hooks().unwrap().repaired, ["the record"]);
        assert_eq!(write(denied), [Operation::Typed, Operation::Update]);
        assert!(connect(node, 0, p1, 80).is_none());
        assert_eq!(
            runtime.status().unwrap().drift,
            Vec::<String>::new(),
            "the restored record says that it is patched"
        );
        // A generation that is not patched yet needs the record.
        runtime.attach(&request(&made())).unwrap();
        assert!(connect(node, 0, p1, 80).is_some());
        assert!(write(denied).contains(&Operation::Rename));
        assert!(connect(node, 0, p1, 80).is_none());
    });
}

#[test]
fn flows_of_an_address_with_a_new_owner_are_judged_again_and_continue() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    serve(node, 1, 80);
    attach(node, &made(), &[1], Some(HookKind::Clsact)).unwrap();
    let mut stream = connect(node, 0, pod_address(1, false), 80).expect("80 is allowed");
    let before = status(node).unwrap().generation.unwrap().epoch;
    assert!(is_alive(&mut stream));
    assert_eq!(judged_by(node), before);
    write(node, &[], true).unwrap();
    assert_eq!(judged_by(node), before, "not before its next packet");
    assert!(is_alive(&mut stream));
    assert_eq!(judged_by(node), before + 1);
    let now = status(node).unwrap();
    assert_eq!((now.drift, now.generation.unwrap().epoch), (Vec::new(), before + 1));
    // No entry differs from the artifact's.
    attach(node, &made(), &[], None).unwrap();
    assert_eq!(status(node).unwrap().generation.unwrap().epoch, before + 1);
}

#[test]
fn a_recorded_epoch_comes_into_force_with_the_next_repair() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    attach(node, &made(), &[1], Some(HookKind::Clsact)).unwrap();
    // The record is written, then the process cannot look up the configuration.
    let looks = AtomicU32::new(0);
    let faults = move |operation: Operation| {
        let refused = operation == Operation::Lookup && looks.fetch_add(1, Ordering::Relaxed) > 0;
        refused.then_some(libc::EIO)
    };
    let refused = node.here(|| {
        let system = System::with_faults(Box::new(faults)).unwrap();
        Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?.write_addresses(&[], true)
    });
    assert!(matches!(refused, Err(Error::Kernel { .. })), "{refused:?}");
    assert_eq!(status(node).unwrap().drift, ["the map config has another generation's number"]);
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.repair()).unwrap();
    assert_eq!(status(node).unwrap().drift, Vec::<String>::new());
}

#[test]
fn the_same_artifact_attached_again_removes_single_entries() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let [_, denied] = classes();
    let (p0, p1) = (pod_address(0, false), pod_address(1, false));
    serve(node, 1, 80);
    let made = made();
    attach(node, &made, &[1], Some(HookKind::Clsact)).unwrap();
    write(node, &[(p0, denied)], true).unwrap();
    assert!(connect(node, 0, p1, 80).is_none());
    attach(node, &made, &[], None).unwrap();
    assert!(connect(node, 0, p1, 80).is_some());
    assert_eq!(status(node).unwrap().drift, Vec::<String>::new());
}

#[test]
fn changes_that_do_not_fit_are_refused_with_an_error() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let [_, denied] = classes();
    attach(node, &made(), &[1], Some(HookKind::Clsact)).unwrap();
    let changes = |count: u32| (0..count).map(|number| (listed(LISTED + number), denied)).collect::<Vec<_>>();
    write(node, &changes(LISTED / 16), true).unwrap();
    match write(node, &changes(LISTED / 2), true) {
        Err(Error::Full { map, about: Some(_), .. }) => assert_eq!(map, "exact4"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refused_entry_does_not_keep_others_from_being_removed() {
    skip!(unless possible());
    let node = &enforced();
    let [allowed, denied] = classes();
    let (p0, p1) = (pod_address(0, false), pod_address(1, false));
    write(node, &[(p0, allowed)], true).unwrap();
    let mut stream = connect(node, 0, p1, 80).unwrap();
    let many = (0..LISTED).map(|number| (listed(LISTED + number), Some(denied.0)));
    let changed = change(node, &many.chain([(p0, None)]).collect::<Vec<_>>(), true);
    assert!(matches!(changed, Err(Error::Full { .. })), "{changed:?}");
    assert!(connect(node, 0, p1, 80).is_none(), "the address has no class any more");
    assert!(!is_alive(&mut stream), "its flows are judged again");
}

#[test]
fn entries_take_the_room_of_those_that_are_removed() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let [_, denied] = classes();
    attach(node, &made(), &[1], Some(HookKind::Clsact)).unwrap();
    let range = |from: u32, count: u32| (from..from + count).map(|number| listed(LISTED + number));
    let filled = write(node, &range(0, LISTED).map(|it| (it, denied)).collect::<Vec<_>>(), false);
    assert!(matches!(filled, Err(Error::Full { .. })), "{filled:?}");
    let others = range(LISTED, 10).map(|it| (it, Some(denied.0)));
    change(node, &others.chain(range(0, 10).map(|it| (it, None))).collect::<Vec<_>>(), false).unwrap();
}
