//! Edges with their ends in words: what `graph` prints, and what pictures are drawn from.

use serde_json::{Value, json};
use weir_analysis::reach::edges::{self, EndGroup};
use weir_analysis::reach::{CellCache, CellId, Passes, Reach};

use super::words;
use crate::args::Level;
use crate::page::Page;

/// All sources reach all destinations, on the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Empty if no source reaches the destinations.
    pub(crate) from: Vec<End>,
    pub(crate) to: Vec<End>,
    pub(crate) passes: String,
    pub(crate) mark: Mark,
    json: Value,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End {
    pub(crate) name: String,
    /// The namespace of a workload.
    pub(crate) namespace: Option<String>,
    json: String,
}

/// How a link is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The link exists.
    Plain,
    /// The link exists for some of the pairs that it represents.
    Some,
    /// No source reaches the destination.
    Nobody,
    /// Newly allowed.
    Added,
    /// No longer allowed.
    Removed,
}

impl Link {
    /// Between two ends that are only words.
    pub(crate) fn new(from: End, to: End, passes: String, mark: Mark) -> Self {
        Self { from: vec![from], to: vec![to], passes, mark, json: Value::Null }
    }
}

impl End {
    /// An end that is only a name.
    pub(crate) fn named(name: String) -> Self {
        Self { name, namespace: None, json: String::new() }
    }
}

/// Every link.
pub(crate) fn links(reach: &Reach<'_>, level: Level) -> Vec<Link> {
    let mut cells = CellCache::new(reach);
    match level {
        Level::Namespace => sums(reach, &mut cells),
        Level::Workload | Level::Auto => edges(reach, &mut cells),
    }
}

fn edges(reach: &Reach<'_>, cells: &mut CellCache<'_>) -> Vec<Link> {
    let found = edges::edges(reach, cells);
    let ends = |all: &[EndGroup]| all.iter().map(|it| end(reach, it)).collect();
    let link = |it: edges::Edge| Link {
        from: ends(&it.from),
        to: ends(&it.to),
        passes: cells.words(it.passes),
        mark: if it.from.is_empty() { Mark::Nobody } else { Mark::Plain },
        json: json!({"passes": words::passes_json(reach, cells, it.passes)}),
    };
    found.into_iter().map(link).collect()
}

fn sums(reach: &Reach<'_>, cells: &mut CellCache<'_>) -> Vec<Link> {
    let places = edges::places(reach);
    let group = |place: usize| places[place].map_or(EndGroup::Outside, EndGroup::Namespace);
    let sums = edges::sums(reach, cells);
    let passing = sums.iter().filter(|(_, sum)| sum.passing > 0);
    let mut found: Vec<(usize, usize, Link)> = passing
        .map(|((from, to), sum)| {
            let all = sum.any == sum.all;
            let passes = cells.words(Passes::Cell(sum.any));
            let link = Link {
                from: vec![end(reach, &group(*from))],
                to: vec![end(reach, &group(*to))],
                passes: if all {
                    passes
                } else {
                    format!("{passes} (at most; {} of {} pairs)", sum.passing, sum.pairs)
                },
                mark: if all { Mark::Plain } else { Mark::Some },
                json: json!({
                    "pairs": sum.pairs,
                    "passing": sum.passing,
                    "any": cell(reach, cells, sum.any),
                    "all": cell(reach, cells, sum.all),
                }),
            };
            (*to, *from, link)
        })
        .collect();
    found.sort_by_key(|(to, from, _)| (*to, *from));
    found.into_iter().map(|(_, _, link)| link).collect()
}

fn cell(reach: &Reach<'_>, cells: &CellCache<'_>, id: CellId) -> Value {
    words::passes_json(reach, cells, Passes::Cell(id))
}

fn end(reach: &Reach<'_>, group: &EndGroup) -> End {
    let namespace = match group {
        EndGroup::Party(index) => Some(reach.namespace(reach.parties[*index as usize].namespace).to_owned()),
        _ => None,
    };
    End { name: words::group(reach, group), namespace, json: words::group_json(reach, group).to_string() }
}

fn names(ends: &[End]) -> String {
    if ends.is_empty() { "nobody".to_owned() } else { joined(ends.iter().map(|it| it.name.as_str())) }
}

fn joined<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

/// Text for people, by destination.
pub(crate) fn text(links: &[Link]) -> Page {
    let mut page = Page::new();
    for same in links.chunk_by(|a, b| a.to == b.to) {
        page.line(names(&same[0].to));
        for link in same {
            match link.mark {
                Mark::Nobody => page.line("  from nobody"),
                _ => page.line(format_args!("  from {}: {}", names(&link.from), link.passes)),
            }
        }
    }
    page
}

/// A Markdown table.
pub(crate) fn md(links: &[Link]) -> Page {
    let mut page = Page::new();
    page.line("| to | from | what passes |");
    page.line("| --- | --- | --- |");
    for link in links {
        let fields = [names(&link.to), names(&link.from), link.passes.clone()].map(|it| words::md(&it));
        page.line(format_args!("| {} |", fields.join(" | ")));
    }
    page
}

/// One line for each pair of ends.
pub(crate) fn csv(links: &[Link]) -> Page {
    let mut page = Page::new();
    page.line("from,to,passes");
    for link in links {
        for from in &link.from {
            for to in &link.to {
                let fields = [&from.name, &to.name, &link.passes].map(|it| words::csv(it));
                page.line(fields.join(","));
            }
        }
    }
    page
}

/// One document: docs/schema/graph.json.
pub(crate) fn json(links: &[Link], level: Level) -> serde_json::Result<Page> {
    let mut edges = Vec::with_capacity(links.len());
    for link in links {
        let ends = |all: &[End]| all.iter().map(|it| serde_json::from_str(&it.json)).collect::<Result<Vec<Value>, _>>();
        let mut edge = json!({"from": ends(&link.from)?, "to": ends(&link.to)?});
        if let (Value::Object(edge), Value::Object(more)) = (&mut edge, link.json.clone()) {
            edge.extend(more);
        }
        edges.push(edge);
    }
    let document = json!({"by": level.name(), "edges": edges});
    let mut page = Page::new();
    page.pretty_json(&document)?;
    Ok(page)
}
