//! Checks a tree against its kind's table of fields: unknown, misspelt and duplicate fields, wrong types.
//!
//! A tree without errors can be read with [`super::view::View`] without further checks. Work is linear in the tree; the
//! number of messages is limited by [`Report`].

use std::collections::HashSet;

use crate::diagnostic::Severity;
use crate::syntax::{Entry, Node, Value};

use super::codes;
use super::names;
use super::report::Report;
use super::schema::{Fields, Shape};
use super::suggest;
use super::trail::Trail;
use super::view::whole_number;

/// Checks an object.
pub(super) fn check(node: &Node<'_>, kind: &'static Fields, report: &mut Report) {
    let mut walk = Walk { kind, names: Vec::new(), report };
    walk.structure(node, kind, &Trail::ROOT);
}

struct Walk<'w> {
    kind: &'static Fields,
    /// The names of the enclosing fields, without indices.
    names: Vec<&'static str>,
    report: &'w mut Report,
}

impl Walk<'_> {
    fn value(&mut self, node: &Node<'_>, shape: &'static Shape, at: &Trail<'_>) {
        match (shape, &node.value) {
            (_, Value::Null) => {}
            (Shape::Any, value) => self.unique(value, at),
            (Shape::Struct(fields), _) => self.structure(node, fields, at),
            (Shape::StrMap, Value::Map(entries)) => self.string_map(entries, at),
            (Shape::List(item), Value::Seq(items)) => {
                for (index, node) in items.iter().enumerate() {
                    self.value(node, item, &at.index(index));
                }
            }
            (Shape::Time, Value::Str(text)) if !names::is_time(text) => {
                self.report.blemish(at, |origin| codes::wrong_type::time(origin, text));
            }
            (Shape::Str | Shape::Time | Shape::IntOrStr, Value::Str(_)) | (Shape::Bool, Value::Bool(_)) => {}
            (Shape::Int32 | Shape::Int64 | Shape::IntOrStr, Value::Int(_) | Value::Float(_)) => {
                self.number(&node.value, shape, at);
            }
            _ => self.report.blemish(at, |origin| codes::wrong_type::at(origin, shape, &node.value)),
        }
    }

    fn number(&mut self, value: &Value<'_>, shape: &'static Shape, at: &Trail<'_>) {
        match whole_number(value) {
            Some(number) if matches!(shape, Shape::Int64) || i32::try_from(number).is_ok() => {}
            Some(number) => self.report.blemish(at, |origin| codes::wrong_type::too_large(origin, number)),
            None => self.report.blemish(at, |origin| codes::wrong_type::at(origin, shape, value)),
        }
    }

    fn string_map(&mut self, entries: &[Entry<'_>], at: &Trail<'_>) {
        let mut seen = HashSet::with_capacity(entries.len());
        for entry in entries {
            let at = at.key(&entry.key);
            if !seen.insert(&entry.key) {
                self.report.blemish(&at, |origin| codes::duplicate_field::at(origin, &entry.key, Severity::Error));
            }
            self.value(&entry.value, &Shape::Str, &at);
        }
    }

    /// Duplicate keys are errors also in fields whose value is kept as it is, because the API server's decoder is
    /// strict there too.
    fn unique(&mut self, value: &Value<'_>, at: &Trail<'_>) {
        match value {
            Value::Map(entries) => {
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
            Value::Seq(items) => {
                items.iter().enumerate().for_each(|(index, item)| self.unique(&item.value, &at.index(index)));
            }
            _ => {}
        }
    }

    fn structure(&mut self, node: &Node<'_>, fields: &'static Fields, at: &Trail<'_>) {
        let entries = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => return,
            other => return self.report.blemish(at, |origin| codes::wrong_type::structure(origin, other)),
        };
        let mut seen = Seen::default();
        for entry in entries {
            let known = fields.fields.iter().position(|(name, _)| *name == entry.key);
            self.repeated(entry, fields, known, &mut seen, at);
            match known.and_then(|index| fields.fields.get(index)) {
                Some((name, shape)) => {
                    self.names.push(name);
                    self.value(&entry.value, shape, &at.field(name));
                    self.names.pop();
                }
                None if fields.strict => self.unknown(entry, fields, at),
                None => {}
            }
        }
    }

    fn repeated<'n>(
        &mut self,
        entry: &'n Entry<'_>,
        fields: &Fields,
        known: Option<usize>,
        seen: &mut Seen<'n>,
        at: &Trail<'_>,
    ) {
        let first = match known {
            Some(index) => seen.known(index),
            None if fields.strict => seen.unknown.insert(&entry.key),
            None => true,
        };
        if first {
            return;
        }
        let (at, name) = (at.field(&entry.key), &entry.key);
        match fields.strict {
            true => self.report.blemish(&at, |origin| codes::duplicate_field::at(origin, name, Severity::Error)),
            false => self.report.warn(&at, |origin| codes::duplicate_field::at(origin, name, Severity::Warning)),
        }
    }

    fn unknown(&mut self, entry: &Entry<'_>, fields: &'static Fields, at: &Trail<'_>) {
        let (kind, names) = (self.kind, &self.names);
        self.report.blemish(&at.field(&entry.key), |origin| {
            let nearest = suggest::nearest(&entry.key, fields.fields.iter().map(|(name, _)| *name));
            let elsewhere = suggest::elsewhere(kind, names, &entry.key);
            codes::unknown_field::at(origin, &entry.key, nearest, elsewhere, fields)
        });
    }
}

/// The fields of one structure that occurred already.
#[derive(Default)]
struct Seen<'n> {
    /// A bit for each field of the table; no kind has more than 32 on one level.
    known: u32,
    unknown: HashSet<&'n str>,
}

impl Seen<'_> {
    /// Whether this field occurs for the first time.
    fn known(&mut self, index: usize) -> bool {
        let bit = 1u32.checked_shl(index as u32).unwrap_or_default();
        let first = self.known & bit == 0;
        self.known |= bit;
        first
    }
}
