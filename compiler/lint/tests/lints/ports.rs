//! The lint of named ports.

use super::*;

const HTTP: &str = "spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}\n";

fn named(port: &str) -> String {
    pod("api-1", "api") + HTTP + &policy("p", &format!("{API}, ingress: [{{ports: [{port}]}}]"))
}

#[test]
fn a_port_name_that_no_selected_pod_has_is_unknown() {
    check("named-port-unknown", &named("{port: http}"), &[]);
    check("named-port-unknown", &named("{port: htttp}"), &["shop/p spec.ingress[0].ports[0].port"]);
    check(
        "named-port-unknown",
        &named("{port: 81}, {port: http, protocol: UDP}"),
        &["shop/p spec.ingress[0].ports[1].port"],
    );
}

#[test]
fn one_pod_that_has_the_port_is_enough() {
    check("named-port-unknown", &(named("{port: http}") + &pod("api-2", "api")), &[]);
}

#[test]
fn for_egress_the_peers_count() {
    let egress = |peers: &str| {
        let rule =
            format!("podSelector: {{matchLabels: {{app: web}}}}, egress: [{{to: [{peers}], ports: [{{port: http}}]}}]");
        pod("api-1", "api") + HTTP + &pod("web-1", "web") + &policy("p", &rule)
    };
    check("named-port-unknown", &egress("{podSelector: {matchLabels: {app: api}}}"), &[]);
    let expected = ["shop/p spec.egress[0].ports[0].port"];
    check("named-port-unknown", &egress("{podSelector: {matchLabels: {app: web}}}"), &expected);
    check("named-port-unknown", &egress("{namespaceSelector: {matchLabels: {team: other}}}"), &[]);
}

#[test]
fn an_outside_address_has_no_port_names() {
    let live = "status: {phase: Running, podIP: 10.0.0.1}\n";
    let text = pod("api-1", "api")
        + HTTP
        + live
        + &policy("p", "podSelector: {}, egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: http}]}]");
    check("named-port-unknown", &text, &["shop/p spec.egress[0].ports[0].port"]);
    check("named-port-unknown", &text.replace("192.0.2.0/24", "10.0.0.0/8"), &[]);
}
