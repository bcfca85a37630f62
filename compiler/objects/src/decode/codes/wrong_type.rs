//! A value of a type that its field does not have.

use super::*;
use crate::decode::schema::ValueType;
use crate::syntax::SyntaxValue;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("wrong-type", include_str!("wrong_type.diff")).what("A value has another type than its field.").why(
        "The API server refuses it. Quotes matter: `80` is a number and a port, `\"80\"` is a string and the name \
         of a port. A label value must be a string.",
    );

/// A value of the wrong type.
pub(crate) fn at(origin: FieldOrigin, expected: &ValueType, found: &SyntaxValue<'_>) -> Diagnostic {
    mismatch(origin, expectation(expected), found).help(help(expected, found))
}

/// The value should be a structure.
pub(crate) fn structure(origin: FieldOrigin, found: &SyntaxValue<'_>) -> Diagnostic {
    let diagnostic = mismatch(origin, "an object", found);
    match found {
        SyntaxValue::Seq(_) => diagnostic.help("remove the `-` (or the brackets): this must be an object, not a list"),
        _ => diagnostic.help("write its fields below it, indented, as `name: value`"),
    }
}

/// The value should be a list.
pub(crate) fn list(origin: FieldOrigin, found: &SyntaxValue<'_>) -> Diagnostic {
    mismatch(origin, "a list", found).help(as_list(found))
}

/// The string is not a point in time.
pub(crate) fn time(origin: FieldOrigin, text: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("expected a time, found {}", quote(text)))
        .help("write it like `2026-01-31T09:30:00Z`, or remove it")
}

/// The number does not fit into 32 bits.
pub(crate) fn too_large(origin: FieldOrigin, number: i64) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{number} does not fit into 32 bits")).help("write a smaller number")
}

fn mismatch(origin: FieldOrigin, expected: &str, found: &SyntaxValue<'_>) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("expected {expected}, found {}", describe(found)))
        .label(format!("expected {expected}"))
}

fn expectation(shape: &ValueType) -> &'static str {
    match shape {
        ValueType::Str => "a string",
        ValueType::Bool => "`true` or `false`",
        ValueType::Int32 | ValueType::Int64 => "a whole number",
        ValueType::IntOrStr => "a port number or name",
        ValueType::Time => "a time",
        ValueType::List(_) => "a list",
        ValueType::Any | ValueType::StrMap | ValueType::Struct(_) => "an object",
    }
}

/// A short description of a value.
pub(crate) fn describe(value: &SyntaxValue<'_>) -> String {
    match value {
        SyntaxValue::Null => "null".to_owned(),
        SyntaxValue::Bool(value) => format!("the boolean `{value}`"),
        SyntaxValue::Int(value) => format!("the number {value}"),
        SyntaxValue::Float(value) => format!("the number {value}"),
        SyntaxValue::Str(text) => format!("the string {}", quote(text)),
        SyntaxValue::Seq(_) => "a list".to_owned(),
        SyntaxValue::Map(_) => "an object".to_owned(),
    }
}

/// An empty object in a list would be an item, and an empty rule allows everything: it is not what `{}` means.
fn as_list(found: &SyntaxValue<'_>) -> &'static str {
    match found {
        SyntaxValue::Map(entries) if entries.is_empty() => "write `[]`: a list without items",
        _ => "make it a list: write `- ` before it on a line of its own, or put it in brackets: `[…]`",
    }
}

fn help(expected: &ValueType, found: &SyntaxValue<'_>) -> String {
    match (expected, found) {
        (ValueType::Str | ValueType::Time, SyntaxValue::Bool(_) | SyntaxValue::Int(_) | SyntaxValue::Float(_)) => {
            "put it in quotes: without them, YAML does not read it as a string".to_owned()
        }
        (ValueType::Int32 | ValueType::Int64, SyntaxValue::Str(text)) if text.parse::<i64>().is_ok() => {
            format!("remove the quotes: `{text}`")
        }
        (ValueType::Bool, SyntaxValue::Str(text)) if matches!(&**text, "true" | "false") => {
            format!("remove the quotes: `{text}`")
        }
        (ValueType::List(_), _) => as_list(found).to_owned(),
        (ValueType::Str, SyntaxValue::Seq(items)) if items.len() == 1 => {
            "this must be a string: remove the `-`".to_owned()
        }
        (ValueType::IntOrStr, _) => "write a number like `80`, or the name of a container port like `http`".to_owned(),
        (ValueType::Any | ValueType::Struct(_), SyntaxValue::Seq(items)) if items.len() == 1 => {
            "this must be an object: remove the `-`".to_owned()
        }
        (ValueType::StrMap, _) => "write `key: value` pairs, one per line, indented below the field".to_owned(),
        (shape, _) => format!("replace it by {}", expectation(shape)),
    }
}
