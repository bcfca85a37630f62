//! The matrix: sources (rows), destinations (columns), and the allowed traffic as letters.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_analysis::reach::edges::{self, EndGroup, NamespaceOrOutside, Sum};
use weir_analysis::reach::{CellCache, Passes, Reach, ReachEnd};

use super::filter::ReachFilter;
use super::folded_table::EndName;
use super::words;
use crate::args::ViewLevel;
use crate::page::OutputPage;

/// A matrix whose rows and columns are the same ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReachMatrix {
    pub(crate) ends: Vec<String>,
    /// For each row and column an index into the values.
    pub(crate) cells: Vec<Vec<usize>>,
    pub(crate) values: Vec<Cell>,
    /// The ends' names in parts.
    pub(super) names: Vec<EndName>,
    json: Vec<Value>,
    /// The number of ends before a filter.
    pub(crate) all: usize,
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) words: String,
    pub(crate) kind: CellKind,
    json: Value,
}

/// How a cell is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellKind {
    /// Policies do not apply: both ends are outside, or source and destination have no address family in common.
    Void,
    /// A filter leaves it out.
    Hidden,
    Nothing,
    /// Only some ports, or only some pairs, are allowed.
    Part,
    Everything,
}

/// The table of a cluster; of a part of it, if there is a filter.
pub(crate) fn table(
    reach: &Reach<'_>,
    level: ViewLevel,
    filter: Option<ReachFilter<'_>>,
    watch: &dyn Fn(u64, u64),
) -> ReachMatrix {
    let mut cells = CellCache::new(reach).watched(watch);
    let mut table = ReachMatrix::default();
    match level {
        ViewLevel::Namespace => {
            let sums = table.fill_by_namespace(reach, &mut cells);
            let places = edges::places(reach);
            let ends = reach.all_ends();
            let of = |place| ends.iter().copied().filter(|it| edges::place_of(reach, *it) == place).collect();
            let members: Vec<Vec<ReachEnd>> = places.into_iter().map(of).collect();
            table.restrict(filter, &members, |from, to| {
                let any = sums.get(&(from, to)).map(|it| Passes::Cell(it.any));
                any.is_some_and(|it| filter.is_none_or(|filter| filter.has_port(&cells, it)))
            });
        }
        ViewLevel::Workload | ViewLevel::Auto => {
            table.fill_by_workload(reach, &mut cells);
            let ends = reach.all_ends();
            let members: Vec<Vec<ReachEnd>> = ends.iter().map(|it| vec![*it]).collect();
            table.restrict(filter, &members, |from, to| {
                let passes = cells.passes(ends[from], ends[to]);
                passes.is_some_and(|it| filter.is_none_or(|filter| filter.has_port(&cells, it)))
            });
        }
    }
    table
}

impl ReachMatrix {
    fn fill_by_workload(&mut self, reach: &Reach<'_>, cells: &mut CellCache<'_>) {
        let ends = reach.all_ends();
        for who in &ends {
            let group = match who {
                ReachEnd::Party(index) => EndGroup::Party(*index),
                ReachEnd::Zone(index) => EndGroup::Ranges(reach.zones[*index as usize].ranges.clone()),
            };
            let name = words::group(reach, &group);
            self.names.push(EndName::of_workload(reach, *who, &name));
            self.ends.push(name);
            self.json.push(words::group_json(reach, &group));
        }
        let mut known: Vec<(Option<Passes>, usize)> = Vec::new();
        for (index, from) in ends.iter().enumerate() {
            cells.report(index, ends.len());
            let row = ends.iter().map(|to| {
                let passes = cells.passes(*from, *to);
                self.number(&mut known, passes, |passes| match passes {
                    None => Cell::void(),
                    Some(passes) => Cell {
                        words: cells.words(*passes),
                        kind: CellKind::of(*passes),
                        json: json!({"passes": words::passes_json(reach, cells, *passes)}),
                    },
                })
            });
            let row = row.collect();
            self.cells.push(row);
        }
    }

