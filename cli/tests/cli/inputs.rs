//! The kinds of inputs: globs, git revisions, clusters, kustomizations and charts; excluded files; and names.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use xtask::simulated::Simulated;

use crate::support::{DATABASE, Place, Ran, SHOP};

fn git(place: &Place, arguments: &str) {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    let mut command = Command::new("git");
    command.args(identity).args(arguments.split_whitespace()).current_dir(place.path());
    let output = command.output().expect("git is there");
    assert!(output.status.success(), "git {arguments}: {output:?}");
}

fn repository() -> Place {
    let place = Place::new();
    fs::remove_dir(place.path().join(".git")).expect("it is empty");
    git(&place, "init --quiet --initial-branch=main .");
    let place = place.file("policies/shop.yaml", SHOP);
    git(&place, "add .");
    git(&place, "commit --quiet -m a");
    place
}

/// A program in a directory that is the whole PATH, next to `git`, `cat` and `sh`.
fn with_program(place: Place, name: &str, script: &str) -> Place {
    let place = place.file(&format!("bin/{name}"), format!("#!/bin/sh\n{script}\n"));
    let path = place.path().join("bin").join(name);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    place
}

/// Runs with only the programs of `with_program`, and git.
fn run(place: &Place, arguments: &str) -> Ran {
    let bin = place.path().join("bin");
    fs::create_dir_all(&bin).expect("a directory");
    for program in ["git", "cat", "sh"] {
        let real = ["/usr/bin", "/bin"].map(|it| format!("{it}/{program}"));
        let real = real.iter().find(|it| fs::exists(it).unwrap_or_default()).expect("a usual program");
        _ = std::os::unix::fs::symlink(real, bin.join(program));
    }
    Ran::from(place.command(arguments).env("PATH", bin).output().expect("weir runs"))
}

#[test]
fn every_command_reads_a_revision() {
    let place = repository().file(
        "flows",
        "{\"id\":1,\"src\":{\"pod\":\"shop/web\"},\"dst\":{\"pod\":\"shop/db\"},\"proto\":\"TCP\",\"port\":5432}\n",
    );
    let place = place.file("policies/shop.yaml", "not: [yaml");
    let place = place.file("e.yaml", "expectations: [{from: shop/web, to: shop/db, port: 5432/tcp, expect: allow}]\n");
    place.run("check git:HEAD").exits(0).says("checked 1 policy, 2 pods");
    place.run("check git:main:policies").exits(0);
    place.run("query git:HEAD --flows flows").exits(0).says("\"verdict\":\"allow\"");
    place.run("explain git:HEAD --from shop/web --to shop/db --port 5432 --expect allow").exits(0);
    place.run("test git:HEAD --expectations e.yaml").exits(0);
    for command in ["matrix", "graph", "exposure"] {
        place.run(&format!("{command} git:HEAD")).exits(0).says("db");
    }
    place.run("compile git:HEAD -o a.o").exits(0).says("verified");
    place.run("verify a.o git:HEAD").exits(0);
    place.run("suggest git:HEAD --from shop/web --to shop/db --port 80").exits(0);
    place.run("check git:nope").exits(2).complains("git does not know the revision `nope`");
    place.run("check git:a..b").exits(2).complains("names two revisions").complains("weir diff git:A..B");
    // Two inputs at once.
    let place = place.file("more.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: ops}\n");
    place.run("check git:HEAD more.yaml").exits(0).says("2 namespaces");
}

#[test]
fn a_range_of_revisions_is_compared() {
    let place = repository();
    git(&place, "branch other");
    let place = place.file("policies/shop.yaml", SHOP.replace("5432", "5433"));
    git(&place, "commit --quiet -am b");
    git(&place, "checkout --quiet other");
    let place = place.file("policies/shop.yaml", SHOP.replace("5432", "5434"));
    git(&place, "commit --quiet -am c");
    place.run("diff git:main..other").exits(1).says("TCP 5434").says("TCP 5433");
    let ran = place.run("diff git:main...other:policies").exits(1).says("TCP 5434").says("TCP 5432");
    assert!(!ran.out.contains("5433"), "the merge base has 5432: {ran:#?}");
    place.run("diff git:main..").exits(1).says("TCP 5434");
    place.run("diff git:main..other other").exits(2).complains("names both sides");
    place.run("diff git:main").exits(2).complains("a second input is needed");
    git(&place, "checkout --quiet --orphan alone");
    git(&place, "commit --quiet -m d");
    place.run("diff git:main...alone").exits(2).complains("no common ancestor");
}

