//! The names of the objects in a list of one kind.

use std::collections::{BTreeMap, BTreeSet};

use weir_classes::index::Key;

/// The names of a list's objects, by namespace. A list can have a hundred thousand objects, so their kind and namespace
/// are not stored again for each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedNames(BTreeMap<String, BTreeSet<Box<str>>>);

impl ListedNames {
    pub(crate) fn insert(&mut self, namespace: &str, name: &str) {
        match self.0.get_mut(namespace) {
            Some(names) => _ = names.insert(name.into()),
            None => _ = self.0.insert(namespace.to_owned(), BTreeSet::from([name.into()])),
        }
    }

    pub(crate) fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(names) = self.0.get_mut(namespace) {
            names.remove(name);
        }
    }

    pub(crate) fn contains(&self, namespace: &str, name: &str) -> bool {
        self.0.get(namespace).is_some_and(|names| names.contains(name))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(BTreeSet::is_empty)
    }

    /// All names, by namespace.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.values().flatten().map(|name| &**name).collect()
    }
}

impl<'k> FromIterator<&'k Key> for ListedNames {
    fn from_iter<T: IntoIterator<Item = &'k Key>>(keys: T) -> Self {
        let mut listed = Self::default();
        keys.into_iter().for_each(|key| listed.insert(&key.namespace, &key.name));
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::ListedNames;

    #[test]
    fn a_name_belongs_to_one_namespace() {
        let mut listed = ListedNames::default();
        assert!(listed.is_empty());
        for (namespace, name) in [("a", "x"), ("a", "y"), ("b", "y"), ("", "z")] {
            listed.insert(namespace, name);
        }
        assert_eq!(listed.names(), ["z", "x", "y", "y"]);
        assert!(listed.contains("a", "x") && !listed.contains("b", "x") && !listed.contains("c", "x"));
        listed.remove("a", "y");
        listed.remove("c", "y");
        assert!(!listed.contains("a", "y") && listed.contains("b", "y"));
        [("a", "x"), ("b", "y"), ("", "z")].into_iter().for_each(|(namespace, name)| listed.remove(namespace, name));
        assert!(listed.is_empty());
    }
}
