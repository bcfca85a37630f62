//! The objects of the tests: fixed ones, and random changes of each kind.

use weir_objects::k8s::{Body, Object};
use weir_testing::Random;
use weir_testing::yaml::{NEAR_AND_FAR, objects};

const FIXED: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: ops, labels: {team: b}}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
 spec: {clusterIP: 10.96.0.1, ports: [{name: a, port: 80, targetPort: 9005, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
 metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4,
 ports: [{name: a, port: 9005}],
 endpoints: [{addresses: [10.0.1.2], conditions: {ready: true}}, {addresses: [192.0.2.9], conditions: {ready: true}}]}
---
{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {name: denied}, spec: {action: Deny, directions: [Ingress], cidrs: [192.0.2.4/31]}}
---
{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {name: blocked},
 spec: {action: Deny, order: 2, directions: [Egress], cidrs: [192.0.2.14/31]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin},
 spec: {priority: 5, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}},
 ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: b}}}],
 ports: [{portRange: {protocol: TCP, start: 9000, end: 9004}}]}]}}
";

/// Local pods: namespace, name, app.
const LOCAL: [(&str, &str, &str); 6] = [
    ("shop", "web-1", "web"),
    ("shop", "web-2", "web"),
    ("shop", "db", "db"),
    ("shop", "job", "job"),
    ("ops", "web", "web"),
    ("ops", "anchor", "anchor"),
];

const PEERS: [&str; 7] = [
    "[]",
    "[{podSelector: {matchLabels: {app: db}}}]",
    "[{podSelector: {matchExpressions: [{key: app, operator: In, values: [web, job]}]}}]",
    "[{namespaceSelector: {matchLabels: {team: b}}}]",
    "[{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]",
    "[{ipBlock: {cidr: 10.0.0.0/28, except: [10.0.0.4/30]}}]",
    "[{ipBlock: {cidr: 192.0.2.0/28}}]",
];

const PORTS: [&str; 9] = [
    "[]",
    "[{port: http}]",
    // In no rule of the fixed policies.
    "[{port: metrics}]",
    "[{port: 80}]",
    "[{port: 9000, endPort: 9010}]",
    "[{port: 9005}]",
    "[{port: 53, protocol: UDP}]",
    "[{protocol: TCP}]",
    "[{port: 9003, endPort: 9007}, {port: 443}]",
];

pub(crate) fn pod(namespace: &str, name: &str, node: &str, app: &str, address: &str) -> Object {
    pod_with_port(namespace, name, node, app, address, 8080)
}

/// A pod whose port `http` has this number.
fn pod_with_port(namespace: &str, name: &str, node: &str, app: &str, address: &str, http: u16) -> Object {
    let metrics = if app == "db" { ", {name: metrics, containerPort: 9003}" } else { "" };
    let ports = format!("{{name: http, containerPort: {http}}}{metrics}");
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}, \
         spec: {{nodeName: {node}, containers: [{{name: c, ports: [{ports}]}}]}}, \
         status: {{phase: Running, podIP: {address}}}}}"
    );
    objects(&text).remove(0)
}

pub(crate) fn network_policy(namespace: &str, name: &str, mode: &str, spec: &str) -> Object {
    let text = format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: {namespace}, \
         annotations: {{weir.dev/mode: {mode}}}}}, spec: {spec}}}"
    );
    objects(&text).remove(0)
}

/// Policies with all peers and names, for one local pod in each namespace. With them, no change of another policy begins
/// or ends the use of a peer.
pub(crate) fn anchors() -> Vec<Object> {
    let (peers, named) = (&PEERS[1..], PORTS[1]);
    let rules = |field: &str| {
        let rules: Vec<String> = peers.iter().map(|it| format!("{{{field}: {it}, ports: {named}}}")).collect();
        rules.join(", ")
    };
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: anchor}}}}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}}",
        rules("from"),
        rules("to")
    );
    let audit = "{podSelector: {matchLabels: {app: anchor}}}";
    let shop = pod("shop", "anchor", "near", "anchor", "10.0.1.9");
    let of = |namespace| network_policy(namespace, "anchor", "enforce", &spec);
    vec![shop, of("shop"), of("ops"), network_policy("ops", "audited", "audit", audit)]
}

