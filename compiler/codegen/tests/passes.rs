//! Each pass alone: an input program, and the program that the pass makes of it.
//!
//! The tables are those of a small cluster in YAML; both programs are text.

use weir_classes::{Scope, classify};
use weir_codegen::ir::{self, DecisionProgram, DecisionTables};
use weir_codegen::lower;
use weir_codegen::passes::PASSES;
use weir_model::Direction;

/// The tables of a pod, and of the rules of its only policy in flow style; `-` means no policy.
fn tables(rules: &str) -> DecisionTables {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: pod, labels: {app: pod}}\nstatus: {podIP: 10.0.0.1, phase: Running}\n";
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: policy}\n";
    let text = match rules {
        "-" => pod.to_owned(),
        _ => format!("{pod}---\n{policy}spec: {{podSelector: {{}}, policyTypes: [Ingress], ingress: {rules}}}\n"),
    };
    let cluster = weir_testing::yaml::cluster(&text);
    lower::tables(&classify(&cluster, &Scope::everything(&cluster)).unwrap())
}

fn run(pass: &str, tables: &DecisionTables, text: &str) -> DecisionProgram {
    let (_, run) = PASSES.iter().find(|(name, _)| *name == pass).expect("a pass of this name");
    let mut program = ir::parse(text).unwrap();
    ir::verify(&program).unwrap();
    run(&mut program, tables);
    ir::verify(&program).unwrap();
    program
}

/// `before` and `after` are blocks of an ingress program.
#[track_caller]
fn check(pass: &str, rules: &str, before: &str, after: &str) {
    let found = run(pass, &tables(rules), &format!("program ingress\n{before}"));
    let expected = format!("program ingress\n{after}");
    assert_eq!(found.to_string(), expected);
}

const LOOK_UP: &str = "b0:
  v0 = subject
  v1 = remote
  v2 = class4 v1
  v3 = row v0 v2
  v4 = const 0
  if v3 has v4 b1 b2
b1:
  allow policy
b2:
  deny policy
";

#[test]
fn constant_rows_take_the_default_where_no_peer_differs() {
    check("constant-rows", "[]", LOOK_UP, &LOOK_UP.replace("row v0 v2", "default v0"));
    check("constant-rows", "[{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]", LOOK_UP, LOOK_UP);
}

#[test]
fn full_sets_do_not_ask_for_an_atom() {
    let full = LOOK_UP.replace("v3 has v4", "v3 full");
    check("full-sets", "[{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]", LOOK_UP, &full);
    check("full-sets", "[{ports: [{port: 80}]}]", LOOK_UP, LOOK_UP);
}

#[test]
fn families_without_a_class_are_class_0() {
    check("families", "-", LOOK_UP, &LOOK_UP.replace("class4 v1", "const 0"));
    check(
        "families",
        "[{from: [{ipBlock: {cidr: '2001:db8::/32'}}]}]",
        LOOK_UP,
        &LOOK_UP.replace("class4 v1", "const 0"),
    );
    check("families", "[{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]", LOOK_UP, LOOK_UP);
}

#[test]
fn address_compares_replace_a_few_single_addresses() {
    let compared = "b0:
  v0 = subject
  v1 = remote
  jump b6
b1:
  allow policy
b2:
  deny policy
b3:
  v3 = row v0 v2
  v4 = const 0
  if v3 has v4 b1 b2
b4:
  v2 = prefix4 v1
  jump b3
b5: from s0
  v2 = const 1
  jump b3
b6: from s0
  if v1 is 192.0.2.7 b5 b4
";
    check("address-compares", "[{from: [{ipBlock: {cidr: 192.0.2.7/32}}]}]", LOOK_UP, compared);
    check("address-compares", "[{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]", LOOK_UP, LOOK_UP);
}

const ATOM: &str = "b0:
  v0 = protocol
  v1 = port
  v2 = atom v0 v1
  if v2 == 0 b1 b2
b1:
  deny policy
b2:
  allow policy
";

#[test]
fn port_tree_compares_the_ends_of_every_range() {
    let found = run("port-tree", &tables("[{ports: [{port: 80, endPort: 90}]}]"), &format!("program ingress\n{ATOM}"));
    let tree = "program ingress
b0:
  v0 = protocol
  v1 = port
  jump b8
b1:
  deny policy
b2:
  allow policy
b3:
  if v2 == 0 b1 b2
b4:
  v2 = const 0
  jump b3
b5:
  v2 = const 1
  jump b3
b6: from s0
  if v1 < 91 b5 b4
b7: from s0
  if v1 < 80 b4 b6
b8:
  if v0 == 6 b7 b4
";
    assert_eq!(found.to_string(), tree);
}

#[test]
fn jumps_go_where_they_end() {
    let before = "b0:
  v0 = port
  if v0 < 80 b1 b2
b1:
  jump b3
b2:
  jump b1
b3:
  allow policy
";
    let after = "b0:
  v0 = port
  jump b3
b1:
  jump b3
b2:
  jump b3
b3:
  allow policy
";
    check("jumps", "-", before, after);
}

#[test]
fn a_jump_over_a_block_that_sets_something_stays() {
    let before = "b0:
  jump b1
b1:
  v0 = const 1
  jump b2
b2:
  if v0 == 1 b3 b4
b3:
  allow policy
b4:
  deny policy
";
    check("jumps", "-", before, before);
}

#[test]
fn dead_code_goes_and_what_it_used_goes_with_it() {
    let before = "b0:
  v0 = remote
  v1 = class4 v0
  v2 = const 7
  jump b2
b1:
  deny policy
b2:
  allow policy
";
    check("dead-code", "-", before, "b0:\n  jump b1\nb1:\n  allow policy\n");
}

/// The decision that remains if there is almost nothing to decide.
#[test]
fn a_pod_without_policies_is_allowed_without_a_look_up() {
    let tables = tables("-");
    for direction in Direction::ALL {
        let mut program = lower::lower(direction, &tables);
        weir_codegen::passes::optimize(&mut program, &tables).unwrap();
        let text = program.to_string();
        assert!(!text.contains("class") && !text.contains("row") && !text.contains("atom"), "{text}");
    }
}
