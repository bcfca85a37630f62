//! Single changes, one after the other, whose answers are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_classes::index::{Dirty, Generation, Index, Key, NeedsWhole};
use weir_classes::{Limits, Row, SubjectId};
use weir_codegen::compile::CompileOptions;
use weir_model::{Assumptions, EndpointId, IpBlockPods};
use weir_objects::k8s::{Body, Labels, Object};
use weir_testing::yaml::{NEAR_AND_FAR, objects};

use crate::objects::{fixed, network_policy, pod};
use crate::{Artifacts, Server, check_agrees, check_programs, generation};

/// A local client that may reach pods with `app: db`, and pods of another node.
const CLIENT: &str = "
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: to-db, namespace: shop},
 spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress],
 egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
";

fn slice_of(service: &str, addresses: &[&str]) -> Object {
    slice_with_port(service, addresses, 80)
}

fn slice_with_port(service: &str, addresses: &[&str], port: u16) -> Object {
    let endpoint = |it: &&str| {
        let pods = [("10.0.0.1", "db-1"), ("10.0.0.2", "db-2"), ("10.0.0.3", "web"), ("10.0.1.2", "db-own")];
        let pod = BTreeMap::from(pods)[it];
        let target = format!("{{kind: Pod, namespace: shop, name: {pod}}}");
        format!("{{addresses: [{it}], conditions: {{ready: true}}, targetRef: {target}}}")
    };
    let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: {service}-1, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}, \
         addressType: IPv4, ports: [{{port: {port}}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

/// A cluster with a local client, and backends of a service on another node.
pub(crate) fn client() -> (Server, Index) {
    let mut all = objects(&[NEAR_AND_FAR, CLIENT].join("---"));
    all.push(pod("shop", "client", "near", "client", "10.0.1.1"));
    all.push(pod("shop", "db-1", "far", "db", "10.0.0.1"));
    all.push(pod("shop", "db-2", "far", "db", "10.0.0.2"));
    all.push(pod("shop", "web", "far", "web", "10.0.0.3"));
    all.push(slice_of("db", &["10.0.0.1"]));
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let server = Server::new(all, &mut index);
    index.compile().expect("classes");
    (server, index)
}

/// Applies a change that needs a generation, which must not be a compile from scratch.
#[track_caller]
pub(crate) fn applied(server: &mut Server, index: &mut Index, object: Object) -> Generation {
    assert_eq!(server.apply(object, index), Dirty::Everything);
    let (made, why) = generation(index, |_| ());
    assert_eq!(why, None);
    check_agrees(index, &made, server);
    let mut artifacts = Artifacts::new(CompileOptions::default());
    check_programs(&artifacts.make(&made), server);
    made
}

#[test]
fn a_backend_that_came_without_a_generation_is_judged_when_its_pod_changes() {
    let (mut server, mut index) = client();
    let moved = slice_of("db", &["10.0.0.2"]);
    assert_eq!(server.apply(moved, &mut index), Dirty::Nothing, "a backend of the same class");
    let policy = network_policy("shop", "more", "enforce", "{podSelector: {}, policyTypes: [Ingress]}");
    applied(&mut server, &mut index, policy);
    // Its class is known. Only the service's address has another verdict now.
    applied(&mut server, &mut index, pod("shop", "db-2", "far", "web", "10.0.0.2"));
    applied(&mut server, &mut index, pod("shop", "db-2", "far", "db", "10.0.0.2"));
}

#[test]
fn a_rule_can_name_a_port_that_backends_have_had_since_an_earlier_generation() {
    let (mut server, mut index) = client();
    applied(&mut server, &mut index, slice_with_port("db", &["10.0.0.1"], 9_100));
    let spec = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 9100}]}]}";
    applied(&mut server, &mut index, network_policy("shop", "to-db", "enforce", spec));
}

/// An author of policies can edit the peer of a rule without end.
#[test]
fn peers_that_edits_leave_behind_are_limited() {
    let (mut server, mut index) = client();
    let mut edit = |number: u32| {
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], \
             egress: [{{to: [{{podSelector: {{matchLabels: {{app: peer-{number}}}}}}}]}}]}}"
        );
        server.apply(network_policy("shop", "to-db", "enforce", &spec), &mut index);
        generation(&mut index, |_| ()).1
    };
    let whole: Vec<(u32, NeedsWhole)> = (0..100).filter_map(|number| Some((number, edit(number)?))).collect();
    assert_eq!(whole, [(64, NeedsWhole::Unused)], "64 unused peers are kept, and the next edit removes them");
}

