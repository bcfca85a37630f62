//! Generates clusters of any size, always the same for a size: input for benchmarks.

use std::fmt::Write;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng as _, SeedableRng as _};

/// The size of a cluster.
#[derive(Clone, Copy)]
pub struct ClusterSize {
    pub pods: usize,
    pub policies: usize,
    pub namespaces: usize,
    /// ClusterNetworkPolicies, each with [`TIER_RULES`] rules.
    pub tiers: usize,
}

/// The most rules that a ClusterNetworkPolicy can have in one direction. Here the rules of both directions add up to it.
pub const TIER_RULES: usize = 25;

/// Random numbers, the same on every machine.
struct Random(Xoshiro256PlusPlus);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound.max(1) as u64) as usize
    }
}

const TIERS: [&str; 5] = ["web", "api", "db", "cache", "jobs"];

/// A snapshot as `kubectl get namespaces,pods,networkpolicies -A -o json` prints it.
pub fn snapshot(size: ClusterSize) -> String {
    snapshot_on(size, 110)
}

/// The same cluster, with `per_node` pods on each node.
pub fn snapshot_on(size: ClusterSize, per_node: usize) -> String {
    let mut random = Random::new(1);
    let mut items = Vec::with_capacity(size.pods + size.policies + size.namespaces);
    for namespace in 0..size.namespaces {
        items.push(format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"team-{namespace}","labels":{{"team":"t{}","stage":"{}"}}}}}}"#,
            namespace % 10,
            ["prod", "test"][namespace % 2],
        ));
    }
    for pod in 0..size.pods {
        items.push(pod_json(pod, pod / per_node.max(1), size, &mut random));
    }
    for policy in 0..size.policies {
        items.push(policy_json(policy, size, &mut random));
    }
    for tier in 0..size.tiers {
        items.push(tier_json(tier, &mut random));
    }
    format!("{{\n\"apiVersion\": \"v1\",\n\"items\": [\n{}\n],\n\"kind\": \"List\"\n}}\n", items.join(",\n"))
}

fn pod_json(pod: usize, node: usize, size: ClusterSize, random: &mut Random) -> String {
    let tier = TIERS[random.below(TIERS.len())];
    let address = pod_address(pod);
    let (namespace, app) = (pod % size.namespaces, random.below(40));
    let mut json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"pod-{pod}","namespace":"team-{namespace}","uid":"00000000-0000-4000-8000-{pod:012}","creationTimestamp":"2026-01-01T00:00:00Z","resourceVersion":"{pod}","labels":{{"app":"app-{app}","tier":"{tier}","pod-template-hash":"{:08x}"}}}},"#,
        app * 7919 + namespace,
    );
    let _ = write!(
        json,
        r#""spec":{{"nodeName":"node-{node}","restartPolicy":"Always","serviceAccountName":"default","containers":[{{"name":"main","image":"registry.example/{tier}:1.2.3","imagePullPolicy":"IfNotPresent","ports":[{{"containerPort":8080,"name":"http","protocol":"TCP"}},{{"containerPort":9090,"name":"metrics","protocol":"TCP"}}],"resources":{{"limits":{{"cpu":"500m","memory":"256Mi"}}}}}}]}},"#,
    );
    let _ = write!(
        json,
        r#""status":{{"phase":"Running","hostIP":"172.16.{}.{}","podIP":"{address}","podIPs":[{{"ip":"{address}"}}],"conditions":[{{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}}]}}}}"#,
        node / 250,
        node % 250 + 1,
    );
    json
}

/// 10.0.0.1 and up.
fn pod_address(pod: usize) -> String {
    let host = pod + 1;
    format!("10.{}.{}.{}", host >> 16 & 255, host >> 8 & 255, host & 255)
}

