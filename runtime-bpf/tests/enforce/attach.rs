//! Attach, switch, detach: which packets pass and which are dropped.

use weir_artifact::Artifact;
use weir_runtime::runtime::{
    Attached, EnforcementState, EnforcementStatus, ExactPods, HookCheck, PinAccess, Request, Runtime,
};
use weir_runtime::{Error, HookKind, skip};

use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::{connect, datagram, is_alive, serve};

/// Only from p0, only to this port.
pub(crate) fn only_port(port: u16) -> (Artifact, Vec<u8>) {
    only_port_by("of-p1", port)
}

/// The same, by a policy with this name.
pub(crate) fn only_port_by(name: &str, port: u16) -> (Artifact, Vec<u8>) {
    let from = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: PORT}]}]";
    let policy = policy(1, "Ingress", &from.replace("PORT", &port.to_string()));
    artifact(&cluster(2, &policy.replace("of-p1", name)))
}

pub(crate) fn attach(
    node: &Node,
    made: &(Artifact, Vec<u8>),
    pods: &[usize],
    way: Option<HookKind>,
) -> Result<Attached, Error> {
    let endpoints = pods.iter().map(|pod| (format!("default/p{pod}"), node.interface(*pod))).collect();
    let request = Request { endpoints, way, ..request(made) };
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.attach(&request))
}

/// Of those that are attached already.
pub(crate) fn request(made: &(Artifact, Vec<u8>)) -> Request<'_> {
    let endpoints = Vec::new();
    Request {
        artifact: &made.0,
        file: &made.1,
        endpoints,
        uplinks: Vec::new(),
        way: None,
        keep: None,
        exact: None,
        extends: None,
    }
}

pub(crate) fn status(node: &Node) -> Result<EnforcementStatus, Error> {
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.status())
}

pub(crate) fn detach(node: &Node, pod: Option<&str>) -> Result<usize, Error> {
    node.here(|| Ok(Runtime::open(&node.bpffs(), PinAccess::Change)?.detach(pod)?.len()))
}

/// Each way that this kernel has, in each layout.
pub(crate) fn each(check: impl Fn(&Node, HookKind)) {
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        for layout in [Layout::Routed, Layout::Bridge] {
            check(&Node::new(layout, 2), way);
        }
    }
}

#[test]
fn allowed_packets_pass_and_denied_packets_are_dropped() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        attach(node, &only_port(80), &[0, 1], Some(way)).unwrap();
        for v6 in [false, true] {
            let server = pod_address(1, v6);
            let mut allowed = connect(node, 0, server, 80).expect("80 is allowed");
            assert!(is_alive(&mut allowed));
            assert!(connect(node, 0, server, 81).is_none(), "81 is denied");
            assert!(!datagram(node, 0, 1, server, 80), "UDP is denied");
            assert!(datagram(node, 1, 0, pod_address(0, v6), 53), "nothing isolates p0");
        }
        let status = status(node).unwrap();
        assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{status:?}");
        assert_eq!(status.drift, Vec::<String>::new());
    });
}

#[test]
fn a_switch_allows_new_flows_and_cuts_flows_that_are_no_longer_allowed() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        attach(node, &only_port(80), &[0, 1], Some(way)).unwrap();
        let server = pod_address(1, false);
        let mut old = connect(node, 0, server, 80).unwrap();
        assert!(is_alive(&mut old));
        let attached = attach(node, &only_port(81), &[], None).unwrap();
        assert_eq!((attached.generation.epoch, attached.before.map(|it| it.epoch)), (2, Some(1)));
        assert!(!is_alive(&mut old), "no longer allowed: cut");
        assert!(connect(node, 0, server, 80).is_none());
        assert!(connect(node, 0, server, 81).is_some());
        // And back.
        attach(node, &only_port(80), &[], None).unwrap();
        assert!(connect(node, 0, server, 80).is_some());
        assert!(connect(node, 0, server, 81).is_none());
    });
}