fn cluster_policy(subject: &str, peer: &str, port: u16) -> Object {
    let ports = format!("[{{portNumber: {{protocol: TCP, port: {port}}}}}]");
    let rule = format!("{{action: Deny, from: [{{namespaces: {{matchLabels: {{app: {peer}}}}}}}], ports: {ports}}}");
    let spec = format!("{{priority: 5, subject: {{namespaces: {subject}}}, ingress: [{rule}]}}");
    let meta = "{name: tenants}";
    let text = format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {meta}, spec: {spec}}}"
    );
    objects(&text).remove(0)
}

#[test]
fn peers_and_ports_that_edits_of_cluster_wide_policies_leave_behind_are_limited() {
    let (mut server, mut index) = client();
    let mut edit = |number: u16| {
        server.apply(cluster_policy("{}", &format!("peer-{number}"), 1_000 + number), &mut index);
        let (made, why) = generation(&mut index, |_| ());
        let intervals = made.classes.atoms.count();
        (why, intervals)
    };
    let edits: Vec<_> = (0..100).map(&mut edit).collect();
    let whole: Vec<usize> = (0..100).filter(|number| edits[*number].0.is_some()).collect();
    assert_eq!(whole, [65], "64 unused peers are kept, and the next edit removes them");
    assert_eq!(edits[63].1, edits[0].1, "the ports of earlier rules are not kept");
}

#[test]
fn a_cluster_wide_policy_begins_to_apply_with_the_first_pod_and_ceases_with_the_last() {
    let (mut server, mut index) = client();
    let subject = "{matchLabels: {kubernetes.io/metadata.name: ops}}";
    assert_eq!(server.apply(cluster_policy(subject, "db", 443), &mut index), Dirty::Nothing);
    let first = pod("ops", "first", "near", "web", "10.0.1.7");
    let made = applied(&mut server, &mut index, first.clone());
    assert_eq!(made.classes.tiers().len(), 1);
    let dirty = server.delete(&Key::of(&first), &mut index);
    assert_ne!(dirty, Dirty::Nothing);
    // A change that needs a generation, so that there is one without the pod.
    let made = applied(&mut server, &mut index, cluster_policy("{}", "other", 443));
    assert_eq!(made.classes.tiers().len(), 1);
    let made = applied(&mut server, &mut index, cluster_policy(subject, "other", 443));
    assert_eq!(made.classes.tiers().len(), 0);
}

/// A pod always reaches itself. Through its service, it may reach other backends instead.
#[test]
fn a_local_backend_is_judged_by_backends_of_its_class_that_come_and_go() {
    let (mut server, mut index) = client();
    server.apply(pod("shop", "db-own", "near", "db", "10.0.1.2"), &mut index);
    let spec = "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]}";
    server.apply(network_policy("shop", "closed", "enforce", spec), &mut index);
    index.compile().expect("classes");
    let (own, other) = ("10.0.1.2", "10.0.0.1");
    for backends in [&[own][..], &[own, other], &[own], &[other], &[own, other], &[other]] {
        applied(&mut server, &mut index, slice_of("db", backends));
    }
}

/// A slice of another service gets the address, which needs a generation, and loses it again before there is one.
#[test]
fn an_address_stays_a_backend_of_one_service_when_another_one_loses_it_before_a_generation() {
    let (mut server, mut index) = client();
    let other = "{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop}, \
         spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}";
    server.apply(objects(other).remove(0), &mut index);
    let (kept, moved) = ("10.0.0.1", "10.0.0.2");
    server.apply(slice_of("db", &[kept, moved]), &mut index);
    server.apply(slice_of("other", &[kept]), &mut index);
    let web = network_policy(
        "shop",
        "web",
        "enforce",
        "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}",
    );
    server.apply(web, &mut index);
    index.compile().expect("classes");
    // No pod is named for the address, so a generation must find out.
    let unnamed = |mut slice: Object| {
        let Body::EndpointSlice(body) = &mut slice.body else { unreachable!("it is a slice") };
        body.endpoints.iter_mut().for_each(|it| it.pod = None);
        slice
    };
    assert_eq!(server.apply(unnamed(slice_of("other", &[kept, moved])), &mut index), Dirty::Everything);
    assert_eq!(server.apply(slice_of("other", &[kept]), &mut index), Dirty::Nothing);
    applied(&mut server, &mut index, pod("shop", "db-2", "far", "web", moved));
}

