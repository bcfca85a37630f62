//! Edges with their ends in words: what `graph` prints, and what pictures are drawn from.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_analysis::reach::edges::{self, EndGroup};
use weir_analysis::reach::{CellCache, CellId, Passes, Reach, ReachEnd};

use super::filter::ReachFilter;
use super::namespaces::{self, JoinableRow, NamespaceNames};
use super::words;
use crate::args::ViewLevel;
use crate::page::{OutputPage, Style};

/// More namespaces than this are counted and not listed.
const MOST_NAMESPACES: usize = 3;

/// All sources reach all destinations, on the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphLink {
    /// Empty if no source reaches the destinations.
    pub(crate) from: Vec<LinkEnd>,
    pub(crate) to: Vec<LinkEnd>,
    pub(crate) passes: String,
    pub(crate) mark: LinkMark,
    json: Value,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkEnd {
    pub(crate) name: String,
    /// The namespace of a workload.
    pub(crate) namespace: Option<String>,
    /// The namespace, if the end is all of its pods.
    whole: Option<String>,
    json: String,
}

/// How a link is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkMark {
    /// The link exists.
    Plain,
    /// The link exists for some of the pairs that it represents.
    Some,
    /// No source reaches the destination.
    NoSource,
    /// Newly allowed.
    Added,
    /// No longer allowed.
    Removed,
}

impl GraphLink {
    /// Between two ends that are only words.
    pub(crate) fn new(from: LinkEnd, to: LinkEnd, passes: String, mark: LinkMark) -> Self {
        Self { from: vec![from], to: vec![to], passes, mark, json: Value::Null }
    }
}

impl LinkEnd {
    /// An end that is only a name.
    pub(crate) fn named(name: String) -> Self {
        Self { name, namespace: None, whole: None, json: String::new() }
    }

    /// All pods of a namespace.
    #[cfg(test)]
    pub(crate) fn of_namespace(name: &str) -> Self {
        Self { whole: Some(name.to_owned()), ..Self::named(name.to_owned()) }
    }

    /// The namespace, if the end is all of its pods.
    pub(super) fn whole_namespace(&self) -> Option<&str> {
        self.whole.as_deref()
    }

    pub(super) fn is_namespace(&self) -> bool {
        self.whole.is_some()
    }
}

/// Every link, or those that a filter shows.
pub(crate) fn links(
    reach: &Reach<'_>,
    level: ViewLevel,
    filter: Option<ReachFilter<'_>>,
    watch: &dyn Fn(u64, u64),
) -> Vec<GraphLink> {
    let mut cells = CellCache::new(reach).watched(watch);
    match level {
        ViewLevel::Namespace => sums(reach, &mut cells, filter),
        ViewLevel::Workload | ViewLevel::Auto => edges(reach, &mut cells, filter),
    }
}

fn edges(reach: &Reach<'_>, cells: &mut CellCache<'_>, filter: Option<ReachFilter<'_>>) -> Vec<GraphLink> {
    let filter = filter.as_ref().map(|it| it as &dyn edges::PairFilter);
    let found = edges::edges_among(reach, cells, filter);
    let ends = |all: &[EndGroup]| all.iter().map(|it| end(reach, it)).collect();
    let link = |it: edges::Edge| GraphLink {
        from: ends(&it.from),
        to: ends(&it.to),
        passes: cells.words(it.passes),
        mark: if it.from.is_empty() { LinkMark::NoSource } else { LinkMark::Plain },
        json: json!({"passes": words::passes_json(reach, cells, it.passes)}),
    };
    found.into_iter().map(link).collect()
}

