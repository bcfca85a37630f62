//! A comparison as the HTML report and as pictures.

use anyhow::{Context as _, Result};
use serde_json::json;
use weir_analysis::diff::{RowEnd, VerdictChange};
use weir_analysis::reach::Reach;

use super::flows::protocol;
use super::words::Words;
use crate::page::Page;
use crate::views::html::{self, Changes};
use crate::views::links::{End, Link, Mark};
use crate::views::overlay::{self, Member, Members};
use crate::views::{dot, svg};

/// The report on the head, with the changes marked.
pub(super) fn html(words: &Words<'_, '_>) -> Result<Page> {
    let head = &words.compared.sides[1];
    let reach = Reach::new(&head.cluster).context("cannot say who reaches whom")?;
    let [base_name, head_name] = &words.compared.names;
    let isolation = words.isolation().into_iter().map(|it| it.text);
    let changes = Changes {
        title: format!("What changes from {base_name} to {head_name}"),
        summary: format!("{}; {}", words.headline(), words.scope()),
        facts: words.comings_and_goings().into_iter().chain(isolation).collect(),
        rows: (0..words.compared.diff.rows.len()).map(|index| row(words, index)).collect(),
    };
    html::page(head, &reach, Some(changes))
}

fn row(words: &Words<'_, '_>, index: usize) -> (overlay::Change, serde_json::Value) {
    let row = &words.compared.diff.rows[index];
    let change = overlay::Change { from: members(words, &row.source), to: members(words, &row.destination) };
    let ranges = row.traffic.ranges.iter().map(|it| json!([protocol(it.protocol), it.first, it.last]));
    let value = json!({
        "change": if row.change == VerdictChange::Added { "added" } else { "removed" },
        "ports": words.what(row),
        "text": format!("{} → {}", words.from(row), words.to(row)),
        "ranges": ranges.collect::<Vec<_>>(),
        "portless": row.traffic.portless,
        "reasons": words.why(row),
        "witness": words.example(row),
    });
    (change, value)
}

/// The endpoints of a party. Services appear only in the list of changes: the matrix shows the pods behind them.
fn members(words: &Words<'_, '_>, party: &RowEnd) -> Members {
    let endpoint = |index: &u32| {
        let it = &words.compared.diff.endpoints[*index as usize];
        let (namespace, name, kind) = (it.namespace.clone(), it.name.clone(), it.kind.clone());
        Member { id: it.ids[1], namespace, name, kind }
    };
    Members {
        endpoints: party.endpoints.iter().map(endpoint).collect(),
        ranges: party.ranges.iter().map(|it| (it.first, it.last)).collect(),
    }
}

/// A picture of the rows.
pub(super) fn graph(words: &Words<'_, '_>, most: usize) -> Page {
    svg::graph(&links(words, most), "What changes")
}

/// The same for Graphviz.
pub(super) fn digraph(words: &Words<'_, '_>, most: usize) -> Page {
    dot::digraph(&links(words, most))
}

/// The links sorted by destination, so that links to one destination are adjacent.
fn links(words: &Words<'_, '_>, most: usize) -> Vec<Link> {
    let rows = words.compared.diff.rows.iter().take(most);
    let mut links: Vec<Link> = rows
        .map(|row| {
            let (sign, mark) = match row.change {
                VerdictChange::Added => ('+', Mark::Added),
                VerdictChange::Removed => ('−', Mark::Removed),
            };
            Link::new(
                End::named(words.from(row)),
                End::named(words.to(row)),
                format!("{sign} {}", words.what(row)),
                mark,
            )
        })
        .collect();
    links.sort_by(|a, b| a.to.cmp(&b.to));
    links
}
