//! Runs the examples for CI systems in docs/ci exactly as they are written there, on a repository that the test makes.

mod action;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_objects::syntax::{Span, SyntaxNode, SyntaxValue, yaml};

use crate::support::{Place, Ran, SHOP};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ci").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(example(name)).expect("an example")
}

fn parse(text: &str) -> SyntaxNode<'_> {
    let end = u32::try_from(text.len()).expect("a short text");
    yaml::parse(text, Span { start: 0, end }).expect("YAML").expect("a document")
}

fn get<'n, 't>(node: &'n SyntaxNode<'t>, name: &str) -> Option<&'n SyntaxNode<'t>> {
    let SyntaxValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key == name).map(|entry| &entry.value)
}

fn items<'n, 't>(node: &'n SyntaxNode<'t>) -> &'n [SyntaxNode<'t>] {
    let SyntaxValue::Seq(items) = &node.value else { return &[] };
    items
}

fn text(node: &SyntaxNode<'_>) -> String {
    let SyntaxValue::Str(text) = &node.value else { panic!("no text: {node:?}") };
    text.to_string()
}

/// Marks the comment that the next run writes over.
const MARKER: &str = "<!-- weir-diff -->";

/// Logs its arguments. The ids of the comments that have the marker are in a file.
const GH: &str = r#"#!/bin/sh
echo "$@" >> "$PLACE/gh.log"
case "$*" in *--paginate*) cat "$PLACE/ids.log" 2> /dev/null || true ;; esac
"#;

/// A repository with the shop on main, and a branch on which the database is open to everyone.
struct Repository {
    place: Place,
}

impl Repository {
    fn new() -> Self {
        let it = Self { place: Place::new() };
        fs::remove_dir_all(it.place.path().join(".git")).expect("removed");
        fs::create_dir_all(it.place.path().join("bin")).expect("made");
        symlink(env!("CARGO_BIN_EXE_weir"), it.place.path().join("bin/weir")).expect("a link");
        it.tool("gh", GH);
        it.git("init -q -b main");
        it.write("policies/shop.yaml", SHOP);
        it.write(".gitignore", "bin\n*.log\n");
        it.git("add -A");
        it.git("commit -q -m base");
        // A clone would have this reference.
        it.git("update-ref refs/remotes/origin/main main");
        it.git("checkout -q -b change");
        it
    }

    fn tool(&self, name: &str, script: &str) {
        let path = self.place.path().join("bin").join(name);
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.place.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.place.path().join(name)).unwrap_or_default()
    }

    /// The file is written over the first comment that has the marker, or as a new comment. No other comment is changed.
    #[track_caller]
    fn commented(&self, file: &Path) {
        let log = self.read("gh.log");
        let lines: Vec<&str> = log.lines().collect();
        let [found, written] = lines.as_slice() else { panic!("two requests: {log}") };
        assert!(found.starts_with("api --paginate repos/o/r/issues/7/comments --jq "), "{found}");
        assert!(found.contains("github-actions[bot]") && found.contains(MARKER), "{found}");
        let place = match self.read("ids.log").lines().next() {
            Some(id) => format!("PATCH repos/o/r/issues/comments/{id}"),
            None => "POST repos/o/r/issues/7/comments".to_owned(),
        };
        assert_eq!(*written, format!("api --method {place} --field body=@{}", file.display()));
        let body = fs::read_to_string(self.place.path().join(file)).expect("the comment");
        assert!(body.ends_with(&format!("\n{MARKER}\n")), "{body}");
    }

    /// A command in the repository, with the programs above and without the user's git configuration.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.current_dir(self.place.path()).env("PLACE", self.place.path());
        command.env("PATH", format!("{}:{path}", self.place.path().join("bin").display()));
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "test").env(format!("GIT_{who}_EMAIL"), "test@example.org");
        }
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        command
    }

    #[track_caller]
    fn git(&self, arguments: &str) -> Ran {
        let ran = Ran::from(self.command("git").args(arguments.split_whitespace()).output().expect("git"));
        ran.exits(0)
    }

    fn commit(&self, message: &str) -> Ran {
        Ran::from(self.command("git").args(["commit", "-q", "-m", message]).output().expect("git"))
    }

    fn bash(&self, script: &str, variables: &[(&str, &str)]) -> Ran {
        let mut command = self.command("bash");
        command.args(["-e", "-o", "pipefail", "-c", script]).envs(variables.iter().copied());
        Ran::from(command.output().expect("bash"))
    }

    /// Accepts the traffic that the working tree newly allows.
    fn approve(&self) {
        let command =
            "weir diff git:main:policies policies --deny added --write-approved weir-approved.yaml --reason x";
        self.bash(command, &[]).exits(0);
    }

    /// Opens the database to all sources.
    fn open_the_database(&self) {
        let open = SHOP.replace(
            "    - from:\n        - podSelector:\n            matchLabels: {app: web}\n      ports:",
            "    - ports:",
        );
        assert_ne!(open, SHOP);
        self.write("policies/shop.yaml", &open);
    }
}