fn sums(reach: &Reach<'_>, cells: &mut CellCache<'_>, filter: Option<ReachFilter<'_>>) -> Vec<GraphLink> {
    let places = edges::places(reach);
    let group = |place: usize| places[place].map_or(EndGroup::Outside, EndGroup::Namespace);
    let sums = edges::sums(reach, cells);
    let ends = reach.all_ends();
    let members: Vec<Vec<ReachEnd>> = places
        .iter()
        .map(|place| ends.iter().copied().filter(|it| edges::place_of(reach, *it) == *place).collect())
        .collect();
    let is_asked = |from: usize, to: usize| filter.is_none_or(|it| it.takes_places(&members[from], &members[to]));
    let has_port = |any| filter.is_none_or(|it| it.has_port(cells, Passes::Cell(any)));
    let passing = sums.iter().filter(|((from, to), sum)| sum.passing > 0 && is_asked(*from, *to) && has_port(sum.any));
    let mut found: Vec<(usize, usize, GraphLink)> = passing
        .map(|((from, to), sum)| {
            let all = sum.any == sum.all;
            let passes = cells.words(Passes::Cell(sum.any));
            let link = GraphLink {
                from: vec![end(reach, &group(*from))],
                to: vec![end(reach, &group(*to))],
                passes: if all {
                    passes
                } else {
                    format!("{passes} (at most; {} of {} pairs)", sum.passing, sum.pairs)
                },
                mark: if all { LinkMark::Plain } else { LinkMark::Some },
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

fn end(reach: &Reach<'_>, group: &EndGroup) -> LinkEnd {
    let namespace = match group {
        EndGroup::Party(index) => Some(reach.namespace(reach.parties[*index as usize].namespace).to_owned()),
        _ => None,
    };
    let whole = match group {
        EndGroup::Namespace(id) => Some(reach.namespace(*id).to_owned()),
        _ => None,
    };
    LinkEnd { name: words::group(reach, group), namespace, whole, json: words::group_json(reach, group).to_string() }
}

fn names(ends: &[LinkEnd], known: &NamespaceNames) -> String {
    if ends.is_empty() { "no source".to_owned() } else { compressed(ends, known).join(", ") }
}

/// The ends in few words: whole namespaces together, and workloads of the same name in several namespaces together.
fn compressed(ends: &[LinkEnd], known: &NamespaceNames) -> Vec<String> {
    let whole: Vec<&str> = ends.iter().filter_map(|it| it.whole.as_deref()).collect();
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for end in ends {
        let Some(namespace) = &end.namespace else { continue };
        let name = end.name.strip_prefix(namespace.as_str()).and_then(|it| it.strip_prefix('/'));
        by_name.entry(name.unwrap_or_default()).or_default().push(namespace);
    }
    let is_many = |namespaces: &[&str]| namespaces.len() > MOST_NAMESPACES;
    let mut found = Vec::new();
    found.extend(is_many(&whole).then(|| format!("every pod of {}", known.words(&whole))));
    let several = by_name.iter().filter(|(_, namespaces)| is_many(namespaces));
    found.extend(several.map(|(name, namespaces)| format!("{name} of {}", known.words(namespaces))));
    let is_alone = |end: &&LinkEnd| match (&end.whole, &end.namespace) {
        (Some(_), _) => !is_many(&whole),
        (None, Some(namespace)) => {
            let name = end.name.strip_prefix(namespace.as_str()).and_then(|it| it.strip_prefix('/'));
            !is_many(&by_name[name.unwrap_or_default()])
        }
        (None, None) => true,
    };
    let single = ends.iter().filter(is_alone).map(|it| it.name.clone());
    single.chain(found).collect()
}

/// The namespaces of all ends.
pub(crate) fn namespaces_of(reach: &Reach<'_>) -> NamespaceNames {
    NamespaceNames::new(reach.parties.iter().map(|it| reach.namespace(it.namespace)))
}

/// The ends and the traffic of a link, complete, and without the name of the own namespace.
type LinkKey = (Vec<String>, Vec<String>, String);

fn key(link: &GraphLink, own: &str) -> Option<LinkKey> {
    let end = |it: &LinkEnd| match (&it.whole, &it.namespace) {
        (None, None) => Some(it.json.clone()),
        _ => namespaces::template(&it.name, own),
    };
    let ends = |all: &[LinkEnd]| match all.len() > MOST_NAMESPACES {
        // The text counts namespaces, the row's own among them, so the complete list must be the same.
        true => Some(all.iter().map(|it| it.json.clone()).collect()),
        false => all.iter().map(end).collect::<Option<Vec<String>>>(),
    };
    Some((ends(&link.from)?, ends(&link.to)?, link.json.to_string()))
}

/// Links to the same destinations, with the sources that reach them in the same way together. The fields of a row are
/// the destinations, then what reaches them.
fn destinations(links: &[GraphLink], known: &NamespaceNames) -> Vec<JoinableRow<Vec<LinkKey>>> {
    let one = |same: &[GraphLink]| {
        let mut ways: Vec<(&str, LinkMark, Vec<LinkEnd>)> = Vec::new();
        for link in same {
            match ways.iter_mut().find(|(passes, mark, _)| (*passes, *mark) == (link.passes.as_str(), link.mark)) {
                Some((_, _, from)) => from.extend(link.from.iter().cloned()),
                None => ways.push((&link.passes, link.mark, link.from.clone())),
            }
        }
        let way = |(passes, mark, from): &(&str, LinkMark, Vec<LinkEnd>)| match mark {
            LinkMark::NoSource => "from no source".to_owned(),
            _ => format!("from {}: {passes}", names(from, known)),
        };
        let fields = [names(&same[0].to, known)].into_iter().chain(ways.iter().map(way)).collect();
        let namespace = |it: &LinkEnd| it.namespace.clone().or(it.whole.clone());
        let mut of: Vec<Option<String>> = same[0].to.iter().map(namespace).collect();
        of.dedup();
        let own = if of.len() == 1 { of.remove(0) } else { None };
        let key = own.as_deref().and_then(|own| same.iter().map(|it| key(it, own)).collect());
        JoinableRow { own, fields, key }
    };
    links.chunk_by(|a, b| a.to == b.to).map(one).collect()
}

/// Text for people, by destination. Destinations of several namespaces that are equal but for the namespace are one.
pub(crate) fn text(links: &[GraphLink], mut page: OutputPage, known: &NamespaceNames, most: usize) -> OutputPage {
    let rows = namespaces::joined(&destinations(links, known));
    for row in rows.iter().take(most) {
        let [to, ways @ ..] = &row.fields[..] else { continue };
        match row.where_it_holds(known) {
            Some(holds) => page.folded_line(4, format_args!("{to}, {holds}")),
            None => page.folded_line(4, to),
        }
        for way in ways {
            let style = if way == "from no source" { Style::Red } else { Style::Green };
            let (from, passes) = way.rsplit_once(": ").map_or((way.as_str(), ""), |(from, passes)| (from, passes));
            match passes {
                "" => page.folded(6, &[(Style::Plain, &"  "), (style, &from)]),
                _ => page.folded(6, &[(Style::Plain, &format_args!("  {from}: ")), (style, &passes)]),
            }
        }
    }
    if rows.len() > most {
        page.line(format_args!("and {} more destinations (--max 0 shows all)", rows.len() - most));
    }
    page
}

/// A Markdown table.
pub(crate) fn md(links: &[GraphLink], known: &NamespaceNames) -> OutputPage {
    let mut page = OutputPage::new();
    page.line("| to | from | allowed traffic |");
    page.line("| --- | --- | --- |");
    for link in links {
        let fields = [names(&link.to, known), names(&link.from, known), link.passes.clone()].map(|it| words::md(&it));
        page.line(format_args!("| {} |", fields.join(" | ")));
    }
    page
}

/// One line for each pair of ends.
pub(crate) fn csv(links: &[GraphLink]) -> OutputPage {
    let mut page = OutputPage::new();
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
pub(crate) fn json(
    links: &[GraphLink],
    level: ViewLevel,
    filter: Option<(ReachFilter<'_>, usize)>,
) -> serde_json::Result<OutputPage> {
    let mut edges = Vec::with_capacity(links.len());
    for link in links {
        let ends =
            |all: &[LinkEnd]| all.iter().map(|it| serde_json::from_str(&it.json)).collect::<Result<Vec<Value>, _>>();
        let mut edge = json!({"from": ends(&link.from)?, "to": ends(&link.to)?});
        if let (Value::Object(edge), Value::Object(more)) = (&mut edge, link.json.clone()) {
            edge.extend(more);
        }
        edges.push(edge);
    }
    let mut document = json!({"by": level.name(), "edges": edges});
    if let Some((filter, all)) = filter {
        document["filter"] = json!(filter.filter.json(links.len(), all));
    }
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}
