//! Runs the steps of `action.yml` as the runner would, with a release that the test makes.

use std::collections::BTreeMap;

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// The inputs of the action: those that the workflow gives, and the defaults.
fn inputs(action: &SyntaxNode<'_>, given: &[(&str, &str)]) -> BTreeMap<String, String> {
    let SyntaxValue::Map(entries) = &get(action, "inputs").expect("inputs").value else { panic!("no map") };
    let mut inputs: BTreeMap<String, String> = entries
        .iter()
        .map(|entry| (entry.key.to_string(), text(get(&entry.value, "default").expect("a default"))))
        .collect();
    for (name, value) in given {
        assert!(inputs.insert((*name).into(), (*value).into()).is_some(), "there is no input {name}");
    }
    inputs
}

/// The directory where the outputs of steps, the PATH and the summary are.
fn temporary(repository: &Repository) -> PathBuf {
    repository.place.path().join(".git/runner")
}

fn temporary_text(repository: &Repository, name: &str) -> String {
    fs::read_to_string(temporary(repository).join(name)).unwrap_or_default()
}

/// The value of an expression, as the runner fills it in.
fn value(repository: &Repository, inputs: &BTreeMap<String, String>, expression: &str) -> String {
    match expression {
        "github.token" => "token".into(),
        "github.event.pull_request.number" => "7".into(),
        "github.server_url" => format!("file://{}", repository.place.path().join(".git/server").display()),
        "github.action_repository" => "weir/weir".into(),
        "inputs.version || github.action_ref" if inputs["version"].is_empty() => "main".into(),
        "inputs.version || github.action_ref" => inputs["version"].clone(),
        _ => {
            let input = expression.strip_prefix("inputs.").and_then(|name| inputs.get(name));
            input.unwrap_or_else(|| panic!("unknown expression {expression}")).clone()
        }
    }
}

fn filled_in(repository: &Repository, inputs: &BTreeMap<String, String>, text: &str) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${{ ") {
        let (expression, after) = after.split_once(" }}").expect("an end");
        filled += before;
        filled += &value(repository, inputs, expression);
        rest = after;
    }
    filled + rest
}

fn holds(repository: &Repository, inputs: &BTreeMap<String, String>, condition: &str) -> bool {
    condition.split(" && ").all(|part| match part.split_once(" == ") {
        None => part == "github.event.pull_request",
        Some((left, right)) => {
            let right = right.trim_matches('\'');
            match left.strip_prefix("steps.compare.outputs.") {
                Some(name) => {
                    temporary_text(repository, "output").lines().any(|line| line == format!("{name}={right}"))
                }
                None => value(repository, inputs, left) == right,
            }
        }
    })
}

/// Runs the steps until one fails. Returns their names and results.
fn run(repository: &Repository, given: &[(&str, &str)]) -> Vec<(String, Ran)> {
    let action = fs::read_to_string(root().join("action.yml")).expect("the action");
    let action = parse(&action);
    let inputs = inputs(&action, given);
    fs::create_dir_all(temporary(repository)).expect("made");
    let file = |name: &str| temporary(repository).join(name).display().to_string();
    let mut ran: Vec<(String, Ran)> = Vec::new();
    for step in items(get(get(&action, "runs").expect("runs"), "steps").expect("steps")) {
        let Some(script) = get(step, "run") else { continue };
        let condition = get(step, "if").map(text);
        if !condition.is_none_or(|it| holds(repository, &inputs, &it)) {
            continue;
        }
        let SyntaxValue::Map(environment) = &get(step, "env").expect("env").value else { panic!("no map") };
        let mut variables: Vec<(String, String)> = environment
            .iter()
            .map(|entry| (entry.key.to_string(), filled_in(repository, &inputs, &text(&entry.value))))
            .collect();
        let installed = temporary_text(repository, "path").trim().replace('\n', ":");
        // Without the program that other tests have on the PATH.
        let tools = repository.place.path().join(".git/tools").display().to_string();
        let path = format!("{installed}:{tools}:{}", std::env::var("PATH").unwrap_or_default());
        let runner = [
            ("PATH", path),
            ("RUNNER_TEMP", temporary(repository).display().to_string()),
            ("GITHUB_PATH", file("path")),
            ("GITHUB_OUTPUT", file("output")),
            ("GITHUB_STEP_SUMMARY", file("summary")),
            ("GITHUB_ACTION_PATH", root().display().to_string()),
            ("GITHUB_BASE_REF", "main".into()),
            ("GITHUB_REPOSITORY", "o/r".into()),
        ];
        variables.extend(runner.map(|(name, value)| (name.to_owned(), value)));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, it)| (name.as_str(), it.as_str())).collect();
        let script = text(script);
        assert!(!script.contains("${{"), "an expression in a script can be an injection: {script}");
        let result = repository.bash(&script, &variables);
        let failed = result.code != Some(0);
        ran.push((text(get(step, "name").expect("a name")), result));
        if failed {
            break;
        }
    }
    ran
}