    /// Returns the sums: by the indexes of row and column.
    fn fill_by_namespace(&mut self, reach: &Reach<'_>, cells: &mut CellCache<'_>) -> BTreeMap<(usize, usize), Sum> {
        let places: Vec<NamespaceOrOutside> = edges::places(reach);
        let group = |place: &NamespaceOrOutside| place.map_or(EndGroup::Outside, EndGroup::Namespace);
        self.ends = places.iter().map(|it| words::place(reach, *it)).collect();
        self.names = places.iter().map(|it| EndName::of_place(reach, *it)).collect();
        self.json = places.iter().map(|it| words::group_json(reach, &group(it))).collect();
        let sums = edges::sums(reach, cells);
        let mut known: Vec<(Option<Sum>, usize)> = Vec::new();
        for from in 0..places.len() {
            let row = (0..places.len()).map(|to| {
                let sum = sums.get(&(from, to)).cloned();
                self.number(&mut known, sum, |sum| {
                    sum.as_ref().map_or_else(Cell::void, |sum| summed(reach, cells, sum))
                })
            });
            let row = row.collect();
            self.cells.push(row);
        }
        sums
    }

    /// Keeps the ends between which a filter shows any traffic, and hides cells that it leaves out.
    fn restrict(
        &mut self,
        filter: Option<ReachFilter<'_>>,
        members: &[Vec<ReachEnd>],
        mut has_port: impl FnMut(usize, usize) -> bool,
    ) {
        self.all = self.ends.len();
        let Some(filter) = filter else { return };
        let hidden = self.values.len();
        self.values.push(Cell { words: String::new(), kind: CellKind::Hidden, json: json!({}) });
        let mut kept = vec![false; self.ends.len()];
        for from in 0..self.ends.len() {
            for to in 0..self.ends.len() {
                let kind = self.values[self.cells[from][to]].kind;
                let is_asked = filter.takes_places(&members[from], &members[to]);
                if !is_asked || kind == CellKind::Void || (kind != CellKind::Nothing && !has_port(from, to)) {
                    self.cells[from][to] = hidden;
                } else if kind != CellKind::Nothing {
                    (kept[from], kept[to]) = (true, true);
                }
            }
        }
        let keep = |index: &usize| kept[*index];
        let indexes: Vec<usize> = (0..self.ends.len()).filter(keep).collect();
        self.ends = indexes.iter().map(|it| self.ends[*it].clone()).collect();
        self.names = indexes.iter().map(|it| self.names[*it].clone()).collect();
        self.json = indexes.iter().map(|it| self.json[*it].clone()).collect();
        self.cells = indexes.iter().map(|from| indexes.iter().map(|to| self.cells[*from][*to]).collect()).collect();
    }

    fn number<T: PartialEq>(&mut self, known: &mut Vec<(T, usize)>, of: T, make: impl FnOnce(&T) -> Cell) -> usize {
        if let Some((_, index)) = known.iter().find(|(it, _)| *it == of) {
            return *index;
        }
        let index = self.values.len();
        self.values.push(make(&of));
        known.push((of, index));
        index
    }
}

fn summed(reach: &Reach<'_>, cells: &CellCache<'_>, sum: &Sum) -> Cell {
    let (any, all) = (Passes::Cell(sum.any), Passes::Cell(sum.all));
    let json = json!({
        "pairs": sum.pairs,
        "passing": sum.passing,
        "any": words::passes_json(reach, cells, any),
        "all": words::passes_json(reach, cells, all),
    });
    let words = match (sum.any == sum.all, sum.passing == sum.pairs) {
        (true, _) => cells.words(any),
        (false, true) => format!("at most {}, at least {}", cells.words(any), cells.words(all)),
        (false, false) => format!("{} of {} pairs, at most {}", sum.passing, sum.pairs, cells.words(any)),
    };
    let kind = if sum.any == sum.all { CellKind::of(any) } else { CellKind::Part };
    Cell { words, kind, json }
}

impl Cell {
    fn void() -> Self {
        Self { words: "not decided by policy".to_owned(), kind: CellKind::Void, json: json!({}) }
    }
}

impl CellKind {
    fn of(passes: Passes) -> Self {
        match passes {
            Passes::NOTHING => Self::Nothing,
            Passes::EVERYTHING => Self::Everything,
            _ => Self::Part,
        }
    }

