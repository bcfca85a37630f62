//! After any series of changes, the index's answers give every packet the verdict of a compile from scratch.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_artifact::layout::{MapName, address_bytes};
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::index::{Dirty, Generation, Index, Key, Late};
use weir_classes::{Classes, Limits, PeerId, Scope, SubjectId, classify};
use weir_codegen::compile::{self, Compiled, compile_classes};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, Protocol};
use weir_objects::k8s::{Body, Object, Phase, Pod, SliceEndpoint};
use weir_testing::Random;
use weir_testing::yaml::{NEAR_AND_FAR, objects};

const FIXED: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: ops, labels: {team: b}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: by-labels, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: db}}}, {namespaceSelector: {matchLabels: {team: b}}}]
    ports: [{port: http}]
  - from: [{ipBlock: {cidr: 10.0.0.0/28, except: [10.0.0.4/30]}}]
    ports: [{port: 9000, endPort: 9010}]
  egress:
  - to: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}}]
    ports: [{port: http}, {port: 53, protocol: UDP}]
  - to: [{ipBlock: {cidr: 10.96.0.0/16}}]
    ports: [{port: 9000}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: everyone, namespace: ops}
spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: outside, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.8/30}}]}]}
";

/// A service without a selector, and the slice with its only backend.
fn sliced_service(name: &str, address: &str, ports: [u16; 2], backend: &str) -> String {
    let [port, target] = ports;
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, \
         spec: {{clusterIP: {address}, ports: [{{name: a, port: {port}, targetPort: {target}}}]}}}}\n---\n\
         {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}, \
         addressType: IPv4, ports: [{{name: a, port: {target}}}], \
         endpoints: [{{addresses: [{backend}], conditions: {{ready: true}}}}]}}\n"
    )
}

fn fixed() -> Vec<Object> {
    let outside = sliced_service("outside", "10.97.0.1", [9000; 2], "192.0.2.9");
    let sliced = sliced_service("sliced", "10.97.0.2", [80, 8080], "10.0.0.5");
    let headless = sliced_service("headless", "None", [80, 8080], "10.0.0.5");
    objects(&[NEAR_AND_FAR, FIXED, &outside, &sliced, &headless].join("---\n"))
}

/// A pod with one of few names, labels and addresses, so that events repeat and addresses move between pods.
fn pod(random: &mut Random) -> Object {
    let name = random.below(8);
    let namespace = random.pick(&["shop", "ops"]);
    let app = random.pick(&["web", "db", "cron"]);
    let node = random.pick(&["near", "far", "far"]);
    let phase = random.pick(&["Running", "Running", "Running", "Pending", "Succeeded"]);
    let ready = random.pick(&["True", "False"]);
    let deleting = random.pick(&["", "", "", ", deletionTimestamp: '2026-01-01T00:00:00Z'"]);
    let host = random.pick(&["false", "false", "false", "true"]);
    let port = random.pick(&["8080", "8081"]);
    let uid = random.pick(&["u1", "u1", "u1", "u2"]);
    let host_port =
        random.pick(&["", "", ", hostPort: 9000", ", hostPort: 53", ", hostPort: 9000, hostIP: 192.0.2.40"]);
    // A load balancer may use a node's own address.
    let host_ip = match (node, random.below(8)) {
        ("far", 0) => ", hostIP: 10.96.0.1",
        ("near", 0 | 1) => ", hostIP: 172.16.0.1",
        ("near", 2) => ", hostIP: 172.16.0.2",
        _ => "",
    };
    let address = match host {
        "true" if random.below(2) == 0 => ", podIP: 172.16.0.2".to_owned(),
        _ if phase == "Pending" && random.below(2) == 0 => String::new(),
        _ => format!(", podIP: 10.0.0.{}", random.below(18)),
    };
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p{name}, namespace: {namespace}, uid: {uid}{deleting}, \
         labels: {{app: {app}}}}}, spec: {{nodeName: {node}, hostNetwork: {host}, \
         containers: [{{name: c, ports: [{{name: http, containerPort: {port}{host_port}}}]}}]}}, \
         status: {{phase: {phase}{address}{host_ip}, conditions: [{{type: Ready, status: '{ready}'}}]}}}}"
    );
    objects(&text).remove(0)
}

