//! Flows to a service end when they may use a backend that the service has lost and that their client may not reach.

use std::collections::BTreeSet;

use weir_classes::Scope;
use weir_classes::departed::{AppliedChanges, Departed, MovedBackends};
use weir_classes::index::{Dirty, Generation, Index};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::k8s::Object;
use weir_testing::yaml::NEAR_AND_FAR;

/// Clients c1 and c2 may reach pods with the label `role: serves`; the service has backends of any role.
const FIXED: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: to-serving, namespace: shop}
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {role: serves}}}]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
  spec: {type: NodePort, clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}}
";

/// The clients, and a pod that no policy selects: name, label `app`, node, address.
const CLIENTS: [[&str; 4]; 4] = [
    ["c1", "client", "near", "10.0.0.1"],
    ["c2", "client", "near", "10.0.0.2"],
    ["free", "free", "near", "10.0.0.3"],
    ["elsewhere", "client", "far", "10.0.0.4"],
];

/// A pod on the node `far`, which is a backend of the service if its `app` is `db`.
fn pod(name: &str, uid: &str, labels: &str, host: u8) -> String {
    pod_on("far", name, uid, labels, &format!("10.0.1.{host}"))
}

fn pod_on(node: &str, name: &str, uid: &str, labels: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{{labels}}}}}, \
         spec: {{nodeName: {node}}}, status: {{phase: Running, podIP: {address}}}}}"
    )
}

const SERVES: &str = "app: db, role: serves";
const QUARANTINED: &str = "role: none";
/// Not in the service any more, but still allowed.
const DRAINED: &str = "role: serves";

fn objects(texts: &[String]) -> Vec<Object> {
    let client = |[name, app, node, address]: [&str; 4]| pod_on(node, name, name, &format!("app: {app}"), address);
    let pods: Vec<_> = CLIENTS.map(client).into_iter().chain(texts.iter().cloned()).collect();
    weir_testing::yaml::objects(&format!("{NEAR_AND_FAR}---{FIXED}---\n{}", pods.join("\n---\n")))
}

/// Observes a generation. Returns the flows that end, as `pod address:port`.
fn observe(departed: &mut Departed, texts: &[String]) -> Vec<String> {
    observe_assuming(departed, texts, Assumptions::default())
}

fn observe_assuming(departed: &mut Departed, texts: &[String], assume: Assumptions) -> Vec<String> {
    let objects = objects(texts);
    let (cluster, _) = resolve(&objects, assume);
    let scope = Scope::node(&cluster, "near").expect("the node is there");
    let ended = departed.observe(&cluster, &scope);
    ended.iter().map(|it| format!("{} {}:{}", it.pod, it.address, it.port)).collect()
}

const NONE: [&str; 0] = [];
const ALL: [&str; 4] =
    ["shop/c1 10.96.0.1:80", "shop/c1 172.16.0.1:30080", "shop/c2 10.96.0.1:80", "shop/c2 172.16.0.1:30080"];

fn started() -> Departed {
    let mut departed = Departed::default();
    assert_eq!(observe(&mut departed, &[pod("a", "a1", SERVES, 1), pod("b", "b1", SERVES, 2)]), NONE);
    departed
}

#[test]
fn flows_to_the_service_end_once_when_a_backend_is_quarantined() {
    let mut departed = started();
    let now = [pod("a", "a1", QUARANTINED, 1), pod("b", "b1", SERVES, 2)];
    assert_eq!(observe(&mut departed, &now), ALL);
    assert_eq!(observe(&mut departed, &now), NONE, "flows that began since then do not use it");
    // The pod returns, and leaves again.
    observe(&mut departed, &[pod("a", "a1", SERVES, 1), pod("b", "b1", SERVES, 2)]);
    assert_eq!(observe(&mut departed, &now), ALL);
}