#[test]
fn a_glob_names_the_files_that_match() {
    let place = Place::new().file("a/shop.yaml", SHOP).file("a/b/db.yml", DATABASE.replace("name: db", "name: db2"));
    let place = place.file("a/readme.txt", "text").file("a/.hidden/x.yaml", "not: [yaml");
    for (glob, policies) in [("a/*.yaml", 1), ("a/**", 2), ("**/*.y*ml", 2), ("*/?/*.yml", 1), ("./a/[a-c]", 1)] {
        let policies = if policies == 1 { "1 policy".to_owned() } else { format!("{policies} policies") };
        place.run(&format!("check {glob}")).exits(0).says(&format!("checked {policies}"));
    }
    place.run("check a/*.json").exits(2).complains("no file matches a/*.json");
    place.run("check b/*.json").exits(2).complains("cannot read b/");
    // A file whose name looks like a pattern.
    let place = place.file("x[1].yaml", SHOP);
    place.run("check x[1].yaml").exits(0).says("checked 1 policy, 2 pods");
    std::os::unix::fs::symlink("/etc/hostname", place.path().join("a/out.yaml")).expect("a link");
    place.run("check a/*.yaml").exits(2).complains("a/out.yaml: it is a symbolic link that leads out of");
}

#[test]
fn a_glob_follows_no_link_and_reads_no_pipe() {
    let place = Place::new().file("a/x/shop.yaml", SHOP).file("b/db.yaml", DATABASE);
    std::os::unix::fs::symlink("../b", place.path().join("a/link")).expect("a link");
    place.run("check a/**/*.yaml").exits(2).complains("cannot search a/link: it is a symbolic link to a directory");
    place.run("check a/*/*.yaml").exits(2).complains("cannot search a/link: it is a symbolic link to a directory");
    // No match can be below the link.
    place.run("check a/[x]/*.yaml").exits(0).says("checked 1 policy");
    place.run("check a/l*").exits(2).complains("a/link: it is a symbolic link that leads out of");
    let made = Command::new("mkfifo").arg(place.path().join("b/pipe.yaml")).status().expect("mkfifo runs");
    assert!(made.success());
    place.run("check b/*.yaml").exits(2).complains("b/pipe.yaml: it is not a file but a pipe");
}

#[test]
fn without_a_repository_the_rules_of_parent_directories_do_not_count() {
    let place = Place::new().file("sub/shop.yaml", SHOP).file(".weirignore", "*\n").file("weir.toml", "nope = 1\n");
    place.run("check sub").exits(2);
    fs::remove_dir(place.path().join(".git")).expect("it is empty");
    let mut command = place.command("check .");
    command.current_dir(place.path().join("sub"));
    Ran::from(command.output().expect("weir runs")).exits(0).says("checked 1 policy");
}

#[test]
fn excluded_files_are_left_out_and_counted() {
    let place = Place::shop().file("gen/a.yaml", "not: [yaml").file("gen/b/c.json", "{").file("x.yaml", "- 1");
    let place = place.file(".weirignore", "# generated\n/gen/\n").file("weir.toml", "exclude = [\"x.*\"]\n");
    place.run("check .").exits(0).complains("note: left out by `exclude` or .weirignore: 3 files").says("1 policy");
    let ran = place.run("check . -q").exits(0);
    assert!(ran.err.is_empty(), "{ran:#?}");
    place.run("check *.yaml").exits(0).complains("1 file\n");
    // A file that is named is read.
    place.run("check gen/a.yaml").exits(1);
    place.run("check gen").exits(2).complains("no files to read in gen").complains("excluded files are not read: 2");
    let place = place.file("weir.toml", "exclude = \"x\"\n");
    place.run("check .").exits(2).complains("write exclude = [\"PATTERN\"]");
}

