//! The rules of `deny.toml` for the crates that Weir depends on: licences, sources and versions; and the oldest Rust.
//!
//! Problem: cargo-deny takes many minutes to build, so CI does not have it. Strategy: this test reads the same file and
//! checks the same rules on the output of `cargo metadata --offline`. It also checks that no crate needs a newer Rust
//! than the workspace promises, which cargo-deny does not. Advisories need the network and are left to cargo-deny.
//! Invariant: an entry of `deny.toml` that no crate needs any more fails the test too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The part of `deny.toml` that is checked here.
struct Rules {
    targets: Vec<String>,
    licences: BTreeSet<String>,
    /// The licences of crates whose manifests name none.
    clarified: BTreeMap<String, String>,
    /// Crates that occur in two versions: name, beginning of the version, reason.
    skipped: Vec<(String, String, String)>,
    registries: Vec<String>,
}

/// A crate from outside of the workspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
    source: String,
    rust: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn table(file: &str) -> toml::Table {
    let text = std::fs::read_to_string(root().join(file)).expect("a readable file");
    text.parse().unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn strings(value: &toml::Value) -> Vec<String> {
    let strings = value.as_array().expect("a list").iter();
    strings.map(|it| it.as_str().expect("a string").to_owned()).collect()
}

impl Rules {
    fn read() -> Self {
        let rules = table("deny.toml");
        let skip = rules["bans"]["skip"].as_array().expect("a list").iter();
        let skipped = skip.map(|entry| {
            let text = |key: &str| entry[key].as_str().expect("a string").to_owned();
            let (name, version) = text("crate").split_once('@').map(own).expect("name@version");
            (name, version, text("reason"))
        });
        let clarify = rules["licenses"]["clarify"].as_array().expect("a list").iter();
        let clarified = clarify.map(|entry| {
            let text = |key: &str| entry[key].as_str().expect("a string").to_owned();
            (text("crate"), text("expression"))
        });
        Self {
            clarified: clarified.collect(),
            targets: strings(&rules["graph"]["targets"]),
            licences: strings(&rules["licenses"]["allow"]).into_iter().collect(),
            skipped: skipped.collect(),
            registries: strings(&rules["sources"]["allow-registry"]),
        }
    }
}

fn own((left, right): (&str, &str)) -> (String, String) {
    (left.to_owned(), right.to_owned())
}

/// The crates from outside that a target's build needs, with tests and build scripts.
fn packages(target: &str) -> BTreeSet<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", target]);
    let output = metadata.current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |package: &Value, key: &str| package[key].as_str().map(str::to_owned);
    let outside = metadata["packages"].as_array().expect("a list").iter().filter(|it| !it["source"].is_null());
    let package = |it: &Value| Package {
        name: text(it, "name").expect("a name"),
        version: text(it, "version").expect("a version"),
        licence: text(it, "license").unwrap_or_default(),
        source: text(it, "source").expect("a source"),
        rust: text(it, "rust_version"),
    };
    outside.map(package).collect()
}

fn all_packages(rules: &Rules) -> BTreeSet<Package> {
    let all: BTreeSet<Package> = rules.targets.iter().flat_map(|target| packages(target)).collect();
    assert!(all.len() > 100, "cargo lists only {} crates", all.len());
    all
}

/// A licence expression as SPDX has it: `OR` binds weaker than `AND`, and `/` is an old form of `OR`.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<String>>,
    allowed: &'a BTreeSet<String>,
    /// The allowed licences that the expression names.
    used: BTreeSet<String>,
}

impl<'a> Expression<'a> {
    fn new(text: &str, allowed: &'a BTreeSet<String>) -> Self {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
        Self { words: words.into_iter().peekable(), allowed, used: BTreeSet::new() }
    }

    fn accepts(&mut self) -> bool {
        let accepted = self.any();
        assert!(self.words.next().is_none(), "a word is left over");
        accepted
    }

    fn any(&mut self) -> bool {
        let mut accepted = self.all();
        while self.words.next_if(|it| it == "OR").is_some() {
            accepted |= self.all();
        }
        accepted
    }

    fn all(&mut self) -> bool {
        let mut accepted = self.one();
        while self.words.next_if(|it| it == "AND").is_some() {
            accepted &= self.one();
        }
        accepted
    }

    fn one(&mut self) -> bool {
        if self.words.next_if(|it| it == "(").is_some() {
            let accepted = self.any();
            assert_eq!(self.words.next().as_deref(), Some(")"));
            return accepted;
        }
        let mut licence = self.words.next().unwrap_or_default();
        if self.words.next_if(|it| it == "WITH").is_some() {
            licence = format!("{licence} WITH {}", self.words.next().unwrap_or_default());
        }
        let accepted = self.allowed.contains(&licence);
        if accepted {
            self.used.insert(licence);
        }
        accepted
    }
}

#[test]
fn every_crate_has_an_allowed_licence() {
    let rules = Rules::read();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for Package { name, version, licence, .. } in all_packages(&rules) {
        let clarified = rules.clarified.get(&name).filter(|_| licence.is_empty());
        let mut expression = Expression::new(clarified.unwrap_or(&licence), &rules.licences);
        if !expression.accepts() {
            wrong.push(format!("{name} {version}: `{licence}`"));
        }
        used.append(&mut expression.used);
    }
    assert!(wrong.is_empty(), "no allowed licence (deny.toml, licenses.allow): {wrong:#?}");
    assert_eq!(used, rules.licences, "a licence is allowed that no crate has");
}

