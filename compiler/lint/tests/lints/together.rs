//! All lints at once: order and budget.

use super::*;

/// Findings of many kinds in an input of 60 objects.
fn documents() -> Vec<String> {
    let mut documents = vec![namespace("shop", "team: shop"), namespace("other", "team: other")];
    for index in 0..20 {
        let app = ["api", "web", "db"][index % 3];
        documents.push(
            pod(&format!("{app}-{index}"), app) + &format!("status: {{phase: Running, podIP: 10.0.0.{index}}}\n"),
        );
    }
    for index in 0..30 {
        let (app, peer) = (["api", "web", "db", "apii"][index % 4], ["web", "db", "none"][index % 3]);
        let rule =
            format!("[{{podSelector: {{matchLabels: {{app: {peer}}}}}}}], ports: [{{port: {}}}]", 80 + index % 2);
        let spec = format!(
            "podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{{from: {rule}}}], egress: [{{to: {rule}}}]"
        );
        documents.push(policy(&format!("p{index}"), &spec));
    }
    documents.push(list("deny-a", "action: Deny, cidrs: [10.0.0.0/8, 10.0.0.0/9]"));
    documents.push(list("deny-b", "action: Deny, cidrs: [10.0.0.0/16]"));
    documents
}

fn said(documents: &[String], steps: u64) -> Vec<String> {
    let decoded = read(&documents.concat());
    let found = run(&decoded, steps);
    let lines = lines(&decoded, &found);
    let text = |(line, it): (String, &weir_objects::diagnostic::Diagnostic)| {
        format!("{line}: {} {:?} {:?}", it.message, it.notes, it.help)
    };
    lines.into_iter().zip(found.iter()).map(text).collect()
}

#[test]
fn the_order_of_objects_does_not_show() {
    let mut documents = documents();
    let mut expected = said(&documents, STEPS);
    assert!(expected.len() > 30, "{expected:#?}");
    expected.sort();
    for turn in 1..8 {
        documents.rotate_left(7);
        documents.reverse();
        documents.swap(turn, 3 * turn + 1);
        let mut found = said(&documents, STEPS);
        found.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn findings_are_in_the_order_of_objects_and_fields() {
    let decoded = read(&documents().concat());
    let found = run(&decoded, STEPS);
    let origins = found.iter().map(|it| match &it.primary.place {
        FindingPlace::Field(origin) => origin.clone(),
        other => panic!("lints point at fields, not {other:?}"),
    });
    assert!(origins.is_sorted());
}

#[test]
fn a_lint_without_steps_says_that_it_stopped() {
    let complete = said(&documents(), STEPS);
    assert!(!complete.iter().any(|line| line.starts_with("lint-incomplete")));
    for steps in [0, 10, 100] {
        let found = said(&documents(), steps);
        let (stopped, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|line| line.starts_with("lint-incomplete"));
        assert!(!stopped.is_empty());
        assert!(rest.iter().all(|line| complete.contains(line)), "a lint that stops says nothing that is not so");
    }
}
