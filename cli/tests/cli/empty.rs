//! Questions about nothing: they get no reassuring answer.

use serde_json::json;
use weir_testing::schema::check_schema;

use crate::support::{Place, SHOP};

const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {phase: Running, podIP: 10.0.0.9}\n";

fn place() -> Place {
    Place::shop()
        .file("secret.yaml", SECRET)
        .file("nothing.yaml", "# rendered by a chart\n")
        .file("list.txt", "192.0.2.1\n")
}

#[test]
fn an_input_without_objects_gets_no_answer() {
    let place = place().file("flows.jsonl", "").file("tests.txt", "expectations: []\n");
    place.run("compile shop.yaml -o shop.weir").exits(0);
    for command in [
        "matrix INPUT",
        "graph INPUT",
        "exposure INPUT",
        "compile INPUT -o out.weir",
        "verify shop.weir INPUT",
        "query INPUT --flows flows.jsonl",
        "test INPUT --expectations tests.txt",
        "explain INPUT --from 192.0.2.1 --to 192.0.2.2 --port 80",
    ] {
        let ran = place.run(&command.replace("INPUT", "secret.yaml")).exits(2);
        assert_eq!(ran.out, "", "{command}");
        ran.complains("the input has no objects that weir reads").complains("only other kinds: 1 v1 Secret");
        place.run(&command.replace("INPUT", "nothing.yaml")).exits(2).complains("hint: the files are empty");
    }
    // A list is an object.
    place.run("matrix secret.yaml --deny-list list.txt").exits(0);
}

#[test]
fn check_says_that_it_checked_nothing() {
    let ran = place().run("check secret.yaml").exits(0).says("nothing was checked: the input has no objects");
    assert!(!ran.out.contains("no errors"), "{}", ran.out);
    place().run("check nothing.yaml").exits(0).says("nothing was checked");
}

#[test]
fn a_comparison_of_nothing_says_what_is_missing() {
    let place =
        place().file("a/pod.yaml", POD).file("b/pod.yaml", POD.replace("{name: a}", "{name: a, labels: {app: web}}"));
    place.run("diff secret.yaml nothing.yaml").exits(2).complains("neither side has objects that weir reads");
    place.run("diff secret.yaml shop.yaml").exits(1).complains("warning: the base has no objects that weir reads");
    place.run("diff shop.yaml secret.yaml").exits(1).complains("warning: the head has no objects that weir reads");
    place.run("diff a b").exits(0).says("Nothing to compare: neither side has a policy or a list");
    place.run("diff shop.yaml shop.yaml").exits(0).complains("warning: base and head name the same input");
}

#[test]
fn policies_that_no_expectation_can_test_are_named() {
    let idle = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: typo, namespace: shop}\n\
        spec: {podSelector: {matchLabels: {app: dbb}}}\n";
    let expectations = "expectations:\n  - {from: shop/web, to: shop/db, port: 5432/tcp, expect: allow}\n";
    let place = place().file("idle.yaml", idle).file("tests.txt", expectations);
    let run = |format: &str| place.run(&format!("test shop.yaml idle.yaml --expectations tests.txt {format}")).exits(0);
    run("").says("note: policy shop/typo selects no pod or workload of the input, so nothing tests it");
    let ran = run("-o json");
    check_schema("test", &ran.json());
    assert_eq!(ran.json()["untested"], json!(["shop/typo"]));
    run("-o junit").says("    <properties>\n      <property name=\"untested policy\" value=\"shop/typo\"/>\n");
    assert!(!run("-q").out.contains("note"));
    let all = place.run("test shop.yaml --expectations tests.txt").exits(0);
    assert!(!all.out.contains("note") && SHOP.contains("name: db"), "{}", all.out);
}