#[test]
fn every_crate_comes_from_the_registry() {
    let rules = Rules::read();
    let allowed: Vec<String> = rules.registries.iter().map(|it| format!("registry+{it}")).collect();
    let others = all_packages(&rules).into_iter().filter(|package| !allowed.contains(&package.source));
    let wrong: Vec<String> = others.map(|it| format!("{} {}: {}", it.name, it.version, it.source)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_crate_in_two_versions_is_listed_with_a_reason() {
    let rules = Rules::read();
    let is_of = |version: &str, beginning: &str| version == beginning || version.starts_with(&format!("{beginning}."));
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in all_packages(&rules) {
        versions.entry(package.name).or_default().insert(package.version);
    }
    for (name, beginning, reason) in &rules.skipped {
        assert!(!reason.is_empty(), "deny.toml: {name} without a reason");
        let all = versions.get_mut(name).filter(|all| all.len() > 1);
        let all = all.unwrap_or_else(|| panic!("deny.toml: {name} has only one version now, remove the entry"));
        let before = all.len();
        all.retain(|version| !is_of(version, beginning));
        assert_eq!(before - all.len(), 1, "deny.toml: {name}@{beginning} is not exactly one version");
    }
    let twice: Vec<_> = versions.into_iter().filter(|(_, all)| all.len() > 1).collect();
    assert!(twice.is_empty(), "more than one version (deny.toml, bans.skip): {twice:#?}");
}

#[test]
fn no_crate_needs_a_newer_rust_than_the_workspace() {
    let numbers = |text: &str| -> Vec<u32> {
        let mut parts: Vec<u32> = text.split('.').map(|it| it.parse().expect("a number")).collect();
        parts.resize(3, 0);
        parts
    };
    let ours = table("Cargo.toml")["workspace"]["package"]["rust-version"].as_str().expect("a version").to_owned();
    let newer = all_packages(&Rules::read()).into_iter().filter_map(|package| {
        let rust = package.rust?;
        (numbers(&rust) > numbers(&ours)).then(|| format!("{} {} needs {rust}", package.name, package.version))
    });
    let wrong: Vec<String> = newer.collect();
    assert!(wrong.is_empty(), "rust-version in Cargo.toml is {ours}: {wrong:#?}");
}

#[test]
fn the_rules_for_cargo_deny_are_the_strict_ones() {
    let rules = table("deny.toml");
    let strict = [
        ("bans", "multiple-versions"),
        ("bans", "wildcards"),
        ("sources", "unknown-registry"),
        ("sources", "unknown-git"),
        ("advisories", "yanked"),
    ];
    for (section, key) in strict {
        assert_eq!(rules[section][key].as_str(), Some("deny"), "deny.toml: {section}.{key}");
    }
    assert!(strings(&rules["sources"]["allow-git"]).is_empty(), "a crate from git has no version that a user can pin");
}

#[test]
fn licence_expressions_are_read_as_spdx_has_them() {
    let allowed = ["MIT", "ISC"].map(str::to_owned).into();
    let cases = [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND ISC", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND GPL-3.0", false),
        ("GPL-3.0 OR MIT AND ISC", true),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("MIT WITH an-exception", false),
    ];
    for (text, expected) in cases {
        assert_eq!(Expression::new(text, &allowed).accepts(), expected, "{text}");
    }
}

/// The section `[workspace.dependencies]` without the workspace's own crates.
fn named_in_the_workspace() -> BTreeSet<String> {
    let manifest = table("Cargo.toml");
    let all = manifest["workspace"]["dependencies"].as_table().expect("a table").iter();
    all.filter(|(_, value)| value.get("path").is_none()).map(|(name, _)| name.clone()).collect()
}

/// The crates of the workspace that list a dependency, by its name.
fn users() -> BTreeMap<String, BTreeSet<String>> {
    let stages = std::fs::read_dir(root().join("compiler")).expect("a readable directory");
    let stages = stages.map(|entry| format!("compiler/{}", entry.expect("an entry").file_name().display()));
    let others = ["cli", "fuzz", "runtime-bpf", "testing", "xtask"].map(str::to_owned);
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for folder in stages.chain(others).filter(|it| root().join(it).join("Cargo.toml").exists()) {
        let manifest = table(&format!("{folder}/Cargo.toml"));
        let name = folder.trim_start_matches("compiler/");
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for dependency in manifest.get(section).and_then(|it| it.as_table()).into_iter().flat_map(|it| it.keys()) {
                users.entry(dependency.clone()).or_default().insert(name.to_owned());
            }
        }
    }
    users
}

#[test]
fn every_dependency_has_a_row_that_names_its_users() {
    let text = std::fs::read_to_string(root().join("docs/dependencies.md")).expect("a readable file");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let mut documented = BTreeSet::new();
    let users = users();
    for row in rows {
        let [_, names, named_users, reason, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("docs/dependencies.md: not three columns: {row}");
        };
        assert!(reason.len() > 20, "docs/dependencies.md: no reason: {row}");
        let named: BTreeSet<&str> = named_users.split(", ").map(|it| it.trim_end_matches(" (tests)")).collect();
        let mut used = BTreeSet::new();
        for name in names.split(", ").map(|it| it.trim_matches('`')) {
            documented.insert(name.to_owned());
            used.extend(users.get(name).into_iter().flatten().map(String::as_str));
        }
        assert_eq!(named, used, "docs/dependencies.md: users of {names}");
    }
    assert_eq!(documented, named_in_the_workspace(), "docs/dependencies.md and [workspace.dependencies] of Cargo.toml");
}
