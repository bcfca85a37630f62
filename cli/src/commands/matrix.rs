//! `weir matrix` and `weir graph`: who can reach whom, as a table and as edges.

use std::borrow::Cow;
use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use weir_analysis::reach::Reach;
use weir_analysis::reach::possible::with_possible_pods;

use super::CommandOutcome;
use crate::args::{GlobalArgs, ViewArgs, ViewFormat, ViewLevel, World};
use crate::failure::with_hint;
use crate::page::{self, OutputPage, Progress};
use crate::read;
use crate::views::filter::{ReachFilter, ViewFilter};
use crate::views::folded_table::FoldedTable;
use crate::views::links::GraphLink;
use crate::views::namespaces::NamespaceNames;
use crate::views::table::ReachMatrix;
use crate::views::{self, alike, dot, html, links, mermaid, svg, table, table_text};

/// Rows of a matrix shown as text, unless said otherwise.
const MOST_ROWS: usize = 40;
/// Destinations of a graph shown as text, unless said otherwise.
const MOST_DESTINATIONS: usize = 100;
/// A picture with more boxes, rows or columns gets a note that says how to draw a part.
const MOST_BOXES: usize = 60;

/// What to print about a cluster.
#[derive(Clone, Copy)]
struct ViewRequest<'v> {
    global: &'v GlobalArgs,
    view: &'v ViewArgs,
    reach: &'v Reach<'v>,
    level: ViewLevel,
    filter: Option<ReachFilter<'v>>,
    progress: &'v Progress,
}

/// A page, and the sentence about its filter.
struct FilteredPage {
    page: OutputPage,
    shown: Option<String>,
}

pub(crate) fn run_matrix(global: &GlobalArgs, view: &ViewArgs) -> Result<CommandOutcome> {
    run(global, view, |asked| {
        let share = |done, all| asked.progress.share(done, all);
        let table = table::table(asked.reach, asked.level, asked.filter, &share);
        asked.progress.pause();
        let page = match view.output {
            ViewFormat::Text => table_text::text(&table, OutputPage::for_stdout(global.color), asked.most(MOST_ROWS)),
            ViewFormat::Json => table::json(&table, asked.level, asked.filter)?,
            ViewFormat::Md => table::md(&table),
            ViewFormat::Csv => table::csv(&table),
            ViewFormat::Svg => picture(asked, &table),
            ViewFormat::Dot | ViewFormat::Mermaid | ViewFormat::Html => return graph(asked),
        };
        let shown = asked.filter.map(|it| it.filter.sentence(table.ends.len(), table.all, "rows and columns"));
        Ok(FilteredPage { page, shown })
    })
}

/// A matrix as a picture. Namespaces that are alike are one, unless each was asked for.
fn picture(asked: ViewRequest<'_>, table: &ReachMatrix) -> OutputPage {
    let before = table.ends.len();
    let mut folded = match asked.view.max != Some(0) && before > views::MOST_PARTIES {
        true => FoldedTable::new(table),
        false => FoldedTable::unfolded(table),
    };
    let (after, most) = (folded.lines.len(), asked.most(usize::MAX));
    if after < before {
        page::print_to_stderr(format_args!(
            "note: {before} rows and columns are drawn as {after}: namespaces with the same cells are one; --max 0 draws \
             each, --focus POD or --namespace NAME a part"
        ));
    }
    if after > most {
        folded.lines.truncate(most);
        page::print_to_stderr(format_args!("note: and {} more rows and columns (--max 0 shows all)", after - most));
    } else if after > MOST_BOXES {
        page::print_to_stderr(format_args!(
            "note: the picture has {after} rows and columns: --focus POD or --namespace NAME draws a part"
        ));
    }
    svg::matrix(&folded)
}

pub(crate) fn run_graph(global: &GlobalArgs, view: &ViewArgs) -> Result<CommandOutcome> {
    run(global, view, graph)
}

fn graph(asked: ViewRequest<'_>) -> Result<FilteredPage> {
    let ViewRequest { reach, level, filter, .. } = asked;
    let share = |done, all| asked.progress.share(done, all);
    let mut links = links::links(reach, level, filter, &share);
    let all = filter.map(|it| (it, links::links(reach, level, None, &share).len()));
    asked.progress.pause();
    let known = links::namespaces_of(reach);
    if matches!(asked.view.output, ViewFormat::Svg | ViewFormat::Dot | ViewFormat::Mermaid) {
        links = readable(asked, links, &known);
    }
    let shown = all.map(|(filter, all)| filter.filter.sentence(links.len(), all, "edges"));
    if !matches!(asked.view.output, ViewFormat::Text | ViewFormat::Html) {
        let (most, found) = (asked.most(usize::MAX), links.len());
        if found > most {
            links.truncate(most);
            page::print_to_stderr(format_args!("note: and {} more edges (--max 0 shows all)", found - most));
        }
    }
    let page = match asked.view.output {
        ViewFormat::Text => {
            let page = OutputPage::for_stdout(asked.global.color);
            links::text(&links, page, &known, asked.most(MOST_DESTINATIONS))
        }
        ViewFormat::Json => links::json(&links, level, all)?,
        ViewFormat::Md => links::md(&links, &known),
        ViewFormat::Csv => links::csv(&links),
        ViewFormat::Svg => svg::graph(&links, "Who can reach whom"),
        ViewFormat::Dot => dot::digraph(&links),
        ViewFormat::Mermaid => mermaid::flowchart(&links),
        ViewFormat::Html => OutputPage::new(),
    };
    Ok(FilteredPage { page, shown })
}

