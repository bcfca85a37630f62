//! Lints about cluster-wide policies, and what these policies change for other lints.

use super::*;

const TEAM: &str = "{namespaces: {matchLabels: {team: ops}}}";
const ALL: &str = "{namespaces: {}}";

/// A ClusterNetworkPolicy for the pods of all namespaces.
fn cluster_policy(name: &str, tier: &str, priority: u16, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{tier: {tier}, priority: {priority}, subject: {{namespaces: {{}}}}, {rules}}}\n"
    )
}

fn ingress(rules: &[(&str, &str)]) -> String {
    let rules: Vec<String> =
        rules.iter().map(|(action, peer)| format!("{{action: {action}, from: [{peer}]}}")).collect();
    format!("ingress: [{}]", rules.join(", "))
}

#[test]
fn equal_priorities_that_disagree_are_reported_once_for_a_policy() {
    let code = "tier-order-open";
    let a = cluster_policy("a", "Admin", 5, &ingress(&[("Accept", TEAM)]));
    let deny = ingress(&[("Pass", TEAM), ("Deny", ALL)]);
    check(code, &(a.clone() + &cluster_policy("b", "Admin", 5, &deny)), &["/b spec.ingress[0]"]);
    check(code, &(a.clone() + &cluster_policy("b", "Admin", 6, &deny)), &[]);
    check(code, &(a.clone() + &cluster_policy("b", "Baseline", 5, &deny)), &[]);
    check(code, &(a.clone() + &cluster_policy("b", "Admin", 5, &ingress(&[("Accept", ALL)]))), &[]);
    let other = "{namespaces: {matchLabels: {team: dev}}}";
    check(code, &(a + &cluster_policy("b", "Admin", 5, &ingress(&[("Deny", other)]))), &[]);
}

#[test]
fn a_rule_after_a_wider_one_never_decides() {
    let code = "tier-rule-covered";
    let covered = cluster_policy("a", "Admin", 5, &ingress(&[("Deny", ALL), ("Accept", TEAM)]));
    check(code, &covered, &["/a spec.ingress[1]"]);
    let exception = cluster_policy("a", "Admin", 5, &ingress(&[("Accept", TEAM), ("Deny", ALL)]));
    check(code, &exception, &[]);
    let later = cluster_policy("b", "Admin", 6, &ingress(&[("Accept", TEAM)]));
    check(code, &(exception.clone() + &later), &["/b spec.ingress[0]"]);
    let equal = cluster_policy("b", "Admin", 5, &ingress(&[("Accept", TEAM)]));
    check(code, &(exception.clone() + &equal), &[]);
    let baseline = cluster_policy("b", "Baseline", 6, &ingress(&[("Accept", TEAM)]));
    check(code, &(exception + &baseline), &[]);
}

#[test]
fn a_baseline_rule_needs_a_pod_that_no_policy_isolates() {
    let code = "baseline-never-asked";
    let baseline = cluster_policy("base", "Baseline", 5, &ingress(&[("Deny", ALL)]));
    let subject = "subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}";
    let baseline = baseline.replace("subject: {namespaces: {}}", subject);
    let isolating = policy("p", "podSelector: {matchLabels: {app: api}}, policyTypes: [Ingress]");
    let api = pod("api-1", "api");
    check(code, &(api.clone() + &isolating + &baseline), &["/base spec.ingress"]);
    check(code, &(api.clone() + &pod("web-1", "web") + &isolating + &baseline), &[]);
    check(code, &(isolating.clone() + &baseline), &[]);
    let egress = policy("p", "podSelector: {}, policyTypes: [Egress]");
    check(code, &(api.clone() + &egress + &baseline), &[]);
    check(code, &(api + &isolating + &baseline.replace("Baseline", "Admin")), &[]);
}

#[test]
fn an_accept_for_isolated_pods_is_named() {
    let code = "admin-accept-opens";
    let accept = cluster_policy("ops", "Admin", 5, &ingress(&[("Accept", TEAM)]));
    let pods = pod("api-1", "api");
    let closed = policy("p", "podSelector: {}, policyTypes: [Ingress]");
    check(code, &(pods.clone() + &closed + &accept), &["/ops spec.ingress[0]"]);
    check(code, &(pods.clone() + &accept), &[]);
    check(code, &(pods.clone() + &closed + &accept.replace("Accept", "Pass")), &[]);
    let open = policy("p", "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: ops}}}]}]");
    check(code, &(pods.clone() + &open + &accept), &[]);
    check(code, &(pods + &closed + &accept.replace("Admin", "Baseline")), &[]);
}

#[test]
fn networks_for_every_address_match_pods() {
    let code = "networks-include-pods";
    let deny = "{action: Deny, to: [{networks: [0.0.0.0/0]}]}";
    let egress = |rules: &str| cluster_policy("out", "Admin", 5, &format!("egress: [{rules}]"));
    check(code, &egress(deny), &["/out spec.egress[0]"]);
    check(code, &egress(&format!("{{action: Pass, to: [{ALL}]}}, {deny}")), &[]);
    check(code, &egress(&format!("{{action: Pass, to: [{TEAM}]}}, {deny}")), &["/out spec.egress[1]"]);
    check(code, &egress("{action: Deny, to: [{networks: [169.254.169.254/32]}]}"), &[]);
}

#[test]
fn dns_that_the_admin_tier_accepts_is_allowed() {
    let code = "dns-not-allowed";
    let closed = policy("p", "podSelector: {}, policyTypes: [Egress]");
    let accept =
        "egress: [{action: Accept, to: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}]}]";
    let dns = cluster_policy("dns", "Admin", 5, accept);
    check(code, &(closed.clone() + &dns), &[]);
    check(code, &(closed.clone() + &dns.replace("53", "54")), &["shop/p spec.policyTypes"]);
    check(code, &(closed.clone() + &dns.replace("Accept", "Pass")), &["shop/p spec.policyTypes"]);
    check(code, &(closed + &dns.replace("Admin", "Baseline")), &["shop/p spec.policyTypes"]);
}
