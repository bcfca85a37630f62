//! A pod always reaches its own node, also if the flow names another endpoint on the node's network.

use std::net::{IpAddr, Ipv4Addr};

use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Oracle};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Protocol};
use weir_objects::k8s::{Body, Meta, NetworkPolicy, Node, Object, Phase, Pod, PolicyType};
use weir_objects::origin::ObjectId;

const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 16, 0, 1));
const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// An isolated pod `pod` on `node`, and `other` at the node's address.
#[track_caller]
fn check(other: Pod) {
    let pod = Pod { node: Some("node".into()), addresses: vec![POD], ..Pod::default() };
    let policy = NetworkPolicy { policy_types: vec![PolicyType::Ingress], ..NetworkPolicy::default() };
    let bodies = [
        ("node", Body::Node(Node { addresses: vec![NODE] })),
        ("pod", Body::Pod(pod)),
        ("other", Body::Pod(other)),
        ("policy", Body::NetworkPolicy(policy)),
    ];
    let objects = bodies.into_iter().enumerate().map(|(index, (name, body))| Object {
        id: ObjectId(index as u32),
        meta: Meta { name: name.to_owned(), namespace: "default".into(), ..Meta::default() },
        body,
    });
    let cluster = resolve(&objects.collect::<Vec<_>>(), Assumptions::default()).0;
    let mut oracle = Oracle::new(&cluster);
    let endpoint = oracle.directory().endpoints_named("default", "other").first().copied();
    assert!(endpoint.is_some());
    for source in [endpoint, None] {
        let flow = Flow {
            source: FlowEnd { endpoint: source, address: Some(NODE) },
            destination: FlowEnd { endpoint: oracle.directory().endpoint_at(POD), address: Some(POD) },
            protocol: FlowProtocol::Transport(Protocol::Tcp),
            port: 80,
        };
        assert_eq!(oracle.judge(&flow).ingress.basis, Basis::OwnNode, "named: {}", source.is_some());
    }
}

#[test]
fn a_host_network_pod_is_its_node() {
    check(Pod { node: Some("node".into()), host_network: true, addresses: vec![NODE], ..Pod::default() });
}

#[test]
fn a_host_network_pod_that_names_no_node_has_the_nodes_address_all_the_same() {
    check(Pod { host_network: true, addresses: vec![NODE], node_addresses: [NODE].into(), ..Pod::default() });
}

#[test]
fn a_finished_host_network_pod_leaves_the_address_to_the_node() {
    check(Pod {
        node: Some("node".into()),
        host_network: true,
        phase: Some(Phase::Succeeded),
        addresses: vec![NODE],
        ..Pod::default()
    });
}
