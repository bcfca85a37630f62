//! Clusters that differ only in the number of policies of one shape, to test that the number has no other effect.

use std::fmt::Write;

use weir_model::Cluster;

use crate::yaml;

/// The numbers of pods, of their namespaces and of their apps.
const PODS: usize = 1_000;
const NAMESPACES: usize = 20;
const APPS: usize = 40;

/// A cluster with this many policies.
pub fn cluster(policies: usize) -> Cluster {
    yaml::cluster(&text(policies))
}

/// The objects of such a cluster, as YAML.
pub fn text(policies: usize) -> String {
    let mut text = String::new();
    for namespace in 0..NAMESPACES {
        let labels = format!("{{team: t{}}}", namespace % 10);
        _ = write!(
            text,
            "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: ns{namespace}, labels: {labels}}}}}\n"
        );
    }
    for pod in 0..PODS {
        let (namespace, app, tier) = (pod % NAMESPACES, pod / NAMESPACES % APPS, pod % 7);
        let address = format!("10.0.{}.{}", pod / 250, pod % 250 + 1);
        let meta = format!("{{name: pod{pod}, namespace: ns{namespace}, labels: {{app: a{app}, tier: t{tier}}}}}");
        _ = write!(
            text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {meta}, spec: {{nodeName: n{}}}, status: {{phase: Running, podIPs: [{{ip: {address}}}]}}}}\n",
            pod / 100
        );
    }
    (0..policies).for_each(|policy| text.push_str(&policy_text(policy)));
    text
}

/// ClusterNetworkPolicies of both tiers, with 25 rules each. They decide about TCP ports 8001 to 8079, so the verdicts of
/// ports 8000 and 8080 stay as they are.
pub fn tiers_text(policies: usize) -> String {
    (0..policies).map(tier_text).collect()
}

fn tier_text(policy: usize) -> String {
    let (tier, actions) = match policy % 2 {
        0 => ("Admin", ["Accept", "Deny", "Pass"]),
        _ => ("Baseline", ["Accept", "Deny", "Deny"]),
    };
    let rule = |rule: usize| {
        let (team, app, port) = ((policy + rule) % 10, (policy * 7 + rule) % APPS, 8001 + (policy + rule) % 79);
        let peer = format!(
            "{{pods: {{namespaceSelector: {{matchLabels: {{team: t{team}}}}}, podSelector: {{matchLabels: {{app: a{app}}}}}}}}}"
        );
        let (action, ends) = (actions[rule % 3], if policy % 4 < 2 { "from" } else { "to" });
        format!("{{action: {action}, {ends}: [{peer}], protocols: [{{tcp: {{destinationPort: {{number: {port}}}}}}}]}}")
    };
    let rules: Vec<String> = (0..25).map(rule).collect();
    let (direction, rules) = (if policy % 4 < 2 { "ingress" } else { "egress" }, rules.join(", "));
    let subject = format!(
        "{{pods: {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, podSelector: {{matchLabels: {{tier: t{}}}}}}}}}",
        policy % 10,
        policy % 7
    );
    format!(
        "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: tier{policy}}}, spec: {{tier: {tier}, priority: {policy}, subject: {subject}, {direction}: [{rules}]}}}}\n"
    )
}

/// One policy. The first of them selects the first pod, and allows tier 1 to port 8000.
fn policy_text(policy: usize) -> String {
    let (namespace, app) = (policy % NAMESPACES, policy / NAMESPACES % APPS);
    let (tier, port, block) = ((policy + 1) % 7, 8000 + policy % 100, policy % 4);
    let ingress = format!(
        "[{{from: [{{podSelector: {{matchLabels: {{tier: t{tier}}}}}}}, {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, podSelector: {{matchLabels: {{tier: t{tier}}}}}}}], ports: [{{port: {port}, endPort: {}}}]}}]",
        policy % 10,
        port + 10
    );
    let egress = format!(
        "[{{to: [{{ipBlock: {{cidr: 10.{block}.0.0/16, except: [10.{block}.7.0/24]}}}}], ports: [{{port: 8080}}]}}, {{ports: [{{port: 53, protocol: UDP}}]}}]"
    );
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p{policy}, namespace: ns{namespace}}}, spec: {{podSelector: {{matchLabels: {{app: a{app}}}}}, policyTypes: [Ingress, Egress], ingress: {ingress}, egress: {egress}}}}}\n"
    )
}
