//! A field that the kind does not have.

use super::*;
use crate::decode::schema::Fields;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("unknown-field", include_str!("unknown_field.diff")).what("A field is not part of the API.").why(
        "The API server would refuse it, or drop it and keep the rest. Without a misspelt `podselector`, for \
         example, the policy selects every pod.",
    );

/// `nearest` is a similar field of the same level; `elsewhere` is the path of a field with this name (in any case) on
/// another level.
pub(crate) fn at(
    origin: FieldOrigin,
    name: &str,
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
        (nearest, Some(place)) if nearest.is_none() || place.last() == Some(&name) => {
            found.help(format!("`{name}` belongs elsewhere: write it as `{}`", place.join(".")))
        }
        (Some(nearest), _) => found.help(format!("did you mean `{nearest}`?")),
        (None, _) if path.to_string() == "status" => {
            found.note("the field was removed in Kubernetes 1.28").help("remove the `status` field")
        }
        (None, _) => found.help(format!("remove it; fields here: {}", names(level))),
    }
}

/// A field that the structure lacks.
pub(crate) fn among(origin: FieldOrigin, name: &str, fields: &[&'static str]) -> Diagnostic {
    let path = origin.path.clone();
    let found = Diagnostic::at_name(&CODE, origin, format!("unknown field `{path}`")).label("no such field");
    let known: Vec<String> = fields.iter().map(|name| format!("`{name}`")).collect();
    write_one_of(found, name, fields, &format!("remove it; fields here: {}", known.join(", ")))
}

fn has(level: &Fields, name: &str) -> bool {
    level.fields.iter().any(|(known, _)| *known == name)
}

fn names(level: &Fields) -> String {
    let names: Vec<String> = level.fields.iter().map(|(name, _)| format!("`{name}`")).collect();
    names.join(", ")
}
