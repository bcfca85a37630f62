//! The lint of policies that select no pod.

use super::*;

#[test]
fn a_policy_for_a_misspelt_label_selects_nothing() {
    let text = pod("api-1", "api") + &policy("p", "podSelector: {matchLabels: {app: apii}}");
    check("policy-selects-nothing", &text, &["shop/p spec.podSelector.matchLabels[app]"]);
    check_text(
        "policy-selects-nothing",
        &text,
        &[
            "policy shop/p selects no pod",
            "no pod of the namespace matches",
            "1 pod in `shop` has app=api; none has app=apii",
            "did you mean `app: api`?",
        ],
    );
}

#[test]
fn a_label_under_another_key_is_suggested() {
    let text = pod("api-1", "api") + &policy("p", "podSelector: {matchLabels: {name: api}}");
    check_text(
        "policy-selects-nothing",
        &text,
        &[
            "policy shop/p selects no pod",
            "no pod of the namespace matches",
            "1 pod in `shop` has app=api; none has name=api",
            "did you mean `app: api`?",
        ],
    );
}

#[test]
fn a_namespace_without_pods_says_nothing_about_selection() {
    check("policy-selects-nothing", &policy("p", API), &[]);
    let elsewhere = pod("web-1", "web") + &policy_in("other", "p", API);
    check("policy-selects-nothing", &elsewhere, &[]);
}

#[test]
fn a_policy_for_every_pod_is_never_reported() {
    let host = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: h, namespace: shop}\nspec: {hostNetwork: true}\n";
    check("policy-selects-nothing", &(host.to_owned() + &policy("p", "podSelector: {}")), &[]);
}

#[test]
fn only_host_network_pods_are_nothing() {
    let text = pod("api-1", "api") + "spec: {hostNetwork: true}\n" + &pod("web-1", "web") + &policy("p", API);
    check("policy-selects-nothing", &text, &["shop/p spec.podSelector"]);
}

#[test]
fn finished_pods_and_workloads_are_pods_to_come() {
    let finished = pod("api-1", "api") + "status: {phase: Succeeded}\n" + &policy("p", API);
    check("policy-selects-nothing", &finished, &[]);
    let workload = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api, namespace: shop}\n\
                    spec: {selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}}}\n";
    check("policy-selects-nothing", &(workload.to_owned() + &policy("p", API)), &[]);
}

#[test]
fn a_namespace_is_missing_only_where_others_are_declared() {
    let alone = policy_in("shopp", "p", "podSelector: {}");
    check("namespace-missing", &alone, &[]);
    check("namespace-missing", &(namespace("shop", "") + &alone), &["shopp/p metadata.namespace"]);
    let built_in = namespace("shop", "") + &policy_in("kube-system", "p", "podSelector: {}");
    check("namespace-missing", &built_in, &[]);
    let inhabited = namespace("other", "") + &pod("api-1", "api") + &policy("p", "podSelector: {}");
    check("namespace-missing", &inhabited, &[]);
}

#[test]
fn rules_of_an_unnamed_direction_are_inert() {
    let text = policy("p", &format!("podSelector: {{}}, policyTypes: [Ingress], egress: [{DNS}]"));
    check("inert-rules", &text, &["shop/p spec.egress"]);
    check("inert-rules", &policy("p", &format!("podSelector: {{}}, egress: [{DNS}]")), &[]);
    let text = policy("p", "podSelector: {}, policyTypes: [Egress], ingress: [{}]");
    check("inert-rules", &text, &["shop/p spec.ingress"]);
}