pub(crate) fn namespace_with(name: &str, labels: &str) -> Object {
    let text = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{labels}}}}}}}");
    objects(&text).remove(0)
}

/// A local pod with hostPorts, one of which a service may claim as its node port.
pub(crate) fn with_host_ports() -> Object {
    let ports = "[{containerPort: 9005, hostPort: 9000}, {containerPort: 80, hostPort: 30080, hostIP: 192.0.2.5}]";
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: open, namespace: shop, labels: {{app: db}}}}, \
         spec: {{nodeName: near, containers: [{{name: c, ports: {ports}}}]}}, \
         status: {{phase: Running, podIP: 10.0.1.8, hostIP: 172.16.0.1}}}}"
    );
    objects(&text).remove(0)
}

pub(crate) fn fixed() -> Vec<Object> {
    let shop = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}\n";
    let mut all = objects(&[NEAR_AND_FAR, shop, FIXED].join("---\n"));
    let local = (1..).zip(LOCAL);
    all.extend(
        local.map(|(host, (namespace, name, app))| pod(namespace, name, "near", app, &format!("10.0.1.{host}"))),
    );
    all.push(pod("shop", "far-db", "far", "db", "10.0.0.1"));
    all.push(pod("ops", "far-web", "far", "web", "10.0.0.2"));
    all
}

/// A policy with one of few names, selectors and rules.
pub(crate) fn policy(random: &mut Random) -> Object {
    let namespace = random.pick(&["shop", "shop", "ops", "ops", "dev"]);
    let name = format!("n{}", random.below(5));
    let mode = random.pick(&["enforce", "enforce", "enforce", "audit"]);
    let subjects =
        random.pick(&["{}", "{matchLabels: {app: web}}", "{matchLabels: {app: db}}", "{matchLabels: {app: nobody}}"]);
    let types = random.pick(&["[Ingress]", "[Egress]", "[Ingress, Egress]"]);
    let mut rules = |field: &str, peers: &str| {
        if !types.contains(field) {
            return String::new();
        }
        let count = random.below(3);
        let peer = |random: &mut Random| match random.below(5) {
            0 => format!("[{{ipBlock: {}}}]", block(random)),
            1 => format!("[{{ipBlock: {}}}, {{ipBlock: {}}}]", block(random), block(random)),
            _ => random.pick(&PEERS).to_owned(),
        };
        let rule = |_| format!("{{{peers}: {}, ports: {}}}", peer(random), random.pick(&PORTS));
        let rules: Vec<String> = (0..count).map(rule).collect();
        format!(", {}: [{}]", field.to_lowercase(), rules.join(", "))
    };
    let (ingress, egress) = (rules("Ingress", "from"), rules("Egress", "to"));
    let spec = format!("{{podSelector: {subjects}, policyTypes: {types}{ingress}{egress}}}");
    network_policy(namespace, &name, mode, &spec)
}

/// Another node, or the own one with other labels. A pod, a service and a list can have the addresses too.
pub(crate) fn node(random: &mut Random) -> Object {
    let name = random.pick(&["near", "far", "third", "fourth"]);
    let labels = random.pick(&["", "zone: a", "zone: b"]);
    let addresses: Vec<usize> = match name {
        "near" => vec![1],
        _ => (0..random.below(3)).map(|_| 2 + random.below(5)).collect(),
    };
    objects(&node_with(name, labels, &addresses)).remove(0)
}

pub(crate) fn node_with(name: &str, labels: &str, addresses: &[usize]) -> String {
    let addresses = addresses.iter().map(|it| format!("{{type: InternalIP, address: 172.16.0.{it}}}"));
    let addresses: Vec<String> = addresses.collect();
    let meta = format!("{{name: {name}, labels: {{{labels}}}}}");
    format!("{{apiVersion: v1, kind: Node, metadata: {meta}, status: {{addresses: [{}]}}}}", addresses.join(", "))
}