#[test]
fn excluded_files_of_a_revision_are_left_out_too() {
    let place = repository().file("policies/gen/a.yaml", "not: [yaml");
    git(&place, "add .");
    git(&place, "commit --quiet -m b");
    place.run("check git:HEAD").exits(1);
    let place = place.file(".weirignore", "gen/\n");
    place.run("check git:HEAD").exits(0).complains("left out by `exclude` or .weirignore: 1 file\n");
    place.run("check git:HEAD:policies/gen/a.yaml").exits(1);
}

/// A pull request may contain the rule that leaves files out.
#[test]
fn a_gate_refuses_a_comparison_without_excluded_files() {
    let place = repository().file("policies/gen/a.yaml", DATABASE.replace("name: db", "name: db2"));
    git(&place, "add .");
    git(&place, "commit --quiet -m b");
    let place = place
        .file(".weirignore", "gen/\n")
        .file("none.yaml", "apiVersion: weir.dev/v1alpha1\nkind: DiffApprovals\napprovals: []\n");
    for gate in ["--deny added", "--deny removed", "--approved none.yaml"] {
        let ran = place.run(&format!("diff git:HEAD:policies policies {gate}")).exits(2);
        ran.complains("leaves out 2 files: HEAD:policies/gen/a.yaml, policies/gen/a.yaml").complains("remove the rule");
    }
    place
        .run("diff git:HEAD:policies policies/shop.yaml -q")
        .exits(0)
        .complains("left out by `exclude` or .weirignore: 1");
    place.run("matrix policies -q").exits(0).complains("left out by `exclude` or .weirignore: 1 file");
    let place = place.file(".weirignore", "");
    place.run("diff git:HEAD:policies policies --deny added").exits(0);
}

