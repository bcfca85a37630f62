//! Series of changes of which many need no generation: namespaces, pods of other nodes, services, slices, lists and
//! nodes. Many of them go back to an earlier state. So a change that needs a generation meets addresses that were
//! written singly.

use std::collections::BTreeMap;

use weir_classes::index::{Dirty, Generation, Index, Key};
use weir_model::Assumptions;
use weir_objects::k8s::Object;
use weir_testing::Random;
use weir_testing::yaml::{NEAR_AND_FAR, objects};

use crate::objects::{namespace_with, network_policy, node_with, pod};
use crate::{Server, check_agrees, generation};

/// Pods of other nodes: name, label, address. Each is in one of two namespaces.
const PODS: [(&str, &str, &str); 8] = [
    ("p0", "web", "10.0.0.0"),
    ("p1", "web", "10.0.0.1"),
    ("p2", "db", "10.0.0.2"),
    ("p3", "db", "10.0.0.3"),
    ("p4", "web", "10.0.0.4"),
    ("p5", "db", "10.0.0.5"),
    // A label that no other pod has, and that a rule mentions.
    ("p6", "job", "10.0.0.6"),
    ("p7", "web", "10.0.0.7"),
];

fn far_pod(number: usize) -> Object {
    let (name, app, address) = PODS[number];
    pod(["ops", "dev"][number % 2], name, "far", app, address)
}

fn service(number: usize, ports: &str) -> Object {
    let text = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: s{number}, namespace: shop}}, \
         spec: {{clusterIP: 10.96.0.{}, ports: {ports}}}}}",
        number + 1
    );
    objects(&text).remove(0)
}

fn slice(number: usize, pods: &[usize]) -> Object {
    let endpoint = |pod: &usize| {
        let (name, _, address) = PODS[*pod];
        let namespace = ["ops", "dev"][pod % 2];
        format!("{{addresses: [{address}], targetRef: {{kind: Pod, namespace: {namespace}, name: {name}}}}}")
    };
    let endpoints: Vec<String> = pods.iter().map(endpoint).collect();
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{{port: 80}}], \
         metadata: {{name: s{number}-1, namespace: shop, labels: {{kubernetes.io/service-name: s{number}}}}}, \
         endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

/// A list with some of few entries, which can be the addresses of pods, services and nodes.
fn list(random: &mut Random) -> Object {
    const ENTRIES: [&str; 7] =
        ["192.0.2.4/32", "192.0.2.4/31", "192.0.2.8/30", "10.0.0.1/32", "10.0.0.6/31", "10.96.0.2/32", "172.16.0.3/32"];
    let (name, order) = random.pick(&[("first", 1), ("second", 2)]);
    let entries: Vec<&str> = ENTRIES.into_iter().filter(|_| random.below(3) == 0).collect();
    let action = if name == "first" { "Allow" } else { "Deny" };
    let text = format!(
        "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: {name}}}, \
         spec: {{action: {action}, order: {order}, cidrs: [{}]}}}}",
        entries.join(", ")
    );
    objects(&text).remove(0)
}

/// Two local pods, rules for all peers, and pods that keep a class of each kind in use.
fn cluster() -> Vec<Object> {
    let mut all = objects(NEAR_AND_FAR);
    let teams = [("shop", ""), ("ops", "team: a"), ("dev", "team: b"), ("with", "team: b"), ("without", "team: a")];
    all.extend(teams.map(|(name, labels)| namespace_with(name, labels)));
    all.push(pod("shop", "client", "near", "client", "10.0.1.1"));
    all.push(pod("shop", "other", "near", "other", "10.0.1.2"));
    for (number, (namespace, app)) in
        [("with", "web"), ("with", "db"), ("without", "web"), ("without", "db")].into_iter().enumerate()
    {
        all.push(pod(namespace, app, "far", app, &format!("10.0.0.{}", 20 + number)));
    }
    let peers = "[{namespaceSelector: {matchLabels: {team: b}}}, \
                 {namespaceSelector: {}, podSelector: {matchLabels: {app: job}}}]";
    let block = "[{ipBlock: {cidr: 10.96.0.0/28}}]";
    let client = format!(
        "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Ingress, Egress], \
         ingress: [{{from: {peers}}}], egress: [{{to: {peers}, ports: [{{port: 80}}]}}]}}"
    );
    let other = format!(
        "{{podSelector: {{matchLabels: {{app: other}}}}, policyTypes: [Egress], egress: [{{to: {block}}}, \
         {{to: [{{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: db}}}}}}]}}]}}"
    );
    all.push(network_policy("shop", "client", "enforce", &client));
    all.push(network_policy("shop", "other", "enforce", &other));
    all.extend((0..8).map(far_pod));
    all.extend((0..3).map(|number| service(number, "[{port: 80}]")));
    all.extend((0..3).map(|number| slice(number, &[number, number + 2])));
    all
}