/// A cluster-wide policy with one of few names, priorities, subjects and rules.
pub(crate) fn cluster_policy(random: &mut Random) -> Object {
    let name = random.pick(&["admin", "c0", "c1"]);
    let subject = random.pick(&["team: a", "team: b", "team: c", "team: none"]);
    let subject = match random.below(3) {
        0 => "{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}".to_owned(),
        _ => format!("{{namespaces: {{matchLabels: {{{subject}}}}}}}"),
    };
    let ports = |random: &mut Random| {
        let port = random.pick(&[
            "{portNumber: {protocol: TCP, port: 443}}",
            "{portRange: {protocol: TCP, start: 9000, end: 9004}}",
            "{portNumber: {protocol: UDP, port: 53}}",
            "{namedPort: http}",
            "{namedPort: metrics}",
        ]);
        if random.below(3) == 0 { String::new() } else { format!(", ports: [{port}]") }
    };
    let rule = |random: &mut Random, field: &str| {
        let peer = match random.below(if field == "to" { 4 } else { 3 }) {
            0 => "{namespaces: {matchLabels: {team: b}}}".to_owned(),
            1 => "{pods: {namespaceSelector: {matchLabels: {team: c}}, podSelector: {}}}".to_owned(),
            2 => {
                let app = random.pick(&["web", "job", "other"]);
                format!("{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: {app}}}}}}}}}")
            }
            _ => format!("{{networks: [{}, 192.0.2.8/29]}}", random.pick(&["10.0.0.0/30", "0.0.0.0/0", "'::/0'"])),
        };
        // Names of ports are those of pods.
        let ports = if peer.starts_with("{networks") { String::new() } else { ports(random) };
        format!("{{action: {}, {field}: [{peer}]{ports}}}", random.pick(&["Allow", "Deny", "Pass"]))
    };
    let mut rules = |field: &str| {
        let count = random.below(3);
        (0..count).map(|_| rule(random, field)).collect::<Vec<_>>().join(", ")
    };
    let (ingress, egress) = (rules("from"), rules("to"));
    let mode = random.pick(&["enforce", "enforce", "audit"]);
    let priority = random.pick(&[3, 5, 6, 8]);
    let meta = format!("{{name: {name}, annotations: {{weir.dev/mode: {mode}}}}}");
    let spec = format!("{{priority: {priority}, subject: {subject}, ingress: [{ingress}], egress: [{egress}]}}");
    let text = format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {meta}, spec: {spec}}}"
    );
    objects(&text).remove(0)
}

/// A cluster-wide policy with `nodes` peers.
pub(crate) fn to_nodes() -> Object {
    let rule = |action: &str, nodes: &str, port: u16| {
        let port = format!("{{portNumber: {{protocol: TCP, port: {port}}}}}");
        format!("{{action: {action}, to: [{{nodes: {nodes}}}], ports: [{port}]}}")
    };
    let rules = [
        rule("Allow", "{matchLabels: {zone: a}}", 80),
        rule("Deny", "{matchExpressions: [{key: zone, operator: DoesNotExist}]}", 443),
        rule("Deny", "{}", 9005),
    ];
    let spec = format!("{{priority: 7, subject: {{namespaces: {{}}}}, egress: [{}]}}", rules.join(", "));
    let text = format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {{name: to-nodes}}, \
         spec: {spec}}}"
    );
    objects(&text).remove(0)
}

/// One of three lists, of which two are fixed ones. Often only its entries are others.
pub(crate) fn list(random: &mut Random) -> Object {
    let fixed = [("denied", 100, "Ingress"), ("blocked", 2, "Egress"), ("third", 7, "Ingress, Egress")];
    let (name, mut order, mut directions) = random.pick(&fixed);
    let (mut action, mut applies_to) = ("Deny", "{}");
    if random.below(3) == 0 {
        (action, order) = (random.pick(&["Deny", "Allow"]), random.pick(&[2, 7, 100, 200]));
        directions = random.pick(&["Ingress", "Ingress, Egress"]);
        applies_to = random.pick(&APPLIES_TO);
    }
    let count = random.below(4);
    let entry = |random: &mut Random| match random.below(3) {
        0 => format!("192.0.2.{}/32", random.below(33)),
        _ => random.pick(&LISTED).to_owned(),
    };
    let entries: Vec<String> = (0..count).map(|_| entry(random)).collect();
    let entries = entries.join(", ");
    let spec = format!(
        "{{action: {action}, order: {order}, directions: [{directions}], appliesTo: {applies_to}, cidrs: [{entries}]}}"
    );
    let meta = format!("{{name: {name}}}");
    objects(&format!("{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {meta}, spec: {spec}}}")).remove(0)
}