/// The same pod a moment later, as the kubelet reports it.
fn later(random: &mut Random, pod: &Object) -> Object {
    let mut later = pod.clone();
    if let Body::Pod(pod) = &mut later.body {
        pod.unready = random.below(2) == 0;
        pod.phase = Some(*random.pick(&[&Phase::Running, &Phase::Running, &Phase::Pending]));
        let host = random.pick(&["172.16.0.1", "172.16.0.1", "172.16.0.2"]);
        pod.node_addresses = vec![host.parse().expect("an address")];
    }
    later.meta.deleting = random.below(4) == 0;
    later
}

/// A slice of a service with few backends, mostly pods, so that they move between slices and states.
fn slice(random: &mut Random, pods: &[&Object]) -> Object {
    let name = random.below(2);
    let service = random.pick(&["sliced", "sliced", "sliced", "sliced", "headless", "none"]);
    let port = random.pick(&["8080", "8080", "8081"]);
    let endpoints: Vec<String> = (0..1 + random.below(3)).map(|_| slice_endpoint(random, pods)).collect();
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: s{name}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}, \
         addressType: IPv4, ports: [{{name: a, port: {port}}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

/// A slice as after a step of a rolling update: a pod with the labels of a backend is one too, or instead of it.
fn rolled(random: &mut Random, slice: &Object, pods: &[&Object]) -> Object {
    let mut slice = slice.clone();
    let Body::EndpointSlice(body) = &mut slice.body else { panic!("a slice") };
    let addresses = |pod: &Object| match &pod.body {
        Body::Pod(pod) if pod.phase == Some(Phase::Running) => pod.addresses.clone(),
        _ => Vec::new(),
    };
    let old = body.endpoints[random.below(body.endpoints.len())].clone();
    let was = pods.iter().find(|pod| addresses(pod) == old.addresses);
    let alike: Vec<_> = pods.iter().filter(|pod| was.is_some_and(|was| was.meta.labels == pod.meta.labels)).collect();
    if let Some(pod) = (!alike.is_empty()).then(|| alike[random.below(alike.len())]) {
        let pod_name = Some((pod.meta.namespace.clone(), pod.meta.name.clone()));
        let new = SliceEndpoint { addresses: addresses(pod), pod: pod_name, ..old.clone() };
        body.endpoints.retain(|it| *it != old || random.below(2) == 0);
        body.endpoints.push(new);
        body.endpoints.truncate(4);
    }
    slice
}

/// An endpoint of a slice. Some are not ready, and some are no pod's.
fn slice_endpoint(random: &mut Random, pods: &[&Object]) -> String {
    let ready = random.pick(&["true", "true", "true", "false"]);
    let ending = random.pick(&["true", "false", "false"]);
    let known = (!pods.is_empty() && random.below(8) > 0).then(|| pods[random.below(pods.len())]);
    let address = known.and_then(|object| match &object.body {
        Body::Pod(pod) => pod.addresses.first().map(ToString::to_string),
        _ => None,
    });
    let target = match known {
        Some(pod) if random.below(8) > 0 => {
            format!(", targetRef: {{kind: Pod, namespace: {}, name: {}}}", pod.meta.namespace, pod.meta.name)
        }
        _ => String::new(),
    };
    let address = address.unwrap_or_else(|| format!("10.0.0.{}", random.below(18)));
    format!("{{addresses: [{address}], conditions: {{ready: {ready}, serving: true, terminating: {ending}}}{target}}}")
}

/// A change of the service with slices or of the headless one.
fn other_service(random: &mut Random) -> Object {
    let (name, address) =
        *random.pick(&[&("sliced", "10.97.0.2"), &("headless", "None"), &("headless", "None"), &("second", "None")]);
    let (selector, label) = (random.pick(&["", "", "", "selector: {app: web}, "]), random.below(3));
    let target = random.pick(&["8080", "8080", "8080", "8081"]);
    let text = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop, labels: {{v: l{label}}}}}, \
         spec: {{clusterIP: {address}, {selector}ports: [{{name: a, port: 80, targetPort: {target}}}]}}}}"
    );
    objects(&text).remove(0)
}

/// A namespace with labels, of which policies mention only some.
fn namespace(random: &mut Random) -> Object {
    let name = random.pick(&["shop", "ops", "ops", "new"]);
    let team = random.pick(&["a", "a", "b", "b", "c"]);
    let (other, stage) = (random.below(4), random.pick(&["test", "live"]));
    let text = format!(
        "{{apiVersion: v1, kind: Namespace, \
         metadata: {{name: {name}, labels: {{team: {team}, stage: {stage}, other: 'v{other}'}}}}}}"
    );
    objects(&text).remove(0)
}

