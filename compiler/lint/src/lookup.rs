//! Finds the label sets that a selector may match without testing all of them.

use std::collections::{HashMap, HashSet};

use weir_model::Cluster;
use weir_model::labels::LabelSetId;
use weir_objects::k8s::{LabelSelector, Labels, Operator};

/// Numbers of objects with labels, by the label pairs that selectors require.
#[derive(Debug)]
pub(super) struct Lookup<'c> {
    /// Invariant: sorted and without duplicates, each.
    by_pair: HashMap<(&'c str, &'c str), Vec<u32>>,
}

impl<'c> Lookup<'c> {
    /// A lookup of objects numbered from 0, given the labels of each.
    pub(super) fn new(
        cluster: &'c Cluster,
        wanted: &MentionedLabels<'c>,
        things: impl IntoIterator<Item = LabelSetId>,
    ) -> Self {
        let mut by_pair: HashMap<_, Vec<u32>> = HashMap::new();
        for (number, labels) in things.into_iter().enumerate() {
            for pair in cluster.labels.labels(labels) {
                if wanted.pairs.contains(&pair) {
                    by_pair.entry(pair).or_default().push(number as u32);
                }
            }
        }
        Self { by_pair }
    }

    /// The shortest list that contains every object the selector matches; `None` if only the list of all objects does.
    pub(super) fn candidates<'s>(&'s self, selector: &'s LabelSelector) -> Option<&'s [u32]> {
        let lists = required_pairs(selector).map(|pair| self.by_pair.get(&pair).map_or(&[][..], Vec::as_slice));
        lists.min_by_key(|list| list.len())
    }
}

/// The label pairs and keys that selectors mention. No other label can distinguish objects.
#[derive(Debug)]
pub(super) struct MentionedLabels<'c> {
    pairs: HashSet<(&'c str, &'c str)>,
    keys: HashSet<&'c str>,
}

impl<'c> MentionedLabels<'c> {
    /// The pairs and keys of every selector of the cluster.
    pub(super) fn new(cluster: &'c Cluster) -> Self {
        let mut it = Self { pairs: HashSet::new(), keys: HashSet::new() };
        for index in 0..cluster.labels.selector_count() {
            let selector = cluster.labels.selector(weir_model::SelectorId(index as u32));
            it.pairs.extend(required_pairs(selector));
            it.keys.extend(selector.match_labels.keys());
            it.keys.extend(selector.match_expressions.iter().map(|requirement| requirement.key.as_str()));
        }
        it
    }

    /// The labels whose key a selector mentions.
    pub(super) fn visible<'l>(&self, labels: &'l Labels) -> Vec<(&'l str, &'l str)> {
        labels.iter().filter(|(key, _)| self.keys.contains(key)).collect()
    }
}

/// Label pairs without which the selector cannot match.
fn required_pairs(selector: &LabelSelector) -> impl Iterator<Item = (&str, &str)> {
    let single = selector.match_expressions.iter().filter_map(|it| match (it.operator, it.values.as_slice()) {
        (Operator::In, [value]) => Some((it.key.as_str(), value.as_str())),
        _ => None,
    });
    selector.match_labels.iter().chain(single)
}