    /// The name of the kind in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Void => "void",
            Self::Hidden => "hidden",
            Self::Nothing => "nothing",
            Self::Part => "part",
            Self::Everything => "everything",
        }
    }
}

/// Marks for the values: `*` is everything, `.` nothing, and letters the rest in order of occurrence.
pub(super) fn marks(table: &ReachMatrix) -> Vec<String> {
    let mut is_used = vec![false; table.values.len()];
    table.cells.iter().flatten().for_each(|it| is_used[*it] = true);
    let mut next = 0;
    let mut mark = |(cell, is_used): (&Cell, &bool)| match cell.kind {
        _ if !is_used => String::new(),
        CellKind::Void | CellKind::Hidden => String::new(),
        CellKind::Nothing => ".".to_owned(),
        CellKind::Everything => "*".to_owned(),
        CellKind::Part => {
            next += 1;
            letters(next - 1)
        }
    };
    table.values.iter().zip(&is_used).map(&mut mark).collect()
}

/// a, b … z, aa, ab …
fn letters(number: usize) -> String {
    let last = char::from(b'a' + (number % 26) as u8);
    if number < 26 { last.to_string() } else { letters(number / 26 - 1) + &last.to_string() }
}

/// Markdown, for pull requests.
pub(crate) fn md(table: &ReachMatrix) -> OutputPage {
    let mut page = OutputPage::new();
    let ends: String = table.ends.iter().map(|end| format!(" {} |", words::md(end))).collect();
    page.line(format_args!("| from \\ to |{ends}"));
    page.line(format_args!("| --- |{}", " --- |".repeat(table.ends.len())));
    for (end, row) in table.ends.iter().zip(&table.cells) {
        let cells: String = row.iter().map(|cell| format!(" {} |", words::md(table.words(*cell)))).collect();
        page.line(format_args!("| **{}** |{cells}", words::md(end)));
    }
    page
}

/// CSV, for spreadsheets.
pub(crate) fn csv(table: &ReachMatrix) -> OutputPage {
    let mut page = OutputPage::new();
    let ends: String = table.ends.iter().map(|end| format!(",{}", words::csv(end))).collect();
    page.line(format_args!("from{ends}"));
    for (end, row) in table.ends.iter().zip(&table.cells) {
        let cells: String = row.iter().map(|cell| format!(",{}", words::csv(table.words(*cell)))).collect();
        page.line(format_args!("{}{cells}", words::csv(end)));
    }
    page
}

/// One document: docs/schema/matrix.json.
pub(crate) fn json(
    table: &ReachMatrix,
    level: ViewLevel,
    filter: Option<ReachFilter<'_>>,
) -> serde_json::Result<OutputPage> {
    let values: Vec<Value> = table
        .values
        .iter()
        .map(|cell| {
            let mut value = json!({"kind": cell.kind.name(), "words": cell.words});
            if let (Value::Object(value), Value::Object(more)) = (&mut value, cell.json.clone()) {
                value.extend(more);
            }
            value
        })
        .collect();
    let mut document = json!({"by": level.name(), "ends": table.json, "values": values, "cells": table.cells});
    if let Some(filter) = filter {
        document["filter"] = json!(filter.filter.json(table.ends.len(), table.all));
    }
    let mut page = OutputPage::new();
    page.json(&document)?;
    Ok(page)
}

impl ReachMatrix {
    fn words(&self, cell: usize) -> &str {
        match self.values[cell].kind {
            CellKind::Void | CellKind::Hidden => "",
            _ => &self.values[cell].words,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A matrix whose values are nothing and everything.
    pub(in crate::views) fn matrix(names: Vec<EndName>, cells: Vec<Vec<usize>>) -> ReachMatrix {
        let value = |kind| Cell { words: String::new(), kind, json: json!({}) };
        let ends: Vec<String> = names.iter().map(EndName::whole).collect();
        let values = vec![value(CellKind::Nothing), value(CellKind::Everything)];
        ReachMatrix { all: ends.len(), ends, cells, values, names, json: Vec::new() }
    }
}
