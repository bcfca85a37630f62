//! Services that come, change and go while generations are in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_classes::index::{Dirty, Index, Key, NeedsWhole};
use weir_classes::{Exceeded, Limits, PeerId, Row};
use weir_objects::k8s::Object;
use weir_testing::yaml::objects;

use crate::objects::{namespace_with, network_policy, pod};
use crate::single::{applied, client, egress_row};
use crate::{Server, check_agrees, generation};

/// A service in the namespace `shop`; `more` are fields of its spec.
fn service(name: &str, host: usize, ports: &str, more: &str) -> Object {
    let spec = format!("{{clusterIP: 10.96.0.{host}, ports: {ports}{more}}}");
    let text = format!("{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {spec}}}");
    objects(&text).remove(0)
}

fn slice(service: &str, port: u16, addresses: &[&str]) -> Object {
    let pods = [
        ("10.0.0.1", "db-1"),
        ("10.0.0.2", "db-2"),
        ("10.0.0.3", "web"),
        ("10.0.1.3", "web-own"),
        ("10.0.1.4", "open"),
    ];
    let pods = BTreeMap::from(pods);
    let endpoint =
        |it: &&str| format!("{{addresses: [{it}], targetRef: {{kind: Pod, namespace: shop, name: {}}}}}", pods[it]);
    let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{{port: {port}}}], \
         metadata: {{name: {service}-1, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}, \
         endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

#[test]
fn the_claims_of_a_service_that_left_are_forgotten_when_another_one_comes() {
    let (mut server, mut index) = client();
    applied(&mut server, &mut index, service("api", 2, "[{port: 443}]", ""));
    // Alone in its class, and with a number in front of the other one's.
    let dirty = server.delete(&Key::of(&service("api", 2, "[]", "")), &mut index);
    assert!(matches!(dirty, Dirty::Addresses(_)), "{dirty:?}");
    let open = "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}";
    applied(&mut server, &mut index, network_policy("shop", "more", "enforce", open));
    let made = applied(&mut server, &mut index, service("web", 3, "[{port: 443}]", ""));
    assert_eq!(made.classes.vips.iter().filter(|vip| !vip.ports.is_empty()).count(), 2, "db and web");
}

/// The local pod is a backend of its service, of the same class as the pod `web`. So the classes behind the service
/// stay the same when `web` gets the labels of `db`, but the pod's own verdict does not.
#[test]
fn a_local_backend_is_judged_again_when_a_pod_behind_its_service_gets_another_class() {
    let to_db = "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], \
                 egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}";
    for labels in [["web", "db"], ["db", "web"]] {
        let (mut server, mut index) = client();
        let web = |app| pod("shop", "web", "far", app, "10.0.0.3");
        server.apply(web(labels[0]), &mut index);
        server.apply(pod("shop", "web-own", "near", "web", "10.0.1.3"), &mut index);
        server.apply(network_policy("shop", "to-db-only", "enforce", to_db), &mut index);
        server.apply(service("own", 2, "[{port: 80}]", ""), &mut index);
        server.apply(slice("own", 80, &["10.0.0.1", "10.0.0.3", "10.0.1.3"]), &mut index);
        index.compile().expect("classes");
        applied(&mut server, &mut index, web(labels[1]));
    }
}

/// An isolated pod reaches itself through its service, which gets the number that another service had.
#[test]
fn a_local_backend_reaches_its_own_service_only_after_services_get_other_numbers() {
    let (mut server, mut index) = client();
    server.apply(pod("shop", "web-own", "near", "alone", "10.0.1.3"), &mut index);
    let isolated = "{podSelector: {matchLabels: {app: alone}}, policyTypes: [Egress]}";
    server.apply(network_policy("shop", "alone", "enforce", isolated), &mut index);
    server.apply(service("c", 3, "[{port: 80}]", ""), &mut index);
    server.apply(slice("c", 80, &["10.0.1.3"]), &mut index);
    index.compile().expect("classes");
    // Names in front of it and behind it; then backends of both neighbours change.
    applied(&mut server, &mut index, service("b", 2, "[{port: 80}]", ""));
    applied(&mut server, &mut index, slice("db", 80, &["10.0.0.1", "10.0.0.3"]));
    applied(&mut server, &mut index, slice("b", 80, &["10.0.0.1"]));
    assert_ne!(server.delete(&Key::of(&service("b", 2, "[]", "")), &mut index), Dirty::Nothing);
    applied(&mut server, &mut index, service("d", 4, "[{port: 80}]", ""));
    applied(&mut server, &mut index, slice("d", 80, &["10.0.0.1", "10.0.0.3"]));
    applied(&mut server, &mut index, slice("db", 80, &["10.0.0.1"]));
}

/// Makes a generation of several changes of services, which must not be a compile from scratch.
#[track_caller]
fn made(server: &mut Server, index: &mut Index) {
    let (made, why) = generation(index, |_| ());
    assert_eq!(why, None);
    check_agrees(index, &made, server);
}

/// The service that gets the node port also gets the number of the service that had it.
#[test]
fn a_node_port_that_moves_to_another_service_leads_to_that_services_backends() {
    let (mut server, mut index) = client();
    let node_port = "[{port: 80, nodePort: 30080}]";
    server.apply(service("api", 2, node_port, ""), &mut index);
    server.apply(slice("api", 80, &["10.0.0.1"]), &mut index);
    server.apply(service("bar", 3, "[{port: 80}]", ""), &mut index);
    server.apply(slice("bar", 80, &["10.0.0.3"]), &mut index);
    index.compile().expect("classes");
    server.delete(&Key::of(&service("api", 2, "[]", "")), &mut index);
    server.apply(service("bar", 3, node_port, ""), &mut index);
    made(&mut server, &mut index);
}

/// `bar` gets the number of `api`, which is gone, and its address a place in the list of claims that `api` had.
#[test]
fn an_address_does_not_get_the_verdict_of_a_service_that_is_gone() {
    let (mut server, mut index) = client();
    let port = "[{port: 443, targetPort: 80}]";
    server.apply(service("api", 6, port, ""), &mut index);
    server.apply(slice("api", 80, &["10.0.0.1"]), &mut index);
    server.apply(service("bar", 4, port, ""), &mut index);
    server.apply(slice("bar", 80, &["10.0.0.3"]), &mut index);
    index.compile().expect("classes");
    server.delete(&Key::of(&service("api", 6, "[]", "")), &mut index);
    server.apply(service("x", 3, port, ", externalIPs: [10.96.0.4]"), &mut index);
    made(&mut server, &mut index);
}

#[test]
fn a_service_that_is_deleted_and_created_again_between_generations_is_judged_by_its_backends() {
    let (mut server, mut index) = client();
    let block = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                 egress: [{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}]}";
    server.apply(network_policy("shop", "to-block", "enforce", block), &mut index);
    let closed = service("api", 2, "[{port: 80}]", "");
    server.apply(closed.clone(), &mut index);
    server.apply(slice("api", 80, &["10.0.0.3"]), &mut index);
    index.compile().expect("classes");
    let left = server.delete(&Key::of(&closed), &mut index);
    assert!(matches!(left, Dirty::Addresses(_)), "{left:?}");
    assert_eq!(server.apply(closed, &mut index), Dirty::Everything);
    made(&mut server, &mut index);
}