/// A repository on a branch that opens the database, and a server with a release.
fn repository() -> Repository {
    let repository = Repository::new();
    let tools = repository.place.path().join(".git/tools");
    fs::create_dir_all(&tools).expect("made");
    fs::rename(repository.place.path().join("bin/gh"), tools.join("gh")).expect("moved");
    repository.open_the_database();
    repository.git("add -A");
    repository.git("commit -q -m open");
    let release = repository.place.path().join(".git/server/weir/weir/releases/download/v1.2.3");
    fs::create_dir_all(release.join("weir-1.2.3")).expect("made");
    fs::copy(env!("CARGO_BIN_EXE_weir"), release.join("weir-1.2.3/weir")).expect("copied");
    let pack = "name=weir-1.2.3-$(uname -m)-unknown-linux-gnu.tar.gz
        tar -cf - weir-1.2.3 | gzip -1 > $name
        sha256sum $name > SHA256SUMS";
    let packed = Command::new("bash").args(["-e", "-c", pack]).current_dir(&release).status();
    assert!(packed.expect("bash starts").success());
    repository
}

fn names(ran: &[(String, Ran)]) -> Vec<&str> {
    ran.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_action_installs_a_release_and_refuses_new_traffic() {
    let repository = repository();
    let ran = run(&repository, &[("version", "v1.2.3"), ("deny", "added"), ("comment", "true")]);
    assert_eq!(names(&ran), ["Install", "Compare", "Comment", "Gate"], "{ran:#?}");
    assert!(ran[..3].iter().all(|(_, ran)| ran.code == Some(0)), "{ran:#?}");
    assert_eq!(ran[3].1.code, Some(1));
    assert!(ran[1].1.out.contains("::"), "annotations: {:#?}", ran[1].1);
    assert_eq!(temporary_text(&repository, "output"), "changed=true\nrefused=true\n");
    assert!(temporary_text(&repository, "summary").contains("5432"));
    assert!(temporary_text(&repository, "weir-diff.html").contains("<!doctype html>"));
    repository.commented(&temporary(&repository).join("weir-diff.md"));
}

#[test]
fn the_action_writes_over_its_own_comment() {
    let repository = repository();
    repository.write("ids.log", "41\n42\n");
    run(&repository, &[("program", env!("CARGO_BIN_EXE_weir")), ("comment", "true")]);
    repository.commented(&temporary(&repository).join("weir-diff.md"));
}

#[test]
fn the_action_reports_a_change_and_passes_without_a_gate() {
    let repository = repository();
    let ran = run(&repository, &[("program", env!("CARGO_BIN_EXE_weir"))]);
    assert_eq!(names(&ran), ["Install", "Compare"], "{ran:#?}");
    assert!(ran.iter().all(|(_, ran)| ran.code == Some(0)), "{ran:#?}");
    assert_eq!(temporary_text(&repository, "output"), "changed=true\nrefused=false\n");
    assert_eq!(repository.read("gh.log"), "", "comments are off by default");
}

#[test]
fn the_action_passes_approved_changes() {
    let repository = repository();
    repository.approve();
    let ran = run(&repository, &[("program", env!("CARGO_BIN_EXE_weir")), ("deny", "added")]);
    assert!(ran.iter().all(|(_, ran)| ran.code == Some(0)), "{ran:#?}");
    assert_eq!(temporary_text(&repository, "output"), "changed=true\nrefused=false\n");
}

#[test]
fn the_action_refuses_a_release_with_another_checksum() {
    let repository = repository();
    let sums = repository.place.path().join(".git/server/weir/weir/releases/download/v1.2.3/SHA256SUMS");
    let wrong = fs::read_to_string(&sums).expect("there");
    fs::write(&sums, format!("{}{}", "0".repeat(64), &wrong[64..])).expect("written");
    let ran = run(&repository, &[("version", "v1.2.3")]);
    assert_eq!((names(&ran), ran[0].1.code), (vec!["Install"], Some(1)), "{ran:#?}");
    fs::write(&sums, "").expect("written");
    let ran = run(&repository, &[("version", "v1.2.3")]);
    assert_eq!(ran[0].1.code, Some(1), "a file without a checksum: {ran:#?}");
}

#[test]
fn the_action_fails_on_a_broken_policy() {
    let repository = repository();
    repository.write("policies/shop.yaml", &SHOP.replace("podSelector:", "podselector:"));
    let ran = run(&repository, &[("program", env!("CARGO_BIN_EXE_weir"))]);
    assert_eq!((names(&ran), ran[1].1.code), (vec!["Install", "Compare"], Some(2)), "{ran:#?}");
}

#[test]
fn the_action_says_what_is_missing() {
    let repository = repository();
    let ran = run(&repository, &[]);
    assert_eq!(ran[0].1.code, Some(1));
    assert!(ran[0].1.out.contains("::error::'main' is no release of weir"), "{ran:#?}");
    repository.git("update-ref -d refs/remotes/origin/main");
    let ran = run(&repository, &[("program", env!("CARGO_BIN_EXE_weir"))]);
    assert_eq!(ran[1].1.code, Some(1));
    assert!(ran[1].1.out.contains("fetch-depth: 0"), "{ran:#?}");
}
