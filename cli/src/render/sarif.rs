//! SARIF 2.1.0, for code scanning. Codes become rules, with their documentation.

use serde_json::{Value, json};
use weir_objects::diagnostic::{Code, Severity};
use weir_policy::findings::{LocatedFinding, LocatedSpan};

use crate::page::OutputPage;

/// The schema that the document names.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// One run with at most `max` results.
pub(crate) fn findings(findings: &[LocatedFinding], max: usize) -> serde_json::Result<OutputPage> {
    let shown = &findings[..findings.len().min(max)];
    let mut rules: Vec<&'static Code> = shown.iter().map(|finding| finding.diagnostic.code).collect();
    rules.sort_by_key(|code| code.name);
    rules.dedup();
    let results: Vec<Value> = shown.iter().map(|finding| result(finding, &rules)).collect();
    run(rules.iter().map(|code| rule(code)).collect(), results)
}

/// A document with one run of this tool. A result names its rule by the index in `rules`.
pub(crate) fn run(rules: Vec<Value>, results: Vec<Value>) -> serde_json::Result<OutputPage> {
    let document = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "weir", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

/// Adds a sentence about the whole run to a document.
pub(crate) fn add_notification(page: &mut OutputPage, level: &str, sentence: &str) -> serde_json::Result<()> {
    page.edit_json(|document| {
        let invocations = &mut document["runs"][0]["invocations"];
        if invocations.is_null() {
            *invocations = json!([{"executionSuccessful": true, "toolExecutionNotifications": []}]);
        }
        if let Value::Array(notifications) = &mut invocations[0]["toolExecutionNotifications"] {
            notifications.push(json!({"level": level, "message": {"text": sentence}}));
        }
    })
}

fn rule(code: &Code) -> Value {
    let (problem, fixed) = (code.example.problem(), code.example.fixed());
    json!({
        "id": code.name,
        "shortDescription": {"text": code.what},
        "fullDescription": {"text": code.why},
        "defaultConfiguration": {"level": level(code.severity)},
        "help": {"text": format!("{}\n\nExample:\n\n{problem}\nFixed:\n\n{fixed}", code.why)},
    })
}

fn result(finding: &LocatedFinding, rules: &[&Code]) -> Value {
    let diagnostic = &finding.diagnostic;
    let mut lines = vec![diagnostic.message.clone()];
    lines.extend(diagnostic.notes.iter().map(|note| format!("note: {note}")));
    lines.extend(diagnostic.help.iter().map(|help| format!("help: {help}")));
    let mut result = json!({
        "ruleId": diagnostic.code.name,
        "ruleIndex": rules.iter().position(|code| *code == diagnostic.code),
        "level": level(diagnostic.severity),
        "message": {"text": lines.join("\n")},
        "locations": finding.location.iter().map(|spot| location(spot, finding)).collect::<Vec<_>>(),
    });
    let related: Vec<Value> =
        finding.related.iter().filter_map(|it| related(it.location.as_ref()?, &it.text)).collect();
    if !related.is_empty() {
        result["relatedLocations"] = Value::Array(related);
    }
    result
}

fn location(spot: &LocatedSpan, finding: &LocatedFinding) -> Value {
    let mut location = json!({"physicalLocation": physical(spot)});
    if let Some(object) = &finding.object {
        let namespace = object.namespace.as_deref().map(|it| format!("{it}/")).unwrap_or_default();
        let field = finding.field.as_deref().map(|it| format!(":{it}")).unwrap_or_default();
        let name = format!("{}/{namespace}{}{field}", object.kind, object.name);
        location["logicalLocations"] = json!([{"fullyQualifiedName": name, "kind": "object"}]);
    }
    location
}

fn related(spot: &LocatedSpan, text: &str) -> Option<Value> {
    Some(json!({"physicalLocation": physical(spot), "message": {"text": text}}))
}

fn physical(spot: &LocatedSpan) -> Value {
    json!({
        "artifactLocation": {"uri": uri(&spot.file)},
        "region": {
            "startLine": spot.start.line,
            "startColumn": spot.start.column,
            "endLine": spot.end.line,
            "endColumn": spot.end.column,
        },
    })
}

/// A path as a relative URI reference.
pub(crate) fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let relative = path.strip_prefix("./").unwrap_or(path);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    relative.bytes().map(encode).collect()
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_path_becomes_a_uri() {
        assert_eq!(super::uri("./my policies/a.yaml"), "my%20policies/a.yaml");
    }
}
