//! JSON Schemas of the documents, made from their types.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{CheckAnswer, DiffAnswer, ExplainAnswer};

/// The schemas in `docs/schema` that are generated: the file's name without its extension, and its content.
pub fn generated() -> Vec<(&'static str, Value)> {
    vec![
        ("check", document::<CheckAnswer>("weir check -o json")),
        ("diff", document::<DiffAnswer>("weir diff -o json")),
        ("explain", document::<ExplainAnswer>("weir explain -o json")),
    ]
}

/// The schema of a document.
pub fn document<T: JsonSchema>(title: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}
