//! The lint for DNS and egress policies.

use super::*;

const CODE: &str = "dns-not-allowed";
const DB: &str = "{to: [{podSelector: {matchLabels: {app: db}}}]}";

#[test]
fn a_default_deny_for_egress_is_reported_once() {
    let text = policy("deny", "podSelector: {}, policyTypes: [Egress]");
    check(CODE, &text, &["shop/deny spec.policyTypes"]);
    check(CODE, &(pod("api-1", "api") + &pod("web-1", "web") + &text), &["shop/deny spec.policyTypes"]);
}

#[test]
fn another_policy_of_the_pod_may_allow_it() {
    let deny = policy("deny", "podSelector: {}, policyTypes: [Ingress, Egress]");
    let api = policy("api", &format!("{API}, egress: [{DNS}]"));
    check(CODE, &(pod("api-1", "api") + &deny + &api), &[]);
    check(CODE, &(deny.clone() + &api), &[]);
    check(CODE, &(pod("api-1", "api") + &pod("web-1", "web") + &deny + &api), &["shop/deny spec.policyTypes"]);
}

#[test]
fn without_pods_policies_that_may_meet_count() {
    let db = policy("api", &format!("{API}, egress: [{DB}]"));
    check(CODE, &db, &["shop/api spec.egress"]);
    let opted_in = policy("dns", &format!("podSelector: {{matchLabels: {{dns: allowed}}}}, egress: [{DNS}]"));
    check(CODE, &(db.clone() + &opted_in), &[]);
    let other = policy("web", &format!("podSelector: {{matchLabels: {{app: web}}}}, egress: [{DNS}]"));
    check(CODE, &(db + &other), &["shop/api spec.egress"]);
}

#[test]
fn every_usual_way_to_allow_it_is_known() {
    for rule in [
        "{}",
        "{ports: [{port: 53, protocol: UDP}]}",
        "{ports: [{port: 53}]}",
        "{ports: [{protocol: UDP}]}",
        "{to: [{namespaceSelector: {}}]}",
        "{to: [{ipBlock: {cidr: 10.96.0.10/32}}]}",
        "{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: dns}]}",
        "{to: [{podSelector: {matchLabels: {app: dnsmasq}}}], ports: [{port: 53, protocol: UDP}]}",
        "{to: [{namespaceSelector: {}}], ports: [{port: 5353, protocol: UDP}]}",
    ] {
        check(CODE, &policy("p", &format!("podSelector: {{}}, egress: [{rule}]")), &[]);
    }
}

#[test]
fn rule_for_another_port_does_not_count_as_dns() {
    for rule in [
        "{ports: [{port: 443}]}",
        "{ports: [{port: 53, protocol: SCTP}]}",
        "{to: [{podSelector: {matchLabels: {app: db}}}]}",
        "{to: [{namespaceSelector: {}}], ports: [{port: http}]}",
    ] {
        check(CODE, &policy("p", &format!("podSelector: {{}}, egress: [{rule}]")), &["shop/p spec.egress"]);
    }
}

#[test]
fn ingress_policies_need_no_dns() {
    check(CODE, &policy("p", "podSelector: {}, policyTypes: [Ingress]"), &[]);
}
