//! The matrix with namespaces that could be exchanged as one.
//!
//! Problem: 200 namespaces are 200 rows and columns. Strategy: namespaces that could be exchanged without changing the
//! matrix are one group, and share rows and columns. Within a group a cell has two values: between ends of the same
//! namespace, and between ends of two namespaces.
//! Invariant: the folded table says the same about each pair of ends as the whole matrix.

use weir_analysis::reach::edges::NamespaceOrOutside;
use weir_analysis::reach::{Reach, ReachEnd};

use super::namespaces::{NamespaceNames, VARIABLE};
use super::table::ReachMatrix;

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

/// A matrix whose rows and columns are ends, or the same end of each namespace of a group.
pub(crate) struct FoldedTable<'t> {
    pub(super) table: &'t ReachMatrix,
    pub(crate) lines: Vec<TableLine>,
    groups: Vec<NamespaceGroup>,
}

/// A row, and the column of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableLine {
    pub(super) label: String,
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

fn lines(table: &ReachMatrix, groups: &[NamespaceGroup]) -> Vec<TableLine> {
    let (mut lines, mut number) = (Vec::new(), 0);
    for (index, group) in groups.iter().enumerate() {
        let is_several = group.blocks.len() > 1;
        number += usize::from(is_several);
        for (place, end) in group.blocks[0].iter().enumerate() {
            let label = match is_several {
                true => format!("{VARIABLE}{number}{}", table.names[*end].name),
                false => table.ends[*end].clone(),
            };
            lines.push(TableLine { label, ends: group.blocks.iter().map(|it| it[place]).collect(), group: index });
        }
    }
    lines
}

impl<'t> FoldedTable<'t> {
    pub(crate) fn new(table: &'t ReachMatrix) -> Self {
        let groups = groups(table);
        Self { table, lines: lines(table, &groups), groups }
    }

    /// A row and a column for each end.
    pub(crate) fn unfolded(table: &'t ReachMatrix) -> Self {
        let single = |label: &String, end| TableLine { label: label.clone(), ends: vec![end], group: end };
        let lines = (0..).zip(&table.ends).map(|(end, label)| single(label, end)).collect();
        Self { table, lines, groups: Vec::new() }
    }

    /// The values of a cell: within a namespace, and between two namespaces if that differs.
    pub(super) fn values(&self, from: &TableLine, to: &TableLine) -> (usize, Option<usize>) {
        let cells = &self.table.cells;
        let within = cells[from.ends[0]][to.ends[0]];
        let between = (from.group == to.group && to.ends.len() > 1).then(|| cells[from.ends[0]][to.ends[1]]);
        (within, between.filter(|it| *it != within))
    }

    /// Which namespaces each variable stands for.
    pub(super) fn legend(&self) -> Vec<String> {
        let all = NamespaceNames::new(self.table.names.iter().filter_map(|it| it.namespace.as_deref()));
        let groups = (1..).zip(self.groups.iter().filter(|it| it.blocks.len() > 1));
        let words = |(number, group): (usize, &NamespaceGroup)| {
            let namespaces: Vec<&str> = group.namespaces.iter().map(String::as_str).collect();
            format!("{VARIABLE}{number} is each of {}", all.words(&namespaces))
        };
        groups.map(words).collect()
    }
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
        let folded = FoldedTable::new(&table);
        let lines = &folded.lines;
        let labels: Vec<&str> = lines.iter().map(|it| it.label.as_str()).collect();
        assert_eq!(labels, ["NS1/db", "NS1/web", "e/db", "e/web", "f/web", "outside"]);
        let mut pairs = 0;
        for from in lines {
            for to in lines {
                let (within, between) = folded.values(from, to);
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
}