/// A policy with one of few names, selectors and peers.
fn policy(random: &mut Random) -> Object {
    let name = random.below(4);
    let namespace = random.pick(&["shop", "ops"]);
    let subjects =
        random.pick(&["{}", "{matchLabels: {app: web}}", "{matchLabels: {app: db}}", "{matchLabels: {app: nobody}}"]);
    let peers = random.pick(&[
        "[]",
        "[{podSelector: {matchLabels: {app: cron}}}]",
        "[{namespaceSelector: {matchLabels: {team: b}}}]",
        "[{ipBlock: {cidr: 10.0.0.8/29}}]",
    ]);
    let text = format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: n{name}, namespace: {namespace}}}, \
         spec: {{podSelector: {subjects}, ingress: [{{from: {peers}}}]}}}}"
    );
    objects(&text).remove(0)
}

/// A service with a selector.
fn service(random: &mut Random) -> Object {
    let selector = random.pick(&["{app: web}", "{app: cron}"]);
    let text = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: other, namespace: shop}}, \
         spec: {{clusterIP: 10.96.0.2, selector: {selector}, ports: [{{port: 80, targetPort: http}}]}}}}"
    );
    objects(&text).remove(0)
}

/// Possible list entries: addresses and ranges, some of pods, nodes and services, but most of them unused.
fn menu() -> Vec<String> {
    let hosts = (0..12).map(|host| format!("192.0.2.{host}"));
    let others = (0..4).map(|host| format!("'2001:db8::{host}'"));
    let ranges =
        ["192.0.2.4/30", "192.0.2.2-192.0.2.5", "192.0.2.0/27", "10.0.0.8/29", "192.0.0.0/8", "'2001:db8::2/127'"];
    let somebodys =
        ["10.0.0.1", "10.0.0.3", "10.0.0.6", "10.0.0.9", "10.0.0.12", "10.0.0.14", "172.16.0.2", "10.96.0.1"];
    hosts.chain(others).chain(ranges.map(str::to_owned)).chain(somebodys.map(str::to_owned)).collect()
}

/// A list with one of few names and a spec that rarely changes. Each call adds or removes an entry or two.
fn list(random: &mut Random, contents: &mut [BTreeSet<String>; 3]) -> Object {
    let menu = menu();
    let name = random.below(3);
    for _ in 0..1 + random.below(2) {
        let entry = &menu[random.below(menu.len())];
        if !contents[name].remove(entry) {
            contents[name].insert(entry.clone());
        }
    }
    let head = match (name, random.below(16)) {
        (_, 0) => "action: Deny, order: 7",
        (0, _) => "action: Deny",
        (1, _) => "action: Allow, order: 0, directions: [Ingress]",
        (_, 1..4) => "action: Deny, order: 60, appliesTo: {namespaceSelector: {matchLabels: {stage: live}}}",
        _ => "action: Deny, order: 50, appliesTo: {podSelector: {matchLabels: {app: web}}}",
    };
    let entries = contents[name].iter().cloned().collect::<Vec<_>>().join(", ");
    let text = format!(
        "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: l{name}}}, spec: {{{head}, cidrs: [{entries}]}}}}"
    );
    objects(&text).remove(0)
}

/// A random change, mostly of pods, as in a cluster.
fn change(random: &mut Random, lists: &mut [BTreeSet<String>; 3], live: &[Object]) -> Object {
    let pods: Vec<&Object> = live.iter().filter(|it| matches!(it.body, Body::Pod(_))).collect();
    let slices: Vec<&Object> = live.iter().filter(|it| matches!(it.body, Body::EndpointSlice(_))).collect();
    match random.below(29) {
        0 | 1 => policy(random),
        2 => service(random),
        3..=6 => list(random, lists),
        7..=10 => slice(random, &pods),
        11 => other_service(random),
        12 => namespace(random),
        13 | 14 if !pods.is_empty() => {
            let pod = pods[random.below(pods.len())];
            later(random, pod)
        }
        15..=19 if !slices.is_empty() => {
            let slice = slices[random.below(slices.len())];
            rolled(random, slice, &pods)
        }
        _ => pod(random),
    }
}

/// The kinds of answers without a compile that a test must have seen.
#[derive(Debug, Default)]
struct SmallAnswers {
    /// A backend moved, and no verdict changed.
    moves: usize,
    /// A service changed that no packet reaches, or in fields that are not read.
    services: usize,
    /// The labels of a namespace changed.
    namespaces: usize,
    /// A local pod changed, or appeared without an address.
    local_pods: usize,
}

