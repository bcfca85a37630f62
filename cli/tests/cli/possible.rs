//! Questions about pods that could exist: `weir explain`, `weir test` and `weir query` with described ends.

use serde_json::{Value, json};
use weir_testing::schema::check_schema;

use crate::support::{Place, SHOP};

/// Policies alone. Their verdicts on a described pod depend on its address, its namespace and its ports.
const POLICIES: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]
      ports: [{port: 22}]
    - from: [{namespaceSelector: {matchLabels: {team: a}}}]
      ports: [{port: 80}]
    - from: [{podSelector: {matchLabels: {app: web}}}]
      ports: [{port: pg}]
";

fn place() -> Place {
    Place::shop().file("policies.yaml", POLICIES)
}

#[test]
fn a_described_pod_gets_the_verdict_of_its_labels() {
    let ran = Place::shop().run("explain shop.yaml --from shop/app=web --to shop/db --port 5432 -v").exits(0);
    let expected = "\
ALLOW: tcp shop/app=web (192.0.2.1) -> shop/db (10.0.0.2) port 5432
  example: shop/app=web with the address 192.0.2.1
  the verdict is the same for every pod that is described; rules may differ

egress of shop/app=web (192.0.2.1): allow
  no policy isolates it in this direction, so everything is allowed

ingress of shop/db (10.0.0.2): allow
  decided by NetworkPolicy: the pod is isolated, and these rules allow the flow
  policy: shop/db spec.ingress[0]
    --> shop.yaml:11:7
";
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    assert!(ran.out.contains("witness: to_pod of shop/db: allow\n"), "{}", ran.out);
    let ran = Place::shop().run("explain shop.yaml --from shop/= --to shop/app=db --port 5432 --expect deny").exits(0);
    assert!(ran.out.starts_with("DENY: tcp "), "{}", ran.out);
    assert!(ran.out.contains("peer: shop/=: label app=web is missing"), "{}", ran.out);
}

#[test]
fn an_answer_that_depends_on_the_description_says_so() {
    let explain = |arguments: &str| {
        let ran = place().run(&format!("explain policies.yaml {arguments}")).exits(0);
        assert!(ran.out.starts_with("DEPENDS\n"), "{}", ran.out);
        ran.out.lines().skip(1).take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        explain("--from shop/app=job --to shop/app=db --port 22"),
        "the verdict depends on src.ip; allowed if:\n  the source's address is in 10.0.0.0/8 but 10.1.0.0/16"
    );
    assert_eq!(
        explain("--from ops/app=job --to shop/app=db --port 80"),
        "the verdict depends on src.namespaceLabels; allowed if:\n  namespace ops has team=a"
    );
    assert_eq!(
        explain("--from shop/app=web --to shop/app=db --port 5432"),
        "the verdict depends on dst.ports; allowed if:\n  the destination has a port of this number named `pg`"
    );
}