/// Runs the workflow's `run` steps in order, as the runner would, except those that install something.
fn run_workflow(repository: &Repository) -> Vec<(String, Ran)> {
    let workflow = read("github-workflow.yml");
    let workflow = parse(&workflow);
    let [policies, approved] =
        ["POLICIES", "APPROVED"].map(|it| text(get(get(&workflow, "env").expect("env"), it).expect("a variable")));
    let job = get(get(&workflow, "jobs").expect("jobs"), "weir").expect("a job");
    let mut ran = Vec::new();
    let mut installs = 0;
    for step in items(get(job, "steps").expect("steps")) {
        let Some(script) = get(step, "run") else { continue };
        let name = text(get(step, "name").expect("a name"));
        if name == "Install" {
            installs += 1;
            continue;
        }
        let output = repository.read("output.log");
        if let Some(condition) = get(step, "if").map(text) {
            let wanted = condition.strip_prefix("steps.compare.outputs.").expect("a condition that is known here");
            let (key, value) = wanted.split_once(" == ").expect("an equation");
            if !output.lines().any(|line| line == format!("{key}={}", value.trim_matches('\''))) {
                continue;
            }
        }
        let [summary, output] =
            ["summary.log", "output.log"].map(|it| repository.place.path().join(it).display().to_string());
        let variables = [
            ("POLICIES", policies.as_str()),
            ("APPROVED", approved.as_str()),
            ("GITHUB_BASE_REF", "main"),
            ("GITHUB_STEP_SUMMARY", &summary),
            ("GITHUB_OUTPUT", &output),
            ("GITHUB_REPOSITORY", "o/r"),
            ("PULL_REQUEST", "7"),
        ];
        let script = text(script);
        assert!(!script.contains("${{"), "an expression that only the runner can fill in: {script}");
        ran.push((name, repository.bash(&script, &variables)));
    }
    assert_eq!(installs, 1);
    ran
}

#[test]
fn the_github_workflow_comments_on_a_change_and_fails() {
    let repository = Repository::new();
    repository.open_the_database();
    repository.git("add -A");
    repository.git("commit -q -m open");
    let ran = run_workflow(&repository);
    let names: Vec<&str> = ran.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Check", "Test", "Compare", "Comment", "Gate"]);
    for (name, ran) in &ran {
        assert_eq!(ran.code, Some(i32::from(name == "Gate")), "{name}: {ran:#?}");
    }
    assert!(ran[2].1.out.contains("::"), "annotations: {:#?}", ran[2].1);
    assert_eq!(repository.read("output.log"), "changed=1\nrefused=1\n");
    assert!(repository.read("summary.log").contains("5432"), "{}", repository.read("summary.log"));
    assert!(repository.read("weir-diff.html").contains("<!doctype html>"));
    repository.commented(Path::new("weir-diff.md"));
}

#[test]
fn the_github_workflow_fails_on_an_expectation_that_does_not_hold() {
    let repository = Repository::new();
    repository.write("expectations.yaml", "- {from: 192.0.2.7, to: shop/db, port: 5432, expect: deny}\n");
    repository.open_the_database();
    repository.git("add -A");
    repository.git("commit -q -m open");
    let ran = run_workflow(&repository);
    let test = ran.iter().find(|(name, _)| name == "Test").expect("a step");
    assert_eq!(test.1.code, Some(1), "{ran:#?}");
}

#[test]
fn the_github_workflow_passes_approved_changes() {
    let repository = Repository::new();
    repository.open_the_database();
    repository.approve();
    repository.git("add -A");
    repository.git("commit -q -m open");
    let ran = run_workflow(&repository);
    assert!(ran.iter().all(|(_, ran)| ran.code == Some(0)), "{ran:#?}");
    assert_eq!((ran.len(), repository.read("output.log").as_str()), (4, "changed=1\nrefused=0\n"));
    assert!(repository.read("weir-diff.md").contains("✅ approved"), "{}", repository.read("weir-diff.md"));
}

#[test]
fn the_github_workflow_is_quiet_about_a_comment_in_a_file() {
    let repository = Repository::new();
    repository.write("policies/shop.yaml", &format!("# A remark.\n{SHOP}"));
    repository.git("add -A");
    repository.git("commit -q -m remark");
    let ran = run_workflow(&repository);
    assert!(ran.iter().all(|(_, ran)| ran.code == Some(0)), "{ran:#?}");
    assert_eq!((ran.len(), repository.read("gh.log").as_str()), (3, ""));
    assert_eq!(repository.read("output.log"), "changed=0\nrefused=0\n");
}

