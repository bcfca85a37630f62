//! Checks the documentation of every code: names, sentences and examples.

use weir_lint::{LintWorld, STEPS, codes, lint_within};
use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::diagnostic::Code;

/// The codes that all stages together find in an input.
fn findings(text: &str, lint_steps: u64) -> Vec<&'static str> {
    let input = Input { name: "input.yaml".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, mut found) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    let (cluster, more) = resolve(&decoded.objects, Assumptions::default());
    found.extend(more);
    found.extend(lint_within(lint_steps, &decoded.objects, &cluster, LintWorld::Open));
    found.iter().map(|diagnostic| diagnostic.code.name).collect()
}

/// Only a lint without a budget is incomplete on a small input.
fn steps_for(code: &Code) -> u64 {
    if code.name == "lint-incomplete" { 0 } else { STEPS }
}

#[test]
fn every_example_shows_its_finding() {
    for code in codes::all() {
        let found = findings(&code.example.problem(), steps_for(code));
        assert!(found.contains(&code.name), "the example of {} shows {found:?}", code.name);
    }
}

#[test]
fn the_fixed_example_no_longer_shows_its_finding() {
    for code in codes::all() {
        let found = findings(&code.example.fixed(), steps_for(code));
        assert!(!found.contains(&code.name), "the fixed example of {} shows {found:?}", code.name);
    }
}

#[test]
fn the_fixed_example_of_a_lint_has_no_finding() {
    for code in weir_lint::CODES {
        assert_eq!(
            findings(&code.example.fixed(), steps_for(code)),
            Vec::<&str>::new(),
            "the fixed example of {}",
            code.name
        );
    }
}

#[test]
fn names_are_unique_and_kebab_case() {
    let names: Vec<_> = codes::all().iter().map(|code| code.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    for name in names {
        let is_kebab =
            |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
        assert!(name.split('-').all(is_kebab), "{name}");
    }
}

#[test]
fn every_code_has_one_sentence_of_what_and_a_why() {
    for code in codes::all() {
        let begins = code.what.starts_with(|first: char| first.is_uppercase() || first == '`');
        let is_sentence = begins && code.what.ends_with('.') && !code.what.contains(". ");
        assert!(is_sentence, "what of {}: {}", code.name, code.what);
        assert!(!code.why.is_empty(), "why of {}", code.name);
    }
}