/// An object as it will be, or the key of one that is deleted.
fn change(random: &mut Random) -> Result<Object, Key> {
    let number = random.below(8);
    let (object, may_go) = match random.below(15) {
        13 | 14 => (list(random), true),
        12 => {
            let address = random.pick(&[3, 4]);
            (objects(&node_with("third", random.pick(&["", "zone: a"]), &[address])).remove(0), true)
        }
        0..4 => {
            let labels = random.pick(&["team: a", "team: b", "team: b, more: x", "more: x"]);
            (namespace_with(random.pick(&["ops", "dev"]), labels), false)
        }
        4..6 => (far_pod(number), true),
        6 => {
            let (name, app, address) = PODS[number];
            (pod(["ops", "dev"][number % 2], name, "far", if app == "db" { "web" } else { "db" }, address), false)
        }
        7 | 8 => (service(number % 3, random.pick(&["[{port: 80}]", "[{port: 80}]", "[{port: 8080}]"])), true),
        9 => (slice(number % 3, &[number, (number + 1) % 8, (number + 2) % 8][..1 + random.below(3)]), false),
        10 => {
            let app = random.pick(&["client", "other", "none"]);
            (pod(random.pick(&["shop", "ops", "dev"]), "local", "near", app, "10.0.1.3"), true)
        }
        _ => {
            let spec = "{podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress]}";
            (network_policy("shop", "more", "enforce", spec), true)
        }
    };
    if may_go && random.below(2) == 0 { Err(Key::of(&object)) } else { Ok(object) }
}

#[test]
fn generations_after_many_single_writes_are_those_of_a_compile_from_scratch() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
        let mut server = Server::new(cluster(), &mut index);
        let mut last: Generation = index.compile().expect("classes");
        let mut is_whole = false;
        for _ in 0..60 {
            let dirty = if random.below(3) == 0 && server.can_go_back() {
                server.go_back(&mut random, &mut index)
            } else {
                match change(&mut random) {
                    Ok(object) => server.apply(object, &mut index),
                    Err(key) => server.delete(&key, &mut index),
                }
            };
            is_whole |= dirty == Dirty::Everything;
            let has_local = matches!(&dirty, Dirty::Addresses(changes) if !changes.locals.is_empty());
            let kind = match dirty {
                Dirty::Nothing => "nothing",
                Dirty::Addresses(_) => "addresses",
                Dirty::Everything => "everything",
            };
            *counts.entry(kind).or_default() += 1;
            // A generation may come late, and it may come without need.
            if (is_whole && random.below(3) == 0) || has_local || random.below(20) == 0 {
                let (made, why) = generation(&mut index, |_| ());
                server.forget_before();
                *counts.entry(if why.is_none() { "incremental" } else { "from scratch" }).or_default() += 1;
                (last, is_whole) = (made, false);
            }
            if !is_whole {
                check_agrees(&index, &last, &server);
            }
        }
    }
    println!("{counts:?}");
    let least = [("nothing", 100), ("addresses", 300), ("everything", 300), ("incremental", 200)];
    for (kind, count) in least {
        assert!(counts.get(kind).copied().unwrap_or_default() > count, "{kind}: {counts:?}");
    }
}
