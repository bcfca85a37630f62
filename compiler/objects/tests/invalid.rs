//! The corpus of single objects: `corpus/invalid` is refused, `corpus/accepted` is accepted, each with exactly the
//! findings that its comments announce (`# ^^^ error[code]: field.path`, under the wrong line). The cases about
//! NetworkPolicy were compared with Kubernetes' own validation, version 1.35; the paths are those that it prints.

use std::fs;
use std::path::{Path, PathBuf};

use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::diagnostic::{Diagnostic, FindingPlace};

/// The cases of a directory, sorted.
fn cases(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(directory);
    let mut cases: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

/// The `error[code]: path` of each comment.
fn announced(text: &str) -> Vec<String> {
    let comments = text.lines().filter_map(|line| line.strip_prefix('#'));
    let mut findings: Vec<String> = comments
        .filter_map(|comment| comment.trim_start().strip_prefix('^'))
        .map(|rest| rest.trim_start_matches('^').trim().to_owned())
        .collect();
    findings.sort();
    findings
}

fn printed(diagnostic: &Diagnostic) -> String {
    let path = match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            origin.path.to_string()
        }
        FindingPlace::Text(_) => String::new(),
    };
    format!("{}[{}]: {path}", diagnostic.severity, diagnostic.code.name).trim_end().to_owned()
}

/// Compares the findings of a file with its comments; returns the difference as text.
fn check(path: &Path, refused: bool) -> Option<String> {
    let text = fs::read_to_string(path).unwrap();
    let expected = announced(&text);
    let input = Input { name: path.display().to_string(), bytes: text.into_bytes(), kind: InputKind::Manifest };
    let (_, diagnostics) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    let mut found: Vec<String> = diagnostics.iter().map(printed).collect();
    found.sort();
    let right = found == expected && diagnostics.has_errors() == refused;
    let unhelpful = diagnostics.iter().find(|diagnostic| diagnostic.help.is_none() && !is_syntax(diagnostic));
    match unhelpful {
        Some(diagnostic) => Some(format!("{}: no help for {}", path.display(), printed(diagnostic))),
        None => (!right).then(|| format!("{}:\n  announced {expected:?}\n  found     {found:?}", path.display())),
    }
}

fn is_syntax(diagnostic: &Diagnostic) -> bool {
    matches!(diagnostic.primary.place, FindingPlace::Text(_))
}

#[track_caller]
fn check_all(directory: &str, at_least: usize, refused: bool) {
    let cases = cases(directory);
    assert!(cases.len() >= at_least, "only {} cases in {directory}", cases.len());
    let wrong: Vec<String> = cases.iter().filter_map(|case| check(case, refused)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn objects_that_the_server_refuses_are_refused_with_the_field_path() {
    check_all("invalid", 100, true);
}

#[test]
fn objects_that_the_server_accepts_are_accepted() {
    check_all("accepted", 30, false);
}