/// Pods that are backends themselves are common, and rows are most of the cost of a generation.
#[test]
fn rows_of_a_local_backend_stay_when_another_backend_of_a_known_class_has_come() {
    let (mut server, mut index) = client();
    server.apply(pod("shop", "db-own", "near", "db", "10.0.1.2"), &mut index);
    let spec = "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}";
    server.apply(network_policy("shop", "pods", "enforce", spec), &mut index);
    let (own, other, same) = ("10.0.1.2", "10.0.0.1", "10.0.0.2");
    server.apply(slice_of("db", &[own, other]), &mut index);
    let before = index.compile().expect("classes");
    assert_eq!(server.apply(slice_of("db", &[own, other, same]), &mut index), Dirty::Nothing);
    let spec = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress]}";
    let after = applied(&mut server, &mut index, network_policy("shop", "client", "enforce", spec));
    let row = |made: &Generation| {
        let endpoint = |(id, _): &&(EndpointId, SubjectId)| made.cluster.endpoints[id.index()].name == "db-own";
        let (_, subject) = made.classes.subject_of.iter().find(endpoint).expect("it is local");
        Arc::clone(&made.classes.rows.egress[subject.index()].entries)
    };
    assert!(Arc::ptr_eq(&row(&before), &row(&after)));
}

/// A limit on the backends that have moved must not count those that stay.
#[test]
fn changes_of_a_service_with_a_thousand_backends_need_no_compile_from_scratch() {
    let (mut server, mut index) = client();
    let addresses: Vec<String> =
        (0..1_000).map(|number| format!("10.1.{}.{}", number / 250, number % 250 + 1)).collect();
    for (number, address) in addresses.iter().enumerate() {
        server.apply(pod("shop", &format!("many-{number}"), "far", "db", address), &mut index);
    }
    let endpoints = addresses.iter().enumerate().map(|(number, address)| {
        let target = format!("{{kind: Pod, namespace: shop, name: many-{number}}}");
        format!("{{addresses: [{address}], conditions: {{ready: true}}, targetRef: {target}}}")
    });
    let endpoints: Vec<String> = endpoints.collect();
    let many = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: db-2, namespace: shop, labels: {{kubernetes.io/service-name: db}}}}, \
         addressType: IPv4, ports: [{{port: 80}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    server.apply(objects(&many).remove(0), &mut index);
    server.apply(pod("shop", "db-own", "near", "db", "10.0.1.2"), &mut index);
    let spec = "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]}";
    server.apply(network_policy("shop", "closed", "enforce", spec), &mut index);
    generation(&mut index, |_| ());
    for turn in 1..=40 {
        // A local backend comes and goes.
        let own = ["10.0.0.1", "10.0.1.2"].get(..=turn % 2).expect("one or two");
        assert_eq!(server.apply(slice_of("db", own), &mut index), Dirty::Everything, "{turn}");
        assert_eq!(generation(&mut index, |_| ()).1, None, "{turn}");
    }
}

/// There are a thousand addresses of pods, and few or many of a list. So they are in several pieces, and some pieces
/// change.
#[test]
fn tables_of_many_addresses_are_those_of_a_compile_from_scratch() {
    for is_v6 in [false, true] {
        let address = |number: usize, offset: usize| match is_v6 {
            true => format!("2001:db8::{:x}", number * 2 + offset),
            false => format!("10.1.{}.{}", number / 100, number % 100 * 2 + offset),
        };
        let (mut server, mut index) = client();
        let many = |number: usize, app: &str| pod("shop", &format!("many-{number}"), "far", app, &address(number, 1));
        for number in 0..1_000 {
            server.apply(many(number, "db"), &mut index);
        }
        // Without a local pod of the family, there are no tables of it.
        let local = pod("shop", "client-2", "near", "client", if is_v6 { "2001:db8:1::1" } else { "10.0.1.2" });
        let listed = |count: usize, ranges: usize| {
            let singles = (0..count).map(|it| format!("{}/{}", address(it * 3, 2), if is_v6 { 128 } else { 32 }));
            let ranges = (0..ranges).map(|it| match is_v6 {
                true => format!("2001:db8:2:{it:x}::/80"),
                false => format!("192.0.{it}.0/25"),
            });
            let of_both = ["198.51.100.0/24", "2001:db8:9::/64"].map(str::to_owned);
            list(&singles.chain(ranges).chain(of_both).map(|it| format!("'{it}'")).collect::<Vec<_>>().join(", "))
        };
        server.apply(listed(300, 40), &mut index);
        generation(&mut index, |_| ());
        let mut artifacts = Artifacts::new(CompileOptions::for_changes(CompileOptions::default().target));
        let mut incremental = 0;
        for turn in 0..30_usize {
            // In all parts of the tables, also at their ends.
            for number in [0_usize, turn * 31, 500 + turn % 7, 999 - turn % 2] {
                if (turn + number).is_multiple_of(3) {
                    server.delete(&Key::of(&many(number, "db")), &mut index);
                } else {
                    server.apply(many(number, ["db", "web"][turn % 2]), &mut index);
                }
            }
            // With many listed addresses, pods' addresses are in a table of their own.
            match turn {
                2 => _ = server.apply(local.clone(), &mut index),
                5 => _ = server.delete(&Key::of(&local), &mut index),
                7 => _ = server.apply(local.clone(), &mut index),
                10 => _ = server.delete(&Key::of(&listed(1, 0)), &mut index),
                11..20 | 21..25 => {}
                20 => _ = server.apply(listed(256, 41), &mut index),
                // They are one too few when a pod has the address of one.
                25.. => _ = server.apply(pod("shop", "listed", "far", "db", &address(3, 2)), &mut index),
                _ => _ = server.apply(listed([300, 301][turn / 2 % 2], [40, 41][turn / 3 % 2]), &mut index),
            }
            let spec =
                format!("{{podSelector: {{}}, policyTypes: [Egress], egress: [{{ports: [{{port: {}}}]}}]}}", turn + 1);
            server.apply(network_policy("shop", "more", "enforce", &spec), &mut index);
            let (made, why) = generation(&mut index, |_| ());
            incremental += usize::from(why.is_none());
            check_programs(&artifacts.make(&made), &server);
        }
        assert!(incremental > 20, "{incremental} generations were made from changes");
    }
}

#[test]
fn a_slice_that_precedes_its_service_counts_when_the_service_comes() {
    let (mut server, mut index) = client();
    assert_eq!(server.apply(slice_of("api", &["10.0.0.3"]), &mut index), Dirty::Nothing);
    let text = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, \
                spec: {clusterIP: 10.96.0.2, externalIPs: [192.0.2.11], ports: [{port: 80}]}}";
    applied(&mut server, &mut index, objects(text).remove(0));
    // The pod would have the address of a service.
    assert_eq!(server.apply(pod("shop", "new", "far", "db", "192.0.2.11"), &mut index), Dirty::Everything);
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, Some(NeedsWhole::Objects));
    check_agrees(&index, &made, &server);
}

