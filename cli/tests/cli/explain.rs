//! `weir explain` and `weir test`: one flow for people, many for CI.

use crate::support::schema::check_schema;
use crate::support::{Place, SHOP};

const SERVICES: &str = "\
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{name: pg, port: 80, targetPort: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: pg, port: 5432}]}
";

#[test]
fn an_allowed_flow_shows_its_rule() {
    let ran = Place::shop().run("explain shop.yaml --from shop/web --to shop/db --port 5432/tcp").exits(0);
    let expected = "\
ALLOW

packet: tcp shop/web (10.0.0.1) -> shop/db (10.0.0.2) port 5432

egress of shop/web (10.0.0.1): allow
  no policy isolates it in this direction, so everything is allowed

ingress of shop/db (10.0.0.2): allow
  decided by NetworkPolicy: the pod is isolated, and these rules allow
  policy: shop/db spec.ingress[0]
    --> shop.yaml:11:7
     |
  11 |       - from:
     |  _______^
  12 | |         - podSelector:
  13 | |             matchLabels: {app: web}
  14 | |       ports:
  15 | |         - {port: 5432}
     | |______________________^ allows
";
    assert_eq!(ran.out, expected);
}

#[track_caller]
fn check_reason(arguments: &str, expected: &str) {
    let place = Place::shop().file("services.yaml", SERVICES).file("drop.txt", "192.0.2.7\n");
    place.run(&format!("explain . {arguments}")).exits(0).says(expected);
}

#[test]
fn a_denial_says_what_would_have_to_change() {
    check_reason("--from shop/web --to shop/db --port 80", "the peer matches, the port does not");
    check_reason("--from shop/web --to shop/db --port 80", "port: port 80/tcp is not 5432/tcp");
    check_reason("--from 192.0.2.1 --to shop/db --port 5432", "selectors match pods only");
    check_reason("--from shop/web --to shop/db --proto icmp", "ICMP is matched only by rules without ports");
    check_reason("--from shop/db --to 192.0.2.7 --port 80 --deny-list drop.txt", "drop.txt:1:1");
}

#[test]
fn a_service_is_judged_by_its_backends() {
    check_reason("--from shop/web --to svc/shop/db --port pg", "ALLOW");
    check_reason("--from shop/web --to 10.96.0.1 --port 80", "the address is service shop/db's");
    check_reason("--from shop/web --to shop/headless --port pg", "service shop/headless has no address of its own");
    check_reason("--from shop/db --to service/headless --port 5432 -n shop", "ALLOW");
}

#[test]
fn an_end_that_no_policy_applies_to_says_why() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.9}]}\n";
    let place = Place::shop().file("node.yaml", node);
    let ask = |from: &str| place.run(&format!("explain . --from {from} --to shop/db --port 5432"));
    ask("192.0.2.1").says("no policy applies: the address is no pod's");
    ask("192.0.2.9").says("no policy applies: this is the address of node node-a");
}

#[track_caller]
fn check_hint(arguments: &str, expected: &str) {
    let place = Place::shop().file("services.yaml", SERVICES);
    place.run(&format!("explain . {arguments}")).exits(2).complains(expected);
}

#[test]
fn a_question_that_cannot_be_asked_gets_a_hint_of_its_own() {
    check_hint("--from shop/wbe --to shop/db --port 80", "did you mean `shop/web`?");
    check_hint("--from web --to shop/db --port 80", "did you mean `shop/web`?");
    check_hint("--from shop/web --to shop/headles --port 80", "did you mean `shop/headless`?");
    check_hint("--from shop/web --to 192.0.2.300 --port 80", "`192.0.2.300` looks like an address");
    check_hint("--from shop/web --to elsewhere/one --port 80", "write NAME, NAMESPACE/NAME");
    check_hint("--from shop/web --to shop/db --port 65536", "a port is 1 to 65535, or a name");
}

#[test]
fn expect_makes_it_a_test() {
    let place = Place::shop();
    let ask = "explain shop.yaml --from shop/web --to shop/db --port 80";
    place.run(&format!("{ask} --expect deny")).exits(0);
    place.run(&format!("{ask} --expect allow")).exits(1).complains("expected allow, but the verdict is deny");
    place.run("explain shop.yaml --from shop/web --to shop/none --port 80").exits(2).complains("no pod or workload");
    place.run("explain shop.yaml --from shop/web --to shop/db --port http").exits(2).complains("no port named `http`");
}

