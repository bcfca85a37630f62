//! `weir explain` and `weir test`: one flow for people, many flows for CI.

use serde_json::Value;
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_machine::LoadedPrograms;
use weir_model::eval::Verdict;
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Direction};
use weir_objects::decode::{self, Input, InputKind};

use crate::support::{Place, SHOP};
use weir_testing::schema::check_schema;

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
    let ran = Place::shop().run("explain shop.yaml --from shop/web --to shop/db --port 5432/tcp -v").exits(0);
    let expected = "\
ALLOW: tcp shop/web (10.0.0.1) -> shop/db (10.0.0.2) port 5432

egress of shop/web (10.0.0.1): allow
  no policy isolates it in this direction, so everything is allowed

ingress of shop/db (10.0.0.2): allow
  decided by NetworkPolicy: the pod is isolated, and these rules allow the flow
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

witness: from_pod of shop/web: allow
  subject subject0: no policy and no list selects it
  peer    peer0: no rule and no list matches it
  ports   atom1: 5432/tcp
  packet  IPv4 10.0.0.1 > 10.0.0.2, tcp 40000 > 5432 syn, 54 bytes
          02000000000102000000000208004500002800014000400600000a0000010a0000029c40153800000000000000005002ffff00000000

witness: to_pod of shop/db: allow
  subject subject1: selected by shop/db
  peer    peer1: a pod of shop with app=web
  ports   atom1: 5432/tcp
  packet  IPv4 10.0.0.1 > 10.0.0.2, tcp 40000 > 5432 syn, 54 bytes
          02000000000102000000000208004500002800014000400600000a0000010a0000029c40153800000000000000005002ffff00000000
";
    assert_eq!(ran.out, expected);
    let short = Place::shop().run("explain shop.yaml --from shop/web --to shop/db --port 5432/tcp").exits(0).out;
    let (before, _) = expected.split_once("\nwitness: ").expect("witnesses");
    assert_eq!(short, before, "classes and packets only with -v");
}

#[test]
fn the_end_that_denies_comes_first_with_the_nearest_rule() {
    let ran = Place::shop().run("explain shop.yaml --from shop/web --to shop/db --port 5433").exits(0);
    let lines: Vec<&str> = ran.out.lines().filter(|it| !it.is_empty()).take(3).collect();
    assert_eq!(lines[0], "DENY: tcp shop/web (10.0.0.1) -> shop/db (10.0.0.2) port 5433");
    assert!(lines[1].starts_with("ingress of shop/db"), "{}", ran.out);
    let deciding = ran.out.find("isolates for ingress").expect("the deciding policy");
    let nearest = ran.out.find("the nearest rule is:").expect("the nearest rule");
    assert!(deciding < nearest && nearest < ran.out.find("egress of shop/web").expect("the other end"), "{}", ran.out);
}

/// Selectors and addresses of every kind.
const MUCH: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: much, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - {namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [a, b]}]}, podSelector: {matchExpressions: [{key: app, operator: Exists}]}}
        - {ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}
      ports: [{port: pg}, {port: 80, endPort: 90}]
  egress:
    - to: [{namespaceSelector: {}}]
      ports: [{port: pg}]
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: away, labels: {app: far}}
spec: {nodeName: node-a, containers: [{name: a, ports: [{name: pg, containerPort: 5432}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.3}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.9}]}
---
apiVersion: weir.dev/v1alpha1
kind: CidrList
metadata: {name: drop}
spec: {action: Deny, order: 1, directions: [Ingress, Egress], cidrs: [192.0.2.7]}
"#;