#[test]
fn a_service_without_slices_follows_the_labels_of_its_pods() {
    let (mut server, mut index) = client();
    let text = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, \
                spec: {clusterIP: 10.96.0.2, selector: {app: db}, ports: [{port: 80}]}}";
    applied(&mut server, &mut index, objects(text).remove(0));
    applied(&mut server, &mut index, pod("shop", "web", "far", "db", "10.0.0.3"));
    applied(&mut server, &mut index, pod("shop", "web", "far", "web", "10.0.0.3"));
    applied(&mut server, &mut index, slice_of("api", &["10.0.0.3"]));
}

#[test]
fn new_named_ports_and_blocks_are_applied() {
    let blocks = ["192.0.2.0/24", "10.0.0.0/31", "10.96.0.1/32", "0.0.0.0/0", "'::/0'"];
    let blocks = blocks.map(|cidr| format!("{{to: [{{ipBlock: {{cidr: {cidr}}}}}]}}"));
    // No pod has the last one.
    let names = ["http", "metrics", "htpp"].map(|name| format!("{{ports: [{{port: {name}}}]}}"));
    for rule in blocks.into_iter().chain(names) {
        let (mut server, mut index) = client();
        for direction in ["Ingress", "Egress"] {
            let (field, rule) = (direction.to_lowercase(), rule.clone());
            let rule = if direction == "Ingress" { rule.replace("{to:", "{from:") } else { rule };
            let spec = format!("{{podSelector: {{}}, policyTypes: [{direction}], {field}: [{rule}]}}");
            applied(&mut server, &mut index, network_policy("shop", "more", "enforce", &spec));
        }
        // The block or name stays known, and no rule has it.
        let spec = "{podSelector: {}, policyTypes: [Egress]}";
        applied(&mut server, &mut index, network_policy("shop", "more", "enforce", spec));
    }
}

