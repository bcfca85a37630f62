//! Namespaces in few words, and rows that are equal in all but their namespace.
//!
//! Problem: teams have the same policies in each of their namespaces, and an answer about 200 namespaces is 200 times
//! the same row. Strategy: a row's text becomes a template, in which `NS` replaces the row's own namespace. Rows with
//! the same template are one row, which says in which namespaces it holds. Texts shorten long lists, so rows also have
//! a key, which contains all of their parts.
//! Invariant: the template with a namespace's name in place of `NS` is exactly the text of the row of that namespace.

use std::collections::{BTreeMap, BTreeSet};

use weir_analysis::world::PodSet;
use weir_objects::k8s::{LabelSelector, NAMESPACE_NAME_LABEL};

/// The variable for the namespace. No namespace has this name: names are lower case.
pub(crate) const VARIABLE: &str = "NS";
/// The row's own namespace in the selectors of a key. No label has this value.
const OWN: &str = "/";
/// Fewer rows are not worth a variable.
const FEWEST: usize = 3;
/// At most this many namespaces are named, or left out by name.
const MOST_NAMES: usize = 4;

/// The namespaces that an answer is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceNames {
    all: BTreeSet<String>,
}

impl NamespaceNames {
    pub(crate) fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        Self { all: names.into_iter().map(str::to_owned).collect() }
    }

    /// `43 of 46 namespaces (all but a, b, c)`
    pub(crate) fn words(&self, some: &[&str]) -> String {
        let some: BTreeSet<&str> = some.iter().copied().collect();
        let others: Vec<&str> = self.all.iter().map(String::as_str).filter(|it| !some.contains(it)).collect();
        if some.len() <= MOST_NAMES {
            let word = if some.len() == 1 { "namespace" } else { "namespaces" };
            return format!("{word} {}", some.into_iter().collect::<Vec<_>>().join(", "));
        }
        if others.is_empty() {
            return format!("all {} namespaces", some.len());
        }
        let which = match others.len() <= MOST_NAMES && others.len() < some.len() {
            true => format!("all but {}", others.join(", ")),
            false => {
                let first: Vec<&str> = some.iter().take(MOST_NAMES - 1).copied().collect();
                format!("{} and {} more", first.join(", "), some.len() - first.len())
            }
        };
        format!("{} of {} namespaces ({which})", some.len(), some.len() + others.len())
    }
}

/// The text with `NS` in place of a namespace's name. `None` if the text has an `NS` of its own.
pub(crate) fn template(text: &str, namespace: &str) -> Option<String> {
    if words_at(text, VARIABLE).next().is_some() || namespace.is_empty() {
        return None;
    }
    let (mut found, mut end) = (String::with_capacity(text.len()), 0);
    for at in words_at(text, namespace) {
        found.push_str(&text[end..at]);
        found.push_str(VARIABLE);
        end = at + namespace.len();
    }
    found.push_str(&text[end..]);
    Some(found)
}

/// Possible pods, without the name of the row's own namespace.
pub(crate) fn pods_template(set: &PodSet, namespace: &str) -> PodSet {
    let mut found = set.clone();
    let LabelSelector { match_labels, match_expressions } = &mut found.namespaces;
    if match_labels.get(NAMESPACE_NAME_LABEL) == Some(namespace) {
        match_labels.insert(NAMESPACE_NAME_LABEL, OWN);
    }
    let requirements = match_expressions.iter_mut().filter(|it| it.key == NAMESPACE_NAME_LABEL);
    for value in requirements.flat_map(|it| &mut it.values).filter(|it| *it == namespace) {
        OWN.clone_into(value);
    }
    found
}

/// The text of one of a template's namespaces.
#[cfg(test)]
fn expanded(template: &str, namespace: &str) -> String {
    let (mut found, mut end) = (String::new(), 0);
    for at in words_at(template, VARIABLE) {
        found.push_str(&template[end..at]);
        found.push_str(namespace);
        end = at + VARIABLE.len();
    }
    found + &template[end..]
}

/// Where a word begins that names a namespace: before a `/`, or after words that announce a namespace.
fn words_at<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '.' | '_' | '=' | '/');
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let (before, after) = (&text[..*at], &text[at + word.len()..]);
        let is_name =
            after.starts_with('/') || ["namespace ", "namespaces ", "pod of "].iter().any(|it| before.ends_with(it));
        let ends = after.starts_with('/') || !after.starts_with(is_part);
        is_name && ends && !before.ends_with(is_part)
    })
}

/// A row, or rows of several namespaces that are equal but for the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepeatedRow {
    /// The texts of the row, with `NS` if there are several rows.
    pub(crate) fields: Vec<String>,
    /// The namespaces of the rows; empty if the row is a single one.
    pub(crate) namespaces: Vec<String>,
    /// The indexes of the rows.
    pub(crate) rows: Vec<usize>,
}

