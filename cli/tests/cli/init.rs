//! `weir init`: the files that it writes are valid, hold at once, and never replace a user's file.

use std::fs;
use std::path::Path;

use weir_testing::schema::check_schema;

use crate::support::{Place, yaml_value};

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../policies/examples/24-three-tier-shop.yaml");
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ci");

fn place() -> Place {
    Place::new().file("policies/shop.yaml", fs::read_to_string(SHOP).expect("the example")).file("notes/a.yaml", "a: 1")
}

fn read(place: &Place, name: &str) -> String {
    fs::read_to_string(place.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn docs(name: &str) -> String {
    fs::read_to_string(Path::new(DOCS).join(name)).expect("the example")
}

#[test]
fn written_files_are_valid_and_hold_at_once() {
    let place = place().file(".github/dependabot.yml", "");
    let ran = place.run("init").exits(0).says("wrote weir.toml\n").says("wrote expectations.yaml\n");
    ran.says("wrote .github/workflows/weir.yml\n").says("WEIR_REPOSITORY");
    check_schema("weir-toml", &toml::from_str(&read(&place, "weir.toml")).expect("TOML"));
    let expectations = read(&place, "expectations.yaml");
    check_schema("expectations", &yaml_value(&expectations));
    let allowed = r#"{from: "deployment/shop/web", to: "deployment/shop/api", port: 8080/tcp, expect: allow}"#;
    assert!(expectations.contains(allowed), "{expectations}");
    let denied = r#"{from: "another-namespace/=", to: "statefulset/shop/db", port: 5432/tcp, expect: deny}"#;
    assert!(expectations.contains(denied), "{expectations}");
    place.run("check policies").exits(0);
    let ran = place.run("test policies --expectations expectations.yaml --coverage").exits(0);
    ran.says("coverage: 2 of 2 allowed connections").says("coverage: 3 of 3 isolated workloads");
}

#[test]
fn ci_files_are_those_of_the_documents() {
    let github = place().file(".github/dependabot.yml", "");
    github.run("init").exits(0);
    assert_eq!(read(&github, ".github/workflows/weir.yml"), docs("github-workflow.yml"));
    let gitlab = place().file(".gitlab-ci.yml", "");
    gitlab.run("init").exits(0).says("include: [{local: weir.gitlab-ci.yml}]");
    assert_eq!(read(&gitlab, "weir.gitlab-ci.yml"), docs("gitlab-ci.yml"));
}

#[test]
fn ci_file_names_the_directory_of_the_policies() {
    let place = Place::new().file("net/shop/shop.yaml", fs::read_to_string(SHOP).expect("the example"));
    let place = place.file(".git/config", "[remote \"origin\"]\n\turl = git@github.com:o/r.git\n");
    place.run("init --policies net/shop").exits(0);
    let workflow = read(&place, ".github/workflows/weir.yml");
    yaml_value(&workflow);
    for text in ["paths: [\"net/shop/**\", ", "POLICIES: \"net/shop\"\n", "git:origin/main:net/shop net/shop --deny"] {
        assert!(workflow.contains(text), "{text}: {workflow}");
    }
    let unchanged = docs("github-workflow.yml");
    assert!(!workflow.contains("policies/**") && unchanged.lines().count() == workflow.lines().count());
}

#[test]
fn existing_files_are_kept_without_force() {
    let place = place().file("expectations.yaml", "mine");
    place.run("init").exits(2).complains("nothing was written, because expectations.yaml exists already");
    assert!(!place.path().join("weir.toml").exists());
    assert_eq!(read(&place, "expectations.yaml"), "mine");
    place.run("init --force").exits(0).says("no CI file");
    assert_ne!(read(&place, "expectations.yaml"), "mine");
}

#[test]
fn a_dry_run_prints_the_files_and_writes_nothing() {
    let place = place();
    place.run("init --dry-run").exits(0).says("would write weir.toml:\n").says("  expectations:\n");
    assert!(!place.path().join("weir.toml").exists() && !place.path().join("expectations.yaml").exists());
}

#[test]
fn kinds_that_weir_does_not_read_are_ignored_by_name() {
    let cilium = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: a, namespace: shop}\n\
                  spec: {endpointSelector: {}, ingress: [{}]}\n";
    let place = place().file("policies/cilium.yaml", cilium);
    place.run("check policies").exits(0).says("unread-policy");
    place.run("init").exits(0).says("left out, because weir does not read these policies");
    assert!(read(&place, "weir.toml").contains("\nignore-kinds = [\"cilium.io/CiliumNetworkPolicy\"]\n"));
    place.run("test policies --expectations expectations.yaml").exits(0);
}

#[test]
fn the_directory_of_the_policies_must_be_clear() {
    Place::shop().run("init").exits(2).complains("no directory in . contains a NetworkPolicy");
    Place::shop().run("init --policies .").exits(2).complains("must be in a directory of their own");
    let two = place().file("more/shop.yaml", "kind: NetworkPolicy");
    two.run("init").exits(2).complains("several directories contain policies: more, policies");
    let broken = Place::new().file("policies/a.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n");
    broken.run("init").exits(2);
    assert!(!broken.path().join("weir.toml").exists());
}

#[test]
fn connections_that_no_policy_decides_about_are_not_promised() {
    let workload = |name: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: a}}\nspec:\n  \
             selector: {{matchLabels: {{app: {name}}}}}\n  template: {{metadata: {{labels: {{app: {name}}}}}, \
             spec: {{containers: [{{name: c, image: x}}]}}}}\n---\n"
        )
    };
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: a}\n\
                  spec: {podSelector: {matchLabels: {app: none}}}\n";
    let place = Place::new().file("policies/a.yaml", format!("{}{}{policy}", workload("web"), workload("job")));
    place.run("init").exits(0).says("no expectations: ");
    assert!(!place.path().join("expectations.yaml").exists());
}

#[test]
fn only_three_sources_of_a_port_are_written() {
    let mut text =
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: a}\nspec:\n  \
                    podSelector: {matchLabels: {app: db}}\n  ingress: [{ports: [{port: 5432}]}]\n"
            .to_owned();
    for (number, name) in ["db", "one", "two", "three", "four", "five"].iter().enumerate() {
        text.push_str(&format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: a, labels: {{app: {name}}}}}\n\
             status: {{podIP: 10.0.0.{}}}\n",
            number + 1
        ));
    }
    let place = Place::new().file("policies/a.yaml", text);
    place.run("init").exits(0);
    let expectations = read(&place, "expectations.yaml");
    assert_eq!(expectations.matches("port: 5432/tcp, expect: allow").count(), 3, "{expectations}");
    assert!(expectations.contains("\n# 2 more are left out: "), "{expectations}");
}