#[test]
fn json_is_as_its_schema_says() {
    let place = Place::shop().file("services.yaml", SERVICES);
    for to in ["shop/db --port 80", "shop/db --port 5432", "svc/shop/db --port 80", "shop/headless --port pg"] {
        for from in ["shop/web", "192.0.2.1"] {
            let ran = place.run(&format!("explain . --from {from} --to {to} -o json")).exits(0);
            check_schema("explain", &ran.json());
        }
    }
    let denied = place.run("explain . --from 192.0.2.1 --to shop/db --port 80 -o json").json();
    assert_eq!(denied["packets"][0]["ingress"]["nearest"][0]["location"]["line"], 11, "{denied:#}");
}

#[test]
fn a_rule_has_nothing_missing_exactly_when_it_allows() {
    let rules = "
    - from: [{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [db]}]}}]
      ports: [{port: 80, endPort: 90}, {port: pg}]
    - from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.1/32]}}, {podSelector: {matchExpressions: [{key: x, operator: Exists}]}}]
    - ports: [{protocol: UDP}]
    - from: [{podSelector: {matchLabels: {app: db}}}]
";
    let shop = SHOP.replace("{name: shop}", "{name: shop, labels: {team: a}}");
    let start = shop.find("  ingress:\n").expect("rules") + "  ingress:\n".len();
    let end = shop.find("---").expect("the next document");
    let shop = format!("{}{}{}", &shop[..start], rules.trim_start_matches('\n'), &shop[end..]);
    let place = Place::new().file("shop.yaml", shop);
    for from in ["shop/web", "10.0.0.9", "10.0.0.1", "192.0.2.1"] {
        for port in ["80/tcp", "91/tcp", "53/udp"] {
            let found = place
                .run(&format!("explain shop.yaml --from {from} --to shop/db --port {port} -o json"))
                .exits(0)
                .json();
            let side = &found["packets"][0]["ingress"];
            for miss in side["nearest"].as_array().into_iter().flatten() {
                let missing = |part: &str| miss[part].as_array().is_some_and(|it| !it.is_empty());
                assert!(missing("peers") || missing("ports"), "{from} {port}: nothing is wrong with {miss:#}");
            }
        }
    }
}

const EXPECTATIONS: &str = "\
expectations:
  - name: web & db
    from: shop/web
    to: shop/db
    port: 5432/tcp
    expect: allow
  - {from: shop/db, to: shop/db, port: 80, expect: deny}
";

#[test]
fn expectations_that_hold_and_fail_are_told_apart() {
    let place = Place::shop().file("e.yaml", EXPECTATIONS);
    let ran = place.run("test shop.yaml --expectations e.yaml").exits(1);
    let expected = "\
ok      web & db
FAILED  shop/db to shop/db 80
          e.yaml:7: expected deny, but the verdict is allow
2 expectations: 1 passed, 1 failed
";
    assert_eq!(ran.out, expected);
    let found = place.run("test shop.yaml --expectations e.yaml -o json").exits(1).json();
    check_schema("test", &found);
}

#[test]
fn junit_counts_and_escapes() {
    let place = Place::shop().file("e.yaml", EXPECTATIONS);
    let ran = place.run("test shop.yaml --expectations e.yaml -o junit").exits(1);
    let ran = ran.says("<testsuites tests=\"2\" failures=\"1\" errors=\"0\">").says("name=\"web &amp; db\"");
    ran.says("<failure message=\"expected deny, but the verdict is allow\">");
}

#[test]
fn an_expectation_that_cannot_be_asked_is_no_failure_but_worse() {
    let place = Place::shop().file("e.yaml", EXPECTATIONS.replace("to: shop/db", "to: shop/none"));
    place.run("test shop.yaml --expectations e.yaml").exits(2).says("e.yaml:2: there is no pod or workload shop/none");
    let place = Place::shop().file("e.yaml", EXPECTATIONS.replace("expect: allow", "expects: allow"));
    place.run("test shop.yaml --expectations e.yaml").exits(2).complains("e.yaml:6:5: unknown field `expects`");
}
