//! A draft that does not need services or nodes has the same verdicts without them, and a draft that needs them and does
//! not have them allows nothing that it would deny with them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_classes::index::{Index, Needs};
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Assumptions, Cluster, Direction, Protocol};
use weir_objects::k8s::{Body, Object};
use weir_testing::yaml::objects;

/// `web` is local. The service `db` leads to `db`, `one` to `one`; a ClusterIP is another node's address.
const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Node, metadata: {name: near}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: far, labels: {zone: z}}, status: {addresses: [{type: InternalIP, address: 172.16.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.5, hostIP: 172.16.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, uid: u2, labels: {app: db}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.1.5}}
---
{apiVersion: v1, kind: Pod, metadata: {name: one, namespace: shop, uid: u3, labels: {app: one}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.1.6}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
  spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: one, namespace: shop},
  spec: {clusterIP: 172.16.0.2, externalIPs: [10.0.1.5], ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: one-1, namespace: shop,
  labels: {kubernetes.io/service-name: one}}, addressType: IPv4, ports: [{port: 8080}],
  endpoints: [{addresses: [10.0.1.6]}]}
";

const ADDRESSES: [[u8; 4]; 8] = [
    [10, 0, 0, 5],
    [10, 0, 1, 5],
    [10, 0, 1, 6],
    [10, 96, 0, 1],
    [172, 16, 0, 1],
    [172, 16, 0, 2],
    [10, 96, 0, 9],
    [192, 0, 2, 1],
];
const OWN_NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(172, 16, 0, 1));
const PORTS: [u16; 3] = [80, 8080, 30080];

fn policy(spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {spec}}}"
    )
}

fn cluster_policy(rules: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: c}},
          spec: {{tier: Admin, priority: 1, subject: {{namespaces: {{}}}}, {rules}}}}}"
    )
}

fn list(spec: &str) -> String {
    format!("{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: l}}, spec: {spec}}}")
}

fn index(policy: &str, is_known: impl Fn(&Object) -> bool) -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let all = objects(&[CLUSTER, policy].join("---\n"));
    all.into_iter().filter(is_known).for_each(|object| _ = index.apply(object));
    index
}

fn is_service(object: &Object) -> bool {
    matches!(object.body, Body::Service(_) | Body::EndpointSlice(_))
}

fn is_other_node(object: &Object) -> bool {
    matches!(object.body, Body::Node(_)) && object.meta.name != "near"
}

/// The local end's verdicts about all packets from and to the local pod.
fn verdicts(cluster: &Cluster) -> BTreeMap<(Direction, IpAddr, u16), Verdict> {
    let directory = Directory::new(cluster);
    let end = |address: IpAddr| FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) };
    let web = end(IpAddr::from(ADDRESSES[0]));
    let mut oracle = Oracle::new(cluster);
    let mut found = BTreeMap::new();
    for (address, port) in ADDRESSES.iter().flat_map(|at| PORTS.map(|port| (IpAddr::from(*at), port))) {
        let protocol = FlowProtocol::Transport(Protocol::Tcp);
        let leaves = oracle.judge(&Flow { source: web, destination: end(address), protocol, port });
        found.insert((Direction::Egress, address, port), leaves.egress.verdict);
        let enters = oracle.judge(&Flow { source: end(address), destination: web, protocol, port });
        found.insert((Direction::Ingress, address, port), enters.ingress.verdict);
    }
    found
}

fn resolved(index: &mut Index) -> (Needs, Cluster) {
    let likely = index.likely_needs();
    let draft = index.begin();
    let needs = draft.needs();
    assert_eq!(likely, needs, "asked without a draft");
    (needs, Cluster::clone(&draft.classify().expect("it compiles").cluster))
}