/// The rules are those of `.gitignore`, as git itself applies them.
#[test]
fn excluded_files_are_those_that_git_ignores() {
    let rules = "*.json\n!keep.json\n/top\nmid/*/low\n**/any/x.yaml\ndir/\nback\\*slash\n[a-c]?.yml\n!a1.yml\nd/**\n";
    let files = [
        "a.json",
        "keep.json",
        "s/keep.json",
        "top/a.yaml",
        "s/top/a.yaml",
        "mid/a/low/b.yaml",
        "mid/a/b/low/c.yaml",
        "any/x.yaml",
        "s/any/x.yaml",
        "dir/a.yaml",
        "s/dir/a.yaml",
        "back*slash/a.yaml",
        "backxslash/a.yaml",
        "a1.yml",
        "b1.yml",
        "d1.yml",
        "s/c2.yml",
        "d/a.yaml",
        "d/e/f.yaml",
        "plain.yaml",
    ];
    let mut place = repository().file(".gitignore", rules).file(".weirignore", rules);
    for file in files {
        let name = file.replace(|it: char| !it.is_ascii_alphanumeric(), "-");
        place = place.file(file, format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"));
    }
    let mut command = Command::new("git");
    command.args(["ls-files", "--others", "--exclude-standard"]).current_dir(place.path());
    let listed = command.output().expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let mut expected: Vec<&str> = listed.lines().filter(|it| files.contains(it)).collect();
    expected.sort_unstable();
    let ran = place.run("check . -v").exits(0);
    let read = ran.err.lines().filter_map(|it| it.strip_prefix("read ./")?.split(' ').next());
    let mut read: Vec<&str> = read.filter(|it| files.contains(it)).collect();
    read.sort_unstable();
    assert_eq!(read, expected);
    assert!(expected.len() > 5 && expected.len() < files.len() - 5, "{expected:?}");
}

const KUSTOMIZATION: &str = "resources: [../base]\n";

#[test]
fn a_kustomization_is_rendered() {
    let place = Place::new().file("base/shop.yaml", SHOP).file("over/kustomization.yaml", KUSTOMIZATION);
    run(&place, "check over").exits(2).complains("neither kubectl nor kustomize is in PATH").complains("hint: ");
    let place = with_program(place, "kustomize", "[ \"$1\" = build ] && cat \"$2/../base/shop.yaml\"");
    run(&place, "check over").exits(0).says("checked 1 policy, 2 pods");
    // kubectl comes first.
    let place = with_program(
        place,
        "kubectl",
        "echo 'Warning: old field' >&2; [ \"$1\" = kustomize ] && cat \"$2/../base/shop.yaml\"",
    );
    run(&place, "explain over --from shop/web --to shop/db --port 5432 --expect allow")
        .exits(0)
        .says("over (rendered by kustomize):")
        .complains("kubectl: Warning: old field");
    let place = with_program(place, "kubectl", "echo 'Error: no such base' >&2; exit 1");
    run(&place, "check over").exits(2).complains("kubectl cannot render over: Error: no such base");
    // A search reads the resources as they are, and says so.
    let place = place.file("base/kustomization.yaml", "resources: [shop.yaml]\n");
    run(&place, "check .").exits(0).complains("./base has a kustomization, and its files are read as they are");
    run(&place, "check base/*.yaml").exits(0).says("checked 1 policy");
}

#[test]
fn a_chart_is_rendered_with_its_values() {
    let place =
        Place::shop().file("chart/Chart.yaml", "name: shop\n").file("chart/templates/a.yaml", "{{ .Values.a }}");
    run(&place, "check chart").exits(2).complains("chart is a Helm chart, and helm is not in PATH");
    let script = "[ \"$*\" = 'template --namespace shop --values v.yaml chart' ] && cat shop.yaml || echo \"$*\" >&2";
    let place = with_program(place, "helm", script).file("v.yaml", "a: 1\n");
    run(&place, "check chart --helm-values v.yaml -n shop").exits(0).says("checked 1 policy, 2 pods");
    // Templates are never read as YAML.
    run(&place, "check .").exits(2).complains("./chart is a Helm chart, whose templates are not read as YAML");
    let place = place.file("weir.toml", "exclude = [\"chart/templates\", \"v.yaml\"]\n");
    run(&place, "check .").exits(0).complains("left out by `exclude` or .weirignore: 3 files").says("1 policy");
    // Other files of the chart are not excluded.
    let place = place.file("chart/files/db.yaml", DATABASE.replace("name: db", "name: db2"));
    run(&place, "check .").exits(0).says("2 policies");
    let asks = "{{ if lookup \"v1\" \"Secret\" \"a\" \"b\" }}{{ end }}\n{{ .Capabilities.KubeVersion }}\n";
    let place = place.file("chart/templates/asks.yaml", asks);
    let ran = run(&place, "check chart --helm-values v.yaml -n shop --quiet").exits(0);
    ran.complains("note: chart asks the cluster")
        .complains("`lookup` at templates/asks.yaml:1, `.Capabilities` at templates/asks.yaml:2");
    std::os::unix::fs::symlink("/etc/hostname", place.path().join("chart/templates/b.yaml")).expect("a link");
    run(&place, "check chart").exits(2).complains("is a link that leads out of it");
}

#[test]
fn a_kustomization_of_a_revision_is_rendered_from_a_copy() {
    let place = repository().file("over/kustomization.yaml", "resources: [../policies]\n");
    std::os::unix::fs::symlink("/etc/hostname", place.path().join("over/link")).expect("a link");
    git(&place, "add over");
    git(&place, "commit --quiet -m b");
    let place = place.file("policies/shop.yaml", "not: [yaml");
    let script = "[ -L \"$2/link\" ] && exit 1; cat \"$2/../policies/shop.yaml\"";
    let place = with_program(place, "kubectl", script);
    run(&place, "check git:HEAD:over").exits(0).says("checked 1 policy, 2 pods");
    let left = fs::read_dir(std::env::temp_dir()).expect("listed").flatten();
    let left = left.filter(|it| it.path().join("index").exists() && it.path().join("files/over").exists());
    assert_eq!(left.count(), 0, "the copy is removed");
}

#[test]
fn a_revision_is_rendered_from_any_directory_of_the_repository() {
    let place = repository().file("over/kustomization.yaml", "resources: [../policies]\n").file("deep/a.txt", "");
    git(&place, "add .");
    git(&place, "commit --quiet -m b");
    let place = with_program(place, "kubectl", "cat \"$2/../policies/shop.yaml\"");
    run(&place, "check git:HEAD:over").exits(0);
    let mut command = place.command("check git:HEAD:over");
    command.current_dir(place.path().join("deep")).env("PATH", place.path().join("bin"));
    Ran::from(command.output().expect("weir runs")).exits(0).says("checked 1 policy, 2 pods");
}

#[test]
fn a_submodule_is_an_error_unless_it_is_excluded() {
    let place = repository();
    git(&place, "update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,policies/sub");
    git(&place, "commit --quiet -m b");
    place.run("check git:HEAD:policies").exits(2).complains("HEAD:policies/sub is a submodule");
    let place = place.file(".weirignore", "sub/\n");
    place.run("check git:HEAD:policies").exits(0).complains("left out by `exclude` or .weirignore: 1 file");
}

/// A kustomization that a change adds must not take files out of the head.
#[test]
fn a_rendered_side_is_not_compared_with_files() {
    let place = repository().file("policies/kustomization.yaml", "resources: [shop.yaml]\n");
    let place = with_program(place, "kubectl", "cat \"$2/shop.yaml\"");
    let ran = run(&place, "diff git:HEAD:policies policies").exits(2).complains("the sides are read in two ways");
    ran.complains("Base: the files of HEAD:policies are read as they are; head: policies is rendered by kustomize");
    run(&place, "diff policies git:HEAD:policies --deny added").exits(2).complains("the sides are read in two ways");
    git(&place, "add policies");
    git(&place, "commit --quiet -m b");
    let ran = run(&place, "diff git:HEAD:policies policies").exits(0);
    ran.complains("note: policies is rendered by kustomize: other files in it are not read");
    // One file is no directory that a change could turn into a kustomization.
    run(&place, "diff policies/shop.yaml policies").exits(0);
}

/// The real program, where there is one: no check needs it, because other tests use a program of their own.
#[test]
fn kubectl_renders_a_kustomization() {
    let place = Place::new().file("base/shop.yaml", SHOP).file("base/kustomization.yaml", "resources: [shop.yaml]\n");
    let place = place.file("over/kustomization.yaml", "namePrefix: new-\nresources: [../base]\n");
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        // The test harness would show `eprintln!` only if the test fails.
        _ = writeln!(std::io::stderr(), "skipped: kubectl_renders_a_kustomization: there is no kubectl");
        return;
    }
    let ran = place.run("explain over --from shop/new-web --to shop/new-db --port 5432 --expect allow").exits(0);
    ran.says("shop/new-db").says("over (rendered by kustomize):");
}

