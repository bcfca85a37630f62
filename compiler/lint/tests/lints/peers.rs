//! Lints of the peers of rules.

use super::*;

fn ingress_from(peers: &str) -> String {
    pod("api-1", "api") + &policy("p", &format!("{API}, ingress: [{{from: [{peers}]}}]"))
}

#[test]
fn a_rule_whose_peers_are_not_there_matches_nothing() {
    let text = ingress_from("{podSelector: {matchLabels: {app: web}}}");
    check("rule-matches-no-peer", &text, &["shop/p spec.ingress[0].from[0].podSelector.matchLabels[app]"]);
    let text = ingress_from("{podSelector: {matchLabels: {app: web}}}, {podSelector: {matchLabels: {app: api}}}");
    check("rule-matches-no-peer", &text, &["shop/p spec.ingress[0].from[0].podSelector.matchLabels[app]"]);
}

#[test]
fn blocks_and_no_peers_always_match() {
    check("rule-matches-no-peer", &ingress_from("{ipBlock: {cidr: 192.0.2.0/24}}"), &[]);
    check("rule-matches-no-peer", &(pod("api-1", "api") + &policy("p", &format!("{API}, ingress: [{{}}]"))), &[]);
}

#[test]
fn other_namespaces_that_the_input_does_not_have_are_not_held_against_it() {
    for peer in [
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}",
        "{namespaceSelector: {matchLabels: {team: monitoring}}}",
        "{namespaceSelector: {}, podSelector: {matchLabels: {app: prometheus}}}",
    ] {
        check("rule-matches-no-peer", &ingress_from(peer), &[]);
    }
    let named = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}";
    check("rule-matches-no-peer", &(namespace("shop", "") + &ingress_from(named)), &[]);
    let labelled = "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: monitoring}}}]}]";
    check("rule-matches-no-peer", &(namespace("shop", "") + &policy("p", labelled)), &[]);
}

#[test]
fn declared_namespaces_without_the_label_are() {
    let text = namespace("shop", "team: shop") + &ingress_from("{namespaceSelector: {matchLabels: {team: shpo}}}");
    let expected = "shop/p spec.ingress[0].from[0].namespaceSelector.matchLabels[team]";
    check("rule-matches-no-peer", &text, &[expected]);
    let misspelt = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shopp}}}";
    let expected = "shop/p spec.ingress[0].from[0].namespaceSelector.matchLabels[kubernetes.io/metadata.name]";
    check("rule-matches-no-peer", &(namespace("shop", "") + &ingress_from(misspelt)), &[expected]);
}

#[test]
fn a_whole_cluster_shows_everything() {
    let peer = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}";
    let text = namespace("kube-system", "") + &namespace("shop", "") + &ingress_from(peer);
    check(
        "rule-matches-no-peer",
        &text,
        &["shop/p spec.ingress[0].from[0].namespaceSelector.matchLabels[kubernetes.io/metadata.name]"],
    );
}

#[test]
fn a_pod_of_another_namespace_explains_the_mistake() {
    let other = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: prom, namespace: obs, labels: {app: prometheus}}\n";
    let text = ingress_from("{podSelector: {matchLabels: {app: prometheus}}}") + other;
    check_text(
        "rule-matches-no-peer",
        &text,
        &[
            "spec.ingress[0] of policy shop/p matches no peer",
            "no pod in `shop` matches",
            "pods in `shop` have these values of `app`: `api`",
            "pod obs/prom would match, but a podSelector alone looks in the policy's own namespace",
            "add a namespaceSelector beside it: kubernetes.io/metadata.name: obs",
        ],
    );
}

#[test]
fn two_halves_in_two_items_are_noted() {
    let split = "{namespaceSelector: {matchLabels: {team: obs}}}, {podSelector: {matchLabels: {app: prometheus}}}";
    let rule = format!("podSelector: {{}}, ingress: [{{from: [{split}]}}]");
    check("and-or-peers", &policy("p", &rule), &["shop/p spec.ingress[0].from[1]"]);
    check("and-or-peers", &(pod("prom", "prometheus") + &policy("p", &rule)), &[]);
    let documented = format!("podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}, {split}]}}]");
    check("and-or-peers", &policy("p", &documented), &[]);
    let own = "{namespaceSelector: {matchLabels: {team: obs}}}, {podSelector: {}}";
    check("and-or-peers", &policy("p", &format!("podSelector: {{}}, ingress: [{{from: [{own}]}}]")), &[]);
}
