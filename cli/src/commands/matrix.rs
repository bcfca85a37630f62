//! `weir matrix` and `weir graph`: who can reach whom, as a table and as edges.

use std::borrow::Cow;

use anyhow::{Context as _, Result};
use weir_analysis::reach::Reach;
use weir_analysis::reach::possible::with_possible_pods;

use super::CommandOutcome;
use crate::args::{GlobalArgs, ViewArgs, ViewFormat, ViewLevel, World};
use crate::failure::with_hint;
use crate::page::{self, OutputPage};
use crate::read;
use crate::views::filter::{ReachFilter, ViewFilter};
use crate::views::{self, dot, html, links, mermaid, svg, table, table_text};

/// Rows of a matrix shown as text, unless said otherwise.
const MOST_ROWS: usize = 40;
/// Destinations of a graph shown as text, unless said otherwise.
const MOST_DESTINATIONS: usize = 100;

/// What to print about a cluster.
#[derive(Clone, Copy)]
struct ViewRequest<'v> {
    global: &'v GlobalArgs,
    view: &'v ViewArgs,
    reach: &'v Reach<'v>,
    level: ViewLevel,
    filter: Option<ReachFilter<'v>>,
}

/// A page, and the sentence about its filter.
struct FilteredPage {
    page: OutputPage,
    shown: Option<String>,
}

pub(crate) fn run_matrix(global: &GlobalArgs, view: &ViewArgs) -> Result<CommandOutcome> {
    run(global, view, |asked| {
        let table = table::table(asked.reach, asked.level, asked.filter);
        let page = match view.output {
            ViewFormat::Text => table_text::text(&table, OutputPage::for_stdout(global.color), asked.most(MOST_ROWS)),
            ViewFormat::Json => table::json(&table, asked.level, asked.filter)?,
            ViewFormat::Md => table::md(&table),
            ViewFormat::Csv => table::csv(&table),
            ViewFormat::Svg => svg::matrix(&table),
            ViewFormat::Dot | ViewFormat::Mermaid | ViewFormat::Html => return graph(asked),
        };
        let shown = asked.filter.map(|it| it.filter.sentence(table.ends.len(), table.all, "rows and columns"));
        Ok(FilteredPage { page, shown })
    })
}

pub(crate) fn run_graph(global: &GlobalArgs, view: &ViewArgs) -> Result<CommandOutcome> {
    run(global, view, graph)
}

fn graph(asked: ViewRequest<'_>) -> Result<FilteredPage> {
    let ViewRequest { reach, level, filter, .. } = asked;
    let mut links = links::links(reach, level, filter);
    let all = filter.map(|it| (it, links::links(reach, level, None).len()));
    let shown = all.map(|(filter, all)| filter.filter.sentence(links.len(), all, "edges"));
    if !matches!(asked.view.output, ViewFormat::Text | ViewFormat::Html) {
        let (most, found) = (asked.most(usize::MAX), links.len());
        if found > most {
            links.truncate(most);
            page::print_to_stderr(format_args!("note: and {} more edges (--max 0 shows all)", found - most));
        }
    }
    let known = links::namespaces_of(reach);
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
    let reach = Reach::new(&cluster).context("cannot compute who can reach whom")?;
    let reach_filter = filter.is_active().then_some(ReachFilter { filter: &filter, reach: &reach });
    let level = views::level(view.by, &reach, &filter);
    let mut page = match view.output {
        ViewFormat::Html => html::view(global, view, &read, &reach)?,
        _ => {
            let FilteredPage { mut page, shown } =
                print(ViewRequest { global, view, reach: &reach, level, filter: reach_filter })?;
            mark_filter(&mut page, view.output, shown);
            page
        }
    };
    if views::takes_notes(view.output) && !global.quiet {
        for note in views::notes_at(&reach, view.by, level) {
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
