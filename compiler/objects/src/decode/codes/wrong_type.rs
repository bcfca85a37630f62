//! A value of a type that its field does not have.

use crate::decode::codes::quote;
use crate::decode::schema::Shape;
use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::origin::Origin;
use crate::syntax::Value;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "wrong-type",
    severity: Severity::Error,
    lint: false,
    what: "A value has another type than its field.",
    why: "The API server refuses it. Quotes matter: `80` is a number and a port, `\"80\"` a string and the \
          name of one; a label value must be a string.",
    example: "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {tier: 1}}
",
    fixed: r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {tier: "1"}}
"#,
};

/// A value of the wrong type.
pub(crate) fn at(origin: Origin, expected: &Shape, found: &Value<'_>) -> Diagnostic {
    mismatch(origin, expectation(expected), found).help(help(expected, found))
}

/// The value should be a structure.
pub(crate) fn structure(origin: Origin, found: &Value<'_>) -> Diagnostic {
    let diagnostic = mismatch(origin, "an object", found);
    match found {
        Value::Seq(_) => diagnostic.help("remove the `-` (or the brackets): one object stands here, not a list"),
        _ => diagnostic.help("write its fields below it, indented, as `name: value`"),
    }
}

/// The value should be a list.
pub(crate) fn list(origin: Origin, found: &Value<'_>) -> Diagnostic {
    mismatch(origin, "a list", found).help("write `- ` before it")
}

/// The string is not a point in time.
pub(crate) fn time(origin: Origin, text: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("expected a time, found {}", quote(text)))
        .help("write it like `2026-01-31T09:30:00Z`, or remove it")
}

/// The number does not fit into 32 bits.
pub(crate) fn too_large(origin: Origin, number: i64) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{number} does not fit into 32 bits")).help("write a smaller number")
}

fn mismatch(origin: Origin, expected: &str, found: &Value<'_>) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("expected {expected}, found {}", describe(found)))
        .label(format!("expected {expected}"))
}

fn expectation(shape: &Shape) -> &'static str {
    match shape {
        Shape::Str => "a string",
        Shape::Bool => "`true` or `false`",
        Shape::Int32 | Shape::Int64 => "a whole number",
        Shape::IntOrStr => "a port number or name",
        Shape::Time => "a time",
        Shape::List(_) => "a list",
        Shape::Any | Shape::StrMap | Shape::Struct(_) => "an object",
    }
}

/// A short description of a value.
pub(crate) fn describe(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the truth value `{value}`"),
        Value::Int(value) => format!("the number {value}"),
        Value::Float(value) => format!("the number {value}"),
        Value::Str(text) => format!("the string {}", quote(text)),
        Value::Seq(_) => "a list".to_owned(),
        Value::Map(_) => "an object".to_owned(),
    }
}

fn help(expected: &Shape, found: &Value<'_>) -> String {
    match (expected, found) {
        (Shape::Str | Shape::Time, Value::Bool(_) | Value::Int(_) | Value::Float(_)) => {
            "put it in quotes: without them YAML does not read a string".to_owned()
        }
        (Shape::Int32 | Shape::Int64, Value::Str(text)) if text.parse::<i64>().is_ok() => {
            format!("remove the quotes: `{text}`")
        }
        (Shape::Bool, Value::Str(text)) if matches!(&**text, "true" | "false") => {
            format!("remove the quotes: `{text}`")
        }
        (Shape::List(_), _) => "make it a list: write `- ` before it".to_owned(),
        (Shape::Str, Value::Seq(items)) if items.len() == 1 => "one string stands here: remove the `-`".to_owned(),
        (Shape::IntOrStr, _) => "write a number like `80`, or the name of a container port like `http`".to_owned(),
        (Shape::Any | Shape::Struct(_), Value::Seq(items)) if items.len() == 1 => {
            "one object stands here: remove the `-`".to_owned()
        }
        (Shape::StrMap, _) => "write `key: value`, one pair a line, indented below the field".to_owned(),
        (shape, _) => format!("replace it by {}", expectation(shape)),
    }
}