#[test]
fn the_github_workflow_fails_on_a_broken_policy() {
    let repository = Repository::new();
    repository.write("policies/shop.yaml", &SHOP.replace("podSelector:", "podselector:"));
    repository.git("add -A");
    repository.git("commit -q -m broken");
    let ran = run_workflow(&repository);
    assert_eq!(ran[0].1.code, Some(1), "{ran:#?}");
    assert!(ran[0].1.out.contains("::error file=policies/shop.yaml,line=7"), "{ran:#?}");
    assert_ne!(ran[2].1.code, Some(0), "{ran:#?}");
}

#[test]
fn the_gitlab_job_leaves_a_report_and_is_a_gate() {
    let repository = Repository::new();
    let base = repository.git("rev-parse HEAD").out;
    repository.open_the_database();
    repository.git("add -A");
    repository.git("commit -q -m open");
    let job = read("gitlab-ci.yml");
    let job = parse(&job);
    let job = get(&job, "network-policy").expect("a job");
    let [policies, approved] = ["POLICIES", "APPROVED"]
        .map(|it| text(get(get(job, "variables").expect("variables"), it).expect("a variable")));
    let variables = [
        ("POLICIES", policies.as_str()),
        ("APPROVED", approved.as_str()),
        ("CI_MERGE_REQUEST_DIFF_BASE_SHA", base.trim()),
    ];
    let [check, test, compare] = items(get(job, "script").expect("a script")) else { panic!("three scripts") };
    repository.bash(&text(check), &variables).exits(0);
    repository.bash(&text(test), &variables).exits(0);
    repository.bash(&text(compare), &variables).exits(1).says("refused: no approvals are given");
    for kept in items(get(get(job, "artifacts").expect("artifacts"), "paths").expect("paths")) {
        assert!(repository.read(&text(kept)).contains("5432"), "{}", text(kept));
    }
    repository.approve();
    repository.bash(&text(compare), &variables).exits(0).says("approved: x");
}

#[test]
fn the_hook_refuses_errors_and_new_traffic_and_prints_changes() {
    let repository = Repository::new();
    let hook = repository.place.path().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().expect("a parent")).expect("made");
    fs::copy(example("pre-commit"), &hook).expect("copied");
    assert!(fs::metadata(&hook).expect("there").permissions().mode() & 0o111 != 0, "the hook is executable");
    // The hook checks only files that are staged in git.
    repository.write("policies/shop.yaml", &SHOP.replace("podSelector:", "podselector:"));
    repository.write("notes.txt", "nothing");
    repository.git("add notes.txt");
    assert_eq!(repository.commit("notes").exits(0).out, "");
    repository.git("add -A");
    let refused = repository.commit("broken").exits(1);
    assert!(refused.out.contains("unknown-field") || refused.err.contains("unknown-field"), "{refused:#?}");
    repository.open_the_database();
    repository.git("add -A");
    repository.write("policies/shop.yaml", "not: staged: at: all");
    let ran = repository.commit("open").exits(0);
    let printed = format!("{}{}", ran.out, ran.err);
    assert!(printed.contains("5432") && printed.contains("newly allowed"), "{printed}");
    // With a file of approvals, the hook is a gate.
    repository.write("policies/shop.yaml", SHOP);
    repository.write("weir-approved.yaml", "apiVersion: weir.dev/v1alpha1\nkind: DiffApprovals\napprovals: []\n");
    repository.git("add -A");
    assert_eq!(repository.commit("closed").code, Some(0), "nothing is newly allowed");
    repository.open_the_database();
    repository.git("add -A");
    let refused = repository.commit("open").exits(1);
    assert!(format!("{}{}", refused.out, refused.err).contains("refused: no entry of"), "{refused:#?}");
    repository
        .bash("weir diff git:HEAD:policies policies --deny added --write-approved weir-approved.yaml --reason x", &[])
        .exits(0);
    repository.git("add -A");
    repository.commit("approved").exits(0);
}

#[test]
fn the_hook_of_the_pre_commit_framework_checks_the_named_files() {
    let repository = Repository::new();
    let config = read("pre-commit-config.yaml");
    let config = parse(&config);
    let repo = &items(get(&config, "repos").expect("repos"))[0];
    let hook = &items(get(repo, "hooks").expect("hooks"))[0];
    let entry = text(get(hook, "entry").expect("an entry"));
    repository.bash(&entry, &[]).exits(0);
    repository.write("policies/shop.yaml", &SHOP.replace("podSelector:", "podselector:"));
    repository.bash(&entry, &[]).exits(1);
    let gate = text(get(&items(get(repo, "hooks").expect("hooks"))[1], "entry").expect("an entry"));
    repository.open_the_database();
    repository.bash(&gate, &[]).exits(2);
    repository.approve();
    repository.bash(&gate, &[]).exits(0);
    repository.write("policies/shop.yaml", &SHOP.replace("5432", "5433"));
    repository.bash(&gate, &[]).exits(1);
}