impl SmallAnswers {
    fn count(&mut self, index: &mut Index, before: Option<&Object>, after: &Object) {
        let is_changed = before.is_none_or(|before| (&before.meta, &before.body) != (&after.meta, &after.body));
        match &after.body {
            Body::Namespace => self.namespaces += usize::from(is_changed),
            Body::Service(_) if index.judges_services() => self.services += usize::from(is_changed),
            Body::Pod(pod) if pod.node.as_deref() == Some("near") => self.local_pods += usize::from(is_changed),
            _ => {}
        }
        let moved = index.take_moved();
        self.moves += moved.iter().filter(|it| !it.came.is_empty() || !it.left.is_empty()).count();
    }
}

fn addresses() -> Vec<IpAddr> {
    let pods = (0..18).map(|host| format!("10.0.0.{host}"));
    let others = [
        "10.96.0.1",
        "10.96.0.2",
        "10.97.0.1",
        "10.97.0.2",
        "172.16.0.1",
        "172.16.0.2",
        "8.8.8.8",
        "192.0.2.40",
        "192.1.0.0",
    ];
    let listed = (0..13).map(|host| format!("192.0.2.{host}")).chain((0..6).map(|host| format!("2001:db8::{host}")));
    pods.chain(others.map(str::to_owned)).chain(listed).map(|text| text.parse().expect("an address")).collect()
}

/// For some ports, whether a subject class allows them to a peer class.
fn allowed(classes: &Classes, direction: Direction, subject: SubjectId, peer: PeerId) -> Vec<bool> {
    let set = classes.allowed(direction, subject, peer);
    let ports = [53, 80, 8080, 8081, 9000, 9010, 9011];
    let atoms =
        [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|of| ports.map(|port| classes.atoms.find(of, port)));
    atoms.map(|atom| set.contains(atom)).collect()
}

#[track_caller]
fn check_agrees(index: &Index, generation: &Generation, live: &[Object]) {
    let (cluster, _) = resolve(live, Assumptions::default());
    let scope = Scope::node(&cluster, "near").expect("the node is there");
    let scratch = classify(&cluster, &scope).expect("classes");
    let names = |cluster: &Cluster, classes: &Classes| -> Vec<(String, SubjectId)> {
        classes.subject_of.iter().map(|(id, subject)| (cluster.endpoint_name(*id), *subject)).collect()
    };
    let (ours, theirs) = (names(&generation.cluster, &generation.classes), names(&cluster, &scratch));
    assert_eq!(ours.iter().map(|it| &it.0).collect::<Vec<_>>(), theirs.iter().map(|it| &it.0).collect::<Vec<_>>());
    for ((name, own), (_, other)) in ours.iter().zip(&theirs) {
        for address in addresses() {
            for direction in Direction::ALL {
                let peer = index.peer_at(address).expect("compiled");
                let incremental = allowed(&generation.classes, direction, *own, peer);
                let expected = allowed(&scratch, direction, *other, scratch.peer_at(address));
                assert_eq!(incremental, expected, "{name} {direction:?} {address}");
            }
        }
    }
}

/// The owners of addresses, as packets see them.
fn owners(live: &[Object]) -> BTreeSet<(IpAddr, Key, Option<String>)> {
    let of = |object: &Object| {
        let Body::Pod(pod) = &object.body else { return Vec::new() };
        let is_away = pod.host_network || matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
        let addresses = pod.addresses.iter().filter(|_| !is_away);
        addresses.map(|address| (*address, Key::of(object), object.meta.uid.clone())).collect()
    };
    live.iter().flat_map(of).collect()
}

/// The state that decides whether flows must be judged again: the class of each address, and the pods that have it.
struct Picture {
    classes: Vec<Option<PeerId>>,
    owners: BTreeSet<(IpAddr, Key, Option<String>)>,
}

impl Picture {
    fn of(index: &Index, live: &[Object]) -> Self {
        let classes = addresses().into_iter().map(|address| index.peer_at(address)).collect();
        Self { classes, owners: owners(live) }
    }

    /// Whether a flow may have been allowed by a class or owner that its address no longer has.
    fn is_outdated(&self, now: &Self) -> bool {
        self.classes != now.classes || !self.owners.is_subset(&now.owners)
    }
}