fn list(entries: &str) -> Object {
    list_with("denied", &format!("action: Deny, directions: [Ingress], cidrs: [{entries}]"))
}

fn list_with(name: &str, spec: &str) -> Object {
    let text =
        format!("{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: {name}}}, spec: {{{spec}}}}}");
    objects(&text).remove(0)
}

/// Applies a deletion that needs a generation, which must not be a compile from scratch.
#[track_caller]
fn deleted(server: &mut Server, index: &mut Index, object: &Object) -> Generation {
    assert_eq!(server.delete(&Key::of(object), index), Dirty::Everything);
    let (made, why) = generation(index, |_| ());
    assert_eq!(why, None);
    check_agrees(index, &made, server);
    made
}

#[test]
fn lists_come_change_and_go_without_a_compile_from_scratch() {
    let (mut server, mut index) = client();
    let of = |name, action, order, cidrs: &str| {
        list_with(name, &format!("action: {action}, order: {order}, directions: [Ingress], cidrs: [{cidrs}]"))
    };
    // The first one: the programs have no test for lists before.
    applied(&mut server, &mut index, of("b", "Deny", 5, "10.0.0.0/30, 192.0.2.0/28"));
    // It decides first, and gives the other one another number.
    let first = of("a", "Allow", 1, "192.0.2.4/30");
    applied(&mut server, &mut index, first.clone());
    applied(&mut server, &mut index, of("a", "Allow", 9, "192.0.2.4/30"));
    applied(&mut server, &mut index, of("a", "Deny", 1, "10.0.0.8/30, 192.0.2.16/30"));
    let made = deleted(&mut server, &mut index, &first);
    assert!(made.classes.rows.denied_by_lists.is_some());
    let made = deleted(&mut server, &mut index, &of("b", "Deny", 5, ""));
    assert_eq!(made.classes.rows.denied_by_lists, None, "no program needs the test any more");
    applied(&mut server, &mut index, first);
}

#[test]
fn lists_that_come_and_go_leave_no_predicates_behind() {
    let (mut server, mut index) = client();
    let mut predicates = Vec::new();
    for number in 0..100 {
        let object = list_with(&format!("list-{number}"), "action: Deny, directions: [Ingress], cidrs: [192.0.2.0/30]");
        let made = applied(&mut server, &mut index, object.clone());
        predicates.push(made.classes.predicates().len());
        let made = deleted(&mut server, &mut index, &object);
        let is_same = number > 0 || check_agrees(&index, &made, &server);
        assert!(is_same, "the addresses of the list are like any others again");
    }
    assert_eq!(predicates, [predicates[0]; 100]);
}

/// The differences from the generation take memory, and programs find listed addresses faster in its tables.
#[test]
fn a_list_that_changes_in_many_steps_gets_a_generation() {
    let (mut server, mut index) = client();
    let of = |count: usize| {
        let blocks = (0..count).map(|it| format!("198.{}.{}.0/18", 18 + it / 4, it % 4 * 64));
        list(&blocks.collect::<Vec<_>>().join(", "))
    };
    server.apply(of(1), &mut index);
    index.compile().expect("classes");
    for count in 2..=5 {
        assert!(matches!(server.apply(of(count), &mut index), Dirty::Addresses(_)), "{count}");
    }
    applied(&mut server, &mut index, of(6));
    assert!(matches!(server.apply(of(7), &mut index), Dirty::Addresses(_)), "the generation has the others");
}

#[test]
fn a_list_begins_to_apply_with_the_first_pod_and_ceases_with_the_last() {
    let (mut server, mut index) = client();
    let of = |applies_to: &str, cidrs: &str| {
        list_with("l", &format!("action: Deny, directions: [Ingress], appliesTo: {applies_to}, cidrs: [{cidrs}]"))
    };
    let ops = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ops}}}";
    // It applies to no local pod, so that nothing has to be made for it.
    for cidrs in ["10.0.0.1/32", "10.0.0.0/30"] {
        assert_eq!(server.apply(of(ops, cidrs), &mut index), Dirty::Nothing);
    }
    let first = pod("ops", "first", "near", "web", "10.0.1.7");
    let made = applied(&mut server, &mut index, first.clone());
    assert_eq!(made.classes.lists().len(), 1);
    server.delete(&Key::of(&first), &mut index);
    // A change that needs a generation, so that there is one without the pod.
    let policy = network_policy("shop", "more", "enforce", "{podSelector: {}, policyTypes: [Ingress]}");
    let made = applied(&mut server, &mut index, policy);
    assert_eq!(made.classes.lists().len(), 0);
    assert_eq!(server.apply(of(ops, "10.0.0.0/29"), &mut index), Dirty::Nothing);
    let made = applied(&mut server, &mut index, of("{}", "10.0.0.0/29"));
    assert_eq!(made.classes.lists().len(), 1);
    let made = applied(&mut server, &mut index, of(ops, "10.0.0.0/29"));
    assert_eq!(made.classes.lists().len(), 0);
    assert!(check_agrees(&index, &made, &server), "the addresses of the list are like any others again");
    // The list has not changed since the generation.
    let made = applied(&mut server, &mut index, first);
    assert_eq!(made.classes.lists().len(), 1);
}