/// The programs of the whole cluster, and the index of each endpoint.
fn machine(texts: &[&str]) -> (LoadedPrograms, Vec<String>) {
    let input =
        |text: &&str| Input { name: "-".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let options = decode::DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let (decoded, found) = decode::decode(texts.iter().map(input).collect(), &options);
    assert!(!found.has_errors(), "{found:?}");
    let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
    let compiled = compile(&cluster, &Scope::everything(&cluster), &CompileOptions::default()).expect("a compile");
    let values: Vec<&[u8]> = compiled.endpoints.iter().map(|it| it.value.as_slice()).collect();
    let loaded =
        LoadedPrograms::new(compiled.programs.each_ref(), &compiled.maps, &values).expect("programs that load");
    (loaded, compiled.endpoints.iter().map(|it| cluster.endpoint_name(it.endpoint)).collect())
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn the_witnesses_get_their_verdicts_from_programs_for_the_whole_cluster() {
    let place = Place::shop().file("services.yaml", SERVICES).file("much.yaml", MUCH);
    let (mut machine, places) = machine(&[SHOP, SERVICES, MUCH]);
    let mut verdicts: Vec<Value> = Vec::new();
    for from in ["shop/web", "shop/db", "away/far", "192.0.2.1", "192.0.2.7", "192.0.2.200"] {
        for to in [
            "shop/db --port 5432",
            "shop/web --port 85/tcp",
            "away/far --port pg",
            "svc/shop/db --port 80",
            "192.0.2.7 --port 80",
            "shop/db --proto icmp",
        ] {
            let found = place.run(&format!("explain . --from {from} --to {to} -o json")).exits(0).json();
            check_schema("explain", &found);
            for witness in
                found["packets"].as_array().into_iter().flatten().flat_map(|it| it["witnesses"].as_array()).flatten()
            {
                let is_of = |it: &String| witness["endpoint"] == it.as_str();
                let at = places.iter().position(is_of).expect("an endpoint");
                let hook = if witness["program"] == "from_pod" { Direction::Egress } else { Direction::Ingress };
                let packet = bytes(witness["packet"]["hex"].as_str().expect("a packet"));
                let verdict = machine.run(hook, at, packet, false).expect("a verdict");
                let word = if verdict == Verdict::Allow { "allow" } else { "deny" };
                assert_eq!(witness["verdict"], word, "{from} to {to}: {witness:#}");
                verdicts.push(witness["verdict"].clone());
            }
        }
    }
    assert!(verdicts.len() >= 50, "only {} witnesses", verdicts.len());
    assert!(verdicts.contains(&"allow".into()) && verdicts.contains(&"deny".into()));
}

#[test]
fn classes_are_described_by_their_members_properties() {
    let place = Place::shop().file("services.yaml", SERVICES).file("much.yaml", MUCH);
    let ask = |arguments: &str| place.run(&format!("explain . -v {arguments}")).exits(0);
    let far = ask("--from away/far --to shop/db --port 85");
    far.says("selected by shop/db; selected by shop/much; subject to CidrList drop")
        .says("a pod of namespaces with team notin (a,b) with app")
        .says("atom2: 81-90/tcp");
    ask("--from 192.0.2.7 --to shop/db --port 1").says("in 192.0.2.0/24 except 192.0.2.128/25; in CidrList drop");
    ask("--from shop/web --to away/far --port pg").says("a pod of any namespace; its port pg is 5432/tcp");
    ask("--from shop/web --to svc/shop/db --port 80").says("an address of service shop/db");
    ask("--from shop/web --to shop/db --proto icmp")
        .says("icmp echo request")
        .says("atom0: all ports that no rule names");
}

#[test]
fn input_that_cannot_be_compiled_has_a_reason_in_place_of_a_witness() {
    let ask = "explain shop.yaml --from shop/web --to shop/db --proto icmp --assume icmp=allow";
    Place::shop()
        .run(&format!("{ask} -v"))
        .exits(0)
        .says("ALLOW")
        .says("no witness: the input cannot be compiled: `icmp=allow`");
    let found = Place::shop().run(&format!("{ask} -o json")).exits(0).json();
    check_schema("explain", &found);
    assert_eq!(found["packets"][0]["witnesses"], serde_json::json!([]));
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
    check_reason("--from 192.0.2.1 --to shop/db --port 5432", "selectors match only pods");
    check_reason("--from shop/web --to shop/db --proto icmp", "ICMP is matched only by rules without ports");
    check_reason("--from shop/db --to 192.0.2.7 --port 80 --deny-list drop.txt", "drop.txt:1:1");
}

#[test]
fn a_service_is_judged_by_its_backends() {
    check_reason("--from shop/web --to svc/shop/db --port pg", "ALLOW");
    check_reason("--from shop/web --to 10.96.0.1 --port 80", "the address belongs to service shop/db");
    check_reason("--from shop/web --to shop/headless --port pg", "service shop/headless has no address of its own");
    check_reason("--from shop/db --to service/headless --port 5432 -n shop", "ALLOW");
}

#[test]
fn a_name_of_a_pod_and_a_service_means_the_pod_and_is_noted() {
    let place = Place::shop().file("services.yaml", SERVICES);
    let ask = |to: &str| place.run(&format!("explain . --from shop/web --to {to} --port 80 -n shop")).exits(0);
    let note = "note: shop/db is also the name of a service; write service/shop/db to ask about the service";
    ask("shop/db").says("DENY").says(note);
    ask("db").says("DENY").says(note);
    for unambiguous in ["pod/shop/db", "service/shop/db", "10.0.0.2", "shop/web"] {
        let ran = ask(unambiguous);
        assert!(!ran.out.contains("note:"), "{unambiguous}: {}", ran.out);
    }
    let namesake = |to: &str| ask(&format!("{to} -o json")).json()["namesake"].clone();
    assert_eq!((namesake("shop/db"), namesake("svc/shop/db")), ("shop/db".into(), Value::Null));
}

#[test]
fn test_notes_that_a_name_is_also_a_service() {
    let place = Place::shop().file("services.yaml", SERVICES).file("e.yml", EXPECTATIONS);
    let objects = "shop.yaml services.yaml";
    let ran = place.run(&format!("test {objects} --expectations e.yml"));
    ran.says("note: shop/db is also the name of a service; write service/shop/db to ask about the service");
}

#[test]
fn an_end_without_policies_has_a_reason() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.9}]}\n";
    let place = Place::shop().file("node.yaml", node);
    let ask = |from: &str| place.run(&format!("explain . --from {from} --to shop/db --port 5432"));
    ask("192.0.2.1").says("no policy applies: the address does not belong to a pod");
    ask("192.0.2.9").says("no policy applies: this is the address of node node-a");
}