fn pod(name: &str, app: &str, address: &str) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7c9d"),
        "controller": true, "uid": "u"});
    json!({"metadata": {"name": name, "namespace": "shop", "labels": {"app": app, "pod-template-hash": "7c9d"},
        "ownerReferences": [owner]}, "status": {"phase": "Running", "podIP": address}})
}

fn policy(name: &str, port: u16) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}]}})
}

/// A cluster with a shop, and a directory with a kubeconfig that is found by no default.
fn live() -> (Simulated, Place) {
    let server = Simulated::start().expect("loopback is there");
    server.put("Namespace", json!({"metadata": {"name": "shop", "labels": {"team": "a"}}}));
    server.put("Namespace", json!({"metadata": {"name": "ops"}}));
    server.put("Pod", pod("web-7c9d-a", "web", "10.0.0.1"));
    server.put("Pod", pod("web-7c9d-b", "web", "10.0.0.2"));
    server.put("Pod", pod("db-7c9d-a", "db", "10.0.0.3"));
    server.put("NetworkPolicy", policy("db", 5432));
    let place = Place::new();
    server.write_kubeconfig(&place.path().join("config")).expect("the directory is ours");
    (server, place)
}

fn run_live(place: &Place, arguments: &str) -> Ran {
    let mut command = place.command(arguments);
    command.env("PATH", "").env_remove("KUBECONFIG").env("HOME", place.path());
    Ran::from(command.output().expect("weir runs"))
}

