//! Quick checks of the files with which Weir is released. `cargo xtask check-delivery` has the thorough ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use xtask::dist::{KREW_TEMPLATE, ReleaseFacts, render_krew};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn manifest() -> toml::Table {
    read("Cargo.toml").parse().expect("TOML")
}

/// The packages of the workspace.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(root());
    let output = metadata.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("a list").clone()
}

fn name(package: &Value) -> String {
    package["name"].as_str().expect("a name").to_owned()
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

#[test]
fn published_crates_have_all_metadata_and_use_only_published_ones() {
    let packages = packages();
    let (published, private): (Vec<Value>, Vec<Value>) = packages.into_iter().partition(is_published);
    let private: BTreeSet<String> = private.iter().map(name).collect();
    assert_eq!(private, ["weir-fuzz", "weir-testing", "xtask"].map(str::to_owned).into());
    for package in &published {
        for key in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[key].is_string(), "{} has no {key}", name(package));
        }
        for dependency in package["dependencies"].as_array().expect("a list") {
            let (other, is_dev) = (name(dependency), dependency["kind"] == "dev");
            let is_ours = dependency["path"].is_string();
            assert!(is_dev || !private.contains(&other), "{} uses {other}, which is not published", name(package));
            let version = dependency["req"].as_str().expect("a requirement");
            let expected =
                if is_dev { "*".to_owned() } else { format!("={}", package["version"].as_str().expect("one")) };
            // A version of a development dependency would be a cycle that cannot be published.
            assert!(!is_ours || version == expected, "{} needs {other} {version}", name(package));
        }
    }
}

#[test]
fn workflows_use_the_oldest_rust_that_is_supported() {
    let rust = manifest()["workspace"]["package"]["rust-version"].as_str().expect("a version").to_owned();
    for workflow in ["ci", "release"] {
        let text = read(&format!(".github/workflows/{workflow}.yml"));
        assert!(text.contains(&format!("RUSTUP_TOOLCHAIN: \"{rust}.0\"\n")), "{workflow}: not {rust}");
    }
}

#[test]
fn manifest_for_krew_names_files_of_the_release() {
    let facts = ReleaseFacts::read(&root()).expect("facts");
    let files = ["x86_64", "aarch64"].map(|it| format!("weir-{}-{it}-unknown-linux-gnu.tar.gz", facts.version));
    let sum = |name: &str| files.iter().any(|it| it == name).then(|| "0".repeat(64));
    let rendered = render_krew(&read(KREW_TEMPLATE), &facts, sum).expect("known placeholders");
    let rendered = rendered.expect("only files that a release has");
    for file in &files {
        let address = format!("{}/releases/download/v{}/{file}", facts.repository, facts.version);
        assert!(rendered.contains(&address), "no {address}: {rendered}");
    }
}

#[test]
fn the_repository_is_named_in_one_place() {
    let repository = manifest()["workspace"]["package"]["repository"].as_str().expect("an address").to_owned();
    let mut grep = Command::new("git");
    grep.args(["grep", "--files-with-matches", "--fixed-strings", &repository]).current_dir(root());
    let listed = grep.output().expect("git runs");
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "Cargo.toml\n");
}

#[test]
fn scripts_of_the_action_exist_and_take_no_expressions() {
    let action = read("action.yml");
    let scripts: Vec<&str> =
        action.split("$GITHUB_ACTION_PATH/").skip(1).filter_map(|it| it.split('"').next()).collect();
    assert_eq!(scripts.len(), 3, "{scripts:?}");
    for script in scripts {
        // The runner would fill in an expression as text of the script, which can be an injection.
        assert!(!read(script).contains("${{"), "{script}");
    }
}

/// The names after each occurrence of `before`, to the end of the line.
fn after(text: &str, before: &str) -> BTreeSet<String> {
    text.lines().filter_map(|line| line.trim().strip_prefix(before)).map(|it| it.trim().to_owned()).collect()
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let (alerts, runbooks) = (read("deploy/alerts.yaml"), read("docs/runbooks.md"));
    let names = after(&alerts, "- alert: ");
    assert!(names.len() > 5, "{names:?}");
    assert_eq!(after(&runbooks, "## "), names);
    let links: BTreeSet<String> =
        names.iter().map(|name| format!("docs/runbooks.md#{}", name.to_lowercase())).collect();
    assert_eq!(after(&alerts, "runbook_url: "), links);
    for section in runbooks.split("\n## ").skip(1) {
        for part in ["**Meaning.**", "in force meanwhile"] {
            assert!(section.to_lowercase().contains(&part.to_lowercase()), "{part} is missing in {section}");
        }
    }
}
