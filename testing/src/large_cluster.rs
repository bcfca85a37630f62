//! A large cluster as text: 200 namespaces, 2,000 pods and 500 policies, most of them the same in every namespace.
//!
//! Tests of views use it: what teams of a company repeat in each of their namespaces must be readable as one row, and
//! the few namespaces that differ must be seen.

use std::fmt::Write as _;

/// The number of namespaces.
pub const NAMESPACES: usize = 200;

/// The pods of a namespace: workload and replicas.
const WORKLOADS: [(&str, usize); 5] = [("web", 3), ("api", 3), ("worker", 2), ("db", 1), ("cache", 1)];

/// What differs from the large cluster in a changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeChange {
    /// Nothing.
    None,
    /// The database's port is another one in every namespace of a team.
    Port,
    /// The database's port changes, monitoring reaches the caches, and one team loses its default policy.
    Several,
}

/// The names of the namespaces of teams, in order.
pub fn team_namespaces() -> Vec<String> {
    const STAGES: [&str; 4] = ["dev", "test", "stage", "prod"];
    (0..NAMESPACES - 4).map(|index| format!("team-{:02}-{}", index / 4, STAGES[index % 4])).collect()
}

/// The objects as YAML documents.
pub fn large_cluster(change: LargeChange) -> String {
    let mut text = String::new();
    for (index, namespace) in team_namespaces().iter().enumerate() {
        let (team, stage) = namespace.rsplit_once('-').unwrap_or_default();
        _ = writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}, labels: {{team: {team}, stage: {stage}}}}}}}"
        );
        pods(&mut text, namespace, index, &WORKLOADS);
        policies_of_team(&mut text, namespace, index, change);
    }
    let shared: [(&str, &[(&str, usize)]); 4] = [
        ("backup", &[("runner", 10)]),
        ("edge", &[("proxy", 10)]),
        ("kube-system", &[("coredns", 10)]),
        ("monitoring", &[("prometheus", 10)]),
    ];
    for (index, (namespace, workloads)) in shared.into_iter().enumerate() {
        _ = writeln!(text, "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}");
        pods(&mut text, namespace, NAMESPACES - 4 + index, workloads);
    }
    policy(&mut text, "backup", "runner", "{}", "policyTypes: [Ingress]");
    policy(&mut text, "monitoring", "prometheus", "{}", "policyTypes: [Ingress]");
    text
}

fn pods(text: &mut String, namespace: &str, number: usize, workloads: &[(&str, usize)]) {
    let mut host = 1;
    for (name, replicas) in workloads {
        for replica in 0..*replicas {
            _ = writeln!(
                text,
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}-7d9c-{replica}, namespace: {namespace}, labels: \
                 {{app: {name}, pod-template-hash: 7d9c}}, ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, \
                 name: {name}-7d9c, uid: u, controller: true}}]}}, spec: {{containers: [{{name: main, image: registry/{name}}}]}}, status: {{phase: Running, podIP: \
                 10.{}.{}.{host}}}}}",
                number / 200 + 20,
                number % 200
            );
            host += 1;
        }
    }
}

/// Each team has the same two or three policies in each of its namespaces; a few namespaces have one of their own.
fn policies_of_team(text: &mut String, namespace: &str, index: usize, change: LargeChange) {
    let is_opened = change == LargeChange::Several && (20..24).contains(&index);
    if !is_opened {
        policy(text, namespace, "default", "{}", "policyTypes: [Ingress]");
    }
    let port = if change != LargeChange::None { 5433 } else { 5432 };
    let from = "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]";
    policy(text, namespace, "db", "{matchLabels: {app: db}}", &format!("{from}, ports: [{{port: {port}}}]}}]"));
    if index < 90 {
        let edge = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: edge}}}";
        let rule = format!("ingress: [{{from: [{edge}], ports: [{{port: 8080}}]}}]");
        policy(text, namespace, "web", "{matchLabels: {app: web}}", &rule);
    }
    if index >= 180 {
        let monitoring = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}";
        let ports = if change == LargeChange::Several { "[{port: 9090}, {port: 9121}]" } else { "[{port: 9090}]" };
        let rule = format!("ingress: [{{from: [{monitoring}], ports: {ports}}}]");
        policy(text, namespace, "cache", "{matchLabels: {app: cache}}", &rule);
    }
}

fn policy(text: &mut String, namespace: &str, name: &str, selector: &str, rest: &str) {
    _ = writeln!(
        text,
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: {namespace}}}, \
         spec: {{podSelector: {selector}, {rest}}}}}"
    );
}
