//! `weir matrix` and `weir graph`: who can reach whom, as a table and as edges.

use std::borrow::Cow;

use anyhow::{Context as _, Result};
use weir_analysis::reach::Reach;
use weir_analysis::reach::possible::with_possible_pods;

use super::CommandOutcome;
use crate::args::{GlobalArgs, ViewArgs, ViewFormat, World};
use crate::failure::with_hint;
use crate::page::OutputPage;
use crate::read::{self, ReadInput};
use crate::views::{self, dot, html, links, svg, table};

pub(crate) fn run_matrix(global: &GlobalArgs, view: &ViewArgs) -> Result<CommandOutcome> {
    run(global, view, |_, reach| {
        let level = views::level(view.by, reach);
        let table = || table::table(reach, level);
        Ok(match view.output {
            ViewFormat::Text => table::text(&table()),
            ViewFormat::Json => table::json(&table(), level)?,
            ViewFormat::Md => table::md(&table()),
            ViewFormat::Csv => table::csv(&table()),
            ViewFormat::Svg => svg::matrix(&table()),
            ViewFormat::Dot => dot::digraph(&links::links(reach, level)),
            ViewFormat::Html => OutputPage::new(),
        })
    })
}

pub(crate) fn run_graph(global: &GlobalArgs, view: &ViewArgs) -> Result<CommandOutcome> {
    run(global, view, |_, reach| {
        let level = views::level(view.by, reach);
        let links = || links::links(reach, level);
        Ok(match view.output {
            ViewFormat::Text => links::text(&links()),
            ViewFormat::Json => links::json(&links(), level)?,
            ViewFormat::Md => links::md(&links()),
            ViewFormat::Csv => links::csv(&links()),
            ViewFormat::Svg => svg::graph(&links(), "Who can reach whom"),
            ViewFormat::Dot => dot::digraph(&links()),
            ViewFormat::Html => OutputPage::new(),
        })
    })
}

fn run(
    global: &GlobalArgs,
    view: &ViewArgs,
    print: impl Fn(&ReadInput, &Reach<'_>) -> Result<OutputPage>,
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
    let reach = Reach::new(&cluster).context("cannot compute who can reach whom")?;
    let mut page = match view.output {
        ViewFormat::Html => html::view(global, view, &read, &reach)?,
        _ => print(&read, &reach)?,
    };
    if views::takes_notes(view.output) && !global.quiet {
        for note in views::notes(&reach, view.by) {
            page.blank();
            page.line(note);
        }
    }
    read.left_out.mark(&mut page, view.output)?;
    page.print()?;
    Ok(CommandOutcome::Clean)
}