/// A row that may be equal to others but for its own namespace.
#[derive(Clone, Debug)]
pub(crate) struct JoinableRow<K> {
    /// The namespace that the row is about, if it is only one.
    pub(crate) own: Option<String>,
    /// The texts of the row.
    pub(crate) fields: Vec<String>,
    /// The parts of a row that its text may shorten, without the own namespace. Rows without a key stay single.
    pub(crate) key: Option<K>,
}

impl<K> JoinableRow<K> {
    /// What must be equal in rows that become one.
    fn template(&self) -> Option<(Vec<String>, &K)> {
        let own = self.own.as_deref()?;
        let fields: Option<Vec<String>> = self.fields.iter().map(|it| template(it, own)).collect();
        Some((fields?, self.key.as_ref()?))
    }
}

/// Joins rows that are equal but for their own namespace.
pub(crate) fn joined<K: Ord>(rows: &[JoinableRow<K>]) -> Vec<RepeatedRow> {
    let templates: Vec<Option<(Vec<String>, &K)>> = rows.iter().map(JoinableRow::template).collect();
    let mut groups: BTreeMap<&(Vec<String>, &K), Vec<usize>> = BTreeMap::new();
    for (index, template) in templates.iter().enumerate() {
        if let Some(template) = template {
            groups.entry(template).or_default().push(index);
        }
    }
    let mut found: Vec<RepeatedRow> = Vec::new();
    for (index, template) in templates.iter().enumerate() {
        let group = template.as_ref().and_then(|it| groups.get(it));
        // Two rows of one namespace can read the same and be about different pods. They must not become one.
        let are_distinct = |group: &&Vec<usize>| {
            let namespaces: BTreeSet<&Option<String>> = group.iter().map(|it| &rows[*it].own).collect();
            group.len() >= FEWEST && namespaces.len() == group.len()
        };
        match group.filter(are_distinct) {
            Some(group) if group[0] == index => found.push(RepeatedRow {
                fields: template.as_ref().map(|it| it.0.clone()).unwrap_or_default(),
                namespaces: group.iter().filter_map(|it| rows[*it].own.clone()).collect(),
                rows: group.clone(),
            }),
            Some(_) => {}
            None => {
                found.push(RepeatedRow {
                    fields: rows[index].fields.clone(),
                    namespaces: Vec::new(),
                    rows: vec![index],
                });
            }
        }
    }
    found
}

impl RepeatedRow {
    /// `in each of 196 of 200 namespaces NS (all but a, b)`; `None` for a single row.
    pub(crate) fn where_it_holds(&self, names: &NamespaceNames) -> Option<String> {
        let namespaces: Vec<&str> = self.namespaces.iter().map(String::as_str).collect();
        (!namespaces.is_empty()).then(|| format!("where {VARIABLE} is each of {}", names.words(&namespaces)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_namespaces_are_counted_and_few_exceptions_named() {
        let all: Vec<String> = (0..46).map(|it| format!("n{it:02}")).collect();
        let names = NamespaceNames::new(all.iter().map(String::as_str));
        let some: Vec<&str> = all[3..].iter().map(String::as_str).collect();
        assert_eq!(names.words(&some), "43 of 46 namespaces (all but n00, n01, n02)");
        assert_eq!(names.words(&some[..5]), "5 of 46 namespaces (n03, n04, n05 and 2 more)");
        assert_eq!(names.words(&some[..2]), "namespaces n03, n04");
        assert_eq!(names.words(&all.iter().map(String::as_str).collect::<Vec<_>>()), "all 46 namespaces");
    }

    #[test]
    fn a_template_names_the_namespace_and_nothing_else() {
        let text = "any pod with app=db in namespace db, db/db-1 by db/db spec.ingress[0], other/db and my-db/x";
        let found = template(text, "db").expect("a template");
        assert_eq!(
            found,
            "any pod with app=db in namespace NS, NS/db-1 by NS/db spec.ingress[0], other/db and my-db/x"
        );
        assert_eq!(expanded(&found, "db"), text);
        assert_eq!(template("NS/a to b/c", "b"), None);
    }

    #[test]
    fn joined_rows_expand_to_the_rows() {
        let row = |own: &str, port: u16| {
            let fields = vec![format!("{own}/web"), format!("TCP {port}")];
            JoinableRow { own: Some(own.to_owned()), fields, key: Some(()) }
        };
        let mut rows: Vec<_> = (0..9).map(|it| row(&format!("team-{it}"), if it == 4 { 81 } else { 80 })).collect();
        let fields = vec!["x/y".to_owned(), "TCP 80".to_owned()];
        rows.push(JoinableRow { own: None, fields, key: Some(()) });
        let found = joined(&rows);
        assert_eq!(found.len(), 3);
        let mut seen = vec![None; rows.len()];
        for group in &found {
            for (place, row) in group.rows.iter().enumerate() {
                let expand = |it: &String| group.namespaces.get(place).map_or(it.clone(), |own| expanded(it, own));
                seen[*row] = Some(group.fields.iter().map(expand).collect::<Vec<_>>());
            }
        }
        let expected: Vec<_> = rows.into_iter().map(|it| Some(it.fields)).collect();
        assert_eq!(seen, expected);
    }
}
