//! The matrix as text: numbered rows and columns, a legend for the letters, at most as wide as the output.
//!
//! Problem: 200 namespaces are 200 columns. Strategy: namespaces that could be exchanged without changing the matrix are
//! one group, and share rows and columns. Within a group a cell has two values: between ends of the same namespace, and
//! between ends of two namespaces. Columns that do not fit follow in further tables.
//! Invariant: the matrix of groups says the same about each pair of ends as the whole matrix.

use weir_analysis::reach::edges::NamespaceOrOutside;
use weir_analysis::reach::{Reach, ReachEnd};

use super::namespaces::{NamespaceNames, VARIABLE};
use super::table::{CellKind, ReachMatrix, marks};
use crate::page::{OutputPage, Style};

/// Fewer namespaces are shown one by one.
const FEWEST: usize = 3;

/// The name of an end in parts: the namespace if it has one, and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndName {
    namespace: Option<String>,
    name: String,
}

impl EndName {
    pub(super) fn of_workload(reach: &Reach<'_>, end: ReachEnd, text: &str) -> Self {
        match end {
            ReachEnd::Party(index) => {
                let party = &reach.parties[index as usize];
                let namespace = reach.namespace(party.namespace).to_owned();
                Self { namespace: Some(namespace), name: format!("/{}", party.name) }
            }
            ReachEnd::Zone(_) => Self { namespace: None, name: text.to_owned() },
        }
    }

    /// The whole name.
    #[cfg(test)]
    pub(super) fn whole(&self) -> String {
        format!("{}{}", self.namespace.as_deref().unwrap_or_default(), self.name)
    }

    pub(super) fn of_place(reach: &Reach<'_>, place: NamespaceOrOutside) -> Self {
        match place {
            Some(id) => Self { namespace: Some(reach.namespace(id).to_owned()), name: String::new() },
            None => Self { namespace: None, name: super::words::OUTSIDE.to_owned() },
        }
    }
}

/// Rows and columns of the text: an end, or the same end of each namespace of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TextLine {
    label: String,
    /// The ends, one for each namespace of the group.
    ends: Vec<usize>,
    /// The number of the group.
    group: usize,
}

/// A group of exchangeable namespaces.
struct NamespaceGroup {
    namespaces: Vec<String>,
    /// The ends of each namespace.
    blocks: Vec<Vec<usize>>,
}

/// Ends by namespace: the blocks that can be exchanged.
fn blocks(table: &ReachMatrix) -> Vec<Vec<usize>> {
    let indexes: Vec<usize> = (0..table.ends.len()).collect();
    let same = |a: &usize, b: &usize| {
        table.names[*a].namespace.is_some() && table.names[*a].namespace == table.names[*b].namespace
    };
    indexes.chunk_by(same).map(<[usize]>::to_vec).collect()
}

/// Whether the matrix stays the same if two namespaces are exchanged.
fn are_exchangeable(table: &ReachMatrix, a: &[usize], b: &[usize]) -> bool {
    let has_namespace = |block: &[usize]| table.names[block[0]].namespace.is_some();
    let names = |block: &[usize]| block.iter().map(|it| table.names[*it].name.clone()).collect::<Vec<_>>();
    if !has_namespace(a) || !has_namespace(b) || a.len() != b.len() || names(a) != names(b) {
        return false;
    }
    let cell = |from: usize, to: usize| table.cells[from][to];
    let inside = a.iter().zip(b).all(|(a1, b1)| {
        a.iter().zip(b).all(|(a2, b2)| cell(*a1, *a2) == cell(*b1, *b2) && cell(*a1, *b2) == cell(*b1, *a2))
    });
    let others = (0..table.ends.len()).filter(|it| !a.contains(it) && !b.contains(it));
    inside
        && others.into_iter().all(|other| {
            a.iter().zip(b).all(|(a, b)| cell(*a, other) == cell(*b, other) && cell(other, *a) == cell(other, *b))
        })
}

fn groups(table: &ReachMatrix) -> Vec<NamespaceGroup> {
    let mut found: Vec<Vec<Vec<usize>>> = Vec::new();
    for block in blocks(table) {
        // Exchangeability is transitive, so one comparison with each group is enough.
        match found.iter_mut().find(|group| are_exchangeable(table, &group[0], &block)) {
            Some(group) => group.push(block),
            None => found.push(vec![block]),
        }
    }
    let single = |group: Vec<Vec<usize>>| -> Vec<Vec<Vec<usize>>> {
        if group.len() < FEWEST { group.into_iter().map(|it| vec![it]).collect() } else { vec![group] }
    };
    let mut found: Vec<Vec<Vec<usize>>> = found.into_iter().flat_map(single).collect();
    found.sort();
    let namespace = |block: &Vec<usize>| table.names[block[0]].namespace.clone();
    let group =
        |blocks: Vec<Vec<usize>>| NamespaceGroup { namespaces: blocks.iter().filter_map(namespace).collect(), blocks };
    found.into_iter().map(group).collect()
}