/// The generation in force would allow the new address.
#[test]
fn an_address_gets_no_action_that_its_list_had_before() {
    let (mut server, mut index) = client();
    let of =
        |action, cidrs: &str| list_with("l", &format!("action: {action}, directions: [Ingress], cidrs: [{cidrs}]"));
    server.apply(list("192.0.2.0/28"), &mut index);
    server.apply(of("Allow", "192.0.2.1/32, 192.0.2.20/32"), &mut index);
    index.compile().expect("classes");
    assert!(matches!(server.apply(of("Allow", "192.0.2.1/32"), &mut index), Dirty::Addresses(_)));
    assert_eq!(server.apply(of("Deny", "192.0.2.1/32"), &mut index), Dirty::Everything);
    assert_eq!(server.apply(of("Deny", "192.0.2.1/32, 192.0.2.20/32"), &mut index), Dirty::Everything);
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, None);
    check_agrees(&index, &made, &server);
    assert!(matches!(server.apply(of("Deny", "192.0.2.1/32"), &mut index), Dirty::Addresses(_)));
    check_agrees(&index, &made, &server);
    server.apply(of("Allow", "192.0.2.1/32"), &mut index);
    generation(&mut index, |_| ());
    // From here on, the next generation is a compile from scratch, and only lists are still collected one by one.
    let status = "{addresses: [{type: InternalIP, address: 172.16.0.9}]}";
    let node =
        objects(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: near}}, status: {status}}}")).remove(0);
    assert_eq!(server.apply(node, &mut index), Dirty::Everything);
    let more = server.apply(list("192.0.2.0/28, 192.0.2.30/32"), &mut index);
    assert!(matches!(more, Dirty::Addresses(_)), "a list of which nothing else has changed does not wait: {more:?}");
    assert_eq!(server.apply(of("Deny", "192.0.2.1/32"), &mut index), Dirty::Everything);
    assert_eq!(server.apply(of("Deny", "192.0.2.1/32, 192.0.2.20/32"), &mut index), Dirty::Everything);
}

/// The labels of a namespace can change back before the next generation, or to others that the list selects too.
#[test]
fn entries_count_that_a_list_gets_while_its_namespace_has_other_labels() {
    let labelled = |value: &str| {
        objects(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{a: '{value}'}}}}}}"))
            .remove(0)
    };
    let of = |cidrs: &str| {
        let requirement = "{key: a, operator: In, values: ['1', '4']}";
        let applies_to = format!("{{namespaceSelector: {{matchExpressions: [{requirement}]}}}}");
        list_with("l", &format!("action: Deny, directions: [Ingress], appliesTo: {applies_to}, cidrs: [{cidrs}]"))
    };
    for last in ["1", "4"] {
        let (mut server, mut index) = client();
        server.apply(labelled("1"), &mut index);
        server.apply(of("192.0.2.1/32"), &mut index);
        index.compile().expect("classes");
        assert_eq!(server.apply(labelled("2"), &mut index), Dirty::Everything);
        assert_eq!(server.apply(labelled("3"), &mut index), Dirty::Nothing);
        server.apply(of("192.0.2.1/32, 192.0.2.20/32"), &mut index);
        assert_eq!(server.apply(labelled(last), &mut index), Dirty::Everything);
        let (made, why) = generation(&mut index, |_| ());
        assert_eq!(why, None);
        check_agrees(&index, &made, &server);
    }
}