#[test]
fn incremental_equals_from_scratch() {
    let (mut nothing, mut addresses, mut relisted, mut everything, mut late, mut later) = (0, 0, 0, 0, 0, 0);
    let (mut small, mut incremental) = (SmallAnswers::default(), 0);
    for seed in 0..240 {
        let mut random = Random::new(seed);
        let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
        fixed().into_iter().for_each(|object| _ = index.apply(object));
        let mut generation = index.compile().expect("classes");
        let mut live = fixed();
        let mut lists = [const { BTreeSet::new() }; 3];
        let mut change = |random: &mut Random, index: &mut Index, live: &mut Vec<Object>| {
            let object = change(random, &mut lists, live);
            let is_list = matches!(object.body, Body::CidrList(_));
            let key = Key::of(&object);
            let before = live.extract_if(.., |it| Key::of(it) == key).next();
            let rarely_goes = is_list || !matches!(object.body, Body::Pod(_) | Body::NetworkPolicy(_));
            let dirty = match random.below(if rarely_goes { 40 } else { 3 }) {
                0 => index.delete(&key),
                _ => {
                    live.push(object.clone());
                    let dirty = index.apply(object.clone());
                    if dirty == Dirty::Nothing {
                        small.count(index, before.as_ref(), &object);
                    }
                    dirty
                }
            };
            (dirty, is_list)
        };
        for _ in 0..100 {
            let before = Picture::of(&index, &live);
            let (dirty, is_list) = change(&mut random, &mut index, &mut live);
            let judges_again = match &dirty {
                Dirty::Nothing => false,
                Dirty::Addresses(changes) => changes.judge_again,
                Dirty::Everything => true,
            };
            let is_outdated = before.is_outdated(&Picture::of(&index, &live));
            assert!(judges_again || !is_outdated, "seed {seed}: {dirty:?}");
            // Judging again has a cost: the first packet of every flow takes the slow path.
            assert!(is_outdated || !judges_again || dirty == Dirty::Everything, "seed {seed}: {dirty:?}");
            match (dirty, is_list) {
                (Dirty::Nothing, _) => nothing += 1,
                (Dirty::Addresses(_), true) => relisted += 1,
                (Dirty::Addresses(_), false) => addresses += 1,
                (Dirty::Everything, _) => {
                    everything += 1;
                    let applied = index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE));
                    incremental += usize::from(applied.is_ok());
                    let draft = applied.map_err(|_| index.begin());
                    // Changes during the compilation are not included in it.
                    for _ in 0..random.below(4) {
                        change(&mut random, &mut index, &mut live);
                    }
                    generation = draft.unwrap_or_else(|draft| draft.classify().expect("classes"));
                    let found = index.adopt(&mut generation);
                    late += usize::from(!found.addresses.is_empty() && !found.is_more);
                    if found.is_more {
                        later += 1;
                        generation = index.compile().expect("classes");
                    }
                }
            }
            check_agrees(&index, &generation, &live);
        }
    }
    // Each kind of answer must occur, otherwise the test proves nothing.
    let counts = format!("{nothing} {addresses} {relisted} {everything} {late} {later} {incremental}");
    assert!(
        nothing > 50
            && addresses > 200
            && relisted > 200
            && everything > 200
            && late > 100
            && later > 100
            && incremental > 50,
        "{counts}"
    );
    assert!(small.moves > 50 && small.services > 50 && small.namespaces > 50 && small.local_pods > 50, "{small:?}");
}

/// A pod on another node, in the namespace shop.
fn far(name: &str, uid: &str, app: &str, address: &str) -> Object {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{app: {app}}}}}, \
         spec: {{nodeName: far}}, status: {{phase: Running, podIP: {address}}}}}"
    );
    objects(&text).remove(0)
}

/// An index with a local pod, and one pod of each kind on another node.
fn compiled() -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let near = far("near", "u0", "web", "10.0.0.1");
    let near = match near.body {
        Body::Pod(pod) => Object { body: Body::Pod(Pod { node: Some("near".to_owned()), ..pod }), ..near },
        _ => near,
    };
    let others = [far("db", "u1", "db", "10.1.0.1"), far("cron", "u2", "cron", "10.1.0.2")];
    fixed().into_iter().chain([near]).chain(others).for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    index
}

/// The number of single entries, and whether flows are judged again.
#[track_caller]
fn singly(dirty: Dirty) -> (usize, bool) {
    match dirty {
        Dirty::Nothing => (0, false),
        Dirty::Addresses(changes) => (changes.entries.len(), changes.judge_again),
        Dirty::Everything => panic!("it can be written singly"),
    }
}

