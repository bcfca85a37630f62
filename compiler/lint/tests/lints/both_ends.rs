//! Traffic that needs both ends, and services.

use super::*;

const CODE: &str = "one-sided-allow";

fn shop(web_egress: &str) -> String {
    pod("api-1", "api")
        + "spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n"
        + &pod("web-1", "web")
        + &policy(
            "api",
            &format!(
                "{API}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: web}}}}}}], ports: [{{port: http}}]}}]"
            ),
        )
        + web_egress
}

fn web(rule: &str) -> String {
    policy("web", &format!("podSelector: {{matchLabels: {{app: web}}}}, egress: [{DNS}, {rule}]"))
}

#[test]
fn ingress_without_egress_at_the_other_end_has_no_effect() {
    let text = shop(&policy("deny", "podSelector: {}, policyTypes: [Egress]"));
    check(CODE, &text, &["shop/api spec.ingress[0]"]);
    check_text(
        CODE,
        &text,
        &[
            "spec.ingress[0] of policy shop/api has no effect: the senders are denied egress by their own policies",
            "allows http/TCP, which is denied at the other end",
            "isolates pod shop/web-1 for egress",
            "for example, from pod shop/web-1 to pod shop/api-1: no rule of 1 policy allows it",
            "allow pod shop/web-1 egress to pod shop/api-1 on http/TCP, or remove the rule",
        ],
    );
}

#[test]
fn rule_that_the_other_end_may_allow_is_not_reported() {
    check(CODE, &shop(""), &[]);
    check(CODE, &shop(&web("{ports: [{port: 8080}]}")), &[]);
    check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: api}}}]}")), &[]);
    check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: http}]}")), &[]);
    check(CODE, &shop(&web("{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}")), &[]);
    check(
        CODE,
        &(shop(&web("{ports: [{port: 443}]}")) + &pod("web-2", "web") + &pod("w", "other")),
        &["shop/api spec.ingress[0]"],
    );
}

#[test]
fn another_port_or_another_pod_is_not_enough() {
    // Then neither end's rule has an effect.
    let expected = ["shop/api spec.ingress[0]", "shop/web spec.egress[1]"];
    check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}]}")), &expected);
    let expected = ["shop/api spec.ingress[0]"];
    check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: web}}}]}")), &expected);
}

#[test]
fn egress_without_ingress_at_the_other_end_has_no_effect() {
    let deny = policy("deny", "podSelector: {}, policyTypes: [Ingress]");
    let text =
        pod("db-1", "db") + &pod("web-1", "web") + &deny + &web("{to: [{podSelector: {matchLabels: {app: db}}}]}");
    check(CODE, &text, &["shop/web spec.egress[1]"]);
    let allowed = policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]");
    check(CODE, &(text + &allowed), &[]);
}

#[test]
fn a_pod_always_reaches_itself() {
    let own = policy(
        "p",
        &format!(
            "{API}, policyTypes: [Ingress, Egress], ingress: [{{from: [{{podSelector: {{matchLabels: {{app: api}}}}}}]}}]"
        ),
    );
    check(CODE, &(pod("api-1", "api") + &own), &[]);
    check(CODE, &(pod("api-1", "api") + &pod("api-2", "api") + &own), &["shop/p spec.ingress[0]"]);
}

const CANARY: &str = "{to: [{podSelector: {matchLabels: {track: canary}}}]}";

fn service(web_rule: &str) -> String {
    let backend = |name: &str, track: &str, address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: api, track: {track}}}}}\n\
                 status: {{phase: Running, podIP: {address}}}\n"
        )
    };
    backend("api-1", "canary", "10.0.0.1")
        + &backend("api-2", "stable", "10.0.0.2")
        + &pod("web-1", "web")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: shop}\n\
           spec: {selector: {app: api}, clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: 8080}]}\n"
        + &web(web_rule)
}

#[test]
fn a_service_with_some_backends_allowed_is_reported_at_the_rule() {
    let code = "service-partly-allowed";
    check(code, &service(CANARY), &["shop/web spec.egress[1]"]);
    check(code, &service("{to: [{ipBlock: {cidr: 10.0.0.1/32}}]}"), &["shop/web spec.egress[1]"]);
    check(code, &service("{to: [{podSelector: {matchLabels: {app: api}}}]}"), &[]);
    check(code, &service("{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}]}"), &[]);
    check(code, &service("{to: [{ipBlock: {cidr: 10.0.0.0/24}}]}"), &[]);
    check(code, &service(&format!("{CANARY}, {{}}")), &[]);
}

#[test]
fn backends_of_one_service_on_two_ports_may_be_partly_allowed() {
    let code = "service-partly-allowed";
    let api = "{podSelector: {matchLabels: {app: api}}}";
    let uneven = service(&format!("{{to: [{api}], ports: [{{port: 8080}}]}}"))
        .replace("targetPort: 8080", "targetPort: http")
        .replace(
            "track: canary}}\n",
            "track: canary}}\nspec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n",
        )
        .replace(
            "track: stable}}\n",
            "track: stable}}\nspec: {containers: [{name: c, ports: [{name: http, containerPort: 9090}]}]}\n",
        );
    check(code, &uneven, &["shop/web spec.egress[1]"]);
    check(code, &uneven.replace("ports: [{port: 8080}]", "ports: [{port: http}]"), &[]);
    check(code, &uneven.replace(&format!("to: [{api}], "), ""), &["shop/web spec.egress[1]"]);
}

/// A name server, and a service that claims addresses.
fn claiming(addresses: &str, ports: &str) -> String {
    "---
{apiVersion: v1, kind: Service, metadata: {name: dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10, ports: [{port: 53}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: one, namespace: shop},
  spec: {clusterIP: 10.96.0.20, externalIPs: [192.0.2.1], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {phase: Running, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Service, metadata: {name: two, namespace: shop},
  spec: {clusterIP: 10.96.0.30, externalIPs: [ADDRESSES], ports: PORTS}}
"
    .replace("ADDRESSES", addresses)
    .replace("PORTS", ports)
}

#[test]
fn claimants_of_an_address_that_is_in_use_are_named() {
    let code = "service-address-contested";
    check(code, &claiming("192.0.2.2", "[{port: 80}]"), &[]);
    check(code, &claiming("192.0.2.1", "[{port: 81}]"), &[]);
    check(code, &claiming("192.0.2.1", "[{port: 80}]"), &["shop/one ", "shop/two "]);
    check(code, &claiming("10.0.0.1", "[{port: 80}]"), &["shop/two "]);
    check(code, &claiming("10.96.0.10", "[{port: 53}]"), &["shop/two "]);
    check(code, &claiming("10.96.0.10", "[{port: 54}]"), &["shop/two "]);
}
