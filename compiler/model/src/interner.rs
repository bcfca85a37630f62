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
    /// Gives each number the value that `replace` returns for its present one; `None` leaves it as it is. `replace` must
    /// return the same for equal values. Of numbers that get the same value, [`Self::find`] returns the lowest.
    pub fn replace_each(&mut self, replace: impl Fn(&T) -> Option<T>) {
        let replaced = self.values.iter().map(replace).zip(0..);
        let replaced: Vec<(T, u32)> = replaced.filter_map(|(value, number)| Some((value?, number))).collect();
        for (_, number) in &replaced {
            let value = &self.values[*number as usize];
            // Another number may have an equal value, and be the one that is found.
            if self.numbers.get(value) == Some(number) {
                self.numbers.remove(value);
            }
        }
        for (value, number) in replaced {
            let found = self.numbers.entry(value.clone()).or_insert(number);
            *found = number.min(*found);
            self.values[number as usize] = value;
        }
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
    }

    #[test]
    fn replaced_values_are_found_under_their_numbers() {
        let mut names = Interner::default();
        ["a", "b", "c", "d", "e"].into_iter().for_each(|name| _ = names.intern(name.to_owned()));
        // Two numbers exchange their values, one gets the value that another keeps, and one gets a new value.
        let new = [("a", "b"), ("b", "a"), ("c", "d"), ("e", "f")].map(|(old, new)| (old.to_owned(), new.to_owned()));
        names.replace_each(|name| new.iter().find(|(old, _)| old == name).map(|(_, new)| new.clone()));
        assert_eq!(names[..], ["b", "a", "d", "d", "f"]);
        let found = ["a", "b", "c", "d", "e", "f"].map(|name| names.find(name));
        assert_eq!(found, [Some(1), Some(0), None, Some(2), None, Some(4)]);
        assert_eq!(names.intern("g".to_owned()), 5);
    }
}
