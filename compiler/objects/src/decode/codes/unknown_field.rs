//! A field that the kind does not have.

use super::*;
use crate::decode::schema::Fields;
use crate::syntax::SyntaxValue;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("unknown-field", include_str!("unknown_field.diff")).what("A field is not part of the API.").why(
        "The API server would refuse it, or drop it and keep the rest. Without a misspelt `podselector`, for \
         example, the policy selects every pod.",
    );

/// `nearest` is a similar field of the same level; `elsewhere` is the path of a field with this name (in any case) on
/// another level.
///
/// The help never says only that the field should be removed: an empty selector or rule covers everything.
pub(crate) fn at(
    origin: FieldOrigin,
    (name, value): (&str, &SyntaxValue<'_>),
    nearest: Option<&str>,
    elsewhere: Option<Vec<&'static str>>,
    level: &Fields,
) -> Diagnostic {
    let path = origin.path.clone();
    let found = Diagnostic::at_name(&CODE, origin, format!("unknown field `{path}`")).label("no such field");
    match (nearest, elsewhere) {
        _ if name == "from" && has(level, "to") => found.help("write `to`: egress rules say where packets go"),
        _ if name == "to" && has(level, "from") => {
            found.help("write `from`: ingress rules say where packets come from")
        }
        (Some(nearest), _) if nearest.eq_ignore_ascii_case(name) => {
            found.note("field names are case-sensitive").help(format!("write `{nearest}`"))
        }
        (None, _) if has(level, "matchLabels") && written(value).is_some() => {
            let label = format!("{name}: {}", written(value).unwrap_or_default());
            found
                .note("without a label, the selector would select everything")
                .help(format!("labels belong below `matchLabels`: write `matchLabels: {{{label}}}`"))
        }
        (nearest, Some(place)) if nearest.is_none() || place.last() == Some(&name) => {
            found.help(format!("`{name}` belongs elsewhere: write it as `{}`", place.join(".")))
        }
        (Some(nearest), _) => found.help(format!("did you mean `{nearest}`?")),
        (None, _) if path.to_string() == "status" => {
            found.note("the field was removed in Kubernetes 1.28").help("remove the `status` field")
        }
        (None, _) => found.help(instead(&names(level))),
    }
}

/// The value of a label, as it is written in YAML; `None` if the value cannot be a label's.
fn written(value: &SyntaxValue<'_>) -> Option<String> {
    match value {
        SyntaxValue::Str(text) if is_plain(text) => Some(text.to_string()),
        // In quotes, because a label's value is a string.
        SyntaxValue::Str(text) => Some(format!("\"{text}\"")),
        SyntaxValue::Bool(value) => Some(format!("\"{value}\"")),
        SyntaxValue::Int(value) => Some(format!("\"{value}\"")),
        _ => None,
    }
}

/// Whether YAML reads the text as a string without quotes. Of the texts that can be a label's value, these are not all.
fn is_plain(text: &str) -> bool {
    let is_word = text.starts_with(|it: char| it.is_ascii_alphabetic())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.'));
    is_word && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&&*text.to_ascii_lowercase())
}

fn instead(fields: &str) -> String {
    format!("fields here: {fields}; remove it only if the rest says what you mean")
}

/// A field that the structure lacks.
pub(crate) fn among(origin: FieldOrigin, name: &str, fields: &[&'static str]) -> Diagnostic {
    let path = origin.path.clone();
    let found = Diagnostic::at_name(&CODE, origin, format!("unknown field `{path}`")).label("no such field");
    let known: Vec<String> = fields.iter().map(|name| format!("`{name}`")).collect();
    write_one_of(found, name, fields, &instead(&known.join(", ")))
}

fn has(level: &Fields, name: &str) -> bool {
    level.fields.iter().any(|(known, _)| *known == name)
}

fn names(level: &Fields) -> String {
    let names: Vec<String> = level.fields.iter().map(|(name, _)| format!("`{name}`")).collect();
    names.join(", ")
}
