//! Label selectors as sets of label sets: one set of values for each key.

use std::collections::{BTreeMap, BTreeSet};

use weir_objects::k8s::{LabelSelector, Labels, Operator, Requirement};

/// The values that a selector admits for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyValues {
    /// The listed values are the only ones, or the only ones that are not admitted.
    lists_admitted: bool,
    listed: BTreeSet<String>,
    /// Whether the key may be missing.
    may_be_absent: bool,
}

impl KeyValues {
    fn everything() -> Self {
        Self { lists_admitted: false, listed: BTreeSet::new(), may_be_absent: true }
    }

    fn of(requirement: Requirement) -> Self {
        let listed: BTreeSet<String> = requirement.values.into_iter().collect();
        let (lists_admitted, may_be_absent) = match requirement.operator {
            Operator::In => (true, false),
            Operator::NotIn => (false, true),
            Operator::Exists => (false, false),
            Operator::DoesNotExist => (true, true),
        };
        Self { lists_admitted, listed, may_be_absent }
    }

    fn and(&self, other: &Self) -> Self {
        let listed = match (self.lists_admitted, other.lists_admitted) {
            (true, true) => &self.listed & &other.listed,
            (true, false) => &self.listed - &other.listed,
            (false, true) => &other.listed - &self.listed,
            (false, false) => &self.listed | &other.listed,
        };
        Self {
            lists_admitted: self.lists_admitted || other.lists_admitted,
            listed,
            may_be_absent: self.may_be_absent && other.may_be_absent,
        }
    }

    fn is_empty(&self) -> bool {
        self.lists_admitted && self.listed.is_empty() && !self.may_be_absent
    }
}

fn by_key(selector: &LabelSelector) -> BTreeMap<String, KeyValues> {
    let mut keys: BTreeMap<String, KeyValues> = BTreeMap::new();
    for requirement in selector.requirements() {
        let key = keys.entry(requirement.key.clone()).or_insert_with(KeyValues::everything);
        *key = key.and(&KeyValues::of(requirement));
    }
    keys
}

/// Whether every set of labels that matches one selector matches the other.
pub(super) fn implies(one: &LabelSelector, other: &LabelSelector) -> bool {
    let own = by_key(one);
    let admits = |(key, wanted): (String, KeyValues)| {
        let own = own.get(&key).cloned().unwrap_or_else(KeyValues::everything);
        own.and(&wanted) == own
    };
    own.values().any(KeyValues::is_empty) || by_key(other).into_iter().all(admits)
}

/// Whether no set of labels matches both selectors.
pub(super) fn contradict(one: &LabelSelector, other: &LabelSelector) -> bool {
    let requirements = one.requirements().chain(other.requirements()).collect();
    let both = LabelSelector { match_labels: Labels::new(), match_expressions: requirements };
    by_key(&both).values().any(KeyValues::is_empty)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_model::labels::matches;

    use super::*;

    const KEYS: [&str; 2] = ["app", "tier"];
    const VALUES: [&str; 3] = ["a", "b", "c"];

    fn requirement() -> impl Strategy<Value = Requirement> {
        let values = proptest::sample::subsequence(VALUES[..2].to_vec(), 1..=2);
        (0..4_usize, 0..KEYS.len(), values).prop_map(|(operator, key, values)| {
            let operator = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist][operator];
            let values = match operator {
                Operator::In | Operator::NotIn => values.into_iter().map(str::to_owned).collect(),
                Operator::Exists | Operator::DoesNotExist => Vec::new(),
            };
            Requirement { key: KEYS[key].to_owned(), operator, values }
        })
    }

    fn selector() -> impl Strategy<Value = LabelSelector> {
        let app = proptest::option::of(0..2_usize);
        (app, proptest::collection::vec(requirement(), 0..3)).prop_map(|(app, match_expressions)| {
            let match_labels = app.into_iter().map(|it| (KEYS[0].to_owned(), VALUES[it].to_owned())).collect();
            LabelSelector { match_labels, match_expressions }
        })
    }

    /// Every label set of the keys and the values; no selector lists the value `c`.
    fn label_sets() -> Vec<Labels> {
        let values = || VALUES.iter().map(|it| Some(*it)).chain([None]);
        let of = |pairs: [Option<&str>; 2]| -> Labels {
            let all = KEYS.iter().zip(pairs);
            all.filter_map(|(key, value)| Some(((*key).to_owned(), value?.to_owned()))).collect()
        };
        values().flat_map(|app| values().map(move |tier| of([app, tier]))).collect()
    }

    proptest! {
        #[test]
        fn selectors_are_compared_as_sets_of_labels(one in selector(), other in selector()) {
            let sets = label_sets();
            let in_both = |labels: &&Labels| matches(&one, labels) && matches(&other, labels);
            let is_implied = sets.iter().filter(|it| matches(&one, it)).all(|it| matches(&other, it));
            prop_assert_eq!(implies(&one, &other), is_implied, "{} implies {}", one, other);
            prop_assert_eq!(contradict(&one, &other), !sets.iter().any(|it| in_both(&it)), "{} and {}", one, other);
        }
    }
}
