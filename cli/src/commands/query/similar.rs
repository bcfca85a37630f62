//! The names that were probably meant in flows with unknown names.
//!
//! Searching all names of a large cluster takes milliseconds, and a file may have a million flows with unknown names.
//! Each name is searched once, and only the first [`MOST`] of them.

use std::collections::HashMap;

use weir_model::directory::Directory;
use weir_policy::endpoint_lookup::EndpointLookup;

/// The most names to search.
const MOST: usize = 50;

/// The hints that were found, by name.
#[derive(Debug, Default)]
pub(super) struct SimilarNames {
    found: HashMap<String, Option<String>>,
}

impl SimilarNames {
    /// The reason why a flow has no verdict, with the name that was probably meant.
    pub(super) fn add<'n, 'c>(
        &mut self,
        reason: String,
        mut names: impl Iterator<Item = &'n str>,
        lookup: &EndpointLookup<'c>,
        directory: &Directory<'c>,
    ) -> String {
        let unknown = names.find(|name| lookup.endpoint(directory, name).is_err());
        let hint = unknown.and_then(|name| match self.found.get(name) {
            Some(known) => known.clone(),
            None if self.found.len() >= MOST => None,
            None => {
                let hint = lookup.did_you_mean(name);
                self.found.insert(name.to_owned(), hint.clone());
                hint
            }
        });
        hint.map_or(reason.clone(), |hint| format!("{reason}; {hint}"))
    }
}
