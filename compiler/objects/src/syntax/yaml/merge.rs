//! Merge keys: `<<: *defaults`.
//!
//! As in kubectl (goyaml.v2) the entries of a mapping take effect in the order written: a key overrides entries merged
//! before it, and a merge overrides keys written before it. A merge never makes a duplicate; keys written twice are
//! kept twice.

use std::collections::HashMap;

use crate::syntax::{MappingEntry, Span, SyntaxError, SyntaxNode, SyntaxValue};

/// A mapping under construction.
#[derive(Default)]
pub(super) struct Mapping<'t> {
    entries: Vec<MappingEntry<'t>>,
    merges: Option<Merges>,
}

/// The state that is needed from the first merge key on.
struct Merges {
    /// The position of every key.
    positions: HashMap<String, usize>,
    /// For each entry, whether it came from a merge.
    merged: Vec<bool>,
}

impl<'t> Mapping<'t> {
    /// Adds an entry that was written.
    pub(super) fn insert(&mut self, entry: MappingEntry<'t>) {
        let Some(merges) = &mut self.merges else {
            self.entries.push(entry);
            return;
        };
        let known = merges.positions.get(&*entry.key).copied();
        if let Some(position) = known.filter(|position| merges.merged.get(*position) == Some(&true)) {
            replace(&mut self.entries, position, entry);
            merges.merged.iter_mut().skip(position).take(1).for_each(|merged| *merged = false);
            return;
        }
        merges.positions.entry(entry.key.to_string()).or_insert(self.entries.len());
        merges.merged.push(false);
        self.entries.push(entry);
    }

    /// Merges a mapping, or a list of mappings in which earlier ones have precedence.
    pub(super) fn merge(&mut self, key_span: Span, value: SyntaxNode<'t>, aliased: bool) -> Result<(), SyntaxError> {
        let refusal = SyntaxError::new(value.span, "only mappings can be merged")
            .help("`<<` takes a mapping, an alias of one, or a list of these");
        match value.value {
            SyntaxValue::Map(entries) => self.merge_map(key_span, entries),
            SyntaxValue::Seq(items) if !aliased => {
                for item in items.into_iter().rev() {
                    let SyntaxValue::Map(entries) = item.value else {
                        return Err(SyntaxError { span: item.span, ..refusal });
                    };
                    self.merge_map(key_span, entries);
                }
            }
            _ => return Err(refusal),
        }
        Ok(())
    }

    fn merge_map(&mut self, key_span: Span, entries: Vec<MappingEntry<'t>>) {
        let merges = self.merges.get_or_insert_with(|| {
            let keys = self.entries.iter().enumerate();
            let positions = keys.map(|(position, entry)| (entry.key.to_string(), position)).collect();
            Merges { positions, merged: vec![false; self.entries.len()] }
        });
        for mut entry in entries {
            entry.key_span = key_span;
            match merges.positions.get(&*entry.key) {
                Some(position) => replace(&mut self.entries, *position, entry),
                None => {
                    merges.positions.insert(entry.key.to_string(), self.entries.len());
                    merges.merged.push(true);
                    self.entries.push(entry);
                }
            }
        }
    }

    pub(super) fn into_entries(self) -> Vec<MappingEntry<'t>> {
        self.entries
    }
}

fn replace<'t>(entries: &mut [MappingEntry<'t>], position: usize, entry: MappingEntry<'t>) {
    if let Some(old) = entries.get_mut(position) {
        *old = entry;
    }
}

/// Whether a key is a merge key.
pub(super) fn is_merge(key: &str, plain: bool, tag: Option<&str>) -> bool {
    let asks = match tag {
        None => plain,
        Some(tag) => tag == "!" || tag == "tag:yaml.org,2002:merge",
    };
    asks && key == "<<"
}
