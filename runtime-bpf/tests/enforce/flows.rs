//! Flow tables: what follows which, and what stays.

use weir_compiler::structures::Structure::{self, Buckets, Lru};
use weir_runtime::observe::Flow;
use weir_runtime::runtime::{Access, Fill, Runtime};
use weir_runtime::system::System;
use weir_runtime::{Way, skip};

use crate::attach::{attach, detach, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{TARGET, artifact_in, cluster, kernel, policy};
use crate::probe::{connect, is_alive, serve};

/// p1 is isolated both ways, and p0 may reach its port 80; so many pods are known.
fn made(pods: usize, flows: Structure) -> (weir_compiler::artifact::Artifact, Vec<u8>) {
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
    artifact_in(&cluster(pods, &policy(1, "Ingress, Egress", rules)), flows)
}

/// The connections to port 80 of p1, as p1's hooks know them.
fn connections(node: &Node) -> Vec<Flow> {
    let flows = node.here(|| Runtime::open(&node.bpffs(), Access::Read)?.flows()).unwrap();
    let is_it = |it: &Flow| it.pod.as_deref() == Some("default/p1") && it.local.port == Some(80);
    flows.into_iter().filter(is_it).collect()
}

/// The maps that flows are in, and how full they are.
fn tables(node: &Node) -> Vec<Fill> {
    let maps = status(node).unwrap().maps;
    maps.into_iter().filter(|it| it.name.starts_with("flow") || it.name.starts_with("fresh")).collect()
}

fn names(node: &Node) -> Vec<String> {
    tables(node).into_iter().map(|it| it.name).collect()
}

fn with_both_tables(check: impl Fn(&Node)) {
    if let Err(reason) = possible() {
        skip!("{reason}");
    }
    if kernel() < TARGET.kernel {
        skip!("this kernel has no compare-and-swap for programs");
    }
    check(&Node::new(Layout::Routed, 2));
}

#[test]
fn connections_outlive_a_change_of_the_table() {
    with_both_tables(|node| {
        serve(node, 1, 80);
        attach(node, &made(2, Lru), &[0, 1], Some(Way::Clsact)).unwrap();
        let mut streams = [false, true].map(|v6| connect(node, 0, pod_address(1, v6), 80).expect("80 is allowed"));
        assert!(streams.iter_mut().all(is_alive));
        let mut before = connections(node);
        assert_eq!(before.len(), 2, "{before:#?}");
        for (flows, expected) in [
            (Buckets, vec!["flow_buckets4", "flow_buckets6"]),
            (Lru, vec!["flows4", "flows6", "fresh4", "fresh6"]),
            (Buckets, vec!["flow_buckets4", "flow_buckets6"]),
        ] {
            attach(node, &made(2, flows), &[], None).unwrap();
            let known = |flow: &Flow| (flow.remote.clone(), flow.state, flow.direction, flow.answered);
            let after = connections(node);
            assert_eq!(after.iter().map(known).collect::<Vec<_>>(), before.iter().map(known).collect::<Vec<_>>());
            assert_eq!(names(node), expected);
            assert!(streams.iter_mut().all(is_alive));
            // The same again is no change.
            let generation = status(node).unwrap().generation.unwrap().epoch;
            attach(node, &made(2, flows), &[], None).unwrap();
            assert_eq!(status(node).unwrap().generation.unwrap().epoch, generation);
            before = connections(node);
            assert!(before.iter().all(|it| it.generation == generation), "judged again: {before:#?}");
        }
    });
}

#[test]
fn flows_without_room_in_another_table_are_counted() {
    with_both_tables(|node| {
        serve(node, 1, 80);
        attach(node, &made(2, Lru), &[0, 1], Some(Way::Clsact)).unwrap();
        let mut stream = connect(node, 0, pod_address(1, false), 80).expect("80 is allowed");
        assert!(is_alive(&mut stream));
        let known = imitate(node, 12_000);
        let attached = attach(node, &made(2, Buckets), &[], None).unwrap();
        let found = node.here(|| Runtime::open(&node.bpffs(), Access::Read)?.flows()).unwrap().len();
        assert!(attached.lost_flows > 0, "some bucket of four gets a fifth");
        assert_eq!(found + attached.lost_flows, known);
        assert_eq!(attach(node, &made(2, Buckets), &[], None).unwrap().lost_flows, 0, "nothing was carried");
    });
}

/// Fills the kernel's table with flows like the one that is in it; says how many flows there are then.
fn imitate(node: &Node, count: u32) -> usize {
    let system = System::open().unwrap();
    let table = |name: &str| system.pinned_map(&node.bpffs().join("maps").join(name)).unwrap().unwrap();
    let confirmed = table("flows4");
    let entries = system.entries(&confirmed).unwrap();
    let (key, value) = entries.first().expect("the connection");
    for number in 0..count {
        let mut key = key.clone();
        key[4..8].copy_from_slice(&(0x0b00_0000 + number).to_be_bytes());
        system.update(&confirmed, &key, value).unwrap();
    }
    let all = ["flows4", "fresh4", "flows6", "fresh6"];
    all.into_iter().map(|name| system.entries(&table(name)).unwrap().len()).sum()
}

#[test]
fn a_table_stays_whatever_size_the_next_generation_would_make_it() {
    with_both_tables(|node| {
        serve(node, 1, 80);
        attach(node, &made(2, Buckets), &[0, 1], Some(Way::Clsact)).unwrap();
        let mut stream = connect(node, 0, pod_address(1, false), 80).expect("80 is allowed");
        assert!(is_alive(&mut stream));
        let before = tables(node);
        attach(node, &made(100, Buckets), &[], None).unwrap();
        let after = tables(node);
        assert_eq!(after.iter().map(|it| it.max_entries).collect::<Vec<_>>(), [before[0].max_entries; 2]);
        assert_eq!((before[0].entries, after[0].entries), (1, 1), "p1's end of the connection is known");
        assert!(is_alive(&mut stream));
        assert!(connect(node, 0, pod_address(1, false), 80).is_some());
    });
}

#[test]
fn a_detached_pod_leaves_no_flow() {
    with_both_tables(|node| {
        serve(node, 1, 80);
        attach(node, &made(2, Buckets), &[0, 1], Some(Way::Clsact)).unwrap();
        let mut stream = connect(node, 0, pod_address(1, false), 80).expect("80 is allowed");
        assert!(is_alive(&mut stream));
        detach(node, Some("default/p1")).unwrap();
        assert!(connections(node).is_empty());
        attach(node, &made(2, Buckets), &[1], Some(Way::Clsact)).unwrap();
        assert!(connections(node).is_empty(), "nobody knows it by its interface");
    });
}
