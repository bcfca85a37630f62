//! The matrix as text: numbered rows and columns, a legend for the letters, at most as wide as the output.
//!
//! Namespaces that could be exchanged share rows and columns ([`super::folded_table`]). Columns that do not fit follow in
//! further tables.

use super::folded_table::{FoldedTable, TableLine};
use super::table::{CellKind, ReachMatrix, marks};
use crate::page::{OutputPage, Style};

/// Text for people, with at most `most` rows and columns.
pub(crate) fn text(table: &ReachMatrix, mut page: OutputPage, most: usize) -> OutputPage {
    let (marks, folded) = (marks(table), FoldedTable::new(table));
    let all = &folded.lines;
    let is_shown = |it: &TableLine, other: &TableLine| {
        let (within, between) = folded.values(it, other);
        [Some(within), between].into_iter().flatten().any(|it| table.values[it].kind != CellKind::Hidden)
    };
    let rows: Vec<(usize, &TableLine)> =
        (1..).zip(all).take(most).filter(|(_, it)| all.iter().any(|to| is_shown(it, to))).collect();
    let columns: Vec<(usize, &TableLine)> =
        (1..).zip(all).take(most).filter(|(_, it)| all.iter().any(|from| is_shown(from, it))).collect();
    let cell = |from: &TableLine, to: &TableLine| match folded.values(from, to) {
        (within, None) => (style(table, within), marks[within].clone()),
        (within, Some(between)) => (style(table, within), format!("{}/{}", marks[within], marks[between])),
    };
    let digits = all.len().to_string().len();
    let widest = rows.iter().flat_map(|(_, from)| columns.iter().map(|(_, to)| cell(from, to).1.chars().count())).max();
    let cell_width = widest.unwrap_or(1).max(digits) + 1;
    let room = page.width().unwrap_or(usize::MAX);
    let longest = rows.iter().map(|(_, it)| it.label.chars().count()).max().unwrap_or(0).max("from, to:".len());
    let names = longest.min((room / 2).max(12));
    let at_once = (room.saturating_sub(digits + 1 + names) / cell_width).max(1);
    for (index, part) in columns.chunks(at_once).enumerate() {
        if index > 0 {
            page.blank();
        }
        let numbers: String = part.iter().map(|(number, _)| format!("{number:>cell_width$}")).collect();
        page.line(format_args!("{:>digits$} {:names$}{numbers}", "", "from, to:"));
        for (number, from) in &rows {
            row(&mut page, &format!("{number:>digits$} {:names$}", cut(&from.label, names)), |pieces| {
                pieces.extend(part.iter().map(|(_, to)| {
                    let (style, mark) = cell(from, to);
                    (style, format!("{mark:>cell_width$}"))
                }));
            });
        }
    }
    legend(&mut page, &folded, &marks, &rows, &columns);
    let cut_names = rows.iter().filter(|(_, it)| it.label.chars().count() > names);
    cut_names.for_each(|(number, it)| page.folded_line(4, format_args!("{number:>digits$} is {}", it.label)));
    folded.legend().iter().for_each(|line| page.folded_line(4, line));
    if all.len() > most {
        page.line(format_args!("and {} more rows and columns (--max 0 shows all)", all.len() - most));
    }
    page
}

fn row(page: &mut OutputPage, head: &str, fill: impl FnOnce(&mut Vec<(Style, String)>)) {
    let mut pieces = vec![(Style::Plain, head.to_owned())];
    fill(&mut pieces);
    while pieces.last().is_some_and(|(_, text)| text.trim().is_empty()) {
        pieces.pop();
    }
    if let [(_, only)] = &mut pieces[..] {
        only.truncate(only.trim_end().len());
    }
    let shown: Vec<(Style, &dyn std::fmt::Display)> = pieces.iter().map(|(style, text)| (*style, text as _)).collect();
    page.pieces(&shown);
}

/// The meaning of the marks that occur.
fn legend(
    page: &mut OutputPage,
    folded: &FoldedTable<'_>,
    marks: &[String],
    rows: &[(usize, &TableLine)],
    columns: &[(usize, &TableLine)],
) {
    let table = folded.table;
    let (mut seen, mut is_double) = (vec![false; table.values.len()], false);
    for (_, from) in rows {
        for (_, to) in columns {
            let (within, between) = folded.values(from, to);
            seen[within] = true;
            if let Some(between) = between {
                (seen[between], is_double) = (true, true);
            }
        }
    }
    page.blank();
    let width = marks.iter().map(|it| it.chars().count()).max().unwrap_or(1).max(3);
    let mut shown: Vec<(&str, &str)> = Vec::new();
    for (index, value) in table.values.iter().enumerate().filter(|(index, _)| seen[*index]) {
        // Namespaces of different sizes have different sums, which may read the same.
        let entry = (marks[index].as_str(), value.words.as_str());
        if !matches!(value.kind, CellKind::Void | CellKind::Hidden) && !shown.contains(&entry) {
            shown.push(entry);
            let mark = format!("{:>width$}", marks[index]);
            page.folded(width + 2, &[(style(table, index), &mark), (Style::Plain, &format_args!("  {}", value.words))]);
        }
    }
    if is_double {
        let pair = "x/y";
        page.folded_line(width + 2, format_args!("{pair:>width$}  x within a namespace, y between two namespaces"));
    }
}

fn style(table: &ReachMatrix, value: usize) -> Style {
    match table.values[value].kind {
        CellKind::Everything | CellKind::Part => Style::Green,
        CellKind::Nothing => Style::Red,
        CellKind::Void | CellKind::Hidden => Style::Plain,
    }
}

/// A name that is too long, without its middle. Its number is in the same line, and the whole name below the table.
fn cut(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width {
        return text.to_owned();
    }
    let (first, last) = (width.div_ceil(2) - 1, width / 2);
    letters[..first].iter().chain(['…'].iter()).chain(&letters[letters.len() - last..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_loses_its_middle() {
        assert_eq!(cut("abcdefghij", 5), "ab…ij");
        assert_eq!(cut("abcde", 5), "abcde");
    }
}