#[test]
fn the_same_artifact_again_changes_nothing() {
    each(|node, way| {
        let first = attach(node, &only_port(80), &[0], Some(way)).unwrap();
        let second = attach(node, &only_port(80), &[0, 1], Some(way)).unwrap();
        assert_eq!((second.generation, second.before), (first.generation, None));
        assert_eq!(second.endpoints.len(), 2);
    });
}

/// Which of these two policies are in force.
pub(crate) fn names_in_force(node: &Node) -> Vec<&'static str> {
    let artifact = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.artifact_in_force());
    let manifest = artifact.unwrap().expect("a generation is in force").manifest;
    ["default/old", "default/new"].into_iter().filter(|name| manifest.contains(&format!("\"{name}\""))).collect()
}

/// The tables are the same, so the generation stays in force. Its file has the names.
#[test]
fn a_policy_with_another_name_is_named_without_another_generation() {
    each(|node, way| {
        let [old, new] = ["old", "new"].map(|name| only_port_by(name, 80));
        let first = attach(node, &old, &[0, 1], Some(way)).unwrap();
        assert_eq!(names_in_force(node), ["default/old"]);
        let second = attach(node, &new, &[0, 1], Some(way)).unwrap();
        assert_eq!(names_in_force(node), ["default/new"]);
        assert_eq!((second.generation.epoch, second.before), (first.generation.epoch, None));
        assert_eq!((&second.generation.digest, second.repaired), (&first.generation.digest, Vec::new()));
        let third = attach(node, &new, &[0, 1], Some(way)).unwrap();
        assert_eq!(third.generation, second.generation, "the same file is not written again");
        assert_eq!((names_in_force(node), status(node).unwrap().drift), (vec!["default/new"], Vec::new()));
        serve(node, 1, 80);
        assert!(connect(node, 0, pod_address(1, false), 80).is_some());
    });
}

fn uninstall(node: &Node, by_hand_too: bool) -> usize {
    let uninstalled = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.uninstall(by_hand_too));
    uninstalled.unwrap().len()
}

#[test]
fn uninstalling_the_agent_leaves_what_was_attached_by_hand() {
    each(|node, way| {
        let made = only_port(80);
        let exact = || Some(ExactPods { closed: Vec::new(), uids: [("default/p0".into(), "u0".into())].into() });
        let endpoints = vec![("default/p0".to_owned(), node.interface(0))];
        let of_agent = Request { endpoints, way: Some(way), exact: exact(), ..request(&made) };
        node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.one_by_one().attach(&of_agent)).unwrap();
        attach(node, &made, &[1], Some(way)).unwrap();
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        assert_eq!(uninstall(node, false), 1, "the agent's endpoint");
        let left = status(node).unwrap().endpoints;
        assert_eq!(left.iter().map(|it| it.endpoint.pod.as_str()).collect::<Vec<_>>(), ["default/p1"]);
        let server = pod_address(1, false);
        assert!(connect(node, 0, server, 80).is_some() && connect(node, 0, server, 81).is_none(), "p1 is enforced");
        assert_eq!(uninstall(node, false), 0, "nothing of the agent is left");
        assert!(connect(node, 0, server, 81).is_none(), "p1 is still enforced");
        assert_eq!(uninstall(node, true), 1, "told to");
        assert!(connect(node, 0, server, 81).is_some() && !node.bpffs().exists(), "nothing is left");

        // An agent closes interfaces that it does not know. No other process would open them again.
        attach(node, &made, &[1], Some(way)).unwrap();
        let endpoints = vec![("default/p0".to_owned(), node.interface(0))];
        let of_agent = Request { endpoints, way: Some(way), exact: exact(), ..request(&made) };
        node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.one_by_one().attach(&of_agent)).unwrap();
        assert!(connect(node, 0, server, 80).is_none(), "p1 is closed");
        assert_eq!(uninstall(node, false), 2);
        assert!(connect(node, 0, server, 81).is_some() && !node.bpffs().exists(), "nothing is left");
    });
}

