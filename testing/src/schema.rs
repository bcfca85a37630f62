//! The parts of JSON Schema that docs/schema uses. An unknown keyword fails the test.

use serde_json::{Map, Value};

/// Checks a document against `docs/schema/NAME.json`.
#[track_caller]
pub fn check_schema(name: &str, document: &Value) {
    let path = format!("{}/../docs/schema/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let root: Value = serde_json::from_str(&text).expect("a schema is JSON");
    if let Err(error) = validate(&root, &root, document, "$") {
        panic!("{name}: {error}\n{document:#}");
    }
}

fn validate(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = schema.as_object().ok_or("a schema is an object")?;
    for (keyword, wanted) in schema {
        let holds = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" | "properties" | "additionalProperties" | "format" => Ok(()),
            "$ref" => {
                let name = wanted.as_str().and_then(|it| it.strip_prefix("#/$defs/")).ok_or("a $ref")?;
                validate(root, &root["$defs"][name], value, at)
            }
            "const" => (value == wanted).then_some(()).ok_or(format!("is not {wanted}")),
            "anyOf" => any_of(root, wanted, value, at),
            "type" => is_of_type(wanted, value).then_some(()).ok_or(format!("is no {wanted}")),
            "enum" => wanted.as_array().is_some_and(|all| all.contains(value)).then_some(()).ok_or("not listed".into()),
            "minimum" => {
                let holds = value.as_i64().is_none_or(|it| Some(it) >= wanted.as_i64());
                holds.then_some(()).ok_or("too small".into())
            }
            "maximum" => {
                let holds = value.as_i64().is_none_or(|it| Some(it) <= wanted.as_i64());
                holds.then_some(()).ok_or("too large".into())
            }
            "required" => required(wanted, value),
            "items" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                items.iter().enumerate().try_for_each(|(i, it)| validate(root, wanted, it, &format!("{at}[{i}]")))
            }
            other => Err(format!("unknown keyword {other}")),
        };
        holds.map_err(|error| if error.starts_with('$') { error } else { format!("{at}: {error}") })?;
    }
    value.as_object().map_or(Ok(()), |fields| properties(root, schema, fields, at))
}

fn any_of(root: &Value, schemas: &Value, value: &Value, at: &str) -> Result<(), String> {
    let tried = schemas.as_array().ok_or("anyOf is a list")?.iter().map(|it| validate(root, it, value, at));
    let errors: Vec<String> = tried.filter_map(Result::err).collect();
    let all_fail = errors.len() == schemas.as_array().map_or(0, Vec::len);
    if all_fail { Err(errors.join(", and ")) } else { Ok(()) }
}

fn is_of_type(wanted: &Value, value: &Value) -> bool {
    let of = |name: &Value| match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    };
    wanted.as_array().map_or_else(|| of(wanted), |names| names.iter().any(of))
}

fn required(wanted: &Value, value: &Value) -> Result<(), String> {
    let names = wanted.as_array().ok_or("required is a list")?;
    let missing = names.iter().find(|name| value.get(name.as_str().unwrap_or_default()).is_none());
    missing.map_or(Ok(()), |name| Err(format!("{name} is missing")))
}

fn properties(root: &Value, schema: &Map<String, Value>, fields: &Map<String, Value>, at: &str) -> Result<(), String> {
    for (name, value) in fields {
        let known = schema.get("properties").and_then(|it| it.get(name));
        match (known, schema.get("additionalProperties")) {
            (Some(known), _) => validate(root, known, value, &format!("{at}.{name}"))?,
            (None, Some(Value::Bool(false))) => return Err(format!("{at}: {name} is not in the schema")),
            (None, Some(other)) => validate(root, other, value, &format!("{at}.{name}"))?,
            (None, None) => {}
        }
    }
    Ok(())
}
