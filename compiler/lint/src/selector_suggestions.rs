//! Suggestions for a selector that matches nothing.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::groups::is_on_host;
use super::words;
use weir_model::{Cluster, NamespaceId};
use weir_objects::decode::nearest;
use weir_objects::k8s::LabelSelector;
use weir_objects::origin::FieldPath;

/// The number of objects with each label.
#[derive(Debug)]
pub(super) struct Census<'c> {
    /// `pod in \`shop\`` or `namespace`
    noun: String,
    place: String,
    values: BTreeMap<&'c str, BTreeMap<&'c str, usize>>,
    /// The number of names that may still be compared: hints are a courtesy, and must not cost more than the lint.
    comparisons: Cell<usize>,
}

/// A note and a suggestion for a selector.
#[derive(Debug)]
pub(super) struct Hint {
    /// The path of the label that no object has, below the selector; the selector itself if each label exists on some
    /// object.
    pub(super) path: FieldPath,
    /// A description of the existing labels.
    pub(super) note: String,
    /// The selector that the author probably meant.
    pub(super) help: Option<String>,
}

impl<'c> Census<'c> {
    /// A census of the pods of a namespace, or of the namespaces.
    pub(super) fn new(cluster: &'c Cluster, namespace: Option<NamespaceId>) -> Self {
        let mut values: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
        let mut add = |labels| {
            for (key, value) in cluster.labels.labels(labels) {
                *values.entry(key).or_default().entry(value).or_default() += 1;
            }
        };
        let (noun, place) = match namespace {
            Some(id) => {
                let endpoints = &cluster.endpoints;
                let start = endpoints.partition_point(|endpoint| endpoint.namespace < id);
                let own = endpoints.iter().skip(start).take_while(|it| it.namespace == id);
                own.filter(|it| !is_on_host(cluster, it)).for_each(|it| add(it.labels));
                ("pod", format!(" in `{}`", cluster.namespaces[id.index()].name))
            }
            None => {
                cluster.namespaces.iter().for_each(|it| add(it.labels));
                ("namespace", String::new())
            }
        };
        Self { noun: noun.to_owned(), place, values, comparisons: Cell::new(200_000) }
    }

    /// Explains why a selector matches nothing here, and suggests a similar one. `at` is the path of the selector.
    pub(super) fn explain(&self, selector: &LabelSelector, at: &FieldPath) -> Hint {
        let missing = selector.match_labels.iter().find(|(key, value)| self.having(key, value) == 0);
        match missing {
            Some((key, value)) => {
                let (note, help) = self.near(key, value);
                Hint { path: at.field("matchLabels").key(key), note, help }
            }
            None => {
                let note = format!("no {}{} has all of: {}", self.noun, self.place, words::selector(selector));
                Hint { path: at.clone(), note, help: None }
            }
        }
    }

    fn having(&self, key: &str, value: &str) -> usize {
        self.values.get(key).and_then(|values| values.get(value)).copied().unwrap_or(0)
    }

    fn near(&self, key: &str, value: &str) -> (String, Option<String>) {
        let none = format!("none has {key}={value}");
        let meant = |key: &str, value: &str| {
            let have = words::count(self.having(key, value), &self.noun);
            let verb = if self.having(key, value) == 1 { "has" } else { "have" };
            (
                format!("{have}{} {verb} {key}={value}; {none}", self.place),
                Some(format!("did you mean `{key}: {value}`?")),
            )
        };
        if let Some(values) = self.values.get(key) {
            return match self.nearest(value, values) {
                Some(other) => meant(key, other),
                None => (self.list(key, values), None),
            };
        }
        let other_key = self.values.iter().find(|(_, values)| values.contains_key(value)).map(|(key, _)| *key);
        match other_key.or_else(|| self.nearest(key, &self.values)) {
            Some(other) if self.having(other, value) > 0 => meant(other, value),
            _ => (format!("no {}{} has a label `{key}`", self.noun, self.place), None),
        }
    }

    fn nearest<'k, T>(&self, name: &str, known: &BTreeMap<&'k str, T>) -> Option<&'k str> {
        let left = self.comparisons.get().checked_sub(known.len())?;
        self.comparisons.set(left);
        nearest(name, known.keys().copied())
    }

    fn list(&self, key: &str, values: &BTreeMap<&str, usize>) -> String {
        let shown = words::some(values.keys().map(|value| format!("`{value}`")), 5);
        format!("{}s{} have these values of `{key}`: {shown}", self.noun, self.place)
    }
}
