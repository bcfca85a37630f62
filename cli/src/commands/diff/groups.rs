//! Rows for people: the same change in many namespaces is one row.

use std::collections::BTreeSet;

use weir_analysis::diff::{Diff, DiffRow, RowEnd};

use super::cause_lines::CauseLines;
use super::text::SECTIONS;
use super::wording::DiffWording;
use crate::views::namespaces::{self, NamespaceNames, RepeatedRow};

/// The rows of a section under its title.
pub(super) struct DiffSection {
    pub(super) title: String,
    /// The fields of each are: from, to, what.
    pub(super) rows: Vec<RepeatedRow>,
}

/// The sections, at most a number of their rows, and the number of rows that are left out.
pub(super) struct DiffSections {
    pub(super) sections: Vec<DiffSection>,
    pub(super) left_out: usize,
}

/// The rows of each section that has any. Rows that a gate refuses are in sections of their own, before all others.
pub(super) fn sections(words: &DiffWording<'_, '_>, most: usize) -> DiffSections {
    let rows = &words.compared.diff.rows;
    let mut found = DiffSections { sections: Vec::new(), left_out: 0 };
    let mut room = most;
    for is_refused in [true, false] {
        for (title, wanted) in SECTIONS {
            let is_in = |it: &usize| wanted(&rows[*it]) && words.compared.ruling(*it).is_refused() == is_refused;
            let of_section: Vec<usize> = (0..rows.len()).filter(is_in).collect();
            let title = if is_refused { format!("{title}, and refused") } else { title.to_owned() };
            let mut joined = joined(words, &of_section);
            found.left_out += joined.len().saturating_sub(room);
            joined.truncate(room);
            room -= joined.len();
            if !joined.is_empty() {
                found.sections.push(DiffSection { title, rows: joined });
            }
        }
    }
    found
}

/// Rows that differ only in their namespace together. The lines of policies may differ, all other words must not.
fn joined(words: &DiffWording<'_, '_>, rows: &[usize]) -> Vec<RepeatedRow> {
    let none = CauseLines::default();
    let without_lines = DiffWording { compared: words.compared, namer: words.namer, places: &none };
    let texts: Vec<_> = rows
        .iter()
        .map(|index| {
            let row = &words.compared.diff.rows[*index];
            let fields = vec![words.from(row), words.to(row), words.what(row)];
            let also = format!("{:?} {:?} {}", row.presence, row.change, without_lines.reasons(*index).join("; "));
            (own_namespace(&words.compared.diff, row), fields, also)
        })
        .collect();
    let mut found = namespaces::joined(&texts);
    found.iter_mut().flat_map(|it| &mut it.rows).for_each(|place| *place = rows[*place]);
    found
}

/// The namespace that a row is about: that of its destinations, or else that of its sources.
fn own_namespace(diff: &Diff, row: &DiffRow) -> Option<String> {
    [&row.destination, &row.source].into_iter().find_map(|end| only_namespace(diff, end))
}

fn only_namespace(diff: &Diff, end: &RowEnd) -> Option<String> {
    let of_pods: Option<BTreeSet<&str>> = end.pods.iter().map(|it| it.only_namespace()).collect();
    let of_endpoints = || end.endpoints.iter().map(|it| diff.endpoints[*it as usize].namespace.as_str()).collect();
    let found: BTreeSet<&str> = if end.pods.is_empty() { of_endpoints() } else { of_pods? };
    match found.into_iter().collect::<Vec<_>>()[..] {
        [only] => Some(only.to_owned()),
        _ => None,
    }
}

/// The namespaces of both sides.
pub(super) fn known(words: &DiffWording<'_, '_>) -> NamespaceNames {
    let of = |which: usize| words.compared.sides[which].cluster.namespaces.iter().map(|it| it.name.as_str());
    NamespaceNames::new(of(0).chain(of(1)))
}

/// The namespace of some endpoints, if they share it.
pub(super) fn of_endpoints(diff: &Diff, endpoints: &[u32]) -> Option<String> {
    only_namespace(diff, &RowEnd { endpoints: endpoints.to_vec(), ..RowEnd::default() })
}
