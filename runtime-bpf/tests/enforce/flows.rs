//! Flow tables across generations, and after their pods are gone.

use std::net::TcpStream;

use weir_runtime::observe::ObservedFlow;
use weir_runtime::runtime::{Fill, PinAccess, Runtime};
use weir_runtime::{HookKind, skip};

use crate::attach::{attach, detach, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::{connect, is_alive, serve};

/// p1 is isolated in both directions, and p0 may reach its port 80. The cluster has `pods` pods.
fn made(pods: usize) -> (weir_artifact::Artifact, Vec<u8>) {
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
    artifact(&cluster(pods, &policy(1, "Ingress, Egress", rules)))
}

/// The connections to port 80 of p1, as p1's hooks know them.
fn connections(node: &Node) -> Vec<ObservedFlow> {
    let flows = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.flows()).unwrap();
    let is_it = |it: &ObservedFlow| it.pod.as_deref() == Some("default/p1") && it.local.port == Some(80);
    flows.into_iter().filter(is_it).collect()
}

/// The maps that contain flows, with their fill levels.
fn tables(node: &Node) -> Vec<Fill> {
    let maps = status(node).unwrap().maps;
    maps.into_iter().filter(|it| it.name.starts_with("flow_table")).collect()
}

fn on_a_node(check: impl Fn(&Node)) {
    skip!(unless possible());
    check(&Node::new(Layout::Routed, 2));
}

#[test]
fn connections_outlive_a_generation_that_allows_them() {
    on_a_node(|node| {
        serve(node, 1, 80);
        attach(node, &made(2), &[0, 1], Some(HookKind::Clsact)).unwrap();
        let mut streams = [false, true].map(|v6| connect(node, 0, pod_address(1, v6), 80).expect("80 is allowed"));
        assert!(streams.iter_mut().all(is_alive));
        let before = connections(node);
        assert_eq!(before.len(), 2, "{before:#?}");
        attach(node, &made(3), &[], None).unwrap();
        assert!(streams.iter_mut().all(is_alive));
        let after = connections(node);
        let known = |flow: &ObservedFlow| (flow.remote.clone(), flow.state, flow.direction, flow.answered);
        assert_eq!(after.iter().map(known).collect::<Vec<_>>(), before.iter().map(known).collect::<Vec<_>>());
        let generation = status(node).unwrap().generation.unwrap().epoch;
        assert!(after.iter().all(|it| it.generation == generation), "judged again: {after:#?}");
        // Attaching the same artifact again changes nothing.
        attach(node, &made(3), &[], None).unwrap();
        assert_eq!(status(node).unwrap().generation.unwrap().epoch, generation);
    });
}

/// Enforces [`made`] on two pods, and opens a connection between them.
fn connected(node: &Node) -> TcpStream {
    serve(node, 1, 80);
    attach(node, &made(2), &[0, 1], Some(HookKind::Clsact)).unwrap();
    let mut stream = connect(node, 0, pod_address(1, false), 80).expect("80 is allowed");
    assert!(is_alive(&mut stream));
    stream
}

#[test]
fn a_flow_table_keeps_its_size_in_the_next_generation() {
    on_a_node(|node| {
        let mut stream = connected(node);
        let before = tables(node);
        attach(node, &made(100), &[], None).unwrap();
        let after = tables(node);
        assert_eq!(after.iter().map(|it| it.max_entries).collect::<Vec<_>>(), [before[0].max_entries; 2]);
        assert_eq!((before[0].entries, after[0].entries), (2, 2), "both ends of the connection are known");
        assert!(is_alive(&mut stream));
        assert!(connect(node, 0, pod_address(1, false), 80).is_some());
    });
}

#[test]
fn a_detached_pod_leaves_no_flow() {
    on_a_node(|node| {
        let _stream = connected(node);
        detach(node, Some("default/p1")).unwrap();
        assert!(connections(node).is_empty());
        attach(node, &made(2), &[1], Some(HookKind::Clsact)).unwrap();
        assert!(connections(node).is_empty(), "no endpoint has its interface");
    });
}
