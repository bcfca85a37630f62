//! Weir against the recorded answers.

use std::collections::BTreeSet;

use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::diagnostic::{Diagnostic, FindingPlace, Severity};
use weir_objects::origin::PathStep;

use crate::cases::{self, Answer, Case};

/// Weir knows the fields of the experimental channel.
const CHANNEL: &str = "experimental";

/// The path as the server writes it for custom resources: the key of a map is a field like any other.
fn path(diagnostic: &Diagnostic) -> String {
    let origin = match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => origin,
        FindingPlace::Text(_) => return "(a place in the text)".to_owned(),
    };
    let mut text = String::new();
    for step in origin.path.steps() {
        match step {
            PathStep::Field(name) | PathStep::Key(name) if text.is_empty() => text += name,
            PathStep::Field(name) | PathStep::Key(name) => text += &format!(".{name}"),
            PathStep::Index(index) => text += &format!("[{index}]"),
        }
    }
    text
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

/// The difference between Weir's decision and the one that is expected: the server's, or Weir's own if the case has one.
fn difference(case: &Case) -> Option<String> {
    let Some(server) = case.recorded(CHANNEL) else { return Some(format!("{}: no recorded answer", case.name())) };
    let (expected, found) = (case.recorded("weir").unwrap_or_else(|| server.clone()), answer(case));
    let agrees = match (&expected, &found) {
        (Answer::Refuses(fields), Answer::Refuses(_)) if fields.is_empty() => true,
        _ => expected == found,
    };
    (!agrees).then(|| format!("{}:\n  expected   {expected}\n  Weir       {found}", case.name()))
}

#[test]
fn weir_takes_and_refuses_what_the_server_does_with_the_same_field_paths() {
    let cases = cases::all();
    let different: Vec<String> = cases.iter().filter_map(difference).collect();
    assert!(different.is_empty(), "{} of {} cases:\n{}", different.len(), cases.len(), different.join("\n"));
}

#[test]
fn an_own_decision_differs_and_is_never_more_lenient() {
    let cases = cases::all();
    let own = cases.iter().filter_map(|case| Some((case, case.recorded("weir")?)));
    for (case, own) in own {
        assert_ne!(Some(&own), case.recorded(CHANNEL).as_ref(), "{}: this is the server's decision", case.name());
        assert_ne!(own, Answer::Accepts, "{}", case.name());
        assert!(case.reason().is_some(), "{}: no `# because:` line says why", case.name());
    }
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