#[test]
fn flows_are_judged_again_when_an_address_gets_another_class_or_another_owner() {
    let mut index = compiled();
    let new = |uid: &str, app: &str| far("new", uid, app, "10.1.0.9");
    assert_eq!(singly(index.apply(new("u3", "cron"))), (1, true), "it was no pod's");
    assert_eq!(singly(index.apply(new("u3", "cron"))), (0, false));
    assert_eq!(singly(index.apply(new("u3", "web"))), (1, true), "other labels");
    assert_eq!(singly(index.apply(new("u3", "cron"))), (1, true), "and back");
    assert_eq!(singly(index.apply(new("u3", "api"))), (0, false), "labels that nothing tells apart");
    assert_eq!(singly(index.apply(new("u4", "api"))), (0, true), "another pod of the same name");
    assert_eq!(singly(index.delete(&Key::of(&new("", "")))), (1, true), "it is no pod's again");
}

#[test]
fn a_pod_that_is_like_any_address_asks_for_nothing_until_it_goes() {
    let mut index = compiled();
    assert_eq!(singly(index.apply(far("new", "u3", "web", "10.1.0.9"))), (0, false));
    assert_eq!(singly(index.apply(far("new", "u4", "web", "10.1.0.9"))), (0, true), "another pod of the same name");
    assert_eq!(singly(index.apply(far("new", "u4", "web", "10.1.0.8"))), (0, true), "it has left an address");
    assert_eq!(singly(index.delete(&Key::of(&far("new", "", "web", "10.1.0.8")))), (0, true));
}

#[test]
fn a_pod_that_goes_while_a_generation_is_made_is_late_for_it() {
    let mut index = compiled();
    index.apply(far("new", "u3", "web", "10.1.0.9"));
    let draft = index.begin();
    index.delete(&Key::of(&far("new", "", "web", "10.1.0.9")));
    let late = index.adopt(&mut draft.classify().expect("classes"));
    assert_eq!(late, Late { judge_again: true, ..Late::default() });
}

#[test]
fn a_backend_of_another_class_changes_what_its_service_is_judged_by() {
    let mut index = compiled();
    index.apply(far("behind", "u3", "db", "10.0.0.5"));
    index.compile().expect("classes");
    assert_eq!(index.apply(far("behind", "u3", "cron", "10.0.0.5")), Dirty::Everything);
}

/// A slice of the service `sliced`, with these pods as backends: name and address.
fn slice_of(port: u16, pods: &[(&str, &str)]) -> Object {
    let endpoint = |(name, address): &(&str, &str)| {
        format!(
            "{{addresses: [{address}], conditions: {{ready: true}}, \
             targetRef: {{kind: Pod, namespace: shop, name: {name}}}}}"
        )
    };
    let endpoints = pods.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: sliced-1, namespace: shop, labels: {{kubernetes.io/service-name: sliced}}}}, \
         addressType: IPv4, ports: [{{name: a, port: {port}}}], endpoints: [{endpoints}]}}"
    );
    objects(&text).remove(0)
}

const DB: (&str, &str) = ("db", "10.1.0.1");
const CRON: (&str, &str) = ("cron", "10.1.0.2");
const DB_2: (&str, &str) = ("db-2", "10.1.0.3");
const NEAR: (&str, &str) = ("near", "10.0.0.1");

/// An index whose service `sliced` has the pod `db` as its only backend, on port 8080.
fn with_backend() -> Index {
    let mut index = compiled();
    // It has no slices and would select the pods as well.
    index.delete(&Key { kind: "Service".to_owned(), namespace: "shop".to_owned(), name: "db".to_owned() });
    index.apply(far(DB_2.0, "u4", "db", DB_2.1));
    index.apply(slice_of(8080, &[DB]));
    index.compile().expect("classes");
    index
}

#[test]
fn backends_of_one_class_and_port_move_without_a_compile() {
    for (next, expected) in [
        (slice_of(8080, &[DB, DB_2]), Dirty::Nothing),
        (slice_of(8080, &[DB_2]), Dirty::Nothing),
        (slice_of(8081, &[DB]), Dirty::Everything),
        (slice_of(8080, &[CRON]), Dirty::Everything),
        (slice_of(8080, &[DB, CRON]), Dirty::Everything),
        // The verdict of a local pod on its own service depends on the other backends.
        (slice_of(8080, &[DB, NEAR]), Dirty::Everything),
        (slice_of(8080, &[]), Dirty::Everything),
        // The address is another pod's than the slice says.
        (slice_of(8080, &[("other", DB_2.1)]), Dirty::Everything),
    ] {
        assert_eq!(with_backend().apply(next.clone()), expected, "{:?}", next.body);
    }
}

