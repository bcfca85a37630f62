//! Weir against the recorded answers.

use std::collections::BTreeSet;

use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::diagnostic::{Diagnostic, FindingPlace, Severity};

use crate::cases::{self, Answer, Case};

/// Weir knows the fields of the experimental channel.
const CHANNEL: &str = "experimental";

fn path(diagnostic: &Diagnostic) -> String {
    match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            origin.path.to_string()
        }
        FindingPlace::Text(_) => "(a place in the text)".to_owned(),
    }
}

fn findings(case: &Case) -> Vec<Diagnostic> {
    let input = Input { name: case.name(), bytes: case.object().into_bytes(), kind: InputKind::Manifest };
    let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let (decoded, diagnostics) = decode(vec![input], &options);
    let is_refused = diagnostics.has_errors();
    assert_eq!(decoded.objects.is_empty(), is_refused, "{}: refused objects are left out, and no others", case.name());
    diagnostics.into_vec()
}

/// Weir's decision.
fn answer(case: &Case) -> Answer {
    let findings = findings(case);
    let errors: BTreeSet<String> = findings.iter().filter(|it| it.severity == Severity::Error).map(path).collect();
    if errors.is_empty() { Answer::Accepts } else { Answer::Refuses(errors) }
}

/// The difference between Weir's decision and the server's.
fn difference(case: &Case) -> Option<String> {
    let Some(expected) = case.recorded(CHANNEL) else { return Some(format!("{}: no recorded answer", case.name())) };
    let found = answer(case);
    let agrees = match (&expected, &found) {
        (Answer::Refuses(expected), Answer::Refuses(_)) if expected.is_empty() => true,
        (Answer::Refuses(expected), Answer::Refuses(found)) => &(expected | &case.also_refused()) == found,
        _ => expected == found,
    };
    (!agrees).then(|| format!("{}:\n  the server {expected}\n  Weir       {found}", case.name()))
}

#[test]
fn weir_takes_and_refuses_what_the_server_does_with_the_same_field_paths() {
    let cases = cases::all();
    let different: Vec<String> = cases.iter().filter_map(difference).collect();
    assert!(different.is_empty(), "{} of {} cases:\n{}", different.len(), cases.len(), different.join("\n"));
}

#[test]
fn the_table_has_cases_of_every_kind_and_decision() {
    let cases = cases::all();
    for kind in ["cnp-", "anp-", "banp-"] {
        let of_kind: Vec<&Case> = cases.iter().filter(|case| case.name().starts_with(kind)).collect();
        let accepted = of_kind.iter().filter(|case| case.recorded(CHANNEL) == Some(Answer::Accepts)).count();
        let refused = of_kind.len() - accepted;
        assert!(accepted >= 3 && refused >= 8, "{kind}: {accepted} accepted, {refused} refused");
    }
}

#[test]
fn every_finding_says_what_to_do() {
    for case in cases::all() {
        for finding in findings(&case) {
            assert!(finding.help.is_some(), "{}: no help for {}", case.name(), finding.message);
        }
    }
}
