//! Suggestions for a mistyped name: the most similar name, or the same name at its correct place.

use strsim::osa_distance;

use super::schema::{Fields, ValueType};

/// Longer names are not compared, because they are not typing errors.
const LONGEST: usize = 64;

/// The most similar known name, if it is similar enough: equal but for case, or different in at most a third of its
/// letters.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if name.is_empty() || name.len() > LONGEST {
        return None;
    }
    let allowed = (name.chars().count() / 3).max(1);
    let scored =
        known.into_iter().map(|candidate| (osa_distance(&name.to_lowercase(), &candidate.to_lowercase()), candidate));
    scored.filter(|(distance, _)| *distance <= allowed).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Whether a name is a typing error for `meant`: at most two letters differ.
pub(super) fn is_typo(name: &str, meant: &str) -> bool {
    name.len() <= LONGEST && osa_distance(&name.to_lowercase(), meant) <= 2
}

/// The place in a kind where a field of this name belongs: the one nearest to where it was written. Both are paths
/// without indices: `["spec", "ingress", "from"]`.
pub(super) fn elsewhere(root: &'static Fields, written: &[&str], name: &str) -> Option<Vec<&'static str>> {
    let mut places = Vec::new();
    collect(root, name, &mut Vec::new(), &mut places);
    // A field of the specification never belongs into the metadata, and the other way round.
    places.retain(|place| place.first() == written.first() || written.is_empty());
    places.into_iter().min_by_key(|place| steps_between(written, place))
}

fn collect(fields: &'static Fields, name: &str, above: &mut Vec<&'static str>, places: &mut Vec<Vec<&'static str>>) {
    for (field, shape) in fields.fields {
        if field.eq_ignore_ascii_case(name) {
            places.push(above.iter().copied().chain([*field]).collect());
        }
        if let Some(inner) = structure(shape) {
            above.push(field);
            collect(inner, name, above, places);
            above.pop();
        }
    }
}

/// The structure in a shape: the shape itself, or that of its list items.
fn structure(shape: &'static ValueType) -> Option<&'static Fields> {
    match shape {
        ValueType::Struct(fields) => Some(fields),
        ValueType::List(item) => structure(item),
        _ => None,
    }
}

fn steps_between(written: &[&str], place: &[&'static str]) -> usize {
    let holder = place.split_last().map_or(place, |(_, holder)| holder);
    let common = written.iter().zip(holder).take_while(|(a, b)| a == b).count();
    written.len() + holder.len() - 2 * common
}

#[cfg(test)]
mod tests {
    use super::super::schema::NETWORK_POLICY;
    use super::*;

    #[test]
    fn the_nearest_name_is_found_despite_case_and_typos() {
        let known = ["podSelector", "ingress", "egress", "policyTypes"];
        for (name, expected) in [
            ("podselector", Some("podSelector")),
            ("PodSelector", Some("podSelector")),
            ("podSelectors", Some("podSelector")),
            ("ingres", Some("ingress")),
            ("igress", Some("ingress")),
            ("policyType", Some("policyTypes")),
            ("ports", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }

    #[track_caller]
    fn check_elsewhere(written: &[&str], name: &str, expected: Option<&str>) {
        let found = elsewhere(&NETWORK_POLICY, written, name).map(|place| place.join("."));
        assert_eq!(found.as_deref(), expected, "{name} in {written:?}");
    }

    #[test]
    fn a_field_on_the_wrong_level_is_sent_to_the_nearest_right_one() {
        check_elsewhere(&["spec", "ingress", "from"], "except", Some("spec.ingress.from.ipBlock.except"));
        check_elsewhere(&["spec", "egress"], "podSelector", Some("spec.podSelector"));
        check_elsewhere(&["spec"], "matchLabels", Some("spec.podSelector.matchLabels"));
        check_elsewhere(&[], "podSelector", Some("spec.podSelector"));
        check_elsewhere(&["spec"], "colour", None);
    }
}