#[test]
fn a_local_backend_that_is_exchanged_for_one_of_its_class_requires_a_compile() {
    let mut index = compiled();
    index.apply(far("near-2", "u4", "web", "10.0.0.2"));
    index.apply(slice_of(8080, &[NEAR]));
    index.compile().expect("classes");
    let twin = ("near-2", "10.0.0.2");
    assert_eq!(index.peer_at([10, 0, 0, 2].into()), index.peer_at([10, 0, 0, 1].into()), "one class");
    assert_eq!(index.apply(slice_of(8080, &[NEAR, twin])), Dirty::Everything);
}

#[test]
fn a_new_backend_is_judged_by_its_class_from_then_on() {
    let mut index = with_backend();
    assert_eq!(index.apply(slice_of(8080, &[DB_2])), Dirty::Nothing);
    assert_eq!(index.apply(far(DB_2.0, "u4", "cron", DB_2.1)), Dirty::Everything);
    let mut index = with_backend();
    assert_eq!(index.apply(slice_of(8080, &[DB_2])), Dirty::Nothing);
    assert_ne!(index.apply(far(DB.0, "u1", "cron", DB.1)), Dirty::Everything, "it is no backend any more");
}

#[test]
fn a_slice_that_changes_while_a_generation_is_made_requires_another_one() {
    let mut index = with_backend();
    let draft = index.begin();
    assert_eq!(index.apply(slice_of(8080, &[DB_2])), Dirty::Everything);
    let late = index.adopt(&mut draft.classify().expect("classes"));
    assert!(late.is_more);
}

#[test]
fn more_moves_than_can_be_remembered_require_a_compile() {
    let mut index = with_backend();
    let outside: Vec<String> = (0..5_000).map(|host| format!("198.18.{}.{}", host / 250, host % 250)).collect();
    let with = |count: usize| -> Vec<(&str, &str)> {
        outside[..count].iter().map(|address| ("none", address.as_str())).chain([DB]).collect()
    };
    assert_eq!(index.apply(slice_of(8080, &with(1))), Dirty::Everything, "addresses that are no pods'");
    index.compile().expect("classes");
    assert_eq!(index.apply(slice_of(8080, &with(4_000))), Dirty::Nothing);
    assert_eq!(index.apply(slice_of(8080, &with(4_200))), Dirty::Everything);
}

/// Addresses that come and go again are remembered as well, until the next compile.
#[test]
fn backends_that_are_replaced_again_and_again_require_a_compile() {
    let mut index = with_backend();
    let with = |round: usize| -> Vec<String> {
        (0..1_000).map(|host| format!("198.18.{}.{}", 8 * round + host / 250, host % 250)).collect()
    };
    let slice = |addresses: &[String]| {
        let backends: Vec<(&str, &str)> = addresses.iter().map(|it| ("none", it.as_str())).chain([DB]).collect();
        slice_of(8080, &backends)
    };
    assert_eq!(index.apply(slice(&with(0))), Dirty::Everything, "addresses that are no pods'");
    index.compile().expect("classes");
    assert_eq!(index.apply(slice(&with(1))), Dirty::Nothing);
    assert_eq!(index.apply(slice(&with(2))), Dirty::Nothing);
    assert_eq!(index.apply(slice(&with(0))), Dirty::Everything, "6,000 moves, although the addresses are the first");
}

#[test]
fn a_policy_that_selects_no_local_pod_changes_nothing() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    let policy = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: elsewhere, namespace: shop}
spec: {podSelector: {matchLabels: {app: nobody}}}
";
    let policy = objects(policy).remove(0);
    assert_eq!(index.apply(policy.clone()), Dirty::Nothing);
    assert_eq!(index.apply(policy.clone()), Dirty::Nothing);
    assert_eq!(index.delete(&Key::of(&policy)), Dirty::Nothing);
}

