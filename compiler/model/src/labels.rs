//! Interned labels and selectors, so that equal ones are compared once.

use std::sync::Arc;

use super::{Interner, id};
use weir_objects::k8s::{LabelSelector, Labels, Operator, Requirement};

id!(/// A set of labels. Prints as `labels3`.
    LabelSetId, "labels");
id!(/// A selector. Prints as `sel3`.
    SelectorId, "sel");

/// Every label set and every selector of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Labelling {
    sets: Interner<Arc<Labels>>,
    selectors: Interner<Arc<LabelSelector>>,
}

impl Labelling {
    /// The id of a label set, which is added if it is new.
    pub fn intern_labels(&mut self, labels: &Arc<Labels>) -> LabelSetId {
        LabelSetId(self.sets.intern_ref(labels))
    }

    /// The id of a selector, which is added if it is new.
    pub fn intern_selector(&mut self, selector: &LabelSelector) -> SelectorId {
        let known = self.selectors.find(selector);
        SelectorId(known.unwrap_or_else(|| self.selectors.intern(Arc::new(selector.clone()))))
    }

    /// The id of a known label set.
    pub fn find_labels(&self, labels: &Labels) -> Option<LabelSetId> {
        self.sets.find(labels).map(LabelSetId)
    }

    /// The id of a known selector.
    pub fn find_selector(&self, selector: &LabelSelector) -> Option<SelectorId> {
        self.selectors.find(selector).map(SelectorId)
    }

    /// The label set with an id.
    pub fn labels(&self, id: LabelSetId) -> &Labels {
        &self.sets[id.index()]
    }

    /// The selector with an id.
    pub fn selector(&self, id: SelectorId) -> &LabelSelector {
        &self.selectors[id.index()]
    }

    /// The number of label sets.
    pub fn set_count(&self) -> usize {
        self.sets.len()
    }

    /// The number of selectors.
    pub fn selector_count(&self) -> usize {
        self.selectors.len()
    }
}

/// A cache of whether a selector matches a label set. Of a pair's bits, bit 0 means "computed" and bit 1 "matches".
///
/// The reference oracle needs the same answers for every flow; this cache does not change them.
#[derive(Debug)]
pub struct Selection {
    sets: usize,
    answers: Vec<u8>,
}

impl Selection {
    /// With more pairs than this, every query is computed anew.
    const MOST_PAIRS: usize = 1 << 28;

    /// An empty cache.
    pub fn new(labelling: &Labelling) -> Self {
        let sets = labelling.set_count();
        let pairs = sets.saturating_mul(labelling.selector_count());
        Self { sets, answers: vec![0; if pairs <= Self::MOST_PAIRS { pairs } else { 0 }] }
    }

    /// Whether the selector matches the labels.
    pub fn matches(&mut self, labelling: &Labelling, selector: SelectorId, labels: LabelSetId) -> bool {
        let ask = || matches(labelling.selector(selector), labelling.labels(labels));
        match self.answers.get_mut(selector.index() * self.sets + labels.index()) {
            Some(answer) => {
                if *answer == 0 {
                    *answer = if ask() { 3 } else { 1 };
                }
                *answer == 3
            }
            None => ask(),
        }
    }
}

/// Whether a selector matches a set of labels.
// Spec: "The result of matchLabels and matchExpressions are ANDed. An empty label selector matches all objects."
pub fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    has_all(labels, &selector.match_labels)
        && selector.match_expressions.iter().all(|requirement| satisfies(labels, requirement))
}

fn has_all(labels: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

// Spec: "Valid operators are In, NotIn, Exists and DoesNotExist." In needs the key; NotIn holds without it too.
fn satisfies(labels: &Labels, requirement: &Requirement) -> bool {
    let value = labels.get(&requirement.key);
    let is_listed = |value: &str| requirement.values.iter().any(|it| it == value);
    match requirement.operator {
        Operator::In => value.is_some_and(is_listed),
        Operator::NotIn => value.is_none_or(|value| !is_listed(value)),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().copied().collect()
    }

    #[track_caller]
    fn check(operator: Operator, values: &[&str], set: &[(&str, &str)], expected: bool) {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let requirement = Requirement { key: "k".to_owned(), operator, values };
        assert_eq!(satisfies(&labels(set), &requirement), expected);
    }

    #[test]
    fn in_needs_the_key() {
        check(Operator::In, &["a", "b"], &[("k", "b")], true);
        check(Operator::In, &["a"], &[("k", "b")], false);
        check(Operator::In, &["a"], &[], false);
    }

    #[test]
    fn not_in_holds_without_the_key_and_for_none_of_the_values() {
        check(Operator::NotIn, &["a", "b"], &[], true);
        check(Operator::NotIn, &["a", "b"], &[("k", "a")], false);
        check(Operator::NotIn, &["a", "b"], &[("k", "b")], false);
        check(Operator::NotIn, &["a", "b"], &[("k", "c")], true);
    }

    #[test]
    fn an_empty_value_is_a_value() {
        check(Operator::Exists, &[], &[("k", "")], true);
        check(Operator::DoesNotExist, &[], &[("k", "")], false);
        let selector = LabelSelector { match_labels: labels(&[("k", "")]), ..LabelSelector::default() };
        assert!(!matches(&selector, &labels(&[])));
        assert!(matches(&selector, &labels(&[("k", "")])));
    }
}
