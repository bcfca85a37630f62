//! Whatever is done to an input, `decode` says something about it and does not panic.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use weir_compiler::decode::{Decoded, Input, InputKind, Options, decode};
use weir_compiler::diagnostic::{Diagnostics, Place};

const BASES: [&str; 4] = [
    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, labels: {app: web}}\nspec:\n  podSelector:\n    matchExpressions:\n    - {key: app, operator: In, values: [web]}\n  ingress:\n  - from:\n    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}\n    ports:\n    - {port: 80, endPort: 90, protocol: TCP}\n  policyTypes: [Ingress]\n",
    r#"{"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 80}]}]}, "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}}, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "targetPort": "http"}]}}]}"#,
    "apiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {name: drop}\nspec: {action: Deny, order: 1, directions: [Egress], cidrs: [192.0.2.0/24, 192.0.2.1-192.0.2.7, '::1']}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}]\nports: [{port: 80}]\n",
    "192.0.2.1\n192.0.2.0/24 # net\n2001:db8::1-2001:db8::2 ; range\n",
];

const TOKENS: [&str; 36] = [
    "null",
    "{}",
    "[]",
    "[null]",
    "- ",
    "-",
    ":",
    "\n",
    "\n  ",
    "---\n",
    "true",
    "80.5",
    "-1",
    "99999999999999999999",
    "\"80\"",
    "podselector",
    "except",
    "spec",
    "metadata",
    "items",
    "kind: List\n",
    "&a ",
    "*a",
    "<<: ",
    "\u{feff}",
    "\t",
    "\r\n",
    "é",
    "10.0.0.0/8",
    "::ffff:1.2.3.4/96",
    "/",
    "a/b/c",
    "\"",
    "'",
    "{",
    "]",
];

/// A base with stretches replaced by tokens or by other stretches of itself.
fn mutated() -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), 0usize..12, prop::sample::select(&TOKENS[..]), any::<bool>());
    (0..BASES.len(), prop::collection::vec(edit, 0..6)).prop_map(|(base, edits)| {
        let mut text: Vec<char> = BASES[base].chars().collect();
        for (at, remove, token, copy) in edits {
            let start = at.index(text.len() + 1).min(text.len());
            let end = (start + remove).min(text.len());
            let insert: Vec<char> = match copy {
                true => text[start..end].iter().chain(&text[start..end]).copied().collect(),
                false => token.chars().collect(),
            };
            text.splice(start..end, insert);
        }
        text.into_iter().collect()
    })
}

fn read(bytes: Vec<u8>, kind: InputKind) -> (Decoded, Diagnostics) {
    let input = Input { name: "input".to_owned(), bytes, kind };
    decode(vec![input], &Options { default_namespace: "default".to_owned() })
}

/// Every finding points to an object that is known, or into the text.
fn check_places((decoded, diagnostics): &(Decoded, Diagnostics)) {
    for diagnostic in diagnostics.iter() {
        for label in std::iter::once(&diagnostic.primary).chain(&diagnostic.secondary) {
            match &label.place {
                Place::Field(origin) | Place::FieldName(origin) => {
                    assert!(decoded.sources.object(origin.object).is_some())
                }
                Place::Text(place) => {
                    let text = &decoded.sources.file(place.file).text;
                    assert!(place.span.start <= place.span.end && place.span.end as usize <= text.len());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_manifests_never_panic(text in mutated()) {
        check_places(&read(text.into_bytes(), InputKind::Manifest));
    }

    #[test]
    fn mutated_list_files_never_panic(text in mutated()) {
        check_places(&read(text.into_bytes(), InputKind::DenyList));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_places(&read(bytes, InputKind::Manifest));
    }
}

#[test]
fn enough_of_the_mutated_manifests_reach_the_fields() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let reached = (0..500).filter(|_| {
        let text = mutated().new_tree(&mut runner).unwrap().current();
        let (decoded, diagnostics) = read(text.into_bytes(), InputKind::Manifest);
        let in_a_field = |place: &Place| !matches!(place, Place::Text(_));
        !decoded.objects.is_empty() || diagnostics.iter().any(|diagnostic| in_a_field(&diagnostic.primary.place))
    });
    let reached = reached.count();
    assert!(reached > 150, "only {reached} of 500 inputs got beyond the syntax");
}