#[test]
fn a_backend_that_left_may_become_forbidden_later() {
    let mut departed = started();
    let drained = [pod("a", "a1", DRAINED, 1), pod("b", "b1", SERVES, 2)];
    assert_eq!(observe(&mut departed, &drained), NONE);
    assert_eq!(observe(&mut departed, &drained), NONE);
    let object = |labels| objects(&[pod("a", "a1", labels, 1)]).pop().expect("the last one");
    assert!(departed.concerns(&object(QUARANTINED)));
    assert_eq!(observe(&mut departed, &[pod("a", "a1", QUARANTINED, 1), pod("b", "b1", SERVES, 2)]), ALL);
}

#[test]
fn a_pod_that_is_gone_has_no_connections() {
    let b = pod("b", "b1", SERVES, 2);
    for now in [
        vec![b.clone()],
        vec![pod("a", "a2", QUARANTINED, 1), b.clone()],
        vec![pod("other", "a1", QUARANTINED, 1), b.clone()],
        vec![pod("a", "a1", QUARANTINED, 1).replace("Running", "Succeeded"), b.clone()],
    ] {
        let mut departed = started();
        assert_eq!(observe(&mut departed, &now), NONE, "{now:?}");
        let object = objects(&[pod("a", "a1", QUARANTINED, 1)]).pop().expect("the last one");
        assert!(!departed.concerns(&object));
    }
}

#[test]
fn a_service_that_is_gone_has_lost_its_backends() {
    let mut departed = started();
    let pods = [pod("a", "a1", QUARANTINED, 1)];
    let (cluster, _) = resolve(
        &objects(&pods).into_iter().filter(|it| it.meta.name != "db").collect::<Vec<_>>(),
        Assumptions::default(),
    );
    let scope = Scope::node(&cluster, "near").expect("the node is there");
    assert_eq!(departed.observe(&cluster, &scope).len(), ALL.len());
}

#[test]
fn clients_that_came_later_did_not_use_it() {
    let mut departed = started();
    let drained = [pod("a", "a1", DRAINED, 1), pod("b", "b1", SERVES, 2)];
    observe(&mut departed, &drained);
    observe(&mut departed, &drained);
    let late = "{apiVersion: v1, kind: Pod, metadata: {name: c9, namespace: shop, uid: c9, labels: {app: client}}, \
        spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.9}}"
        .to_owned();
    let now = [pod("a", "a1", QUARANTINED, 1), pod("b", "b1", SERVES, 2), late];
    assert_eq!(observe(&mut departed, &now), ALL);
}

#[test]
fn flows_that_no_assumption_changes_continue() {
    for (key, value) in [("established", "keep"), ("service-address", "address")] {
        let mut assume = Assumptions::default();
        assume.set(key, value).expect("it exists");
        let mut departed = Departed::default();
        let b = pod("b", "b1", SERVES, 2);
        observe_assuming(&mut departed, &[pod("a", "a1", SERVES, 1), b.clone()], assume);
        assert_eq!(observe_assuming(&mut departed, &[pod("a", "a1", QUARANTINED, 1), b], assume), NONE);
    }
}

/// A slice with addresses that no pod has.
fn outside(hosts: std::ops::Range<u32>) -> String {
    let addresses = hosts.map(|host| {
        let address = std::net::Ipv4Addr::from_bits(0xc633_0000 + host);
        format!("{{addresses: [{address}], conditions: {{ready: true}}}}")
    });
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: db-1, namespace: shop, \
         labels: {{kubernetes.io/service-name: db}}}}, addressType: IPv4, ports: [{{port: 8080}}], endpoints: [{addresses}]}}"
    )
}

/// A client that may reach every address outside.
const WIDE: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: wide, namespace: shop}, \
    spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 198.51.0.0/16}}]}]}}";

