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
fn diff_and_exposure_answer_for_possible_pods() {
    let ran = place().run("diff shop.yaml .").exits(1);
    let ran = ran.says("from any pod in any namespace (2 in the input) to any pod in any namespace (2 in the input)");
    ran.says("ClusterNetworkPolicy wall spec.ingress[1] \"no others\"");
    check_schema("diff", &place().run("diff shop.yaml . -o json").exits(1).json());
    place().run("exposure .").exits(0).says("cluster-wide policies deny a part");
    check_schema("exposure", &place().run("exposure . -o json").exits(0).json());
}

#[test]
fn exposure_names_a_rule_of_the_admin_tier() {
    let open = ADMIN.replace("Pass", "Accept");
    let ran = Place::new().file("wall.yaml", open).run("exposure .").exits(0);
    ran.says("by ClusterNetworkPolicy wall spec.ingress[0] \"trusted\"");
}

#[test]
fn diff_says_which_nodes_it_means() {
    let nodes = "\
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nodes}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{nodes: {}}]}]
";
    let place = Place::shop().file("head/shop.yaml", crate::support::SHOP).file("head/nodes.yaml", nodes);
    let ran = place.run("diff shop.yaml head");
    let said = "warning: rules with `nodes` are compared only for the Node objects of the input";
    assert!(ran.err.contains(said), "{}", ran.err);
    assert!(!place.run("diff shop.yaml head --world closed").err.contains(said));
}

#[test]
fn a_rule_that_fails_closed_is_a_warning() {
    let domains = ADMIN.replace("ingress:", "egress:").replace("from:", "to:");
    let domains =
        domains.replace("to: [{namespaces: {}}]", "to: [{domainNames: [example.org]}]").replace("Deny", "Accept");
    let ran = Place::shop().file("wall.yaml", domains).run("check .").exits(0);
    ran.says("unsupported-peer");
}