fn text_lines(table: &ReachMatrix, groups: &[NamespaceGroup]) -> Vec<TextLine> {
    let (mut lines, mut number) = (Vec::new(), 0);
    for (index, group) in groups.iter().enumerate() {
        let is_several = group.blocks.len() > 1;
        number += usize::from(is_several);
        for (place, end) in group.blocks[0].iter().enumerate() {
            let label = match is_several {
                true => format!("{VARIABLE}{number}{}", table.names[*end].name),
                false => table.ends[*end].clone(),
            };
            lines.push(TextLine { label, ends: group.blocks.iter().map(|it| it[place]).collect(), group: index });
        }
    }
    lines
}

/// The values of a cell: within a namespace, and between two namespaces if that differs.
fn values(table: &ReachMatrix, from: &TextLine, to: &TextLine) -> (usize, Option<usize>) {
    let within = table.cells[from.ends[0]][to.ends[0]];
    let between = (from.group == to.group && to.ends.len() > 1).then(|| table.cells[from.ends[0]][to.ends[1]]);
    (within, between.filter(|it| *it != within))
}

/// Text for people, with at most `most` rows and columns.
pub(crate) fn text(table: &ReachMatrix, mut page: OutputPage, most: usize) -> OutputPage {
    let (marks, groups) = (marks(table), groups(table));
    let all = text_lines(table, &groups);
    let is_shown = |it: &TextLine, other: &TextLine| {
        let (within, between) = values(table, it, other);
        [Some(within), between].into_iter().flatten().any(|it| table.values[it].kind != CellKind::Hidden)
    };
    let rows: Vec<(usize, &TextLine)> =
        (1..).zip(&all).take(most).filter(|(_, it)| all.iter().any(|to| is_shown(it, to))).collect();
    let columns: Vec<(usize, &TextLine)> =
        (1..).zip(&all).take(most).filter(|(_, it)| all.iter().any(|from| is_shown(from, it))).collect();
    let cell = |from: &TextLine, to: &TextLine| match values(table, from, to) {
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
    legend(&mut page, table, &marks, &rows, &columns);
    let cut_names = rows.iter().filter(|(_, it)| it.label.chars().count() > names);
    cut_names.for_each(|(number, it)| page.folded_line(4, format_args!("{number:>digits$} is {}", it.label)));
    let all_names = NamespaceNames::new(table.names.iter().filter_map(|it| it.namespace.as_deref()));
    for (number, group) in (1..).zip(groups.iter().filter(|it| it.blocks.len() > 1)) {
        let namespaces: Vec<&str> = group.namespaces.iter().map(String::as_str).collect();
        page.folded_line(4, format_args!("{VARIABLE}{number} is each of {}", all_names.words(&namespaces)));
    }
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
    table: &ReachMatrix,
    marks: &[String],
    rows: &[(usize, &TextLine)],
    columns: &[(usize, &TextLine)],
) {
    let (mut seen, mut is_double) = (vec![false; table.values.len()], false);
    for (_, from) in rows {
        for (_, to) in columns {
            let (within, between) = values(table, from, to);
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
    use super::super::table::tests::matrix;
    use super::*;

    /// Namespaces a to e with web and db: web reaches the db of its own namespace; e is closed; f has only web.
    fn example() -> ReachMatrix {
        let mut ends: Vec<(Option<&str>, &str)> =
            ["a", "b", "c", "d", "e"].iter().flat_map(|it| [(Some(*it), "/db"), (Some(*it), "/web")]).collect();
        ends.push((Some("f"), "/web"));
        ends.push((None, "outside"));
        let names = ends
            .iter()
            .map(|(namespace, name)| EndName { namespace: namespace.map(str::to_owned), name: (*name).to_owned() });
        let reaches = |from: usize, to: usize| {
            let (from, to) = (ends[from], ends[to]);
            usize::from(from.0 == to.0 && from.1 == "/web" && to.1 == "/db" && from.0 != Some("e"))
        };
        let cells = (0..ends.len()).map(|from| (0..ends.len()).map(|to| reaches(from, to)).collect()).collect();
        matrix(names.collect(), cells)
    }

    #[test]
    fn groups_say_the_same_about_each_pair() {
        let table = example();
        let groups = groups(&table);
        let lines = text_lines(&table, &groups);
        let labels: Vec<&str> = lines.iter().map(|it| it.label.as_str()).collect();
        assert_eq!(labels, ["NS1/db", "NS1/web", "e/db", "e/web", "f/web", "outside"]);
        let mut pairs = 0;
        for from in &lines {
            for to in &lines {
                let (within, between) = values(&table, from, to);
                for (row, a) in from.ends.iter().enumerate() {
                    for (column, b) in to.ends.iter().enumerate() {
                        let is_between = from.group == to.group && row != column;
                        let said = if is_between { between.unwrap_or(within) } else { within };
                        assert_eq!(said, table.cells[*a][*b], "{} to {}", table.ends[*a], table.ends[*b]);
                        pairs += 1;
                    }
                }
            }
        }
        assert_eq!(pairs, 12 * 12);
    }

    #[test]
    fn a_long_name_loses_its_middle() {
        assert_eq!(cut("abcdefghij", 5), "ab…ij");
        assert_eq!(cut("abcde", 5), "abcde");
    }
}
