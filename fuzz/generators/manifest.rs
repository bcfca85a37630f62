//! Objects as YAML, so that a failing case can be read and given to `weir`.

use serde_json::Value;
use weir_objects::k8s::Object;

/// The longest map or list that stays on one line.
const WIDTH: usize = 80;

/// A manifest of the objects, with only the fields that verdicts can depend on.
pub fn yaml(objects: &[Object]) -> String {
    let list: Value = serde_json::from_str(&weir_artifact::objects(objects)).unwrap_or_default();
    let document = |object: &Value| {
        let mut text = String::new();
        block(object, 0, &mut text);
        text
    };
    let documents: Vec<String> = list["items"].as_array().into_iter().flatten().map(document).collect();
    documents.join("---\n")
}

/// Writes each field of a map, or item of a list, on lines of its own.
fn block(value: &Value, indent: usize, text: &mut String) {
    let entries: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().map(|it| ("-".to_owned(), it)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, it)| (format!("{}:", scalar(key)), it)).collect(),
        _ => Vec::new(),
    };
    for (head, value) in entries {
        let line = format!("{:indent$}{head} {}\n", "", flow(value));
        if line.len() <= WIDTH || !(value.is_array() || value.is_object()) {
            *text += &line;
            continue;
        }
        let mut inner = String::new();
        block(value, indent + 2, &mut inner);
        // The first field of a list item is on the line of its dash.
        let inner = if head == "-" { format!(" {}", inner.trim_start()) } else { format!("\n{inner}") };
        *text += &format!("{:indent$}{head}{inner}", "");
    }
}

/// A value on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, it)| format!("{}: {}", scalar(key), flow(it)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// A string, in quotes if YAML could read another type without them.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_plain = text.starts_with(|it: char| it.is_ascii_alphabetic())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "./-".contains(it))
        && !WORDS.contains(&text.to_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}
