//! The schemas in docs/schema that are generated from the types of the answers.

use std::path::Path;

use serde_json::Value;
use weir_policy::answers;

#[test]
fn schemas_are_those_of_the_types() {
    for (name, schema) in answers::generated() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schema/{name}.json"));
        let fresh = format!("{schema:#}\n");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &fresh).expect("a writable schema");
        }
        let known = std::fs::read_to_string(&path).expect("a schema");
        assert_eq!(known, fresh, "{}: BLESS=1 writes the schema of the type", path.display());
    }
}

#[test]
fn a_schema_describes_every_field_and_refuses_others() {
    for (name, schema) in answers::generated() {
        let objects = schema["$defs"].as_object().into_iter().flatten().map(|(_, it)| it).chain([&schema]);
        let fields = |it: &Value| it["properties"].as_object().cloned().unwrap_or_default();
        for object in objects.filter(|it| it["properties"].is_object()) {
            assert_eq!(object["additionalProperties"], Value::Bool(false), "{name}: {object:#}");
            let bare = fields(object).into_iter().find(|(_, it)| it["description"].as_str().is_none());
            assert!(bare.is_none(), "{name}: no description of {bare:?}");
        }
    }
}