/// The pods of lists: those of labels that pods and namespaces get and lose, and none.
const APPLIES_TO: [&str; 6] = [
    "{}",
    "{podSelector: {matchLabels: {app: web}}}",
    "{podSelector: {matchLabels: {app: other}}}",
    "{namespaceSelector: {matchLabels: {team: c}}}",
    "{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: job}}}",
    "{podSelector: {matchLabels: {app: nobody}}}",
];

/// Entries of lists: among addresses of pods, services and nothing, and at the ends of the address space.
const LISTED: [&str; 11] = [
    "192.0.2.0/28",
    "192.0.2.8/30",
    "192.0.2.4/31",
    "10.0.0.0/29",
    "10.0.0.2/31",
    "10.0.1.10/31",
    "10.96.0.2/31",
    "172.16.0.2/31",
    "0.0.0.0/0",
    "'2001:db8::/127'",
    "'::/0'",
];

/// A block that begins and ends inside other ones, at their ends, or at the ends of the address space.
fn block(random: &mut Random) -> String {
    let address = random.pick(&["10.0.0", "10.0.1", "10.96.0", "192.0.2"]);
    let length = 27 + random.below(6);
    let first = random.below(32) >> (32 - length) << (32 - length);
    let inner = |random: &mut Random| format!("{address}.{}/32", first + random.below(1 << (32 - length)));
    match random.below(10) {
        0 => "{cidr: 0.0.0.0/0}".to_owned(),
        1 => "{cidr: 255.255.255.255/32}".to_owned(),
        2 => "{cidr: '::/0', except: ['2001:db8::/127']}".to_owned(),
        3 => "{cidr: '2001:db8::1/128'}".to_owned(),
        4 if length < 32 => {
            format!("{{cidr: {address}.{first}/{length}, except: [{}, {}]}}", inner(random), inner(random))
        }
        _ => format!("{{cidr: {address}.{first}/{length}}}"),
    }
}

/// A pod of another node. Its status may name addresses of the node, which no Node object needs to declare.
pub(crate) fn far_pod(random: &mut Random) -> Object {
    let (namespace, app) = (random.pick(&["shop", "ops"]), random.pick(&["web", "db", "job", "other"]));
    let name = format!("p{}", random.below(6));
    let namespace = if random.below(8) == 0 { "dev" } else { namespace };
    // Numbers that ranges of rules have, and one that none has.
    let http = random.pick(&[8080, 8080, 8081, 80, 9005]);
    // Seldom an address that a node can have.
    let address = match random.below(12) {
        0 => format!("172.16.0.{}", 3 + random.below(5)),
        _ => format!("10.0.0.{}", random.below(16)),
    };
    let mut object = pod_with_port(namespace, &name, random.pick(&["far", "third"]), app, &address, http);
    if let (Body::Pod(pod), 0..3) = (&mut object.body, random.below(6)) {
        pod.node_addresses = [format!("172.16.0.{}", 2 + random.below(6)).parse().expect("an address")].into();
        pod.host_network = random.below(3) == 0;
    }
    object
}

/// A local pod with one of few names; often with the address that another one had.
pub(crate) fn local_pod(random: &mut Random) -> Object {
    let (namespace, app) = (random.pick(&["shop", "ops", "dev"]), random.pick(&["web", "db", "job", "other"]));
    let name = random.pick(&["job", "l0", "l1", "l2"]);
    // Sometimes the address of a pod of another node.
    let address = match random.below(6) {
        0 => format!("10.0.0.{}", random.below(16)),
        _ => format!("10.0.1.{}", 10 + random.below(5)),
    };
    // Numbers of which some are in no rule and no service.
    pod_with_port(namespace, name, "near", app, &address, random.pick(&[8080, 8082, 8084, 9005]))
}

