//! The own node, other nodes, and senders behind a node's address; service addresses.

use std::net::SocketAddr;

use crate::enforce::{By, ask, attach};
use crate::probe::Protocol::{Icmp, Tcp, Udp};
use crate::probe::{Try, reach};
use crate::services::{Frontend, translate};
use crate::stage::{BRIDGE, ELSEWHERE, NODES, OUTSIDE, SERVICE, Stage, by_programs, everywhere};
use crate::topology::Layout;

#[test]
fn pod_and_its_own_node_reach_each_other() {
    everywhere(|stage| {
        let bridged = stage.net.layout == Layout::Bridge;
        let own: Vec<_> = [NODES[0]].into_iter().chain(bridged.then_some(BRIDGE)).map(|it| stage.either(it)).collect();
        for pod in ["server", "sealed"] {
            let pod = stage.address(pod);
            for node in &own {
                for protocol in [Tcp, Udp, Icmp] {
                    assert!(
                        stage.reaches(*node, protocol, pod, 9, true),
                        "{}: {node} to {pod}, {protocol:?}",
                        stage.name()
                    );
                    assert!(
                        stage.reaches(pod, protocol, *node, 9, true),
                        "{}: {pod} to {node}, {protocol:?}",
                        stage.name()
                    );
                }
            }
            let other = stage.either(NODES[1]);
            assert!(!stage.reaches(other, Tcp, pod, 80, false), "{}: another node to {pod}", stage.name());
            assert!(!stage.reaches(pod, Tcp, other, 80, false), "{}: {pod} to another node", stage.name());
        }
    });
}

fn frontend(stage: &Stage, at: SocketAddr, to: &str, masquerade: bool) -> Frontend {
    Frontend { at, protocol: "tcp", backends: vec![SocketAddr::new(stage.address(to), 80)], masquerade }
}

#[test]
fn masqueraded_client_does_not_count_as_the_node() {
    everywhere(|stage| {
        let node = stage.either(NODES[0]);
        let [to_server, to_client] = [30_080, 30_081].map(|port| SocketAddr::new(node, port));
        let frontends = [frontend(stage, to_server, "server", true), frontend(stage, to_client, "client", true)];
        translate(&stage.net.nodes[0], &frontends).unwrap();
        let behind = |pod| SocketAddr::new(stage.address(pod), 80);
        for from in [stage.either(OUTSIDE), stage.either(ELSEWHERE), stage.address("stranger"), stage.either(NODES[1])]
        {
            let what = format!("{}: from {from}", stage.name());
            assert!(!stage.reaches_behind(from, Tcp, to_server, behind("server"), false), "{what}");
            // Without a policy, the same connection gets through.
            assert!(stage.reaches_behind(from, Tcp, to_client, behind("client"), true), "{what}");
        }
        // The node itself still reaches the pod.
        let from = if stage.net.layout == Layout::Bridge { BRIDGE } else { NODES[0] };
        assert!(stage.reaches(stage.either(from), Tcp, stage.address("server"), 80, true), "{}", stage.name());
    });
}

/// Node objects do not contain a bridge's address either, and kubelet's probes come from there.
#[test]
fn host_bridge_address_counts_as_the_node() {
    by_programs(&|stage: &mut Stage| {
        if stage.net.layout == Layout::Routed {
            return;
        }
        let file = stage.place.file("without.yaml");
        let lines = include_str!("../cluster.yaml").lines().filter(|line| BRIDGE.iter().all(|it| !line.contains(it)));
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        stage.enforce(&[file]);
        let (node, bridge) = (&stage.net.nodes[0], stage.either(BRIDGE));
        for pod in ["server", "sealed"] {
            for protocol in [Tcp, Udp, Icmp] {
                assert!(stage.reaches(bridge, protocol, stage.address(pod), 9, true), "{}: {protocol:?}", stage.name());
            }
        }
        // A sender that is masqueraded with this address is not the node.
        let at = SocketAddr::new(stage.either(NODES[0]), 30_080);
        translate(node, &[frontend(stage, at, "server", true)]).unwrap();
        let behind = SocketAddr::new(stage.address("server"), 80);
        assert!(!stage.reaches_behind(stage.either(OUTSIDE), Tcp, at, behind, false), "{}", stage.name());
        // An address that the node gets later counts as the node's from the next repair on, and only as long as the
        // node has it.
        let later = stage.either(["10.0.0.253", "fd00::fd"]);
        let length = if stage.v6 { 112 } else { 24 };
        let probe = |expected| {
            let to = SocketAddr::new(stage.address("server"), 9);
            let pod = stage.pod("server");
            reach(&[Try { from: &node.space, source: later, protocol: Tcp, to, served: vec![(pod, to)], expected }])
                .unwrap()[0]
        };
        node.space.ip(&format!("addr add {later}/{length} dev br0{}\n", if stage.v6 { " nodad" } else { "" })).unwrap();
        assert!(!probe(false), "{}: no object has the address yet", stage.name());
        let artifact = stage.place.file("here.o");
        attach(node, &stage.place, &artifact, &[]).unwrap();
        assert!(probe(true), "{}: repaired", stage.name());
        let status = |arguments: &[&str]| ask(node, &stage.place, arguments);
        status(&["status"]).unwrap();
        node.space.ip(&format!("addr del {later}/{length} dev br0\n")).unwrap();
        assert!(status(&["status"]).is_err(), "{}: it has it no more", stage.name());
        attach(node, &stage.place, &artifact, &[]).unwrap();
        status(&["status"]).unwrap();
    });
}

#[test]
fn service_traffic_is_judged_by_its_backends() {
    everywhere(|stage| {
        let at = SocketAddr::new(stage.either(SERVICE), 8_000);
        for node in &stage.net.nodes {
            translate(node, &[frontend(stage, at, "server", false)]).unwrap();
        }
        let behind = SocketAddr::new(stage.address("server"), 80);
        let callers = [
            ("client", true),
            ("far", true),
            ("friend", true),
            ("other", false),
            ("stranger", false),
            ("sealed", false),
        ];
        for (from, expected) in callers {
            let reached = stage.reaches_behind(stage.address(from), Tcp, at, behind, expected);
            assert_eq!(reached, expected, "{}: {from}", stage.name());
        }
        // A pod reaches itself on a path where it gets the node's address. On a bridge it cannot be distinguished from
        // other senders with that address.
        if stage.by == By::Rules || stage.net.layout == Layout::Routed {
            let server = stage.address("server");
            assert!(stage.reaches_behind(server, Tcp, at, behind, true), "{}: itself", stage.name());
        }
    });
}
