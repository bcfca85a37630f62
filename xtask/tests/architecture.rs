//! Checks two rules for the crate's sources: no access to the outside world, and each stage uses only earlier stages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The modules in the order of the stages. Each may use only those before it.
const STAGES: [&str; 33] = [
    "escape",
    "origin",
    "syntax",
    "source",
    "diagnostic",
    "address",
    "k8s",
    "decode",
    "model",
    "iptables",
    "resolve",
    "lint",
    "codes",
    "classify",
    "fit",
    "departed",
    "reach",
    "diff",
    "index",
    "edge",
    "structures",
    "ir",
    "lower",
    "passes",
    "ebpf",
    "vm",
    "layout",
    "emit",
    "image",
    "artifact",
    "compile",
    "engine",
    "verify",
];

/// Parts of the standard library that a crate without access to the outside world does not need.
const OUTSIDE: [&str; 9] = [
    "std::fs",
    "std::env",
    "std::io",
    "std::time",
    "std::thread",
    "std::process",
    "std::net::Tcp",
    "std::net::Udp",
    "println!",
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The files in a directory: paths relative to it, and their text without comments and unit tests.
fn files(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            found.push((path.strip_prefix(sources()).expect("below src").to_owned(), code(&text)));
        }
    }
    found.sort();
    found
}

fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// The top-level module that a file belongs to.
fn module(path: &Path) -> String {
    let first = path.iter().next().expect("a name").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules that a text names after `crate::`, also in lists.
fn used(text: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect::<String>();
    let mut names = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => names.extend(list.split('}').next().unwrap_or_default().split(',').map(|it| word(it.trim()))),
            None => _ = names.insert(word(rest)),
        }
    }
    names
}

#[test]
fn a_stage_uses_only_what_stands_to_its_left() {
    let position = |name: &str| STAGES.iter().position(|stage| *stage == name);
    let mut wrong = Vec::new();
    for (path, text) in files(&sources()) {
        let module = module(&path);
        if module == "lib" {
            continue;
        }
        let own = position(&module).unwrap_or_else(|| panic!("{module} has no place in STAGES"));
        for name in used(&text) {
            if position(&name).is_some_and(|other| other > own) {
                wrong.push(format!("{} uses {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_stage_touches_the_outside_world() {
    let mut wrong = Vec::new();
    for (path, text) in files(&sources()) {
        wrong.extend(OUTSIDE.iter().filter(|it| text.contains(**it)).map(|it| format!("{}: {it}", path.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn uses_are_found_alone_and_in_lists() {
    let found = used("use crate::model::eval::Oracle;\nuse crate::{decode, lint};\nlet it = crate::address::parse();");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["address", "decode", "lint", "model"]);
}