/// Services: namespace, name, ClusterIP, node port.
const SERVICES: [(&str, &str, &str, u16); 4] = [
    ("shop", "db", "10.96.0.1", 30080),
    ("shop", "api", "10.96.0.2", 30081),
    ("ops", "db", "10.96.0.3", 30082),
    ("dev", "web", "10.96.0.4", 30083),
];

pub(crate) fn service(random: &mut Random) -> Object {
    let (namespace, name, address, node_port) = random.pick(&SERVICES);
    let ports = match random.below(5) {
        0 => "[{name: a, port: 80, targetPort: 9005}, {name: b, port: 443, targetPort: 80}]".to_owned(),
        1 => "[{name: a, port: 9005, targetPort: 8080}]".to_owned(),
        2 => "[{name: a, port: 80, targetPort: http}]".to_owned(),
        _ => format!("[{{name: a, port: 80, targetPort: 9005, nodePort: {node_port}}}]"),
    };
    let address = if random.below(8) == 0 { "None" } else { address };
    // An address outside, a pod's, and another service's ClusterIP.
    let external = match random.below(10) {
        0 => ", externalIPs: [192.0.2.5]",
        1 => ", externalIPs: [192.0.2.5, 192.0.2.11]",
        2 => ", externalIPs: [10.0.0.3]",
        3 => ", externalIPs: [10.96.0.1]",
        4 => ", externalIPs: [172.16.0.3]",
        _ => "",
    };
    let selector = if random.below(3) == 0 { ", selector: {app: db}" } else { "" };
    let spec = format!("{{clusterIP: {address}, ports: {ports}{external}{selector}}}");
    let meta = format!("{{name: {name}, namespace: {namespace}}}");
    objects(&format!("{{apiVersion: v1, kind: Service, metadata: {meta}, spec: {spec}}}")).remove(0)
}

/// A slice of one of the services, which may not exist.
pub(crate) fn slice(random: &mut Random) -> Object {
    let (namespace, service, ..) = random.pick(&SERVICES);
    let endpoint = |random: &mut Random| {
        let address = match random.below(11) {
            0..4 => format!("10.0.0.{}", random.below(16)),
            4..8 => format!("10.0.1.{}", 1 + random.below(14)),
            8 => format!("172.16.0.{}", 1 + random.below(4)),
            _ => format!("192.0.2.{}", random.below(16)),
        };
        format!("{{addresses: [{address}], conditions: {{ready: {}}}}}", random.below(5) > 0)
    };
    let count = random.below(4);
    let endpoints: Vec<String> = (0..count).map(|_| endpoint(random)).collect();
    let port = random.pick(&[9005, 9005, 80, 8080]);
    let meta = format!(
        "{{name: {service}-{}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {service}}}}}",
        1 + random.below(2)
    );
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {meta}, addressType: IPv4, \
         ports: [{{name: a, port: {port}}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

/// A namespace. Rules select by its first label, and no rule mentions the second one.
pub(crate) fn namespace(random: &mut Random) -> Object {
    let (name, team) = (random.pick(&["shop", "ops", "dev", "dev"]), random.pick(&["a", "b", "c"]));
    let labels = format!("{{team: {team}, other: v{}}}", random.below(3));
    objects(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {labels}}}}}")).remove(0)
}

/// Changes of which some always need a compile from scratch.
pub(crate) fn other(random: &mut Random) -> Object {
    let text = match random.below(2) {
        0 => format!(
            "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: denied}}, \
             spec: {{action: Deny, order: {}, directions: [Ingress], cidrs: [192.0.2.4/31]}}}}",
            random.below(3)
        ),
        _ => node_with("near", "", &[1 + random.below(4)]),
    };
    objects(&text).remove(0)
}
