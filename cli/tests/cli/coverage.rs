//! `weir test --coverage` and `--bless`: what expectations test, and expectations that follow the policies.

use std::fs;

use serde_json::json;
use weir_testing::schema::check_schema;

use crate::support::Place;

/// Of three pods, `db` accepts `web` on two ports; `web` and `job` are not isolated.
const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {podIP: 10.0.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: shop, labels: {app: job}}
status: {podIP: 10.0.0.3}
---
apiVersion: v1
kind: Service
metadata: {name: database, namespace: shop}
spec:
  clusterIP: 10.96.0.1
  selector: {app: db}
  ports: [{port: 99, targetPort: 5432}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: web}}}]
      ports: [{port: 5432}, {port: 8000, endPort: 8010}]
";

const COVERAGE: &str = "test pods.yaml --expectations e.yaml --coverage";

fn place(expectations: &str) -> Place {
    Place::new().file("pods.yaml", PODS).file("e.yaml", expectations)
}

#[test]
fn uncovered_connections_and_workloads_are_listed() {
    let place = place("- {from: shop/web, to: shop/db, port: 8004, expect: allow}\n");
    let expected = "\
ok      shop/web to shop/db 8004
1 expectation: 1 passed, 0 failed

coverage: 1 of 6 allowed connections between workloads
  not covered: shop/db -> shop/job everything
  not covered: shop/db -> shop/web everything
  not covered: shop/job -> shop/web everything
  not covered: shop/web -> shop/db TCP 5432
  not covered: shop/web -> shop/job everything
coverage: 0 of 1 isolated workload have an expectation that denies
  not covered: shop/db
";
    assert_eq!(place.run(COVERAGE).exits(0).out, expected);
    let few = place.run(&format!("{COVERAGE} --max 2")).exits(0);
    few.says("shop/db -> shop/web everything\n  … and 3 more (--max 0 shows all)\n");
    let found = place.run(&format!("{COVERAGE} -o json --max 1")).exits(0).json();
    check_schema("test", &found);
    let first = json!([{"from": "shop/db", "to": "shop/job", "ports": "everything"}]);
    let connections = json!({"total": 6, "covered": 1, "uncovered": first});
    let isolated = json!({"total": 1, "covered": 0, "uncovered": ["shop/db"]});
    assert_eq!(found["coverage"], json!({"connections": connections, "isolatedWorkloads": isolated}));
}

#[test]
fn expectation_about_a_service_covers_its_backends() {
    let place = place("- {from: shop/web, to: service/shop/database, port: 99, expect: allow}\n");
    let ran = place.run(COVERAGE).exits(0).says("coverage: 1 of 6 ");
    assert!(!ran.out.contains("TCP 5432"), "{}", ran.out);
    ran.says("shop/web -> shop/db TCP 8000-8010");
}

#[test]
fn a_denial_covers_only_the_workload_that_denies() {
    let denied = "- {from: shop/job, to: shop/db, port: 5432, expect: deny}\n";
    place(denied).run(COVERAGE).exits(0).says("coverage: 0 of 6 ").says("coverage: 1 of 1 isolated workload has ");
}

#[test]
fn a_denied_flow_from_a_pod_that_could_exist_covers_its_destination() {
    let denied = "- {from: shop/app=other, to: shop/db, port: 5432, expect: deny}\n";
    place(denied).run(COVERAGE).exits(0).says("coverage: 1 of 1 isolated workload has ");
    let allowed = "- {from: shop/app=web, to: shop/db, port: 5432, expect: allow}\n";
    place(allowed).run(COVERAGE).exits(0).says("coverage: 0 of 6 ").says("coverage: 0 of 1 isolated workload have ");
}

#[test]
fn failed_expectations_cover_nothing() {
    let wrong = "- {from: shop/job, to: shop/db, port: 5432, expect: allow}\n";
    place(wrong).run(COVERAGE).exits(1).says("coverage: 0 of 6 ").says("coverage: 0 of 1 isolated workload have ");
}

const EXPECTATIONS: &str = "\
# What must stay.
expectations:
  - name: the job reads the database   # nightly
    from: shop/job
    to: shop/db
    port: 5432/tcp
    expect: \"allow\"  # for now
  - {from: shop/web, to: shop/db, port: 5432, expect: allow}
  - {expect: deny, from: shop/web, to: shop/db, port: 8000}
";

const BLESS: &str = "test pods.yaml --expectations e.yaml --bless";

#[test]
fn blessed_file_keeps_everything_but_the_failed_verdicts() {
    let place = place(EXPECTATIONS);
    let ran = place.run(BLESS).exits(0).says("--- a/e.yaml\n+++ b/e.yaml\n");
    let ran = ran.says("-    expect: \"allow\"  # for now\n").says("+    expect: \"deny\"  # for now\n");
    let ran = ran.complains("e.yaml:3: the job reads the database: now deny; check that its name is still true\n");
    ran.complains("e.yaml:9: shop/web to shop/db 8000: now allow\n").complains("changed 2 expectations of e.yaml\n");
    let expected = EXPECTATIONS.replace("\"allow\"", "\"deny\"").replace("{expect: deny", "{expect: allow");
    assert_eq!(fs::read_to_string(place.path().join("e.yaml")).expect("the file"), expected);
    place.run("test pods.yaml --expectations e.yaml").exits(0);
    place.run(BLESS).exits(0).complains("nothing to bless");
}

#[test]
fn blessed_json_stays_json() {
    let text = "[{\"from\": \"shop/job\", \"to\": \"shop/db\", \"port\": 5432, \"expect\": \"allow\"}]\n";
    let place = place(text);
    place.run(BLESS).exits(0);
    let after = fs::read_to_string(place.path().join("e.yaml")).expect("the file");
    assert_eq!(after, text.replace("\"allow\"", "\"deny\""));
}

#[test]
fn verdicts_behind_anchors_are_not_blessed() {
    // Both expectations fail, or only the first one, and the second one would get its new verdict too.
    for sources in [["shop/job", "shop/job"], ["shop/job", "shop/web"]] {
        let text = format!(
            "- {{from: {}, to: shop/db, port: 5432, expect: &verdict allow}}\n\
             - {{from: {}, to: shop/db, port: 5432, expect: *verdict}}\n",
            sources[0], sources[1]
        );
        let place = place(&text);
        place.run(BLESS).exits(2).complains("e.yaml was not changed");
        assert_eq!(fs::read_to_string(place.path().join("e.yaml")).expect("the file"), text);
    }
}

#[test]
fn unresolved_expectations_and_standard_input_are_not_blessed() {
    let place = place("- {from: shop/none, to: shop/db, port: 5432, expect: allow}\n");
    place.run(BLESS).exits(2).complains("e.yaml:1: there is no pod or workload shop/none");
    place.run_with_input("test pods.yaml --expectations - --bless", "").exits(2).complains("standard input");
}

#[test]
fn an_expectation_with_several_verdicts_is_not_blessed() {
    let office = "\
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: office, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{ipBlock: {cidr: 198.51.100.0/24}}], ports: [{port: 22}]}]
";
    let text = "- {from: ops/app=job, to: shop/app=db, port: 22, expect: deny}\n";
    let place = place(text).file("pods.yaml", format!("{PODS}{office}"));
    let ran = place.run(BLESS).exits(1).complains("nothing to bless");
    ran.complains("not blessed: e.yaml:1: not every pod that it describes has the same verdict");
    assert_eq!(fs::read_to_string(place.path().join("e.yaml")).expect("the file"), text);
}