#[test]
fn a_node_without_pods_has_no_drift() {
    each(|node, way| {
        attach(node, &artifact(&cluster(0, "")), &[], Some(way)).unwrap();
        assert_eq!(status(node).unwrap().drift, Vec::<String>::new());
    });
}

#[test]
fn after_a_detach_all_packets_pass_and_no_pin_is_left() {
    each(|node, way| {
        serve(node, 1, 81);
        attach(node, &only_port(80), &[0, 1], Some(way)).unwrap();
        assert!(connect(node, 0, pod_address(1, false), 81).is_none());
        assert_eq!(detach(node, Some("default/p1")).unwrap(), 1);
        assert!(connect(node, 0, pod_address(1, false), 81).is_some());
        assert_eq!(status(node).unwrap().endpoints.len(), 1);
        assert!(matches!(detach(node, Some("default/p1")), Err(Error::NotAttached(_))));
        assert_eq!(detach(node, None).unwrap(), 1);
        assert!(matches!(status(node), Err(Error::Nothing(_))));
        assert_eq!(std::fs::read_dir(node.bpffs()).unwrap().count(), 0);
    });
}

/// Attaches with all pods of the host named: `pods` must be enforced, and the interfaces of `closed` must be closed.
fn attach_exactly(
    node: &Node,
    made: &(Artifact, Vec<u8>),
    way: HookKind,
    pods: &[usize],
    closed: &[usize],
) -> Result<Attached, Error> {
    let named = |pods: &[usize]| -> Vec<(String, String)> {
        pods.iter().map(|pod| (format!("default/p{pod}"), node.interface(*pod))).collect()
    };
    let uids = pods.iter().map(|pod| (format!("default/p{pod}"), format!("u{pod}"))).collect();
    let exact = Some(ExactPods { closed: named(closed), uids });
    let request = Request { endpoints: named(pods), way: Some(way), exact, ..request(made) };
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.one_by_one().attach(&request))
}

#[test]
fn an_interface_that_is_closed_or_not_named_drops_all_packets() {
    each(|node, way| {
        serve(node, 1, 80);
        let server = pod_address(1, false);
        attach_exactly(node, &only_port(80), way, &[0, 1], &[]).unwrap();
        assert!(connect(node, 0, server, 80).is_some());
        for closed in [&[1][..], &[]] {
            attach_exactly(node, &only_port(80), way, &[0], closed).unwrap();
            assert!(connect(node, 0, server, 80).is_none(), "{closed:?}");
            let status = status(node).unwrap();
            assert_eq!(status.endpoints[1].state, EnforcementState::Closed);
            assert_eq!(status.drift, Vec::<String>::new());
            let check = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.check_hooks()).unwrap();
            assert_eq!(check, HookCheck::default(), "a closed interface is no deviation");
        }
        // The interface also stays closed in another generation. It is open again when it is named again.
        attach_exactly(node, &only_port(81), way, &[0], &[]).unwrap();
        assert!(connect(node, 0, server, 80).is_none());
        attach_exactly(node, &only_port(80), way, &[0, 1], &[]).unwrap();
        assert!(connect(node, 0, server, 80).is_some());
    });
}

#[test]
fn a_missing_interface_does_not_stop_the_attach_of_the_others() {
    each(|node, way| {
        serve(node, 1, 80);
        let made = only_port(80);
        let endpoints =
            vec![("default/p0".to_owned(), "gone0".to_owned()), ("default/p1".to_owned(), node.interface(1))];
        let request = Request { endpoints, way: Some(way), exact: Some(ExactPods::default()), ..request(&made) };
        let attached = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.one_by_one().attach(&request));
        assert!(matches!(&attached, Err(Error::Partial(failed)) if failed.len() == 1), "{attached:?}");
        assert_eq!(status(node).unwrap().endpoints[0].state, EnforcementState::Enforced);
        assert!(connect(node, 0, pod_address(1, false), 81).is_none(), "p1 is isolated");
    });
}
