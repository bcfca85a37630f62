//! Cluster-wide policies, as every command shows them.

use crate::support::Place;
use serde_json::{Value, json};
use weir_testing::schema::check_schema;

const ADMIN: &str = "\
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: wall}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {}}
  ingress:
  - {name: trusted, action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}
  - {name: no others, action: Deny, from: [{namespaces: {}}]}
";

fn place() -> Place {
    Place::shop().file("wall.yaml", ADMIN)
}

fn because(place: &Place, source: &str) -> Value {
    let flow =
        format!(r#"{{"src": {{"pod": "{source}"}}, "dst": {{"pod": "shop/db"}}, "proto": "tcp", "port": 5432}}"#);
    let ran = place.run_with_input("query . --flows -", &flow);
    let found: Value = serde_json::from_str(ran.out.trim()).expect("JSON");
    check_schema("query", &found);
    found["because"].clone()
}

#[test]
fn query_names_the_rule_that_passes_and_what_decided_afterwards() {
    let expected = json!([
        {
            "direction": "ingress", "policy": "wall", "kind": "ClusterNetworkPolicy", "tier": "Admin",
            "rule": "spec.ingress[0]", "ruleName": "trusted", "action": "Pass",
        },
        {"direction": "ingress", "policy": "shop/db", "rule": "spec.ingress[0]"},
    ]);
    assert_eq!(because(&place(), "shop/web"), expected);
}

#[test]
fn query_names_the_rule_that_denies() {
    let other = "apiVersion: v1\nkind: Pod\nmetadata: {name: other, namespace: shop, labels: {app: other}}\n\
                 spec: {containers: [{name: a}]}\nstatus: {phase: Running, podIPs: [{ip: 10.0.0.77}]}\n";
    let found = because(&place().file("other.yaml", other), "shop/other");
    assert_eq!((&found[0]["rule"], &found[0]["ruleName"]), (&json!("spec.ingress[1]"), &json!("no others")));
    assert_eq!((&found[0]["action"], found.as_array().map(Vec::len)), (&json!("Deny"), Some(1)));
}

#[test]
fn explain_shows_the_rules_of_the_tiers() {
    let place = place();
    let ran = place.run("explain . --from shop/web --to shop/db --port 5432").exits(0);
    for text in ["ClusterNetworkPolicy wall spec.ingress[0] \"trusted\"", "passes the flow on to the next tier"] {
        assert!(ran.out.contains(text), "{text:?} is not in\n{}", ran.out);
    }
    let found = place.run("explain . --from shop/web --to shop/db --port 5432 -o json").exits(0).json();
    check_schema("explain", &found);
}

#[test]
fn diff_in_the_closed_world_names_the_rule() {
    let place = Place::shop().file("head/shop.yaml", crate::support::SHOP);
    let closed = ADMIN
        .replace("  - {name: trusted", "  - {name: none, action: Deny, from: [{namespaces: {}}]}\n  - {name: trusted");
    let found = place.file("head/wall.yaml", closed).run("diff --world closed shop.yaml head -o json").exits(1).json();
    check_schema("diff", &found);
    assert!(found.to_string().contains("\"state\":\"tier\""), "{found:#}");
}

#[test]
fn answers_about_possible_pods_are_refused() {
    for command in ["diff shop.yaml .", "exposure ."] {
        let ran = place().run(command).exits(2);
        assert!(ran.err.contains("ClusterNetworkPolicy wall") && ran.err.contains("--world closed"), "{}", ran.err);
    }
}

#[test]
fn a_rule_that_fails_closed_is_a_warning() {
    let domains = ADMIN.replace("ingress:", "egress:").replace("from:", "to:");
    let domains =
        domains.replace("to: [{namespaces: {}}]", "to: [{domainNames: [example.org]}]").replace("Deny", "Accept");
    let ran = Place::shop().file("wall.yaml", domains).run("check .").exits(0);
    ran.says("unsupported-peer");
}
