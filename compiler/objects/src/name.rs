//! Texts whose copies share one allocation: names of namespaces, nodes and controllers, which many objects have in
//! common, and UIDs, of which a compiled cluster has copies.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A name. Its copies share one text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How many names share this text, with this one.
    pub fn uses(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

// Names are compared and hashed as their texts, so a map with names as keys can be searched for a text.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&Name> for String {
    fn from(name: &Name) -> Self {
        name.as_str().to_owned()
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Name {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<Name> for str {
    fn eq(&self, other: &Name) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<Name> for &str {
    fn eq(&self, other: &Name) -> bool {
        *self == other.as_str()
    }
}

impl PartialEq<Name> for String {
    fn eq(&self, other: &Name) -> bool {
        self == other.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[test]
    fn a_name_is_compared_and_printed_as_its_text() {
        let (name, text) = (Name::from("shop"), "shop".to_owned());
        assert_eq!(format!("{name} {name:?} {name:>6}"), "shop \"shop\"   shop");
        assert_eq!((&name, String::from(&name)), (&Name::from(text.clone()), text.clone()));
        assert!(name == *"shop" && name == "shop" && name == text);
        assert!(*"shop" == name && "shop" == name && text == name && name != "sho");
        let [first, second] = ["a", "b"].map(Name::from);
        assert!(first < second && Name::default().is_empty());
        assert!(HashSet::from([name.clone()]).contains("shop") && BTreeSet::from([name]).contains("shop"));
    }

    #[test]
    fn copies_share_the_text() {
        let name = Name::from("shop");
        let copy = name.clone();
        assert_eq!((name.uses(), copy.as_str().as_ptr()), (2, name.as_str().as_ptr()));
        drop(copy);
        assert_eq!(name.uses(), 1);
    }
}
