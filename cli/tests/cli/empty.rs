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
    for options in ["-q", "-o json", "-o github", "-o sarif"] {
        place().run(&format!("check nothing.yaml {options}")).exits(0).complains("warning: nothing was checked");
    }
    place().run("check nothing.yaml -q --deny-warnings").exits(1).complains("warning: nothing was checked");
}

#[test]
fn programs_that_enforce_nothing_are_written_with_a_warning() {
    let workload = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api, namespace: shop}\n\
        spec: {template: {metadata: {labels: {app: api}}}}\n";
    let place = Place::shop()
        .file("workload.yaml", workload)
        .file("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: edge-1}\n");
    let compile = |inputs: &str| place.run(&format!("compile {inputs} -o out.weir")).exits(0);
    compile("workload.yaml").complains("warning: the programs enforce nothing: no pod of the input has an address");
    compile("node.yaml").complains("warning: the programs enforce nothing: the input has no pods");
    compile("shop.yaml node.yaml --node edge-1").complains("node edge-1 has no pod with an address");
    assert_eq!(compile("shop.yaml").err, "");
}

#[test]
fn flows_that_are_missing_are_noticed() {
    let place = Place::shop().file("flows.jsonl", "\n");
    place.run("query shop.yaml --flows flows.jsonl").exits(0).complains("note: the input has no flows");
}

#[test]
fn a_gate_between_namespaces_warns_if_there_is_only_one() {
    let other = POD.replace("{name: a}", "{name: a, namespace: other}");
    let place = Place::shop().file("other.yaml", other);
    place.run("exposure shop.yaml --deny namespaces").exits(0).complains("all pods of the input are in one");
    place.run("exposure shop.yaml other.yaml --deny namespaces").exits(1);
    assert_eq!(place.run("exposure shop.yaml --deny no-policy").exits(1).err.matches("in one").count(), 0);
}

#[test]
fn a_budget_for_an_unknown_node_fails() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: edge-1}\n";
    let place = Place::shop().file("node.yaml", node);
    place.run("diff shop.yaml shop.yaml,node.yaml --node edge-1 --budget entries=2").exits(0);
    let ran = place.run("diff shop.yaml shop.yaml,node.yaml --node edge-l --budget entries=2").exits(2);
    ran.complains("the input has no node edge-l").complains("did you mean `edge-1`?");
}

#[test]
fn policies_in_audit_mode_are_mentioned() {
    let audit = SHOP.replace(
        "name: db\n  namespace: shop\nspec:",
        "name: db\n  namespace: shop\n  annotations: {weir.dev/mode: audit}\nspec:",
    );
    assert_ne!(audit, SHOP);
    let place = Place::new().file("audit.yaml", audit);
    for command in ["matrix", "graph", "exposure"] {
        let ran = place.run(&format!("{command} audit.yaml")).exits(0);
        ran.says("1 policy in audit mode left out: `--assume audit=enforce` shows the result with them");
    }
    place.run("diff audit.yaml audit.yaml").exits(0).says("Nothing to compare: all policies are in audit mode");
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
