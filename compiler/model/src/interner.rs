//! Numbers for values: equal values have one number.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;

/// Values, numbered from 0 in the order in which they were first interned. Dereferences to the values by number.
///
/// No hash map's order reaches the numbers, so the same values in the same order always have the same numbers.
#[derive(Clone, Debug)]
pub struct Interner<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    /// Values that have numbers already. Of equal values, [`Self::find`] returns the first.
    pub fn numbered(values: Vec<T>) -> Self {
        let mut numbers = HashMap::with_capacity(values.len());
        for (value, number) in values.iter().zip(0..) {
            numbers.entry(value.clone()).or_insert(number);
        }
        Self { values, numbers }
    }

    /// The number of a value, which is added if it is new.
    pub fn intern(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let next = self.values.len() as u32;
        self.values.push(value.clone());
        self.numbers.insert(value, next);
        next
    }

    /// The same for a value that is cloned only if it is new.
    pub fn intern_ref(&mut self, value: &T) -> u32 {
        self.find(value).unwrap_or_else(|| self.intern(value.clone()))
    }

    /// The number of a value, if it was interned.
    pub fn find<Q: ?Sized + Eq + Hash>(&self, value: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
    {
        self.numbers.get(value).copied()
    }
}

impl<T> Interner<T> {
    /// The values by number.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

impl<T> Deref for Interner<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::Interner;

    #[test]
    fn equal_values_have_the_number_of_the_first() {
        let mut names = Interner::default();
        let numbers = ["b", "a", "b", "c", "a"].map(|name| names.intern(name.to_owned()));
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        assert_eq!(names.intern_ref(&"c".to_owned()), 2);
        assert_eq!((names.find("a"), names.find("d")), (Some(1), None));
        assert_eq!(names.into_values(), ["b", "a", "c"]);
        let mut numbered = Interner::numbered(["b", "a", "b"].map(str::to_owned).to_vec());
        assert_eq!((numbered.find("b"), numbered.intern("c".to_owned())), (Some(0), 3));
    }
}