/// Both lists deny the address at all times.
#[test]
fn an_address_leaves_a_list_only_when_the_other_list_that_gets_it_is_in_force() {
    let (mut server, mut index) = client();
    server.apply(list("192.0.2.1/32, 192.0.2.20/32"), &mut index);
    index.compile().expect("classes");
    let other = list_with("other", "action: Deny, directions: [Ingress], cidrs: [192.0.2.20/32]");
    assert_eq!(server.apply(other, &mut index), Dirty::Everything);
    assert_eq!(server.apply(list("192.0.2.1/32"), &mut index), Dirty::Everything);
    // What denies more does not wait.
    assert!(matches!(server.apply(list("192.0.2.1/32, 192.0.2.30/32"), &mut index), Dirty::Addresses(_)));
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, None);
    check_agrees(&index, &made, &server);
}

/// While the generation with the service is made, the one in force does not know that the address is a service's.
#[test]
fn a_list_loses_the_address_of_a_service_while_the_service_comes() {
    let (mut server, mut index) = client();
    let list = |cidrs: &str| list_with("denied", &format!("action: Allow, directions: [Ingress], cidrs: [{cidrs}]"));
    server.apply(list("192.0.2.4/31, 192.0.2.8/32"), &mut index);
    index.compile().expect("classes");
    let text = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, \
                spec: {clusterIP: 10.96.0.2, externalIPs: [192.0.2.5], ports: [{port: 80}]}}";
    server.apply(objects(text).remove(0), &mut index);
    let late = |index: &mut Index| {
        let dirty = server.apply(list("192.0.2.8/32"), index);
        assert!(matches!(dirty, Dirty::Addresses(_)), "{dirty:?}");
    };
    assert_eq!(generation(&mut index, late).1, None);
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, None);
    check_agrees(&index, &made, &server);
}

#[test]
fn a_new_block_counts_for_an_address_that_a_list_has_got_without_a_generation() {
    let (mut server, mut index) = client();
    server.apply(list("192.0.2.1/32"), &mut index);
    index.compile().expect("classes");
    let dirty = server.apply(list("192.0.2.1/32, 192.0.2.10/32"), &mut index);
    assert!(matches!(dirty, Dirty::Addresses(_)), "{dirty:?}");
    let spec = "{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/28}}]}]}";
    let made = applied(&mut server, &mut index, network_policy("shop", "more", "enforce", spec));
    let dirty = server.apply(pod("shop", "new", "far", "other", "192.0.2.10"), &mut index);
    assert_eq!(dirty, Dirty::Nothing, "the pod is like any address in the list and the block");
    check_agrees(&index, &made, &server);
    // Another address of the list leaves it.
    let dirty = server.apply(list("192.0.2.1/32"), &mut index);
    assert_eq!(dirty, Dirty::Everything, "a pod has the address");
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, None);
    check_agrees(&index, &made, &server);
}

/// The class of an address does not say whether a pod has it.
#[test]
fn changed_ranges_need_a_compile_from_scratch_if_blocks_match_no_pods() {
    let assume = Assumptions { ipblock_pods: IpBlockPods::Ignore, ..Assumptions::default() };
    let mut index = Index::new(Some("near".to_owned()), assume);
    let mut all = fixed();
    all.push(network_policy("shop", "to-db", "enforce", "{podSelector: {}, policyTypes: [Egress]}"));
    all.into_iter().for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    let spec = "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/24}}]}]}";
    for change in [network_policy("shop", "to-db", "enforce", spec), list("10.0.0.0/8")] {
        assert_eq!(index.apply(change), Dirty::Everything);
        assert_eq!(generation(&mut index, |_| ()).1, Some(NeedsWhole::Peers));
    }
}

#[test]
fn changes_of_rows_in_part_stop_at_every_limit() {
    let to_web = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                  egress: [{to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 443}]}]}";
    let service = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, \
                   spec: {clusterIP: 10.96.0.2, ports: [{port: 443}]}}";
    let changes = [
        vec![network_policy("shop", "to-web", "enforce", to_web)],
        vec![slice_of("db", &["10.0.0.1", "10.0.0.3"]), objects(service).remove(0)],
    ];
    for changes in changes {
        let made = |limits| {
            let (mut server, mut index) = client();
            let open = "{podSelector: {matchLabels: {app: job}}, policyTypes: [Ingress, Egress], \
                        ingress: [{ports: [{port: 443}]}], egress: [{to: [{podSelector: {}}]}]}";
            server.apply(network_policy("shop", "of-job", "enforce", open), &mut index);
            server.apply(pod("shop", "job", "near", "job", "10.0.1.3"), &mut index);
            index.compile().expect("classes");
            changes.iter().for_each(|object| _ = server.apply(object.clone(), &mut index));
            let made = index.begin_changes().expect("changes").classify_within(limits);
            made.map(|mut made| {
                index.adopt(&mut made);
                check_agrees(&index, &made, &server);
                made.classes.spent
            })
        };
        let needed = made(Limits::NONE).expect("there is no limit");
        let (mut stopped, mut done) = (0, 0);
        for part in 0..=64 {
            for limits in [
                Limits { bytes: needed.bytes * part / 64, steps: u64::MAX },
                Limits { bytes: u64::MAX, steps: needed.steps * part / 64 },
            ] {
                match made(limits) {
                    Ok(spent) => done += usize::from(limits.allow(spent)),
                    Err(why) => stopped += usize::from(matches!(why, NeedsWhole::Limits(_))),
                }
            }
        }
        assert!(done >= 2 && stopped + done == 130, "{stopped} and {done}");
    }
}

