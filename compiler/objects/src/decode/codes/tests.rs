//! Checks the documentation of every code: its example produces the finding, and the fixed example produces none.

use super::ALL;
use crate::decode::{DecodeOptions, Input, InputKind, decode};

fn findings(text: &str) -> Vec<&'static str> {
    let input = Input { name: "input.yaml".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (_, diagnostics) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    diagnostics.iter().map(|diagnostic| diagnostic.code.name).collect()
}

#[test]
fn every_example_shows_its_finding_and_the_fixed_one_shows_nothing() {
    for code in ALL {
        let found = findings(&code.example.problem());
        assert!(found.contains(&code.name), "the example of {} shows {found:?}", code.name);
        assert_eq!(findings(&code.example.fixed()), Vec::<&str>::new(), "the fixed example of {}", code.name);
    }
}

#[test]
fn codes_are_sorted_and_kebab_case() {
    assert!(ALL.is_sorted_by(|a, b| a.name < b.name));
    for code in ALL {
        assert!(code.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte.is_ascii_digit()));
    }
}
