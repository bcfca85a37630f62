//! The labels of one object.
//!
//! Problem: a cluster has thousands of different sets of labels, most of them small. A node of a `BTreeMap` takes half
//! a kilobyte for one or two labels, and each key and value would be an allocation of its own.
//! Strategy: one text with all keys and values, and the place where each of them ends.
//! Invariants: keys are sorted, and each occurs once. The same labels have the same text, in whatever order they were
//! given, so comparing and hashing the fields compares and hashes the labels.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

/// Label keys and values, sorted by key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// The first key, its value, the second key, its value, and so on.
    text: Box<str>,
    /// Where each key and each value ends in the text.
    ends: Box<[usize]>,
}

impl Labels {
    /// No labels.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.find(key).map(|index| self.pair(index).1)
    }

    /// Whether there is a label with this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// The label with the smallest key.
    pub fn first(&self) -> Option<(&str, &str)> {
        self.iter().next()
    }

    /// Keys and values, by key.
    pub fn iter(&self) -> LabelIter<'_> {
        LabelIter { labels: self, rest: 0..self.len() }
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// The labels as a map: for answers, which show them so.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Sets the value of a key, and returns the value that it had. Copies all labels: to make a set of many, collect
    /// them.
    pub fn insert(&mut self, key: impl AsRef<str>, value: impl AsRef<str>) -> Option<String> {
        let before = self.get(key.as_ref()).map(str::to_owned);
        self.extend([(key, value)]);
        before
    }

    /// The position of the label with this key.
    fn find(&self, key: &str) -> Option<usize> {
        let mut range = 0..self.len();
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            match self.pair(middle).0.cmp(key) {
                Ordering::Equal => return Some(middle),
                Ordering::Less => range.start = middle + 1,
                Ordering::Greater => range.end = middle,
            }
        }
        None
    }

    /// The label at a position below [`Labels::len`].
    fn pair(&self, index: usize) -> (&str, &str) {
        let (key, value) = (2 * index, 2 * index + 1);
        let start = if key == 0 { 0 } else { self.ends[key - 1] };
        (&self.text[start..self.ends[key]], &self.text[self.ends[key]..self.ends[value]])
    }
}

/// The labels of a set, by key.
#[derive(Clone, Debug)]
pub struct LabelIter<'l> {
    labels: &'l Labels,
    rest: Range<usize>,
}

impl<'l> Iterator for LabelIter<'l> {
    type Item = (&'l str, &'l str);

    fn next(&mut self) -> Option<Self::Item> {
        self.rest.next().map(|index| self.labels.pair(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl DoubleEndedIterator for LabelIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rest.next_back().map(|index| self.labels.pair(index))
    }
}

impl ExactSizeIterator for LabelIter<'_> {}
impl FusedIterator for LabelIter<'_> {}

impl<'l> IntoIterator for &'l Labels {
    type Item = (&'l str, &'l str);
    type IntoIter = LabelIter<'l>;

    fn into_iter(self) -> LabelIter<'l> {
        self.iter()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    /// Of several labels with the same key, the last one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let mut labels: Vec<(K, V)> = labels.into_iter().collect();
        // Stable, so that labels with the same key stay in order.
        labels.sort_by(|a, b| a.0.as_ref().cmp(b.0.as_ref()));
        let length = labels.iter().map(|(key, value)| key.as_ref().len() + value.as_ref().len()).sum();
        let (mut text, mut ends) = (String::with_capacity(length), Vec::with_capacity(2 * labels.len()));
        for (index, (key, value)) in labels.iter().enumerate() {
            if labels.get(index + 1).is_some_and(|next| next.0.as_ref() == key.as_ref()) {
                continue;
            }
            for part in [key.as_ref(), value.as_ref()] {
                text.push_str(part);
                ends.push(text.len());
            }
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Extend<(K, V)> for Labels {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, labels: I) {
        let others: Self = labels.into_iter().collect();
        *self = self.iter().chain(&others).collect();
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for Labels {
    fn from(labels: [(K, V); N]) -> Self {
        labels.into_iter().collect()
    }
}

impl Ord for Labels {
    fn cmp(&self, other: &Self) -> Ordering {
        // Not by the fields: they would order sets by their texts as a whole, and not label by label.
        self.iter().cmp(other)
    }
}

impl PartialOrd for Labels {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_sorted_and_found_by_key() {
        let labels = Labels::from([("tier", "web"), ("app", "shop"), ("empty", "")]);
        let expected = [("app", "shop"), ("empty", ""), ("tier", "web")];
        assert!(labels.iter().eq(expected) && labels.iter().rev().eq(expected.into_iter().rev()));
        assert!(labels.keys().eq(["app", "empty", "tier"]));
        assert_eq!((labels.len(), labels.iter().len(), labels.first()), (3, 3, Some(("app", "shop"))));
        assert_eq!(["app", "empty", "tier"].map(|key| labels.get(key)), [Some("shop"), Some(""), Some("web")]);
        assert_eq!(["", "a", "apq", "tierx"].map(|key| labels.get(key)), [None; 4]);
        assert!(labels.contains_key("empty") && !labels.contains_key("web"));
        assert!(Labels::new().is_empty() && !labels.is_empty());
        assert_eq!((Labels::new().get("app"), Labels::new().first()), (None, None));
    }

    #[test]
    fn the_last_value_of_a_duplicate_key_counts() {
        let labels = Labels::from([("app", "first"), ("b", "b"), ("app", "last"), ("a", "a")]);
        assert!(labels.iter().eq([("a", "a"), ("app", "last"), ("b", "b")]));
    }

    #[test]
    fn insert_returns_the_previous_value() {
        let mut labels = Labels::from([("b", "1")]);
        assert_eq!((labels.insert("a", "2"), labels.insert("b", "3")), (None, Some("1".to_owned())));
        assert_eq!(labels, Labels::from([("a", "2"), ("b", "3")]));
    }

    #[test]
    fn extend_replaces_values() {
        let mut labels = Labels::from([("a", "1"), ("b", "1")]);
        labels.extend([("c", "2"), ("a", "2")]);
        assert_eq!(labels, Labels::from([("a", "2"), ("b", "1"), ("c", "2")]));
    }

    #[test]
    fn sets_with_the_same_text_are_different() {
        assert_ne!(Labels::from([("ab", "c")]), Labels::from([("a", "bc")]));
    }

    #[test]
    fn labels_print_as_a_map() {
        assert_eq!(format!("{:?}", Labels::from([("b", "2"), ("a", "1")])), r#"{"a": "1", "b": "2"}"#);
    }

    proptest! {
        #[test]
        fn labels_agree_with_a_map(
            a in prop::collection::vec(("[ab]{0,2}", "[ab]{0,2}"), 0..6),
            b in prop::collection::vec(("[ab]{0,2}", "[ab]{0,2}"), 0..6),
            key in "[ab]{0,2}",
        ) {
            let maps: [BTreeMap<String, String>; 2] = [&a, &b].map(|it| it.iter().cloned().collect());
            let [one, other]: [Labels; 2] = [&a, &b].map(|it| it.iter().cloned().collect());
            prop_assert!(one.iter().eq(maps[0].iter().map(|(key, value)| (key.as_str(), value.as_str()))));
            prop_assert_eq!(one.get(&key), maps[0].get(&key).map(String::as_str));
            prop_assert_eq!(one.cmp(&other), maps[0].cmp(&maps[1]));
            prop_assert_eq!(one == other, maps[0] == maps[1]);
        }
    }
}