#[test]
fn backends_that_are_no_pods_are_remembered_up_to_a_limit_and_flows_end_beyond_it() {
    let mut departed = Departed::default();
    let wide = WIDE.to_owned();
    observe(&mut departed, &[outside(0..1000), wide.clone()]);
    assert_eq!(observe(&mut departed, &[outside(1000..2000), wide.clone()]), NONE, "they may be reached");
    assert_eq!(observe(&mut departed, &[outside(2000..3500), wide.clone()]), NONE);
    // Each backend is reachable through two addresses.
    let ended = observe(&mut departed, &[outside(3500..4000), wide.clone()]);
    let users: Vec<&str> = ended.iter().map(String::as_str).filter(|it| it.ends_with(":80")).collect();
    assert_eq!(users, ["shop/c1 10.96.0.1:80", "shop/c2 10.96.0.1:80", "shop/free 10.96.0.1:80"]);
    assert_eq!(observe(&mut departed, &[outside(4000..4001), wide]), NONE, "no flow is older than that");
    let mut departed = Departed::default();
    observe(&mut departed, &[outside(0..3)]);
    assert_eq!(observe(&mut departed, &[outside(1..3)]), ALL, "they may not");
}

/// An index of the clients and a service with slices, whose generation is observed.
fn sliced(departed: &mut Departed) -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let pods = [pod("a", "a1", SERVES, 1), pod("b", "b1", SERVES, 2), pod("c", "c1", SERVES, 3)];
    objects(&pods).into_iter().chain([slice(&[1, 2])]).for_each(|object| _ = index.apply(object));
    assert_eq!(observed(departed, &mut index), NONE);
    index
}

/// Makes a generation and observes it.
fn observed(departed: &mut Departed, index: &mut Index) -> Vec<String> {
    let Generation { cluster, scope, .. } = index.compile().expect("classes");
    let ended = departed.observe(&cluster, &scope);
    ended.iter().map(|it| format!("{} {}:{}", it.pod, it.address, it.port)).collect()
}

/// The slice of the service, with pods on the node `far`.
fn slice(hosts: &[u8]) -> Object {
    let pod = |host: &u8| {
        let name = ["a", "b", "c"][usize::from(*host) - 1];
        format!("{{addresses: [10.0.1.{host}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: {name}}}}}")
    };
    let endpoints = hosts.iter().map(pod).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: db-1, namespace: shop, labels: {{kubernetes.io/service-name: db}}}}, \
         addressType: IPv4, ports: [{{port: 8080}}], endpoints: [{endpoints}]}}"
    );
    weir_testing::yaml::objects(&text).remove(0)
}

#[test]
fn a_backend_that_comes_and_goes_without_a_generation_may_become_forbidden_later() {
    let mut departed = Departed::default();
    let mut index = sliced(&mut departed);
    for hosts in [&[1, 2, 3], &[1, 2][..]] {
        assert_eq!(index.apply(slice(hosts)), Dirty::Nothing, "backends of one class move");
        index.take_moved().iter().for_each(|it| departed.moved(it));
    }
    let quarantined = objects(&[pod("c", "c1", QUARANTINED, 3)]).pop().expect("the last one");
    assert!(departed.concerns(&quarantined), "its new class needs a generation");
    index.apply(quarantined);
    assert_eq!(observed(&mut departed, &mut index), ALL);
}

#[test]
fn a_backend_that_comes_back_has_not_left() {
    let quarantined = objects(&[pod("a", "a1", QUARANTINED, 1)]).pop().expect("the last one");
    let mut departed = started();
    for (labels, has_left) in [(DRAINED, true), (SERVES, false), (DRAINED, true)] {
        assert_eq!(observe(&mut departed, &[pod("a", "a1", labels, 1), pod("b", "b1", SERVES, 2)]), NONE);
        assert_eq!(departed.concerns(&quarantined), has_left, "{labels}");
    }
    let mut departed = Departed::default();
    let mut index = sliced(&mut departed);
    for (hosts, has_left) in [(&[2][..], true), (&[1, 2], false), (&[2], true)] {
        assert_eq!(index.apply(slice(hosts)), Dirty::Nothing);
        index.take_moved().iter().for_each(|it| departed.moved(it));
        assert_eq!(departed.concerns(&quarantined), has_left, "{hosts:?}");
    }
}