#[test]
fn every_command_reads_a_cluster() {
    let (server, place) = live();
    let place = place.file("flows", "{\"id\":1,\"src\":{\"pod\":\"deployment/shop/web\"},\"dst\":{\"pod\":\"shop/db\"},\"proto\":\"TCP\",\"port\":5432}\n");
    let cluster = "cluster: --kubeconfig config --context weir";
    run_live(&place, &format!("check {cluster}")).exits(0).says("checked 1 policy, 3 pods, 2 namespaces");
    run_live(&place, &format!("query {cluster} -A --flows flows")).exits(0).says("\"verdict\":\"allow\"");
    for from in ["shop/web", "deploy/web -n shop", "shop/web-7c9d-b", "pod/shop/web-7c9d-a"] {
        run_live(&place, &format!("explain {cluster} --from {from} --to shop/db --port 5432 --expect allow")).exits(0);
    }
    let ran = run_live(&place, &format!("explain {cluster} --from shop/wbe --to shop/db --port 5432")).exits(2);
    ran.complains("did you mean `shop/web`?");
    run_live(&place, &format!("matrix {cluster} -A")).exits(0).says("shop/web").says("shop/db");
    run_live(&place, "check cluster:weir --kubeconfig config").exits(0);
    run_live(&place, "check cluster:weir --context other --kubeconfig config").exits(2).complains("name two contexts");
    run_live(&place, "check cluster:nope --kubeconfig config").exits(2).complains("no usable context `nope`");
    let ran = run_live(&place, "check flows --context weir").exits(2);
    ran.complains("--context has no effect: no input is a cluster");
    // Only one namespace, which needs no permission for others.
    server.put("NetworkPolicy", json!({"metadata": {"name": "a", "namespace": "ops"}, "spec": {"podSelector": {}}}));
    run_live(&place, &format!("check {cluster} -n shop")).exits(0).says("checked 1 policy, 3 pods, 1 namespace");
    let ran = run_live(&place, &format!("check {cluster} -n shop --all-namespaces")).exits(0);
    ran.says("checked 2 policies, 3 pods, 2 namespaces");
    run_live(&place, &format!("check {cluster} -n none")).exits(2).complains("the cluster has no namespace none");
}

#[test]
fn files_are_applied_to_the_cluster_and_other_objects_stay() {
    let (server, place) = live();
    server.put("NetworkPolicy", policy("other", 6000));
    let place = place.file("db.json", policy("db", 5433).to_string());
    let cluster = "cluster: --kubeconfig config --no-cost";
    let ran = run_live(&place, &format!("diff {cluster} db.json")).exits(1).says("TCP 5433").says("TCP 5432");
    assert!(!ran.out.contains("6000"), "other policies stay: {ran:#?}");
    let ran = ran.complains("note: the head is the cluster with the objects of the files applied");
    assert!(!ran.err.contains("taken from the cluster"), "{ran:#?}");
    let ran = run_live(&place, &format!("diff {cluster} db.json --prune")).exits(1).says("TCP 6000");
    ran.complains("note: the files are the whole state").complains("taken from the cluster: Namespace, Pod");
    run_live(&place, &format!("diff {cluster} cluster:")).exits(0).complains("name the same input");
    run_live(&place, "diff db.json db.json --prune").exits(2).complains("--prune has no effect");
    // Objects that are in force already change nothing, also from standard input.
    let mut same = policy("db", 5432);
    same["metadata"].as_object_mut().expect("an object").remove("namespace");
    let place = place.file("same.json", same.to_string());
    run_live(&place, &format!("diff {cluster} same.json -n shop")).exits(0);
    run_live(&place, &format!("diff {cluster} same.json")).exits(1);
}

