//! The schemas with which editors check and complete the files that people write: a schema and the binary take
//! and refuse the same files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use weir_model::Assumptions;
use weir_testing::schema::check_schema;

use crate::support::{Place, yaml_value};

const POLICIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../policies");

/// Whether a schema takes a document.
fn is_taken(schema: &str, document: &Value) -> bool {
    std::panic::catch_unwind(|| check_schema(schema, document)).is_ok()
}

fn schema(name: &str) -> Value {
    let path = format!("{}/../docs/schema/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&fs::read_to_string(path).expect("the schema is there")).expect("it is JSON")
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn schema_of_weir_toml_has_every_lint_and_every_assumption() {
    let schema = schema("weir-toml");
    let codes = Place::new().run("explain-code -o json").exits(0).json();
    let is_lint = |it: &&Value| it["lint"] == true;
    let lints = codes.as_array().expect("a list").iter().filter(is_lint).filter_map(|it| it["code"].as_str()).collect();
    assert_eq!(keys(&schema["properties"]["lints"]["properties"]), lints);
    let assume = &schema["properties"]["assume"]["properties"];
    assert_eq!(keys(assume), Assumptions::KEYS.iter().map(|(key, _)| *key).collect());
    for (key, values) in Assumptions::KEYS {
        assert_eq!(assume[key]["enum"], serde_json::json!(values), "{key}");
    }
}

#[test]
fn schema_and_binary_agree_about_weir_toml() {
    for (text, is_valid) in [
        ("namespace = 'shop'\nignore-kinds = ['cilium.io/CiliumNetworkPolicy']\n[lints]\nrule-covered = 'off'\n", true),
        ("[assume]\nipblock-pods = 'ignore'\n", true),
        ("[lints]\nrule-coverd = 'off'\n", false),
        ("[lints]\nrule-covered = 'of'\n", false),
        ("[assume]\nipblock-pods = 'never'\n", false),
        ("namespaces = 'shop'\n", false),
        ("ignore-kinds = 'cilium.io/CiliumNetworkPolicy'\n", false),
    ] {
        let document: Value = toml::from_str(text).expect("TOML");
        assert_eq!(is_taken("weir-toml", &document), is_valid, "the schema: {text}");
        let place = Place::new().file("weir.toml", text).file("shop.yaml", crate::support::SHOP);
        let ran = place.run("check shop.yaml");
        assert_eq!(ran.code != Some(2), is_valid, "the binary: {text}");
    }
}

#[test]
fn schema_takes_every_expectation_of_the_examples() {
    let files = fs::read_dir(Path::new(POLICIES).join("expectations")).expect("the directory is there");
    let mut count = 0;
    for path in files.map(|it| it.expect("an entry").path()) {
        check_schema("expectations", &yaml_value(&fs::read_to_string(&path).expect("a file")));
        count += 1;
    }
    assert!(count >= 30, "only {count} files");
}

#[test]
fn schema_and_binary_agree_about_expectations() {
    for (expectation, is_valid) in [
        ("{from: shop/web, to: shop/db, port: 5432/tcp, expect: allow}", true),
        ("{name: the database, from: shop/web, to: shop/db, port: 5432, proto: tcp, expect: allow}", true),
        ("{from: {namespace: shop, labels: {app: web}}, to: shop/db, port: 5432, expect: allow}", true),
        ("{from: shop/web, to: shop/db, port: 5432/tcp}", false),
        ("{from: shop/web, to: shop/db, port: 5432/tcp, expect: allowed}", false),
        ("{from: shop/web, to: shop/db, ports: 5432/tcp, expect: allow}", false),
        ("{from: {labels: {app: web}}, to: shop/db, port: 5432, expect: allow}", false),
    ] {
        let text = format!("expectations:\n  - {expectation}\n");
        assert_eq!(is_taken("expectations", &yaml_value(&text)), is_valid, "the schema: {expectation}");
        let place = Place::new().file("shop.yaml", crate::support::SHOP).file("tests.yaml", &text);
        let ran = place.run("test shop.yaml --expectations tests.yaml");
        assert_eq!(ran.code != Some(2), is_valid, "the binary: {expectation}: {}", ran.err);
    }
}

#[test]
fn schema_and_binary_agree_about_lists() {
    for (spec, is_valid) in [
        ("{action: Deny, cidrs: [192.0.2.0/24, 2001:db8::7, 10.0.0.1-10.0.0.9]}", true),
        ("{action: Allow, order: 7, directions: [Egress], appliesTo: {podSelector: {}}, cidrs: []}", true),
        ("{action: Drop, cidrs: []}", false),
        ("{action: Deny, cidrs: [], priority: 7}", false),
        ("{action: Deny, cidrs: [], directions: [Both]}", false),
    ] {
        let text = format!("apiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: l}}\nspec: {spec}\n");
        assert_eq!(is_taken("cidr-list", &yaml_value(&text)), is_valid, "the schema: {spec}");
        let ran = Place::new().file("list.yaml", &text).run("check list.yaml");
        assert_eq!(ran.code == Some(0), is_valid, "the binary: {spec}: {}", ran.out);
    }
}