/// A cluster has thousands of services, and each has an entry in each egress row.
#[test]
fn a_changed_service_replaces_no_entry_of_another_one() {
    let (mut server, mut index) = client();
    let idle = "{podSelector: {matchLabels: {app: job}}, policyTypes: [Egress]}";
    server.apply(network_policy("shop", "idle", "enforce", idle), &mut index);
    server.apply(pod("shop", "job", "near", "job", "10.0.1.3"), &mut index);
    for host in 2..9 {
        server.apply(service(&format!("s{host}"), host, "[{port: 80}]", ""), &mut index);
        server.apply(slice(&format!("s{host}"), 80, &["10.0.0.1"]), &mut index);
    }
    let first = index.compile().expect("classes");
    let without =
        |row: &Row, peer: PeerId| row.entries.iter().filter(|(it, _)| *it != peer).copied().collect::<Vec<_>>();
    let class =
        |index: &weir_classes::index::Index, host: u8| index.peer_at([10, 96, 0, host].into()).expect("it is compiled");

    // The service is in front of the others, which get other numbers.
    server.apply(slice("a", 80, &["10.0.0.2"]), &mut index);
    let second = applied(&mut server, &mut index, service("a", 9, "[{port: 80}]", ""));
    let [before, after] = [&first, &second].map(|made| egress_row(made, "client"));
    assert_eq!(without(&after, class(&index, 9)), *before.entries);
    assert_eq!(after.entries.len(), before.entries.len() + 1, "the client reaches the service");
    let [before, after] = [&first, &second].map(|made| egress_row(made, "job"));
    assert!(Arc::ptr_eq(&before.entries, &after.entries), "the job reaches nothing");

    // A backend that the client does not reach.
    let third = applied(&mut server, &mut index, slice("s5", 80, &["10.0.0.1", "10.0.0.3"]));
    let [before, after] = [&second, &third].map(|made| egress_row(made, "client"));
    assert_eq!(without(&before, class(&index, 5)), *after.entries);
    assert_eq!(after.entries.len(), before.entries.len() - 1);
    assert!(Arc::ptr_eq(&second.classes.rows.ingress[0].entries, &third.classes.rows.ingress[0].entries));

    // Its class can have other claims in the same place.
    let fourth = applied(&mut server, &mut index, service("s6", 6, "[{port: 443, targetPort: 80}]", ""));
    let [before, after] = [&third, &fourth].map(|made| egress_row(made, "client"));
    assert_ne!(before.find(class(&index, 6)), after.find(class(&index, 6)));
    assert_eq!(without(&before, class(&index, 6)), without(&after, class(&index, 6)));
}

