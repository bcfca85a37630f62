//! The matrix: sources (rows), destinations (columns), and the allowed traffic as letters.

use serde_json::{Value, json};
use weir_analysis::reach::edges::{self, EndGroup, NamespaceOrOutside, Sum};
use weir_analysis::reach::{CellCache, Passes, Reach, ReachEnd};

use super::words;
use crate::args::Level;
use crate::page::Page;

/// A matrix whose rows and columns are the same ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) ends: Vec<String>,
    /// For each row and column an index into the values.
    pub(crate) cells: Vec<Vec<usize>>,
    pub(crate) values: Vec<Cell>,
    json: Vec<Value>,
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) words: String,
    pub(crate) kind: Kind,
    json: Value,
}

/// How a cell is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Policies do not apply: both ends are outside, or the ends have no address family in common.
    Void,
    Nothing,
    /// Only some ports, or only some pairs, are allowed.
    Part,
    Everything,
}

/// The table of a cluster.
pub(crate) fn table(reach: &Reach<'_>, level: Level) -> Table {
    let mut cells = CellCache::new(reach);
    let mut table = Table { ends: Vec::new(), cells: Vec::new(), values: Vec::new(), json: Vec::new() };
    match level {
        Level::Namespace => table.fill_by_namespace(reach, &mut cells),
        Level::Workload | Level::Auto => table.fill_by_workload(reach, &mut cells),
    }
    table
}

impl Table {
    fn fill_by_workload(&mut self, reach: &Reach<'_>, cells: &mut CellCache<'_>) {
        let ends = reach.all_ends();
        for who in &ends {
            let group = match who {
                ReachEnd::Party(index) => EndGroup::Party(*index),
                ReachEnd::Zone(index) => EndGroup::Ranges(reach.zones[*index as usize].ranges.clone()),
            };
            self.ends.push(words::group(reach, &group));
            self.json.push(words::group_json(reach, &group));
        }
        let mut known: Vec<(Option<Passes>, usize)> = Vec::new();
        for from in &ends {
            let row = ends.iter().map(|to| {
                let passes = cells.passes(*from, *to);
                self.number(&mut known, passes, |passes| match passes {
                    None => Cell::void(),
                    Some(passes) => Cell {
                        words: cells.words(*passes),
                        kind: Kind::of(*passes),
                        json: json!({"passes": words::passes_json(reach, cells, *passes)}),
                    },
                })
            });
            let row = row.collect();
            self.cells.push(row);
        }
    }

    fn fill_by_namespace(&mut self, reach: &Reach<'_>, cells: &mut CellCache<'_>) {
        let places: Vec<NamespaceOrOutside> = edges::places(reach);
        let group = |place: &NamespaceOrOutside| place.map_or(EndGroup::Outside, EndGroup::Namespace);
        self.ends = places.iter().map(|it| words::place(reach, *it)).collect();
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
    let kind = if sum.any == sum.all { Kind::of(any) } else { Kind::Part };
    Cell { words, kind, json }
}

impl Cell {
    fn void() -> Self {
        Self { words: "not decided by policy".to_owned(), kind: Kind::Void, json: json!({}) }
    }
}

impl Kind {
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
            Self::Nothing => "nothing",
            Self::Part => "part",
            Self::Everything => "everything",
        }
    }
}

/// Marks for the values: `*` is everything, `.` nothing, and letters the rest in order of occurrence.
fn marks(table: &Table) -> Vec<String> {
    let mut next = 0;
    let mut mark = |cell: &Cell| match cell.kind {
        Kind::Void => String::new(),
        Kind::Nothing => ".".to_owned(),
        Kind::Everything => "*".to_owned(),
        Kind::Part => {
            next += 1;
            letters(next - 1)
        }
    };
    table.values.iter().map(&mut mark).collect()
}

/// a, b … z, aa, ab …
fn letters(number: usize) -> String {
    let last = char::from(b'a' + (number % 26) as u8);
    if number < 26 { last.to_string() } else { letters(number / 26 - 1) + &last.to_string() }
}

/// Text for people: numbered columns, and a legend for the letters.
pub(crate) fn text(table: &Table) -> Page {
    let marks = marks(table);
    let digits = table.ends.len().to_string().len();
    let width = marks.iter().map(String::len).max().unwrap_or(1).max(digits) + 1;
    let names = table.ends.iter().map(|it| it.chars().count()).max().unwrap_or(0);
    let mut page = Page::new();
    let numbers: String = (1..=table.ends.len()).map(|number| format!("{number:>width$}")).collect();
    page.line(format_args!("{:>digits$} {:names$}{numbers}", "", "from, to:"));
    for ((number, end), row) in (1..).zip(&table.ends).zip(&table.cells) {
        let mut line = format!("{number:>digits$} {end:names$}");
        row.iter().for_each(|cell| line.push_str(&format!("{:>width$}", marks[*cell])));
        page.line(line.trim_end());
    }
    page.blank();
    for (mark, cell) in marks.iter().zip(&table.values).filter(|(_, cell)| cell.kind != Kind::Void) {
        page.line(format_args!("{mark:>width$}  {}", cell.words));
    }
    page
}

/// Markdown, for pull requests.
pub(crate) fn md(table: &Table) -> Page {
    let mut page = Page::new();
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
pub(crate) fn csv(table: &Table) -> Page {
    let mut page = Page::new();
    let ends: String = table.ends.iter().map(|end| format!(",{}", words::csv(end))).collect();
    page.line(format_args!("from{ends}"));
    for (end, row) in table.ends.iter().zip(&table.cells) {
        let cells: String = row.iter().map(|cell| format!(",{}", words::csv(table.words(*cell)))).collect();
        page.line(format_args!("{}{cells}", words::csv(end)));
    }
    page
}

/// One document: docs/schema/matrix.json.
pub(crate) fn json(table: &Table, level: Level) -> serde_json::Result<Page> {
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
    let document = json!({"by": level.name(), "ends": table.json, "values": values, "cells": table.cells});
    let mut page = Page::new();
    page.json(&document)?;
    Ok(page)
}

impl Table {
    fn words(&self, cell: usize) -> &str {
        match self.values[cell].kind {
            Kind::Void => "",
            _ => &self.values[cell].words,
        }
    }
}
