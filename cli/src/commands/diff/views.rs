//! A comparison as pictures.

use weir_analysis::diff::VerdictChange;

use super::wording::DiffWording;
use crate::page::OutputPage;
use crate::views::links::{GraphLink, LinkEnd, LinkMark};
use crate::views::{dot, mermaid, svg};

/// A picture of the rows.
pub(super) fn graph(words: &DiffWording<'_, '_>, most: usize) -> OutputPage {
    svg::graph(&links(words, most), "What changes")
}

/// The same for Graphviz.
pub(super) fn digraph(words: &DiffWording<'_, '_>, most: usize) -> OutputPage {
    dot::digraph(&links(words, most))
}

/// The same for Mermaid.
pub(super) fn flowchart(words: &DiffWording<'_, '_>, most: usize) -> OutputPage {
    mermaid::flowchart(&links(words, most))
}

/// The links sorted by destination, so that links to one destination are adjacent.
fn links(words: &DiffWording<'_, '_>, most: usize) -> Vec<GraphLink> {
    let rows = words.compared.diff.rows.iter().take(most);
    let mut links: Vec<GraphLink> = rows
        .map(|row| {
            let (sign, mark) = match row.change {
                VerdictChange::Added => ('+', LinkMark::Added),
                VerdictChange::Removed => ('−', LinkMark::Removed),
            };
            GraphLink::new(
                LinkEnd::named(words.from(row)),
                LinkEnd::named(words.to(row)),
                format!("{sign} {}", words.what(row)),
                mark,
            )
        })
        .collect();
    links.sort_by(|a, b| a.to.cmp(&b.to));
    links
}
