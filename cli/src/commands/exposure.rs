//! `weir exposure`: the pods and services that are open to the outside or to other namespaces, and the pods that no
//! policy isolates.

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
use crate::args::{ExposureFormat, ExposureKind, GlobalArgs, World};
use crate::failure::{self, with_hint};
use crate::page::{self, OutputPage};
use crate::read::{self, ReadInput};
use crate::render::text::count;

/// The results to print.
struct Findings<'r> {
    reach: &'r Reach<'r>,
    cells: CellCache<'r>,
    exposures: Vec<Exposure>,
    entrances: Vec<Entrance>,
    /// Of pods that could exist; `None` in the closed world.
    possible: Option<Vec<ExposedGroup>>,
}

pub(crate) fn run(global: &GlobalArgs, arguments: &crate::args::ExposureArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &arguments.input)? else { return Ok(CommandOutcome::Failed) };
    let reach = Reach::new(&read.cluster).context("cannot compute the exposure")?;
    let possible = (arguments.world == World::Open).then(|| possible(&read.cluster)).transpose()?;
    let found = Findings { possible, ..find(&read, &reach) };
    let mut page: OutputPage = match arguments.output {
        ExposureFormat::Text => text::plain(&found),
        ExposureFormat::Md => text::markdown(&found),
        ExposureFormat::Csv => text::csv(&found),
        ExposureFormat::Json => json::document(&found)?,
    };
    if matches!(arguments.output, ExposureFormat::Text | ExposureFormat::Md) && !global.quiet {
        let notes = crate::views::notes(&reach, crate::args::ViewLevel::Workload);
        for note in notes {
            page.blank();
            page.line(note);
        }
    }
    read.left_out.mark(&mut page, arguments.output)?;
    page.print()?;
    if !arguments.deny.is_empty() && found.exposures.is_empty() {
        page::print_to_stderr("warning: `--deny` judges the workloads of the input, and the input has none");
    }
    let mut outcome = CommandOutcome::Clean;
    for denied in &arguments.deny {
        let number = found.exposures.iter().filter(|it| is(it, *denied)).count();
        if number > 0 {
            failure::print(&anyhow!("{} {}", count(number, "workload"), denied.words()));
            outcome = CommandOutcome::Findings;
        }
    }
    Ok(outcome)
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

fn find<'r>(read: &ReadInput, reach: &'r Reach<'r>) -> Findings<'r> {
    let mut cells = CellCache::new(reach);
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
    Findings { reach, cells, exposures, entrances, possible: None }
}