/// Services and hostPorts can claim the same ports of the own node's address.
#[test]
fn services_change_at_an_address_with_host_ports() {
    let to_db = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: \
                 [{podSelector: {matchLabels: {app: db}}}, {ipBlock: {cidr: 172.16.0.0/24}}], ports: [{port: 80}]}]}";
    for app in ["db", "job"] {
        let (mut server, mut index) = client();
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: open, namespace: shop, labels: {{app: {app}}}}}, \
             spec: {{nodeName: near, containers: [{{name: c, ports: [{{containerPort: 80, hostPort: 9000}}, \
             {{containerPort: 80, hostPort: 9003, hostIP: 192.0.2.11}}]}}]}}, \
             status: {{phase: Running, podIP: 10.0.1.4, hostIP: 172.16.0.1}}}}"
        );
        server.apply(objects(&text).remove(0), &mut index);
        server.apply(network_policy("shop", "to-db", "enforce", to_db), &mut index);
        index.compile().expect("classes");
        let at_node = ", externalIPs: [172.16.0.1, 192.0.2.11]";
        let of_node = "[{port: 9000, targetPort: 80, nodePort: 30080}]";
        applied(&mut server, &mut index, service("outside", 2, "[{port: 9000, targetPort: 80}]", at_node));
        for addresses in [&["10.0.0.1"][..], &["10.0.0.3"], &["10.0.0.3", "10.0.0.1"], &["10.0.1.4"], &["10.0.0.2"]] {
            applied(&mut server, &mut index, slice("outside", 80, addresses));
        }
        for (ports, more) in [
            (of_node, at_node),
            ("[{port: 9003, targetPort: 80, nodePort: 30080}]", at_node),
            (of_node, ""),
            ("[{port: 9000, targetPort: 80, nodePort: 30082}]", ", externalIPs: [192.0.2.11]"),
        ] {
            applied(&mut server, &mut index, service("outside", 2, ports, more));
            applied(&mut server, &mut index, slice("outside", 80, &["10.0.0.3"]));
            applied(&mut server, &mut index, slice("outside", 80, &["10.0.0.1"]));
        }
        // Its backends and the hostPort's get other classes.
        applied(&mut server, &mut index, pod("shop", "db-1", "far", "web", "10.0.0.1"));
        applied(&mut server, &mut index, service("more", 3, of_node, ""));
    }
}

/// The labels of its namespace decide whether the client reaches the pod with the hostPort.
#[test]
fn host_ports_follow_the_labels_of_their_pods_namespace() {
    let (mut server, mut index) = client();
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: open, namespace: ops}, spec: {nodeName: near, \
                containers: [{name: c, ports: [{containerPort: 80, hostPort: 9000}]}]}, \
                status: {phase: Running, podIP: 10.0.1.4, hostIP: 172.16.0.1}}";
    let to_team = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                   egress: [{to: [{namespaceSelector: {matchLabels: {team: b}}}]}]}";
    server.apply(namespace_with("ops", "team: b"), &mut index);
    server.apply(objects(text).remove(0), &mut index);
    server.apply(network_policy("shop", "to-team", "enforce", to_team), &mut index);
    index.compile().expect("classes");
    for labels in ["team: a", "team: b", "team: a"] {
        applied(&mut server, &mut index, namespace_with("ops", labels));
    }
}

/// The backend has no address, so the labels of its namespace are all that is known of it.
#[test]
fn a_backend_without_an_address_follows_the_labels_of_its_namespace() {
    let (mut server, mut index) = client();
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: ghost, namespace: ops, labels: {app: ghost}}, \
                spec: {nodeName: far, containers: [{name: c}]}, status: {phase: Running}}\n---\n\
                {apiVersion: v1, kind: Service, metadata: {name: ghost, namespace: ops}, \
                spec: {clusterIP: 10.96.0.2, selector: {app: ghost}, ports: [{port: 80}]}}";
    let to_team = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                   egress: [{to: [{namespaceSelector: {matchLabels: {team: b}}}]}]}";
    server.apply(namespace_with("ops", "team: b"), &mut index);
    objects(text).into_iter().for_each(|object| _ = server.apply(object, &mut index));
    server.apply(network_policy("shop", "to-team", "enforce", to_team), &mut index);
    index.compile().expect("classes");
    assert_eq!(server.apply(namespace_with("ops", "team: a"), &mut index), Dirty::Everything);
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, Some(NeedsWhole::Backends));
    check_agrees(&index, &made, &server);
}

/// Each of them costs little, and a compile from scratch pays for all of them at once.
#[test]
fn services_that_come_one_after_the_other_reach_the_budget() {
    let (mut server, mut index) = client();
    let limits = Limits { bytes: 16 << 10, steps: u64::MAX };
    for host in 2..200 {
        server.apply(service(&format!("s{host}"), host, "[{port: 80}]", ""), &mut index);
        match index.begin_changes().expect("changes").classify_within(limits) {
            Ok(mut made) => _ = index.adopt(&mut made),
            Err(why) => {
                assert!(host > 10, "each service costs little");
                assert!(matches!(why, NeedsWhole::Limits(Exceeded::Services(_))), "{why:?}");
                assert!(index.begin().classify_within(limits).is_err(), "all services together are over the budget");
                return;
            }
        }
    }
    panic!("services are never over the budget");
}
