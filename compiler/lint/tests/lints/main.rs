//! The findings of lints, and the cases in which they must not report.

mod both_ends;
mod coverage;
mod dns;
mod lists;
mod peers;
mod ports;
mod possible;
mod selection;
mod tiers;
mod together;

use weir_lint::{LintWorld, STEPS, lint_within};
use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_objects::decode::{DecodeOptions, Decoded, Input, InputKind, decode};
use weir_objects::diagnostic::{Diagnostics, FindingPlace};

fn read(text: &str) -> Decoded {
    let input = Input { name: "input.yaml".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, diagnostics) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    assert!(!diagnostics.has_errors(), "{:#?}", diagnostics.into_vec());
    decoded
}

fn run(decoded: &Decoded, steps: u64) -> Diagnostics {
    let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
    lint_within(steps, &decoded.objects, &cluster, LintWorld::Open)
}

/// One line for each finding: `code object field`.
fn lines(decoded: &Decoded, diagnostics: &Diagnostics) -> Vec<String> {
    let line = |place: &FindingPlace, code: &str| {
        let FindingPlace::Field(origin) = place else { panic!("lints point at fields") };
        let object = decoded.objects.iter().find(|object| object.id == origin.object).expect("an object of the input");
        format!("{code} {}/{} {}", object.meta.namespace, object.meta.name, origin.path)
    };
    diagnostics.iter().map(|it| line(&it.primary.place, it.code.name)).collect()
}

/// The findings of one code, as `namespace/name field`.
#[track_caller]
fn check(code: &str, text: &str, expected: &[&str]) {
    let decoded = read(text);
    let all = lines(&decoded, &run(&decoded, STEPS));
    let found: Vec<_> = all.iter().filter_map(|line| line.strip_prefix(code)?.strip_prefix(' ')).collect();
    assert_eq!(found, expected, "{all:#?}");
}

/// Checks all texts of the first finding of a code.
#[track_caller]
fn check_text(code: &str, text: &str, expected: &[&str]) {
    let decoded = read(text);
    let found = run(&decoded, STEPS).into_vec();
    let first = found.into_iter().find(|it| it.code.name == code).expect("a finding");
    let mut said = vec![first.message, first.primary.text];
    said.extend(first.secondary.into_iter().map(|label| label.text));
    said.extend(first.notes);
    said.extend(first.help);
    assert_eq!(said, expected);
}

/// A pod of namespace `shop` with a label `app`; further fields can be appended.
fn pod(name: &str, app: &str) -> String {
    format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n")
}

/// A policy of namespace `shop` with the given spec, one line in flow style.
fn policy(name: &str, spec: &str) -> String {
    policy_in("shop", name, spec)
}

fn policy_in(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

fn namespace(name: &str, labels: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n")
}

fn list(name: &str, spec: &str) -> String {
    format!("---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

const API: &str = "podSelector: {matchLabels: {app: api}}";
const DNS: &str = "{ports: [{port: 53, protocol: UDP}]}";