#[test]
fn objects_that_are_not_needed_change_no_verdict() {
    let nothing = Needs::default();
    let services = Needs { services: true, nodes: false };
    for (policy, expected) in [
        (
            policy(
                "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 8080}]}]}",
            ),
            nothing,
        ),
        (policy("{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 172.16.0.0/24}}]}]}"), nothing),
        (policy("{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: []}"), nothing),
        (policy("{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}"), services),
        (list("{action: Deny, directions: [Ingress], cidrs: [10.0.1.0/24]}"), nothing),
        (list("{action: Deny, directions: [Egress], cidrs: [10.0.1.6/32]}"), services),
        (
            cluster_policy(
                "egress: [{action: Deny, to: [{pods: {podSelector: {matchLabels: {app: one}}, namespaceSelector: {}}}]}]",
            ),
            services,
        ),
        (cluster_policy("ingress: [{action: Accept, from: [{namespaces: {}}]}]"), nothing),
        (
            cluster_policy("egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: z}}}]}]"),
            Needs { services: true, nodes: true },
        ),
    ] {
        let (needs, with_all) = resolved(&mut index(&policy, |_| true));
        assert_eq!(needs, expected, "{policy}");
        let (_, without) = resolved(&mut index(&policy, |it| !is_service(it)));
        assert_eq!(verdicts(&with_all) == verdicts(&without), !needs.services, "services: {policy}");
        if !needs.services && !needs.nodes {
            let (_, without) = resolved(&mut index(&policy, |it| !is_service(it) && !is_other_node(it)));
            assert_eq!(verdicts(&with_all), verdicts(&without), "nodes: {policy}");
        }
        // While services are followed, a generation does not wait for the nodes: it only denies more without them.
        if !needs.nodes {
            let (_, without) = resolved(&mut index(&policy, |it| !is_other_node(it)));
            assert_allows_nothing_more(&without, &with_all, &policy);
        }
    }
}

/// Packets to the own node always pass, and a node port is not known before its service is. So these are left out.
fn assert_allows_nothing_more(cluster: &Cluster, than: &Cluster, policy: &str) {
    let allowed = verdicts(than);
    for (flow, verdict) in verdicts(cluster).into_iter().filter(|((_, address, _), _)| *address != OWN_NODE) {
        assert!(verdict == Verdict::Deny || allowed[&flow] == Verdict::Allow, "{flow:?} is allowed: {policy}");
    }
}

#[test]
fn closed_draft_allows_nothing_that_the_complete_one_denies() {
    for policy in [
        policy(
            "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.1.5/32]}}]}]}",
        ),
        policy("{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 80}]}]}"),
        policy("{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}"),
        [
            policy("{podSelector: {}, policyTypes: [Egress], egress: []}"),
            cluster_policy("egress: [{action: Accept, to: [{networks: [10.96.0.0/16]}]}]"),
        ]
        .join("\n---\n"),
        [
            policy("{podSelector: {}, policyTypes: [Egress], egress: []}"),
            cluster_policy(
                "egress: [{action: Pass, to: [{namespaces: {}}]}, {action: Accept, to: [{networks: [0.0.0.0/0]}]}]",
            ),
        ]
        .join("\n---\n"),
        [
            list("{action: Allow, order: 1, directions: [Egress], cidrs: [10.96.0.0/16]}"),
            list("{action: Deny, order: 2, directions: [Egress], cidrs: [10.96.0.0/16]}").replace("name: l", "name: m"),
        ]
        .join("\n---\n"),
    ] {
        let (_, complete) = resolved(&mut index(&policy, |_| true));
        let mut unknown = index(&policy, |it| !is_service(it) && !is_other_node(it));
        let mut draft = unknown.begin();
        draft.close_egress();
        let closed = draft.classify().expect("it compiles").cluster;
        assert_allows_nothing_more(&closed, &complete, &policy);
        // Packets that enter are judged as before.
        let entering = |cluster: &Cluster| -> Vec<_> {
            verdicts(cluster).into_iter().filter(|((direction, ..), _)| *direction == Direction::Ingress).collect()
        };
        assert_eq!(entering(&closed), entering(&complete), "{policy}");
    }
}

#[test]
fn rules_about_unknown_nodes_fail_closed() {
    for rules in [
        "egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: z}}}]}]",
        "egress: [{action: Accept, to: [{nodes: {}}]}, {action: Deny, to: [{networks: [172.16.0.0/16]}]}]",
        "egress: [{action: Pass, to: [{nodes: {}}]}, {action: Accept, to: [{networks: [172.16.0.0/16]}]}]",
    ] {
        let policy =
            [policy("{podSelector: {}, policyTypes: [Egress], egress: []}"), cluster_policy(rules)].join("\n---\n");
        let (needs, complete) = resolved(&mut index(&policy, |_| true));
        assert!(needs.nodes, "{rules}");
        let mut draft = index(&policy, |it| !is_other_node(it)).begin();
        draft.close_node_rules();
        assert_allows_nothing_more(&draft.classify().expect("it compiles").cluster, &complete, rules);
    }
}