#[test]
fn a_complete_description_has_one_verdict() {
    for (end, port, code) in [
        (r#"{"namespace":"shop","ip":"10.2.0.1"}"#, 22, 0),
        (r#"{"namespace":"shop","ip":"10.1.0.1"}"#, 22, 1),
        (r#"{"namespace":"ops","namespaceLabels":{"team":"a"}}"#, 80, 0),
        (r#"{"namespace":"ops","namespaceLabels":{}}"#, 80, 1),
    ] {
        let command = format!("explain policies.yaml --from {end} --to shop/app=db --port {port} --expect allow");
        place().run(&command).exits(code);
    }
    let ran = place().run("explain policies.yaml --from shop/= --to shop/app=db --port 22 --expect deny").exits(1);
    ran.complains("expected deny, but the verdict depends on src.ip");
}

#[test]
fn a_service_can_be_asked_about_by_a_described_pod() {
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {clusterIP: \
                   10.96.0.1, selector: {app: db}, ports: [{name: pg, port: 80, targetPort: 5432}]}\n";
    let place = Place::new().file("shop.yaml", format!("{SHOP}{service}"));
    for (from, verdict) in [("shop/app=web", "allow"), ("shop/app=job", "deny"), ("ops/app=web", "deny")] {
        place
            .run(&format!("explain shop.yaml --from {from} --to service/shop/db --port pg --expect {verdict}"))
            .exits(0);
    }
}

#[test]
fn the_closed_world_has_no_described_pods() {
    let ran = place().run("explain shop.yaml --from shop/app=web --to shop/db --port 5432 --world closed").exits(2);
    ran.complains(
        "`shop/app=web`: a described pod is not in the input, and `--world closed` asks about the input alone",
    );
    let place = place().file("e.yaml", "- {from: shop/app=web, to: shop/db, port: 5432, expect: allow}\n");
    let ran = place.run("test shop.yaml --expectations e.yaml --world closed").exits(2);
    assert!(ran.out.contains("e.yaml:1: a described pod is not in the input"), "{}", ran.out);
    place.run("test shop.yaml --expectations e.yaml").exits(0);
}

/// A line of `weir query` about a flow.
fn query(place: &Place, flow: &Value, code: i32) -> Value {
    let ran = place.run_with_input("query policies.yaml --flows -", &flow.to_string()).exits(code);
    let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
    check_schema("query", &answer);
    answer
}

#[test]
fn every_example_of_an_explanation_is_a_flow_for_query() {
    let place = place();
    for (arguments, fields) in [
        ("--from shop/app=job --to shop/app=db --port 22", json!(["src.ip"])),
        ("--from ops/app=job --to shop/app=db --port 80", json!(["src.namespaceLabels"])),
        ("--from shop/app=web --to shop/app=db --port 5432", json!(["dst.ports"])),
    ] {
        let ran = place.run(&format!("explain policies.yaml {arguments} -o json")).exits(0);
        let document: Value = serde_json::from_str(&ran.out).expect("JSON");
        check_schema("explain", &document);
        assert_eq!((&document["verdict"], &document["dependsOn"]), (&json!("depends"), &fields));
        let packets = document["packets"].as_array().expect("packets");
        let verdicts: Vec<&Value> = packets.iter().map(|it| &it["verdict"]).collect();
        assert_eq!(verdicts, ["allow", "deny"]);
        for packet in packets {
            assert_eq!(query(&place, &packet["packet"], 0)["verdict"], packet["verdict"]);
        }
    }
}

#[test]
fn query_skips_a_flow_whose_verdict_depends_on_the_description() {
    let flow = json!({
        "src": {"namespace": "shop", "labels": {}}, "dst": {"namespace": "shop", "labels": {"app": "db"}},
        "proto": "TCP", "port": 22,
    });
    let answer = query(&place(), &flow, 1);
    let reason = "the verdict depends on src.ip: allow if the source's address is in 10.0.0.0/8 but 10.1.0.0/16";
    assert_eq!((&answer["verdict"], &answer["reason"]), (&json!("skip"), &json!(reason)));
    let ran = place().run_with_input("query policies.yaml --flows - --world closed", &flow.to_string()).exits(1);
    assert!(ran.out.contains("a described pod is not in the input"), "{}", ran.out);
}

#[test]
fn an_expectation_holds_only_if_every_described_pod_has_the_verdict() {
    let expectations = "\
- {name: web, from: shop/app=web, to: {namespace: shop, labels: {app: db}, ports: [{name: pg, containerPort: 5432}]}, \
port: pg, expect: allow}
- {name: job, from: shop/app=job, to: shop/app=db, port: 5432, expect: deny}
- {name: office, from: ops/app=job, to: shop/app=db, port: 22, expect: deny}
- {name: closed, from: shop/app=job, to: shop/app=db, port: 443, expect: allow}
";
    let place = place().file("e.yaml", expectations);
    let ran = place.run("test policies.yaml --expectations e.yaml").exits(1);
    let expected = "\
ok      web
ok      job
FAILED  office
          e.yaml:3: expected deny, but the verdict depends on src.ip
          example: ops/app=job with the address 10.0.0.1, namespace ops without labels
          example: shop/app=db with the address 192.0.2.2, namespace shop without labels
          ingress allowed by shop/db spec.ingress[0]
FAILED  closed
          e.yaml:4: expected allow, but the verdict is deny
          example: shop/app=job with the address 192.0.2.1, namespace shop without labels
          example: shop/app=db with the address 192.0.2.2, namespace shop without labels
          ingress denied by shop/db
4 expectations: 2 passed, 2 failed
";
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    let ran = place.run("test policies.yaml --expectations e.yaml -o json").exits(1);
    let document: Value = serde_json::from_str(&ran.out).expect("JSON");
    check_schema("test", &document);
    assert_eq!(document["results"][2]["counterexample"]["src"]["ip"], "10.0.0.1");
    assert_eq!(query(&place, &document["results"][2]["counterexample"], 0)["verdict"], "allow");
    assert_eq!(query(&place, &document["results"][3]["counterexample"], 0)["verdict"], "deny");
}

#[test]
fn exposure_without_pods_is_about_pods_that_could_exist() {
    let ran = place().run("exposure policies.yaml").exits(0);
    let expected = "\
4 groups of possible pods are exposed

Any pod that could exist
";
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    let has = |parts: &[&str]| {
        let found = ran.out.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "{parts:?} in {}", ran.out);
    };
    has(&[
        "any pod with app=db in namespace shop ",
        "TCP 22",
        "10.0.0.0/8 but 10.1.0.0/16",
        "by shop/db spec.ingress[0]",
    ]);
    has(&["any pod with app=db in namespace shop ", "TCP 80", "namespaces with team=a", "by shop/db spec.ingress[1]"]);
    has(&["any other pod in namespace shop ", "all traffic", "no policy isolates it"]);
    has(&["any pod in any namespace but shop ", "all traffic", "no policy isolates it"]);
    let ran = place().run("exposure policies.yaml -o json").exits(0);
    let document: Value = serde_json::from_str(&ran.out).expect("JSON");
    check_schema("exposure", &document);
    assert_eq!(document["possible"].as_array().map(Vec::len), Some(4));
    let ran = place().run("exposure policies.yaml --world closed -o json").exits(0);
    let document: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(document.get("possible"), None);
}

/// A misspelt field would describe other pods than were meant.
#[test]
fn flows_with_a_misspelt_description_are_skipped() {
    let ask = |src: &str| {
        let line =
            format!(r#"{{"src": {src}, "dst": {{"pod": "shop/db"}}, "proto": "TCP", "port": 5432, "extra": 1}}"#);
        let place = Place::shop().file("flows.jsonl", line);
        let ran = place.run("query shop.yaml --flows flows.jsonl");
        (ran.code, serde_json::from_str::<Value>(&ran.out).expect("a line of JSON"))
    };
    let (code, answer) = ask(r#"{"namespace": "shop", "labels": {"app": "web"}}"#);
    assert_eq!((code, &answer["verdict"]), (Some(0), &json!("allow")));
    for (src, reason) in [
        (r#"{"namespace": "shop", "label": {"app": "web"}}"#, "src: unknown field `label`; did you mean `labels`?"),
        (
            r#"{"namespace": "shop", "node": "n1"}"#,
            "src: unknown field `node`; the description of a pod has `namespace`",
        ),
        (
            r#"{"pod": "shop/web", "labels": {"app": "api"}}"#,
            "src: `pod` names a pod of the input, and `labels` describes one",
        ),
    ] {
        let (code, answer) = ask(src);
        assert_eq!((code, &answer["verdict"]), (Some(1), &json!("skip")), "{src}");
        assert!(answer["reason"].as_str().is_some_and(|it| it.starts_with(reason)), "{answer}");
    }
    // Fields of a named end belong to the program that asks.
    assert_eq!(ask(r#"{"pod": "shop/web", "node": "n1"}"#).1["verdict"], json!("allow"));
}

#[test]
fn ends_and_ports_that_are_no_question_are_refused() {
    let ask = |arguments: &str| Place::shop().run(&format!("explain shop.yaml {arguments}")).exits(2);
    ask("--from 10.0.0.0/8 --to shop/db --port 80").complains("`10.0.0.0/8` is a block of addresses: name one address");
    ask("--from shop/web --to shop/db --port 80-90")
        .complains("`80-90` is not a port: ask about one port of the range");
    let policies = place().run("explain policies.yaml --from shop/web --to shop/db --port 80").exits(2);
    policies.complains("hint: the input has no pods; describe one as NAMESPACE/KEY=VALUE");
    place().run("matrix policies.yaml").exits(0).says("`--world open` shows pods that could exist");
    ask("--from shop/web --to shop/app=db --port pg").complains("it is not known which port of shop/app=db");
    Place::shop().run("explain shop.yaml --from shop/web --to shop/db --port 1 --proto icmp").exits(0);
}
