//! Nodes that come, go and change while generations are in force.

use weir_classes::index::{Dirty, Key, NeedsWhole};
use weir_objects::k8s::{Body, Object};
use weir_testing::yaml::objects;

use crate::objects::{namespace_with, network_policy, node_with, pod, to_nodes};
use crate::single::{applied, client};
use crate::{check_agrees, generation};

fn node(name: &str, labels: &str, addresses: &[usize]) -> Object {
    objects(&node_with(name, labels, addresses)).remove(0)
}

/// A pod of another node that names an address as its node's.
fn pod_on(node: &str, name: &str, address: &str, node_address: &str) -> Object {
    let mut object = pod("shop", name, node, "db", address);
    if let Body::Pod(pod) = &mut object.body {
        pod.node_addresses = [node_address.parse().expect("an address")].into();
    }
    object
}

#[test]
fn other_nodes_come_and_go_without_a_generation_if_no_rule_has_a_nodes_peer() {
    let (mut server, mut index) = client();
    let (made, _) = generation(&mut index, |_| ());
    for object in [node("third", "", &[3]), node("third", "zone: a", &[3, 4]), node("third", "", &[4])] {
        assert_eq!(server.apply(object, &mut index), Dirty::Nothing);
        check_agrees(&index, &made, &server);
    }
    assert_eq!(server.delete(&Key::of(&node("third", "", &[])), &mut index), Dirty::Nothing);
    // A node that only pods name: the answer is the pod's, and no more.
    let answer = server.apply(pod_on("ghost", "more", "10.0.0.9", "172.16.0.6"), &mut index);
    assert!(matches!(answer, Dirty::Addresses(_)), "{answer:?}");
    check_agrees(&index, &made, &server);
    let own = node("near", "", &[1, 5]);
    assert_eq!(server.apply(own, &mut index), Dirty::Everything, "the own node gets another address");
    assert_eq!(generation(&mut index, |_| ()).1, Some(NeedsWhole::Objects));
}

#[test]
fn the_cluster_ip_of_a_service_is_not_its_own_if_a_node_got_the_address_before() {
    let (mut server, mut index) = client();
    assert_eq!(server.apply(node("third", "", &[3]), &mut index), Dirty::Nothing);
    let text = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, \
                spec: {clusterIP: 172.16.0.3, ports: [{port: 80}]}}";
    let service = objects(text).remove(0);
    applied(&mut server, &mut index, service);
    let dirty = server.apply(node("third", "", &[]), &mut index);
    assert_eq!(dirty, Dirty::Everything, "a service has the address");
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, Some(NeedsWhole::Objects));
    check_agrees(&index, &made, &server);
}

#[test]
fn rules_with_nodes_peers_follow_nodes_without_a_compile_from_scratch() {
    let (mut server, mut index) = client();
    server.apply(to_nodes(), &mut index);
    index.compile().expect("classes");
    for object in [
        node("third", "", &[3]),
        node("third", "zone: a", &[3]),
        node("third", "zone: a", &[4, 3]),
        node("near", "zone: a", &[1]),
        node("near", "", &[1]),
        node("third", "zone: b", &[]),
        // On a node that no object declares, at an address of a node with a label.
        pod_on("ghost", "more", "10.0.0.9", "172.16.0.2"),
        pod_on("other-ghost", "more", "10.0.0.9", "172.16.0.7"),
    ] {
        applied(&mut server, &mut index, object);
    }
    let gone = server.delete(&Key::of(&pod_on("other-ghost", "more", "10.0.0.9", "172.16.0.7")), &mut index);
    assert_eq!(gone, Dirty::Everything, "the address is no node's any more");
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, None);
    check_agrees(&index, &made, &server);
}

/// To `nodes` peers, a pod with the address of a node is a pod.
#[test]
fn changed_ranges_need_a_compile_from_scratch_while_a_pod_has_the_address_of_a_node() {
    let block = "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}";
    for change in [node("third", "zone: a", &[3]), network_policy("shop", "more", "enforce", block)] {
        let (mut server, mut index) = client();
        server.apply(to_nodes(), &mut index);
        server.apply(node("third", "", &[3]), &mut index);
        server.apply(pod("shop", "same", "far", "other", "172.16.0.3"), &mut index);
        index.compile().expect("classes");
        assert_eq!(server.apply(change, &mut index), Dirty::Everything);
        let (made, why) = generation(&mut index, |_| ());
        assert_eq!(why, Some(NeedsWhole::Objects));
        check_agrees(&index, &made, &server);
    }
}