/// The links of a picture. With many namespaces, those that are alike are one box; if the picture stays large, a note says
/// how to draw a part.
fn readable(asked: ViewRequest<'_>, mut links: Vec<GraphLink>, known: &NamespaceNames) -> Vec<GraphLink> {
    let before = boxes(&links);
    if asked.level == ViewLevel::Namespace && asked.view.max.is_none() && before > views::MOST_PARTIES {
        links = alike::joined(links, known);
        let after = boxes(&links);
        if after < before {
            page::print_to_stderr(format_args!(
                "note: {before} namespaces and outsides are drawn as {after} boxes: namespaces with the same links are one; \
                 --max 0 draws each, --focus POD or --namespace NAME a part"
            ));
        }
    }
    let count = boxes(&links);
    if count > MOST_BOXES {
        page::print_to_stderr(format_args!(
            "note: the picture has {count} boxes: --focus POD or --namespace NAME draws a part"
        ));
    }
    links
}

/// The number of different ends.
fn boxes(links: &[GraphLink]) -> usize {
    let ends: BTreeSet<&str> =
        links.iter().flat_map(|it| it.from.iter().chain(&it.to)).map(|it| it.name.as_str()).collect();
    ends.len()
}

impl ViewRequest<'_> {
    /// The most rows to show.
    fn most(&self, for_people: usize) -> usize {
        match self.view.max {
            Some(0) => usize::MAX,
            Some(most) => most,
            None => for_people,
        }
    }
}

fn run(
    global: &GlobalArgs,
    view: &ViewArgs,
    print: impl Fn(ViewRequest<'_>) -> Result<FilteredPage>,
) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &view.input)? else { return Ok(CommandOutcome::Failed) };
    if view.world == World::Open && view.output == ViewFormat::Html {
        return Err(with_hint(
            "the HTML report shows the pods and workloads of the input alone",
            "omit `--world open`",
        ));
    }
    let cluster = match view.world {
        World::Open => Cow::Owned(with_possible_pods(&read.cluster)),
        World::Closed => Cow::Borrowed(&read.cluster),
    };
    let filter = ViewFilter::new(global, &view.input.options, &view.filter, &[&cluster], &read.default_namespace)?;
    filter.check_direction()?;
    if filter.is_active() && view.output == ViewFormat::Html {
        return Err(with_hint("the HTML report has filters of its own", "omit the filter, and search in the report"));
    }
    if view.max.is_some() && view.output == ViewFormat::Html {
        return Err(with_hint("the HTML report folds its lists itself", "omit --max"));
    }
    let progress = Progress::new(global.quiet, "finding pods that policies treat alike");
    let reach = Reach::new(&cluster).context("cannot compute who can reach whom")?;
    let reach_filter = filter.is_active().then_some(ReachFilter { filter: &filter, reach: &reach });
    let level = views::level(view.by, &reach, &filter);
    progress.stage("computing who can reach whom");
    let mut page = match view.output {
        ViewFormat::Html => html::view(global, view, &read, &reach)?,
        _ => {
            let FilteredPage { mut page, shown } =
                print(ViewRequest { global, view, reach: &reach, level, filter: reach_filter, progress: &progress })?;
            mark_filter(&mut page, view.output, shown);
            page
        }
    };
    drop(progress);
    if views::takes_notes(view.output) && !global.quiet {
        let is_empty = reach.parties.is_empty() && view.world == World::Closed;
        let empty = "the input has no pods and no workloads; `--world open` shows pods that could exist";
        let empty = is_empty.then(|| empty.to_owned());
        for note in empty.into_iter().chain(views::notes_at(&reach, view.by, level)) {
            page.blank();
            page.folded_line(2, note);
        }
    }
    read.left_out.mark(&mut page, view.output)?;
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// Says that the answer is filtered: in the answer if people read it, or else on stderr. JSON has a field.
fn mark_filter(page: &mut OutputPage, format: ViewFormat, shown: Option<String>) {
    let Some(shown) = shown else { return };
    match format {
        ViewFormat::Text | ViewFormat::Md => {
            page.blank();
            page.folded_line(2, shown);
        }
        ViewFormat::Json => {}
        _ => page::print_to_stderr(format_args!("note: {shown}")),
    }
}
