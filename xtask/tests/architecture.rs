//! Checks three rules of the compiler's crates: which crate may use which, the order of stages inside of a crate, and
//! no access to the outside world.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The crates below `compiler/`, and those of them that each may use. Cargo enforces what a manifest lists; this list
/// makes a new entry in a manifest a decision.
const WALLS: [(&str, &[&str]); 13] = [
    ("ebpf", &[]),
    ("objects", &[]),
    ("model", &["objects"]),
    ("lint", &["analysis", "model", "objects"]),
    ("iptables", &["model", "objects"]),
    ("classes", &["model", "objects"]),
    ("analysis", &["classes", "model", "objects"]),
    ("suggest", &["analysis", "model", "objects"]),
    ("artifact", &["ebpf", "objects"]),
    ("machine", &["artifact", "ebpf", "model", "objects"]),
    ("codegen", &["artifact", "classes", "ebpf", "machine", "model", "objects"]),
    ("verify", &["artifact", "ebpf", "machine", "model", "objects"]),
    ("policy", &["analysis", "artifact", "classes", "codegen", "lint", "machine", "model", "objects", "verify"]),
];

/// Further crates of the workspace whose dependencies are limited.
const OTHERS: [(&str, &[&str]); 1] = [("runtime-bpf", &["artifact", "ebpf", "objects"])];

/// The modules of crates with several stages, in order. Each may use only those before it.
const STAGES: [(&str, &[&str]); 4] = [
    ("objects", &["escape", "origin", "syntax", "source", "diagnostic", "address", "k8s", "decode"]),
    ("classes", &["fit", "departed", "index", "edge_denials"]),
    ("analysis", &["reach", "diff"]),
    (
        "codegen",
        &["structures", "ir", "lower", "passes", "emit", "map_images", "describe", "compile", "packet_engines"],
    ),
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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(krate: &str) -> PathBuf {
    root().join("compiler").join(krate).join("src")
}

/// The files in a directory: paths relative to it, and their text without comments and unit tests.
fn files(base: &Path, directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            found.extend(files(base, &path));
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            found.push((path.strip_prefix(base).expect("below src").to_owned(), code(&text)));
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

/// The crates of this workspace in the section `[dependencies]` of a manifest.
fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(manifest).expect("a readable manifest");
    let section = text.split("\n[").find_map(|section| section.strip_prefix("dependencies]"));
    let names = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("weir-"));
    names.map(|line| line.split('.').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_crate_uses_only_the_crates_that_the_picture_shows() {
    for (krate, allowed) in WALLS {
        let found = dependencies(&root().join("compiler").join(krate).join("Cargo.toml"));
        assert_eq!(found, allowed.iter().map(|it| (*it).to_owned()).collect(), "dependencies of compiler/{krate}");
    }
    for (krate, allowed) in OTHERS {
        let found = dependencies(&root().join(krate).join("Cargo.toml"));
        assert_eq!(found, allowed.iter().map(|it| (*it).to_owned()).collect(), "dependencies of {krate}");
    }
}

#[test]
fn every_crate_of_the_compiler_is_behind_a_wall() {
    let folders = std::fs::read_dir(root().join("compiler")).expect("a readable directory");
    let folders = folders.map(|entry| entry.expect("a readable entry").path());
    let crates = folders.filter(|path| path.join("Cargo.toml").exists());
    let found: BTreeSet<String> = crates.filter_map(|it| Some(it.file_name()?.to_str()?.to_owned())).collect();
    assert_eq!(found, WALLS.iter().map(|(krate, _)| (*krate).to_owned()).collect());
}

#[test]
fn a_stage_uses_only_earlier_stages() {
    let mut wrong = Vec::new();
    for (krate, stages) in STAGES {
        let position = |name: &str| stages.iter().position(|stage| *stage == name);
        for (path, text) in files(&sources(krate), &sources(krate)) {
            let Some(own) = position(&module(&path)) else { continue };
            let later = used(&text).into_iter().filter(|name| position(name).is_some_and(|other| other > own));
            wrong.extend(later.map(|name| format!("{krate}/{} uses {name}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_stage_touches_the_outside_world() {
    let mut wrong = Vec::new();
    for (krate, _) in WALLS {
        for (path, text) in files(&sources(krate), &sources(krate)) {
            let found = OUTSIDE.iter().filter(|it| text.contains(**it));
            wrong.extend(found.map(|it| format!("{krate}/{}: {it}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn uses_are_found_alone_and_in_lists() {
    let found = used("use crate::model::eval::Oracle;\nuse crate::{decode, lint};\nlet it = crate::address::parse();");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["address", "decode", "lint", "model"]);
}