/// A pod that names no node is on a node that declares an address of its status: the first address, and the first node
/// by name.
#[test]
fn a_pod_that_names_no_node_needs_a_compile_from_scratch_when_its_node_changes() {
    for (other, addresses) in
        [(node("a", "", &[1]), &["172.16.0.1"][..]), (node("b", "", &[4]), &["172.16.0.4", "172.16.0.1"])]
    {
        let (mut server, mut index) = client();
        let key = Key::of(&other);
        server.apply(other, &mut index);
        let mut stray = pod("shop", "stray", "near", "db", "10.0.1.12");
        if let Body::Pod(pod) = &mut stray.body {
            pod.node = None;
            pod.node_addresses = addresses.iter().map(|it| it.parse().expect("an address")).collect();
        }
        server.apply(stray, &mut index);
        let first = index.compile().expect("classes");
        assert_eq!(first.scope.endpoints().len(), 1, "the pod is on the other node");
        assert_eq!(server.delete(&key, &mut index), Dirty::Everything);
        let (made, why) = generation(&mut index, |_| ());
        assert_eq!((made.scope.endpoints().len(), why), (2, Some(NeedsWhole::Objects)));
    }
}

#[test]
fn a_local_pod_that_names_no_node_needs_a_compile_from_scratch_when_its_namespace_has_other_labels() {
    let (mut server, mut index) = client();
    let denied = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: deny},
        spec: {priority: 5, subject: {namespaces: {matchLabels: {team: b}}},
            egress: [{action: Deny, to: [{networks: [192.0.2.0/28]}]}]}}";
    let mut stray = pod("shop", "stray", "near", "db", "10.0.1.12");
    if let Body::Pod(pod) = &mut stray.body {
        pod.node = None;
        pod.node_addresses = ["172.16.0.1".parse().expect("an address")].into();
    }
    [stray, objects(denied).remove(0)].into_iter().for_each(|object| _ = server.apply(object, &mut index));
    let first = index.compile().expect("classes");
    assert_eq!(first.scope.endpoints().len(), 2, "the pod is local");
    assert_eq!(server.apply(namespace_with("shop", "team: b"), &mut index), Dirty::Everything);
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, Some(NeedsWhole::Objects));
    check_agrees(&index, &made, &server);
}

/// The pod itself is a backend of its service, of the same class as nodes without the label. So the classes behind the
/// service stay the same when one of its nodes gets or loses the label, but the pod's own verdict does not.
#[test]
fn a_local_backend_is_judged_again_when_a_node_behind_its_service_gets_another_class() {
    let zone = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: to-zone},
        spec: {priority: 5, subject: {namespaces: {}},
            egress: [{action: Allow, to: [{nodes: {matchLabels: {zone: a}}}]}]}}";
    let service = "{apiVersion: v1, kind: Service, metadata: {name: own, namespace: shop},
        spec: {clusterIP: 10.96.0.4, ports: [{port: 80}]}}";
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{port: 80}],
        metadata: {name: own-1, namespace: shop, labels: {kubernetes.io/service-name: own}},
        endpoints: [{addresses: [10.0.1.3]}, {addresses: [172.16.0.2]}, {addresses: [172.16.0.3]}]}";
    let isolated = "{podSelector: {matchLabels: {app: alone}}, policyTypes: [Egress]}";
    let [with, without] = ["zone: a", ""].map(|labels| node("far", labels, &[2]));
    for (first, second) in [(&with, &without), (&without, &with)] {
        let (mut server, mut index) = client();
        let others = [node("third", "zone: a", &[3]), first.clone(), pod("shop", "alone", "near", "alone", "10.0.1.3")];
        let others = [zone, service, slice].into_iter().flat_map(objects).chain(others);
        others.for_each(|object| _ = server.apply(object, &mut index));
        server.apply(network_policy("shop", "alone", "enforce", isolated), &mut index);
        index.compile().expect("classes");
        applied(&mut server, &mut index, second.clone());
    }
}
