//! Random objects of a small cluster, and changes of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_objects::k8s::{Body, Object, Phase, SliceEndpoint};
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

pub(crate) fn fixed() -> Vec<Object> {
    let outside = sliced_service("outside", "10.97.0.1", [9000; 2], "192.0.2.9");
    let sliced = sliced_service("sliced", "10.97.0.2", [80, 8080], "10.0.0.5");
    let headless = sliced_service("headless", "None", [80, 8080], "10.0.0.5");
    objects(&[NEAR_AND_FAR, FIXED, &outside, &sliced, &headless].join("---\n"))
}

/// A pod with one of few names, labels and addresses, so that events repeat and addresses move between pods.
pub(crate) fn pod(random: &mut Random) -> Object {
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
        pod.node_addresses = [host.parse().expect("an address")].into();
    }
    later.meta.deleting = random.below(4) == 0;
    later
}

/// A new local pod that is nearly like another pod, as in a rolling update.
fn copy(random: &mut Random, pod: &Object) -> Object {
    let mut copy = pod.clone();
    copy.meta.name = format!("copy{}", random.below(6));
    copy.meta.uid = Some(random.pick(&["u3", "u4"]).into());
    copy.meta.deleting = false;
    Arc::make_mut(&mut copy.meta.labels).insert("hash", format!("h{}", random.below(3)));
    if let Body::Pod(pod) = &mut copy.body {
        pod.node = Some("near".into());
        pod.phase = Some(Phase::Running);
        pod.addresses = vec![format!("10.0.0.{}", random.below(18)).parse().expect("an address")];
        (pod.host_network, pod.host_ports) = (false, Vec::new());
        pod.node_addresses = pod.node_addresses.iter().copied().filter(|_| random.below(2) == 0).collect();
    }
    copy
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
pub(crate) fn change(random: &mut Random, lists: &mut [BTreeSet<String>; 3], live: &[Object]) -> Object {
    let pods: Vec<&Object> = live.iter().filter(|it| matches!(it.body, Body::Pod(_))).collect();
    let slices: Vec<&Object> = live.iter().filter(|it| matches!(it.body, Body::EndpointSlice(_))).collect();
    match random.below(34) {
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
        29..=33 if !pods.is_empty() => {
            let pod = pods[random.below(pods.len())];
            copy(random, pod)
        }
        _ => pod(random),
    }
}