/// The row of a local pod, by its name.
pub(crate) fn egress_row(made: &Generation, pod: &str) -> Row {
    let is_it = |id: EndpointId| made.cluster.endpoints[id.index()].name == pod;
    let (_, SubjectId(subject)) = made.classes.subject_of.iter().find(|(id, _)| is_it(*id)).expect("it is local");
    made.classes.rows.egress[*subject as usize].clone()
}

#[test]
fn new_peer_classes_leave_the_entries_of_other_rows_as_they_are() {
    let (mut server, mut index) = client();
    let spec = "{podSelector: {matchLabels: {app: job}}, policyTypes: [Egress], \
                egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}";
    server.apply(network_policy("shop", "of-job", "enforce", spec), &mut index);
    server.apply(pod("shop", "job", "near", "job", "10.0.1.3"), &mut index);
    index.compile().expect("classes");
    let to_web = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                  egress: [{to: [{podSelector: {matchLabels: {app: web}}}]}]}";
    let first = applied(&mut server, &mut index, network_policy("shop", "to-web", "enforce", to_web));
    let to_job = to_web.replace("app: web", "app: job");
    let second = applied(&mut server, &mut index, network_policy("shop", "to-job", "enforce", &to_job));
    let [before, after] = [&first, &second].map(|made| egress_row(made, "job"));
    assert!(second.classes.peers.len() > first.classes.peers.len(), "the job is a peer now");
    assert!(Arc::ptr_eq(&before.entries, &after.entries), "no rule of the job is for the new class");
    // A pod unlike all others, which the rule of the job matches.
    let mut unlike = pod("shop", "db-3", "far", "db", "10.0.0.4");
    unlike.meta.labels = Arc::new(Labels::from([("app", "db"), ("tier", "new")]));
    let to_tier = to_web.replace("app: web", "tier: new");
    applied(&mut server, &mut index, network_policy("shop", "to-tier", "enforce", &to_tier));
    let third = applied(&mut server, &mut index, unlike);
    let extended = egress_row(&third, "job");
    assert_eq!(extended.entries.len(), after.entries.len() + 1);
    assert!(extended.entries.starts_with(&after.entries));
}

#[test]
fn a_policy_that_comes_or_goes_leaves_most_descriptions_of_the_others() {
    let (mut server, mut index) = client();
    let numbered = |number: u32| {
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], \
             egress: [{{ports: [{{port: {}}}]}}]}}",
            1_000 + number % 8
        );
        network_policy("shop", &format!("p{number:03}"), "enforce", &spec)
    };
    (0..80).filter(|number| number % 2 == 0).for_each(|number| _ = server.apply(numbered(number), &mut index));
    index.compile().expect("classes");
    let mut artifacts = Artifacts::new(CompileOptions::default());
    server.apply(numbered(1), &mut index);
    artifacts.make(&generation(&mut index, |_| ()).0);
    // Each change describes one group again, or two if a group has become small. The artifacts are compared with others
    // that are made alone.
    for round in 0..40 {
        let changed = numbered([3, 41, 79, 1, 5, 7][round % 6]);
        match server.live.contains_key(&Key::of(&changed)) {
            true => server.delete(&Key::of(&changed), &mut index),
            false => server.apply(changed, &mut index),
        };
        let (made, why) = generation(&mut index, |_| ());
        assert_eq!(why, None);
        let before = artifacts.taken;
        artifacts.make(&made);
        let (taken, all) = (artifacts.taken - before, made.classes.policies().len());
        assert!(taken + 36 >= all && taken < all, "round {round}: {taken} of {all}");
    }
}