#[test]
fn a_pod_with_a_host_port_makes_a_generation_on_its_own_node_alone() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().for_each(|object| _ = index.apply(object));
    let pod = |name: &str, node: &str, address: &str, port: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: web}}}}, spec: \
             {{nodeName: {node}, containers: [{{name: c, ports: [{{containerPort: 80{port}}}]}}]}}, \
             status: {{phase: Running, podIP: {address}}}}}"
        );
        objects(&text).remove(0)
    };
    let port = ", hostPort: 9000, hostIP: 192.0.2.40";
    let (known, elsewhere) = (pod("known", "far", "10.0.0.1", ""), pod("elsewhere", "far", "10.0.0.2", port));
    let (client, near) = (pod("client", "near", "10.0.0.3", ""), pod("near", "near", "10.0.0.4", port));
    [known, client].into_iter().for_each(|it| _ = index.apply(it));
    index.compile().expect("classes");
    assert_ne!(index.apply(elsewhere), Dirty::Everything, "another node's hostPorts concern nothing here");
    assert_eq!(index.apply(near.clone()), Dirty::Everything);
    index.compile().expect("classes");
    let mut moved = near.clone();
    let Body::Pod(body) = &mut moved.body else { panic!("a pod") };
    body.host_ports.clear();
    assert_eq!(index.apply(moved), Dirty::Everything, "it is no hostPort any more");
    assert_eq!(index.apply(near.clone()), Dirty::Everything);
    index.compile().expect("classes");
    // A pod on another node takes the address of the hostPort, or the pod's own address.
    assert_eq!(index.apply(pod("taker", "far", "192.0.2.40", "")), Dirty::Everything);
    assert_eq!(index.delete(&Key::of(&near)), Dirty::Everything);
}

#[test]
fn a_reset_with_the_same_objects_changes_nothing() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().for_each(|object| _ = index.apply(object));
    let mut random = Random::new(7);
    let mut pods: Vec<Object> = (0..20).map(|_| pod(&mut random)).collect();
    pods.sort_by_key(Key::of);
    pods.dedup_by_key(|it| Key::of(it));
    assert_eq!(index.reset("Pod", pods.clone()), Dirty::Everything);
    index.compile().expect("classes");
    assert_eq!(index.reset("Pod", pods.clone()), Dirty::Nothing);
    pods.clear();
    assert_ne!(index.reset("Pod", pods), Dirty::Nothing);
}

/// The value of an address in the exact table.
fn written(compiled: &Compiled, address: IpAddr) -> Option<Vec<u8>> {
    let map = compiled.maps.iter().find(|map| map.name == MapName::Exact4).expect("there are pods");
    let key = address_bytes(address);
    assert!(map.entries.is_sorted(), "whoever reads them relies on it");
    map.entries.iter().find(|(it, _)| *it == key).map(|(_, value)| value.clone())
}

#[test]
fn late_changes_are_written_into_compiled_tables_while_there_is_room() {
    let near = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.0.2}}
";
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().chain(objects(near)).for_each(|object| _ = index.apply(object));
    let generation = index.compile().expect("classes");
    let options =
        compile::CompileOptions { forced: vec![(LookupSet::Exact4, Structure::Layered)], ..Default::default() };
    let compiled = compile_classes(&generation.cluster, &generation.scope, generation.classes.clone(), &options);
    let mut compiled = compiled.expect("it compiles");
    let at = |host: u32| -> IpAddr { std::net::Ipv4Addr::from_bits(0x0a01_0000 + host).into() };
    let db: IpAddr = "10.0.0.2".parse().expect("an address");
    let class = |number: u32| Some(number.to_le_bytes().to_vec());
    assert_ne!(written(&compiled, db), class(7));
    assert!(compiled.write_addresses(&[(db, Some(PeerId(7))), (at(1), Some(PeerId(8))), (at(2), None)].into()));
    assert_eq!([db, at(1), at(2)].map(|it| written(&compiled, it)), [class(7), class(8), None]);
    assert!(compiled.write_addresses(&[(db, None)].into()));
    assert_eq!(written(&compiled, db), None);
    // No endpoint has an address of that family, so there is no table for it.
    let maps = compiled.maps.clone();
    assert!(compiled.write_addresses(&[("2001:db8::1".parse().expect("an address"), Some(PeerId(1)))].into()));
    assert_eq!(compiled.maps, maps);
    // If there are more entries than room, the call says so, and writes as many as fit.
    let room = maps.iter().find(|map| map.name == MapName::Exact4).expect("it is there").spec.max_entries;
    assert!(!compiled.write_addresses(&(0..=room).map(|host| (at(host), Some(PeerId(9)))).collect()));
    assert_eq!([at(0), at(1)].map(|it| written(&compiled, it)), [class(9), class(9)]);
    assert_eq!(written(&compiled, at(room)), None);
}
