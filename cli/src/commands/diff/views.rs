//! A comparison as the HTML report and as pictures.

use anyhow::{Context as _, Result};
use serde_json::json;
use weir_analysis::diff::{RowEnd, VerdictChange};
use weir_analysis::reach::Reach;

use super::flows::protocol;
use super::wording::DiffWording;
use crate::page::OutputPage;
use crate::views::html::{self, ReportChanges};
use crate::views::links::{GraphLink, LinkEnd, LinkMark};
use crate::views::report_ends::{self, ChangeMembers, Member};
use crate::views::{dot, mermaid, svg};

/// The report on the head, with the changes marked.
pub(super) fn html(words: &DiffWording<'_, '_>) -> Result<OutputPage> {
    let head = &words.compared.sides[1];
    let reach = Reach::new(&head.cluster).context("cannot compute who can reach whom")?;
    let [base_name, head_name] = &words.compared.names;
    let isolation = words.isolation().into_iter().map(|it| it.text);
    let changes = ReportChanges {
        title: format!("Changes from {base_name} to {head_name}"),
        summary: format!("{}; {}", words.headline(), words.scope()),
        facts: words.endpoint_changes().into_iter().chain(isolation).collect(),
        rows: (0..words.compared.diff.rows.len()).map(|index| row(words, index)).collect(),
    };
    html::page(head, &reach, Some(changes))
}

fn row(words: &DiffWording<'_, '_>, index: usize) -> (report_ends::ChangedEnds, serde_json::Value) {
    let row = &words.compared.diff.rows[index];
    let change = report_ends::ChangedEnds { from: members(words, &row.source), to: members(words, &row.destination) };
    let ranges = row.traffic.ranges.iter().map(|it| json!([protocol(it.protocol), it.first, it.last]));
    let value = json!({
        "change": if row.change == VerdictChange::Added { "added" } else { "removed" },
        "ports": words.what(row),
        "text": format!("{} → {}", words.from(row), words.to(row)),
        "ranges": ranges.collect::<Vec<_>>(),
        "portless": row.traffic.portless,
        "reasons": words.reasons(index),
        "witness": words.example(row),
    });
    (change, value)
}

/// The endpoints of a party. Services appear only in the list of changes: the matrix shows the pods behind them.
fn members(words: &DiffWording<'_, '_>, party: &RowEnd) -> ChangeMembers {
    let endpoint = |index: &u32| {
        let it = &words.compared.diff.endpoints[*index as usize];
        let (namespace, name, kind) = (it.namespace.clone(), it.name.clone(), it.kind.clone());
        Member { id: it.ids[1], namespace, name, kind }
    };
    ChangeMembers {
        endpoints: party.endpoints.iter().map(endpoint).collect(),
        ranges: party.ranges.iter().map(|it| (it.first, it.last)).collect(),
    }
}

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
