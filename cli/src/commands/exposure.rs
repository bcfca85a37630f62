//! `weir exposure`: the pods and services that are open to the outside or to other namespaces, and the pods that no
//! policy isolates.

mod filtered;
mod html;
mod json;
mod text;

use std::collections::HashMap;

use anyhow::{Context as _, Result, anyhow};
use weir_analysis::reach::exposure::{Entrance, Exposure, entrances, exposures};
use weir_analysis::reach::{CellCache, Reach};
use weir_analysis::world::{ExposedGroup, WorldError, exposed};
use weir_model::{Cluster, Service};
use weir_objects::k8s::Body;

use super::CommandOutcome;
use crate::args::{ExposureFormat, ExposureKind, GlobalArgs, ViewLevel, World};
use crate::failure::{self, with_hint};
use crate::page::{self, OutputPage, Progress};
use crate::read::{self, ReadInput};
use crate::render::text::count;
use crate::views::filter::ViewFilter;

/// Rows of a section shown as text, unless said otherwise.
const MOST_ROWS: usize = 100;

/// The results to print.
struct Findings<'r> {
    reach: &'r Reach<'r>,
    cells: CellCache<'r>,
    exposures: Vec<Exposure>,
    entrances: Vec<Entrance>,
    /// Of pods that could exist; `None` in the closed world.
    possible: Option<Vec<ExposedGroup>>,
    /// The filter, with the number of workloads before it.
    filter: Option<(&'r ViewFilter, usize)>,
    /// The most rows of a section.
    most: usize,
}

pub(crate) fn run(global: &GlobalArgs, arguments: &crate::args::ExposureArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &arguments.input)? else { return Ok(CommandOutcome::Failed) };
    let progress = Progress::new(global.quiet, "finding pods that policies treat alike");
    let reach = Reach::new(&read.cluster).context("cannot compute the exposure")?;
    progress.stage("computing the exposure of possible pods");
    let possible = (arguments.world == World::Open).then(|| possible(&read.cluster)).transpose()?;
    let filter = ViewFilter::new(
        global,
        &arguments.input.options,
        &arguments.filter,
        &[&read.cluster],
        &read.default_namespace,
    )?;
    if filter.is_active() && arguments.output == ExposureFormat::Html {
        return Err(with_hint("the HTML report has filters of its own", "omit the filter, and search in the report"));
    }
    if arguments.max.is_some() && arguments.output == ExposureFormat::Html {
        return Err(with_hint("the HTML report folds its lists itself", "omit --max"));
    }
    let most = match arguments.max {
        Some(0) => usize::MAX,
        Some(most) => most,
        None if arguments.output == ExposureFormat::Text => MOST_ROWS,
        None => usize::MAX,
    };
    progress.stage("computing the exposure");
    let share = |done, all| progress.share(done, all);
    let mut found = Findings { possible, most, ..find(&read, &reach, &share) };
    progress.pause();
    // The exit code is that of the whole input, so `--deny` counts before the filter.
    let denied: Vec<(ExposureKind, usize)> = arguments
        .deny
        .iter()
        .map(|denied| (*denied, found.exposures.iter().filter(|it| is(it, *denied)).count()))
        .collect();
    let is_empty = found.exposures.is_empty();
    if filter.is_active() {
        filtered::apply(&mut found, &filter);
    }
    let mut page: OutputPage = match arguments.output {
        ExposureFormat::Text => text::plain(&found, OutputPage::for_stdout(global.color)),
        ExposureFormat::Md => text::markdown(&found),
        ExposureFormat::Csv => text::csv(&found),
        ExposureFormat::Json => json::document(&found)?,
        ExposureFormat::Html => html::page(global, arguments, &read, &found)?,
    };
    if matches!(arguments.output, ExposureFormat::Text | ExposureFormat::Md) && !global.quiet {
        let notes = crate::views::notes(&reach, ViewLevel::Workload);
        for note in notes {
            page.blank();
            page.folded_line(2, note);
        }
    }
    read.left_out.mark(&mut page, arguments.output)?;
    page.print()?;
    if !arguments.deny.is_empty() && is_empty {
        page::print_to_stderr("warning: `--deny` judges the workloads of the input, and the input has none");
    }
    if arguments.deny.contains(&ExposureKind::Namespaces) && !is_empty && has_one_namespace(&read.cluster) {
        page::print_to_stderr(
            "warning: `--deny namespaces` judges traffic between namespaces of the input, and all pods of the input \
             are in one; add a pod of another namespace",
        );
    }
    let mut outcome = CommandOutcome::Clean;
    for (denied, number) in denied {
        if number > 0 {
            failure::print(&anyhow!("{} {}", count(number, "workload"), denied.words()));
            outcome = CommandOutcome::Findings;
        }
    }
    Ok(outcome)
}

fn has_one_namespace(cluster: &Cluster) -> bool {
    let mut namespaces = cluster.endpoints.iter().map(|it| it.namespace);
    namespaces.next().is_some_and(|first| namespaces.all(|it| it == first))
}

fn is(exposure: &Exposure, how: ExposureKind) -> bool {
    match how {
        ExposureKind::Outside => !exposure.outside.is_empty(),
        ExposureKind::Namespaces => !exposure.namespaces.is_empty(),
        ExposureKind::NoPolicy => exposure.isolated == [false, false],
    }
}

/// The groups of possible pods that are exposed.
fn possible(cluster: &Cluster) -> Result<Vec<ExposedGroup>> {
    exposed(cluster).map_err(|error| match error {
        WorldError::TooLarge { .. } => {
            with_hint(error.to_string(), "`--world closed` shows only the workloads of the input")
        }
        WorldError::Contradiction(_) => panic!("{error}"),
    })
}

fn find<'r>(read: &ReadInput, reach: &'r Reach<'r>, watch: &'r dyn Fn(u64, u64)) -> Findings<'r> {
    let mut cells = CellCache::new(reach).watched(watch);
    let exposures = exposures(reach, &mut cells);
    let mut external = HashMap::new();
    for object in &read.objects {
        if let Body::Service(service) = &object.body {
            external.insert(object.id, &service.external_addresses);
        }
    }
    // An address that no proxy translates does not lead to the service.
    let is_external = |service: &Service| {
        external.get(&service.object).is_some_and(|claimed| claimed.iter().any(|at| service.addresses.contains(at)))
    };
    let entrances = entrances(reach, &exposures, &cells, is_external);
    Findings { reach, cells, exposures, entrances, possible: None, filter: None, most: usize::MAX }
}