#[test]
fn applied_objects_keep_what_the_server_has_set() {
    let (server, place) = live();
    let by_team = json!({"metadata": {"name": "team", "namespace": "ops"}, "spec": {"podSelector": {},
        "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}]}});
    server.put("NetworkPolicy", by_team);
    server.put("Pod", json!({"metadata": {"name": "wiki", "namespace": "ops"}, "status": {"podIP": "10.0.0.9"}}));
    // A manifest has no status, and no label that others have set.
    let files = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
        {apiVersion: v1, kind: Pod, metadata: {name: wiki, namespace: ops}, spec: {}}\n";
    let place = place.file("files.yaml", files);
    run_live(&place, "diff cluster: files.yaml --kubeconfig config --no-cost").exits(0);
    // A label that the last `apply` has set is removed by one without it.
    let last = json!({"metadata": {"name": "shop", "labels": {"team": "a"}}}).to_string();
    server.put(
        "Namespace",
        json!({"metadata": {"name": "shop", "labels": {"team": "a"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": last}}}),
    );
    run_live(&place, "diff cluster: files.yaml --kubeconfig config --no-cost").exits(1);
}

/// `kubectl apply` keeps a field that neither the file nor the last `apply` sets.
#[test]
fn a_default_that_the_server_has_stored_stays_when_a_file_adds_egress_rules() {
    let (server, place) = live();
    let mut file = policy("db", 5432);
    let spec = file["spec"].as_object_mut().expect("an object");
    spec.remove("policyTypes");
    spec.insert("egress".to_owned(), json!([{"to": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]));
    let place = place.file("db.json", file.to_string());
    let diff = "diff cluster: db.json --kubeconfig config";
    // The stored types are the server's default, so the new rules isolate nothing.
    let ran = run_live(&place, diff).exits(0);
    ran.complains("NetworkPolicy shop/db keeps fields of the cluster that the file does not set: spec.policyTypes");
    // The last apply has set the types: they are removed, and the default for the new rules isolates egress.
    let mut stored = policy("db", 5432);
    let last = json!({"spec": {"policyTypes": ["Ingress"]}}).to_string();
    stored["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last});
    server.put("NetworkPolicy", stored);
    let ran = run_live(&place, diff).exits(1).says("egress");
    assert!(!ran.err.contains("keeps fields"), "{ran:#?}");
    // Rows show the lines of the file.
    let mut file = policy("db", 5433);
    file["metadata"].as_object_mut().expect("an object").remove("namespace");
    let place = place.file("db.json", format!("{file:#}"));
    run_live(&place, "diff cluster: db.json -n shop -A --kubeconfig config").exits(1).says("(db.json:");
}

/// Pods as `kubectl get pods -o yaml` prints them, without the ReplicaSets, and pods that tables show together.
const PODS: &str = "\
{apiVersion: v1, kind: Pod, metadata: {name: web-7c9d-a, namespace: shop, labels: {app: web, pod-template-hash: 7c9d}, \
 ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-7c9d, controller: true, uid: u}]}, \
 status: {phase: Running, podIP: 10.1.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: lone-a, namespace: shop, labels: {app: lone}}, \
 status: {phase: Running, podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: lone-b, namespace: shop, labels: {app: lone}}, \
 status: {phase: Running, podIP: 10.1.0.3}}
---
{apiVersion: v1, kind: Pod, metadata: {name: one, namespace: shop, labels: {app: two}}, \
 status: {phase: Running, podIP: 10.1.0.4}}
---
{apiVersion: v1, kind: Pod, metadata: {name: two, namespace: shop, labels: {app: two}}, \
 status: {phase: Running, podIP: 10.1.0.5}}
";

/// The names of workloads anywhere in a document.
fn names(value: &Value, found: &mut Vec<String>) {
    if let (Some(namespace), Some(name), Some(_)) =
        (value["namespace"].as_str(), value["name"].as_str(), value["workload"].as_str())
    {
        found.push(format!("{namespace}/{name}"));
    }
    match value {
        Value::Array(items) => items.iter().for_each(|it| names(it, found)),
        Value::Object(fields) => fields.values().for_each(|it| names(it, found)),
        _ => {}
    }
}

#[test]
fn every_name_that_is_printed_is_taken() {
    let place = Place::new().file("pods.yaml", PODS);
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../policies/examples");
    for input in ["pods.yaml", examples] {
        let mut found = Vec::new();
        for command in ["matrix --by workload", "graph --by workload", "exposure"] {
            names(&place.run(&format!("{command} {input} -o json")).json(), &mut found);
        }
        found.sort();
        found.dedup();
        let flow = |name: &String| {
            json!({"src": {"pod": name}, "dst": {"pod": name}, "proto": "TCP", "port": 80}).to_string() + "\n"
        };
        let flows: String = found.iter().map(flow).collect();
        let ran = place.run_with_input(&format!("query {input} --flows -"), &flows);
        for (name, line) in found.iter().zip(ran.out.lines()) {
            assert!(!line.contains("skip"), "{name}: {line}");
        }
        assert_eq!(ran.out.lines().count(), found.len());
        assert!(found.len() >= 3, "{found:?}");
        for name in found.iter().take(4) {
            place.run(&format!("explain {input} --from {name} --to {name} --port 80")).says(": tcp ");
        }
    }
    let ran = place.run("explain pods.yaml --from deployment/shop/web --to pod/shop/one --port 80").exits(0);
    ran.says("shop/web-7c9d-a");
    let place = place.file(
        "service.yaml",
        "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: shop}, \
        spec: {clusterIP: 10.9.0.1, ports: [{name: http, port: 80}]}}",
    );
    let both = "pods.yaml service.yaml --to shop/s";
    place.run(&format!("explain {both} --from shop/web --port http")).says("service");
    place.run(&format!("explain {both} --from shop/web --port htp")).exits(2).complains("did you mean `http`?");
    place.run(&format!("suggest {both} --from shop/web --port icmp")).exits(2).complains("write --proto icmp");
    place.run(&format!("explain {both} --from shop/s --port 80")).exits(2).complains("a service, which is no source");
}

/// Two pods of a StatefulSet, and a policy that selects one of them.
#[test]
fn pods_of_a_workload_that_a_policy_tells_apart_are_not_one_answer() {
    let pod = |number: u8| {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true, "uid": "u"});
        let labels = json!({"app": "db", "statefulset.kubernetes.io/pod-name": format!("db-{number}")});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("db-{number}"), "namespace": "shop",
            "labels": labels, "ownerReferences": [owner]}, "status": {"phase": "Running", "podIP": format!("10.0.{number}.1")}})
    };
    let policy = |spec: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "p", "namespace": "shop"}, "spec": spec})
    };
    let list = |spec: Value| json!({"apiVersion": "v1", "kind": "List", "items": [pod(0), pod(1), policy(spec)]});
    let explain = "explain a.json --from shop/db-0 --to statefulset/shop/db --port 80";
    let select =
        |key: &str, value: &str| json!({"podSelector": {"matchLabels": {key: value}}, "policyTypes": ["Ingress"]});
    let place = Place::new().file("a.json", list(select("app", "db")).to_string());
    place.run(explain).exits(0);
    let place = place.file("a.json", list(select("statefulset.kubernetes.io/pod-name", "db-1")).to_string());
    place
        .run(explain)
        .exits(2)
        .complains("differ in labels, ports or blocks of addresses: name one, such as shop/db-0");
    let blocks = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "10.0.1.0/24"}}]}]});
    let place = place.file("a.json", list(blocks).to_string());
    place.run(explain).exits(2).complains("blocks of addresses: name one, such as shop/db-0 or shop/db-1");
}