#[test]
fn a_backend_that_left_without_a_generation_may_become_forbidden_later() {
    let mut departed = Departed::default();
    let mut index = sliced(&mut departed);
    assert_eq!(index.apply(slice(&[2])), Dirty::Nothing);
    index.take_moved().iter().for_each(|it| departed.moved(it));
    let quarantined = objects(&[pod("a", "a1", QUARANTINED, 1)]).pop().expect("the last one");
    assert!(departed.concerns(&quarantined));
    index.apply(quarantined);
    assert_eq!(observed(&mut departed, &mut index), ALL);
}

/// Applies a change of one pod to the generation in force. Returns the flows that end.
fn apply(index: &mut Index, departed: &mut Departed, pod: &str) -> Vec<String> {
    let changed = weir_testing::yaml::objects(pod).remove(0);
    // As in the agent: the class of a departed backend may be another one.
    let concerns = departed.concerns(&changed);
    if index.apply(changed) != Dirty::Everything && !concerns {
        index.take_moved().iter().for_each(|moved| departed.moved(moved));
        return Vec::new();
    }
    observed_changes(departed, index)
}

/// Makes a generation of the changes and observes it.
fn observed_changes(departed: &mut Departed, index: &mut Index) -> Vec<String> {
    let draft = index.begin_changes().expect("the change can be applied");
    let mut generation = draft.classify_within(weir_classes::Limits::NONE).expect("the change can be applied");
    index.adopt(&mut generation);
    index.take_moved().iter().for_each(|moved| departed.moved(moved));
    let Generation { cluster, scope, classes, .. } = &generation;
    let (has_holder, peer_at) = (|at| index.has_holder(at), |at| index.peer_at(at).expect("a class"));
    let changes = AppliedChanges { cluster, scope, classes, has_holder: &has_holder, peer_at: &peer_at };
    let ended = departed.observe_changes(&changes);
    ended.iter().map(|it| format!("{} {}:{}", it.pod, it.address, it.port)).collect()
}

#[test]
fn a_backend_of_two_services_leaves_when_the_second_one_loses_it() {
    let mut departed = Departed::default();
    let mut index = sliced(&mut departed);
    // Another service, of which only the addresses that it has lost are known.
    let left = ["10.0.1.1".parse().expect("an address")].into();
    departed.moved(&MovedBackends { service: Cluster::default(), came: BTreeSet::new(), left, is_alike: false });
    assert_eq!(observed_changes(&mut departed, &mut index), NONE);
    let late = pod_on("near", "late", "late", "app: client", "10.0.0.9");
    index.apply(weir_testing::yaml::objects(&late).remove(0));
    assert_eq!(observed_changes(&mut departed, &mut index), NONE);
    // Until now, flows of the late client could use it.
    assert_eq!(index.apply(slice(&[2])), Dirty::Nothing);
    index.take_moved().iter().for_each(|it| departed.moved(it));
    let ended = apply(&mut index, &mut departed, &pod("a", "a1", QUARANTINED, 1));
    assert!(ended.contains(&"shop/late 10.96.0.1:80".to_owned()), "{ended:?}");
}

#[test]
fn applied_changes_end_the_flows_that_a_compile_from_scratch_ends() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    objects(&[pod("a", "a1", SERVES, 1), pod("b", "b1", SERVES, 2)]).into_iter().for_each(|it| _ = index.apply(it));
    let mut departed = Departed::default();
    let Generation { cluster, scope, .. } = index.compile().expect("classes");
    assert!(departed.observe(&cluster, &scope).is_empty());
    assert_eq!(apply(&mut index, &mut departed, &pod("b", "b1", DRAINED, 2)), NONE, "policy still allows it");
    assert_eq!(apply(&mut index, &mut departed, &pod("c", "c1", SERVES, 3)), NONE);
    assert_eq!(apply(&mut index, &mut departed, &pod("b", "b1", QUARANTINED, 2)), ALL, "it left the service earlier");
    assert_eq!(apply(&mut index, &mut departed, &pod("d", "d1", SERVES, 4)), NONE, "flows end once");
    assert_eq!(apply(&mut index, &mut departed, &pod("a", "a1", QUARANTINED, 1)), ALL);
}
