//! Checks the examples: they are valid, cause exactly the warnings that they mention, and meet their expectations.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weir_lint as lint;
use weir_model::{Assumptions, resolve};
use weir_objects::decode::{self, DecodeOptions, Input, InputKind};
use weir_objects::diagnostic::{Diagnostics, Severity};

const CLUSTER: &str = "policies/examples/00-cluster.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn weir(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).current_dir(root()).args(arguments).output();
    output.expect("weir starts")
}

/// Paths from the repository's root, sorted, without the cluster that all examples share.
fn examples() -> Vec<String> {
    let directory = root().join("policies/examples");
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .expect("the examples are there")
        .map(|entry| entry.expect("a readable entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".yaml") && !CLUSTER.ends_with(name.as_str()))
        .collect();
    names.sort();
    names.into_iter().map(|name| format!("policies/examples/{name}")).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn findings(paths: &[&str]) -> Diagnostics {
    let input = |path: &&str| Input { name: (*path).to_owned(), bytes: read(path).into(), kind: InputKind::Manifest };
    let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let (decoded, mut diagnostics) = decode::decode(paths.iter().map(input).collect(), &options);
    let (cluster, found) = resolve::resolve(&decoded.objects, Assumptions::default());
    diagnostics.extend(found);
    diagnostics.extend(lint::lint(&decoded.objects, &cluster, lint::LintWorld::Open));
    diagnostics
}

fn codes(diagnostics: &Diagnostics) -> BTreeSet<String> {
    let worth_saying = diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Note);
    worth_saying.map(|diagnostic| diagnostic.code.name.to_owned()).collect()
}

/// `# Warns: code` in an example's head.
fn announced(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|line| line.strip_prefix("# Warns: ")).map(ToOwned::to_owned).collect()
}

/// The list file beside an example, if it has one.
fn list_file(example: &str) -> Option<String> {
    let path = example.replace(".yaml", ".txt");
    root().join(&path).exists().then_some(path)
}

#[test]
fn examples_are_numbered_without_gaps() {
    let examples = examples();
    assert!(examples.len() >= 24, "{} examples", examples.len());
    for (index, path) in examples.iter().enumerate() {
        let number = format!("policies/examples/{:02}-", index + 1);
        assert!(path.starts_with(&number), "{path} does not begin with {number}");
    }
}

#[test]
fn every_example_begins_with_three_lines_of_prose() {
    for path in examples() {
        let text = read(&path);
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("# ")).collect();
        let prose = head.iter().filter(|line| !line.starts_with("# Warns: ")).count();
        assert_eq!(prose, 3, "{path}: {head:#?}");
    }
}

#[test]
fn every_example_causes_exactly_the_warnings_that_it_names() {
    let mut wrong = Vec::new();
    for path in examples() {
        let diagnostics = findings(&[CLUSTER, &path]);
        if codes(&diagnostics) != announced(&read(&path)) || diagnostics.has_errors() {
            let messages: Vec<String> = diagnostics.into_vec().into_iter().map(|it| it.message).collect();
            wrong.push((path, messages));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn all_examples_together_cause_no_further_warnings() {
    let examples = examples();
    let mut paths = vec![CLUSTER];
    paths.extend(examples.iter().map(String::as_str));
    let expected: BTreeSet<String> = examples.iter().flat_map(|path| announced(&read(path))).collect();
    let diagnostics = findings(&paths);
    assert_eq!(codes(&diagnostics), expected, "{diagnostics:#?}");
}

#[test]
fn check_finds_no_error_in_the_examples() {
    let output = weir(&["check", "policies/examples"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `weir test` of one example, with the list file beside it if there is one.
fn test_example(path: &str, expectations: &str) -> (Option<i32>, String) {
    let list = list_file(path);
    let mut arguments = vec!["test", CLUSTER, path, "--expectations", expectations];
    arguments.extend(list.iter().flat_map(|list| ["--deny-list", list]));
    let output = weir(&arguments);
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn every_example_meets_its_expectations() {
    for path in examples() {
        let (code, printed) = test_example(&path, &path.replace("/examples/", "/expectations/"));
        assert_eq!(code, Some(0), "{path}:\n{printed}");
    }
}

/// A test that always passes would prove nothing: with the opposite verdict, each expectation must fail.
#[test]
fn every_expectation_can_fail() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for path in examples() {
        let name = path.replace("policies/examples/", "");
        let turned = read(&format!("policies/expectations/{name}"))
            .replace("expect: allow", "expect: other")
            .replace("expect: deny", "expect: allow")
            .replace("expect: other", "expect: deny");
        let file = directory.join(format!("turned-{name}"));
        std::fs::write(&file, turned).expect("the test's directory takes a file");
        let (code, printed) = test_example(&path, &file.to_string_lossy());
        assert_eq!(code, Some(1), "{path}:\n{printed}");
        assert!(printed.contains(": 0 passed"), "{path}:\n{printed}");
    }
}