fn policy_json(policy: usize, size: ClusterSize, random: &mut Random) -> String {
    let namespace = policy % size.namespaces;
    let app = random.below(40);
    let peer_tier = TIERS[random.below(TIERS.len())];
    let block = format!("10.{}.0.0/16", random.below(4));
    let port = 8000 + random.below(200);
    format!(
        r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"name":"policy-{policy}","namespace":"team-{namespace}"}},"spec":{{"podSelector":{{"matchLabels":{{"app":"app-{app}"}}}},"policyTypes":["Ingress","Egress"],"ingress":[{{"from":[{{"podSelector":{{"matchLabels":{{"tier":"{peer_tier}"}}}}}},{{"namespaceSelector":{{"matchLabels":{{"team":"t{}"}}}},"podSelector":{{"matchExpressions":[{{"key":"tier","operator":"In","values":["api","{peer_tier}"]}}]}}}}],"ports":[{{"port":"http"}},{{"port":{port},"endPort":{}}}]}}],"egress":[{{"to":[{{"ipBlock":{{"cidr":"{block}","except":["{block_hole}"]}}}}],"ports":[{{"port":8080}}]}},{{"ports":[{{"port":53,"protocol":"UDP"}},{{"port":53}}]}}]}}}}"#,
        random.below(10),
        port + 10,
        block_hole = block.replace(".0.0/16", ".7.0/24"),
    )
}

/// A ClusterNetworkPolicy about the pods of one app in the namespaces of one team. Four in five are in the Admin tier.
fn tier_json(tier: usize, random: &mut Random) -> String {
    let (kind, priority) = if tier % 5 == 4 { ("Baseline", tier / 5) } else { ("Admin", tier - tier / 5) };
    let mut rules = |count: usize, peers: &str| {
        let rules: Vec<String> = (0..count).map(|_| tier_rule_json(peers, random)).collect();
        rules.join(",")
    };
    let (ingress, egress) = (rules(TIER_RULES / 2, "from"), rules(TIER_RULES - TIER_RULES / 2, "to"));
    format!(
        r#"{{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{{"name":"tier-{tier}"}},"spec":{{"tier":"{kind}","priority":{priority},"subject":{{"pods":{{"namespaceSelector":{{"matchLabels":{{"team":"t{}"}}}},"podSelector":{{"matchLabels":{{"app":"app-{}"}}}}}}}},"ingress":[{ingress}],"egress":[{egress}]}}}}"#,
        random.below(10),
        random.below(40),
    )
}

fn tier_rule_json(peers: &str, random: &mut Random) -> String {
    let action = ["Accept", "Deny", "Pass"][random.below(3)];
    let peer = match random.below(if peers == "to" { 4 } else { 3 }) {
        0 => format!(r#"{{"namespaces":{{"matchLabels":{{"team":"t{}"}}}}}}"#, random.below(10)),
        1 | 2 => format!(
            r#"{{"pods":{{"namespaceSelector":{{"matchLabels":{{"stage":"{}"}}}},"podSelector":{{"matchLabels":{{"tier":"{}"}}}}}}}}"#,
            ["prod", "test"][random.below(2)],
            TIERS[random.below(TIERS.len())],
        ),
        _ => format!(r#"{{"networks":["198.18.{}.0/24"]}}"#, random.below(200)),
    };
    let port = 8000 + random.below(200);
    format!(
        r#"{{"action":"{action}","{peers}":[{peer}],"protocols":[{{"tcp":{{"destinationPort":{{"number":{port}}}}}}}]}}"#
    )
}

/// New connections between pods, as `weir query` reads them.
pub fn flows(count: usize, size: ClusterSize) -> String {
    let mut random = Random::new(2);
    let mut lines = String::new();
    for id in 0..count {
        let (source, destination) = (random.below(size.pods), random.below(size.pods));
        let port = [80, 8080, 53, 8005, 9090][random.below(5)];
        let _ = writeln!(
            lines,
            r#"{{"id":{id},"src":{{"ip":"{}"}},"dst":{{"pod":"team-{}/pod-{destination}","ip":"{}"}},"proto":"TCP","port":{port}}}"#,
            pod_address(source),
            destination % size.namespaces,
            pod_address(destination),
        );
    }
    lines
}