#[track_caller]
fn check_hint(arguments: &str, expected: &str) {
    let place = Place::shop().file("services.yaml", SERVICES);
    place.run(&format!("explain . {arguments}")).exits(2).complains(expected);
}

#[test]
fn each_invalid_question_has_its_own_hint() {
    check_hint("--from shop/wbe --to shop/db --port 80", "did you mean `shop/web`?");
    check_hint("--from web --to shop/db --port 80", "did you mean `shop/web`?");
    check_hint("--from shop/web --to shop/headles --port 80", "did you mean `shop/headless`?");
    check_hint("--from shop/web --to 192.0.2.300 --port 80", "`192.0.2.300` looks like an address");
    check_hint("--from shop/web --to elsewhere/one --port 80", "write NAME, NAMESPACE/NAME");
    check_hint("--from shop/web --to shop/db --port 65536", "a port is 1 to 65535, or a name");
}

#[test]
fn expect_sets_the_exit_code() {
    let place = Place::shop();
    let ask = "explain shop.yaml --from shop/web --to shop/db --port 80";
    place.run(&format!("{ask} --expect deny")).exits(0);
    place.run(&format!("{ask} --expect allow")).exits(1).complains("expected allow, but the verdict is deny");
    place.run("explain shop.yaml --from shop/web --to shop/none --port 80").exits(2).complains("no pod or workload");
    place.run("explain shop.yaml --from shop/web --to shop/db --port http").exits(2).complains("no port named `http`");
}

#[test]
fn json_matches_its_schema() {
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
fn a_rule_has_no_mismatch_exactly_if_it_allows() {
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
fn failed_expectations_are_reported_with_reasons() {
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
fn an_expectation_with_an_unknown_name_exits_with_2() {
    let place = Place::shop().file("e.yaml", EXPECTATIONS.replace("to: shop/db", "to: shop/none"));
    place.run("test shop.yaml --expectations e.yaml").exits(2).says("e.yaml:2: there is no pod or workload shop/none");
    let place = Place::shop().file("e.yaml", EXPECTATIONS.replace("expect: allow", "expects: allow"));
    place.run("test shop.yaml --expectations e.yaml").exits(2).complains("e.yaml:6:5: unknown field `expects`");
}
