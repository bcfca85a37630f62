//! Checks a tree against its kind's table of fields: unknown, misspelt and duplicate fields, wrong types.
//!
//! A tree without errors can be read with [`super::view::ValueView`] without further checks. Work is linear in the
//! tree; the number of messages is limited by [`ObjectFindings`].

use std::collections::HashSet;

use crate::diagnostic::Severity;
use crate::syntax::{MappingEntry, SyntaxNode, SyntaxValue};

use super::codes;
use super::names;
use super::report::ObjectFindings;
use super::schema::{Fields, Others, ValueType};
use super::suggest;
use super::trail::Trail;
use super::view::whole_number;

/// Checks an object.
pub(super) fn check(node: &SyntaxNode<'_>, kind: &'static Fields, report: &mut ObjectFindings) {
    let mut walk = FieldWalk { kind, names: Vec::new(), report };
    walk.structure(node, kind, &Trail::ROOT);
}

struct FieldWalk<'w> {
    kind: &'static Fields,
    /// The names of the enclosing fields, without indices.
    names: Vec<&'static str>,
    report: &'w mut ObjectFindings,
}

impl FieldWalk<'_> {
    fn value(&mut self, node: &SyntaxNode<'_>, shape: &'static ValueType, at: &Trail<'_>) {
        match (shape, &node.value) {
            (_, SyntaxValue::Null) => {}
            (ValueType::Any, value) => self.unique(value, at),
            (ValueType::Struct(fields), _) => self.structure(node, fields, at),
            (ValueType::StrMap, SyntaxValue::Map(entries)) => self.string_map(entries, at),
            (ValueType::List(item), SyntaxValue::Seq(items)) => {
                for (index, node) in items.iter().enumerate() {
                    self.value(node, item, &at.index(index));
                }
            }
            (ValueType::Time, SyntaxValue::Str(text)) if !names::is_time(text) => {
                self.report.blemish(at, |origin| codes::wrong_type::time(origin, text));
            }
            (ValueType::Str | ValueType::Time | ValueType::IntOrStr, SyntaxValue::Str(_))
            | (ValueType::Bool, SyntaxValue::Bool(_)) => {}
            (
                ValueType::Int32 | ValueType::Int64 | ValueType::IntOrStr,
                SyntaxValue::Int(_) | SyntaxValue::Float(_),
            ) => {
                self.number(&node.value, shape, at);
            }
            _ => self.report.blemish(at, |origin| codes::wrong_type::at(origin, shape, &node.value)),
        }
    }

    fn number(&mut self, value: &SyntaxValue<'_>, shape: &'static ValueType, at: &Trail<'_>) {
        match whole_number(value) {
            Some(number) if matches!(shape, ValueType::Int64) || i32::try_from(number).is_ok() => {}
            Some(number) => self.report.blemish(at, |origin| codes::wrong_type::too_large(origin, number)),
            None => self.report.blemish(at, |origin| codes::wrong_type::at(origin, shape, value)),
        }
    }

    fn string_map(&mut self, entries: &[MappingEntry<'_>], at: &Trail<'_>) {
        let mut seen = HashSet::with_capacity(entries.len());
        for entry in entries {
            let at = at.key(&entry.key);
            if !seen.insert(&entry.key) {
                self.report.blemish(&at, |origin| codes::duplicate_field::at(origin, &entry.key, Severity::Error));
            }
            self.value(&entry.value, &ValueType::Str, &at);
        }
    }

    /// Duplicate keys are errors also in fields whose value is kept as it is, because the API server's decoder is
    /// strict there too.
    fn unique(&mut self, value: &SyntaxValue<'_>, at: &Trail<'_>) {
        match value {
            SyntaxValue::Map(entries) => {
                let mut seen = HashSet::with_capacity(entries.len());
                for entry in entries {
                    let at = at.key(&entry.key);
                    if !seen.insert(&entry.key) {
                        let name = &entry.key;
                        self.report.blemish(&at, |origin| codes::duplicate_field::at(origin, name, Severity::Error));
                    }
                    self.unique(&entry.value.value, &at);
                }
            }
            SyntaxValue::Seq(items) => {
                items.iter().enumerate().for_each(|(index, item)| self.unique(&item.value, &at.index(index)));
            }
            _ => {}
        }
    }

    fn structure(&mut self, node: &SyntaxNode<'_>, fields: &'static Fields, at: &Trail<'_>) {
        let entries = match &node.value {
            SyntaxValue::Map(entries) => entries,
            SyntaxValue::Null => return,
            other => return self.report.blemish(at, |origin| codes::wrong_type::structure(origin, other)),
        };
        let mut seen = SeenFields::default();
        for entry in entries {
            let known = fields.fields.iter().position(|(name, _)| *name == entry.key);
            self.repeated(entry, fields, known, &mut seen, at);
            match known.and_then(|index| fields.fields.get(index)) {
                Some((name, shape)) => {
                    self.names.push(name);
                    self.value(&entry.value, shape, &at.field(name));
                    self.names.pop();
                }
                None if fields.others == Others::Refused => self.unknown(entry, fields, at),
                None => {}
            }
        }
    }

    fn repeated<'n>(
        &mut self,
        entry: &'n MappingEntry<'_>,
        fields: &Fields,
        known: Option<usize>,
        seen: &mut SeenFields<'n>,
        at: &Trail<'_>,
    ) {
        let first = match known {
            Some(index) => seen.known(index),
            None if fields.others == Others::Ignored => true,
            None => seen.unknown.insert(&entry.key),
        };
        if first {
            return;
        }
        let (at, name) = (at.field(&entry.key), &entry.key);
        match fields.others {
            Others::Refused | Others::LeftToReader => {
                self.report.blemish(&at, |origin| codes::duplicate_field::at(origin, name, Severity::Error));
            }
            Others::Ignored => {
                self.report.warn(&at, |origin| codes::duplicate_field::at(origin, name, Severity::Warning))
            }
        }
    }

    fn unknown(&mut self, entry: &MappingEntry<'_>, fields: &'static Fields, at: &Trail<'_>) {
        let (kind, names) = (self.kind, &self.names);
        self.report.blemish(&at.field(&entry.key), |origin| {
            let nearest = suggest::nearest(&entry.key, fields.fields.iter().map(|(name, _)| *name));
            let elsewhere = suggest::elsewhere(kind, names, &entry.key);
            codes::unknown_field::at(origin, (&entry.key, &entry.value.value), nearest, elsewhere, fields)
        });
    }
}

/// The fields of one structure that occurred already.
#[derive(Default)]
struct SeenFields<'n> {
    /// A bit for each field of the table; no kind has more than 32 on one level.
    known: u32,
    unknown: HashSet<&'n str>,
}

impl SeenFields<'_> {
    /// Whether this field occurs for the first time.
    fn known(&mut self, index: usize) -> bool {
        let bit = 1u32.checked_shl(index as u32).unwrap_or_default();
        let first = self.known & bit == 0;
        self.known |= bit;
        first
    }
}
