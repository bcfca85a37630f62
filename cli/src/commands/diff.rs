//! `weir diff`: shows the traffic that a change newly allows and the traffic that it no longer allows.

mod annotations;
mod approvals;
mod cause_lines;
mod cost;
mod filtered;
mod flows;
mod gate;
mod groups;
mod html;
pub(super) mod json;
mod md;
mod text;
mod views;
mod wording;

use anyhow::{Result, anyhow};
use weir_analysis::diff::{self, Diff, DiffError, Namer};
use weir_analysis::world::WorldError;
use weir_model::{Cluster, TierPeer};
use weir_policy::answers::{Costs, ShownPart};

use super::CommandOutcome;
use crate::args::{DiffArgs, DiffFormat, GlobalArgs, World};
use crate::failure::{self, with_hint};
use crate::input_source::{self, InputSource};
use crate::page::{self, OutputPage, Progress};
use crate::read::ReadInput;
use crate::render::sarif;
use crate::views::filter::ViewFilter;
use cause_lines::CauseLines;
use filtered::DiffTotals;
use gate::{Gate, Ruling};
use wording::DiffWording;

/// Rows shown as text, unless said otherwise.
const MOST_ROWS: usize = 100;

/// Both sides of a comparison, and their differences.
pub(super) struct Comparison {
    pub(super) names: [String; 2],
    pub(super) sides: [ReadInput; 2],
    pub(super) diff: Diff,
    /// The pods that the comparison is about.
    pub(super) world: World,
    /// The rulings of the gate; `None` without a gate.
    gate: Option<Gate>,
    /// The prefix of the head's file names that is not part of the path.
    prefix: String,
    /// The numbers before a filter.
    totals: DiffTotals,
    /// The description of the filter, in words and for programs; `None` without a filter.
    filter: Option<(String, ShownPart)>,
}

impl Comparison {
    fn new(names: [String; 2], sides: [ReadInput; 2], diff: Diff, world: World, prefix: String) -> Self {
        let totals = DiffTotals::of(&diff);
        Self { names, sides, diff, world, gate: None, prefix, totals, filter: None }
    }

    fn is_same(&self) -> bool {
        self.totals.rows == 0 && self.totals.isolation == 0
    }

    /// The ruling on a row.
    fn ruling(&self, row: usize) -> &Ruling {
        self.gate.as_ref().and_then(|it| it.rows.get(row)).unwrap_or(&Ruling::Open)
    }

    /// The ruling on a change of isolation.
    fn isolation_ruling(&self, change: usize) -> &Ruling {
        self.gate.as_ref().and_then(|it| it.isolation.get(change)).unwrap_or(&Ruling::Open)
    }

    /// A file of the head, as the repository has it.
    fn in_repository<'f>(&self, file: &'f str) -> &'f str {
        file.strip_prefix(&self.prefix).unwrap_or(file)
    }
}

pub(crate) fn run(global: &GlobalArgs, arguments: &DiffArgs) -> Result<CommandOutcome> {
    let names = names(arguments)?;
    let sources = [InputSource::parse_side(&names[0])?, InputSource::parse_side(&names[1])?];
    let Some(sides) = input_source::read_both(global, &arguments.input, &sources, arguments.prune)? else {
        return Ok(CommandOutcome::Failed);
    };
    refuse_excluded(arguments, &sides.excluded)?;
    if let Some(question) = sides.question.filter(|_| !global.quiet) {
        page::print_to_stderr(format_args!("note: {question}"));
    }
    let [base, mut head] = sides.read;
    ask_something(&sources, [&base, &head])?;
    head.left_out = head.left_out.merged(&base.left_out);
    if arguments.world == World::Open {
        warn_about_nodes([&base.cluster, &head.cluster]);
    }
    let filter = {
        let default = &base.default_namespace;
        let clusters = [&base.cluster, &head.cluster];
        ViewFilter::new(global, &arguments.input, &arguments.filter, &clusters, default)?
    };
    filter.check_direction()?;
    if filter.is_active() && arguments.output == DiffFormat::Html {
        return Err(with_hint("the HTML report has filters of its own", "omit the filter, and search in the report"));
    }
    let progress = Progress::new(global.quiet, "comparing");
    let diff = compare(arguments, [&base.cluster, &head.cluster], &progress).map_err(failed)?;
    let (world, prefix) = (arguments.world, sources[1].prefix());
    let mut compared = Comparison::new(names, [base, head], diff, world, prefix);
    Gate::apply(&mut compared, arguments)?;
    let is_accepted = match &compared.gate {
        Some(gate) => !gate.refuses(),
        None => compared.is_same() || arguments.write_approved.is_some(),
    };
    // These formats have no line for the gate: a failed run must not be without an error.
    let keeps_refused = matches!(arguments.output, DiffFormat::Sarif | DiffFormat::Github);
    filtered::apply(&mut compared, &filter, keeps_refused);
    let [base, head] = compared.sides.each_ref().map(|it| &it.cluster);
    let measured = match wants_cost(arguments) {
        false => None,
        true => Some({
            progress.stage("measuring the cost");
            cost::measure([base, head], arguments.node.as_deref(), &arguments.budget)?
        }),
    };
    let costs = measured.as_ref().map(|it| &it.costs);
    let exceeded = measured.as_ref().and_then(|it| it.exceeded.as_ref());
    let namer = Namer::new(Some(base), head, &compared.diff);
    let places = CauseLines::find(&compared);
    let words = DiffWording { compared: &compared, namer: &namer, places: &places };
    progress.stage("writing the answer");
    let page = page(global, arguments, &words, costs)?;
    drop(progress);
    print(arguments, &words, page)?;
    if let Some(exceeded) = exceeded {
        failure::print(&with_hint(exceeded.to_string(), "enforcing the head costs more than its budget"));
    }
    Ok(if is_accepted && exceeded.is_none() { CommandOutcome::Clean } else { CommandOutcome::Findings })
}

/// Base and head, as arguments or as a range of revisions.
fn names(arguments: &DiffArgs) -> Result<[String; 2]> {
    let range = input_source::revision_range(&arguments.base)?;
    match (&arguments.head, range) {
        (Some(head), None) => Ok([arguments.base.clone(), head.clone()]),
        (None, Some(range)) => Ok(range),
        (Some(head), Some(_)) => Err(with_hint(
            format!("`{}` names both sides, so `{head}` is one too many", arguments.base),
            "write `weir diff git:A..B`, or `weir diff git:A HEAD`",
        )),
        (None, None) => Err(with_hint(
            "a second input is needed to compare with",
            "write `weir diff BASE HEAD`; `weir diff git:A..B` compares two revisions",
        )),
    }
}

/// Refuses a gate for a comparison without some files: the change itself may contain the rule that leaves them out.
fn refuse_excluded(arguments: &DiffArgs, excluded: &[String]) -> Result<()> {
    const SHOWN: usize = 3;
    if excluded.is_empty() || (arguments.deny.is_none() && arguments.approved.is_none()) {
        return Ok(());
    }
    let more = if excluded.len() > SHOWN { ", …" } else { "" };
    let names = excluded.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let number = wording::count(excluded.len(), "file");
    Err(with_hint(
        format!("a gate decides about all files, and `exclude` or .weirignore leaves out {number}: {names}{more}"),
        "name the paths without excluded files, or remove the rule",
    ))
}

/// Refuses to compare nothing with nothing: a path may be wrong. One side may be empty, which is then reported.
fn ask_something(sources: &[InputSource<'_>; 2], sides: [&ReadInput; 2]) -> Result<()> {
    if sides.iter().all(|side| side.objects.is_empty()) {
        let hint = format!("base: {}; head: {}", sides[0].no_objects(), sides[1].no_objects());
        return Err(with_hint("neither side has objects that weir reads, so there is nothing to compare", hint));
    }
    for (name, side) in ["base", "head"].into_iter().zip(sides).filter(|(_, side)| side.objects.is_empty()) {
        page::print_to_stderr(format_args!(
            "warning: the {name} has no objects that weir reads ({})",
            side.no_objects()
        ));
    }
    if sources[0] == sources[1] {
        page::print_to_stderr("warning: base and head name the same input");
    }
    Ok(())
}

/// Warns that `nodes` peers mean the Node objects of the input. A node that joins later is not in the answer.
fn warn_about_nodes(sides: [&Cluster; 2]) {
    let enforced = sides.into_iter().flat_map(|it| &it.tiers).filter(|it| !it.is_audit);
    let matched = enforced.flat_map(|it| it.egress.iter().filter_map(|rule| rule.matched.as_ref()));
    if matched.flat_map(|it| &it.peers).any(|peer| matches!(peer, TierPeer::Nodes(_))) {
        let [base, head] = sides.map(|it| it.nodes.len());
        page::print_to_stderr(format_args!(
            "warning: rules with `nodes` are compared only for the Node objects of the input (base: {base}; head: {head})"
        ));
    }
}

/// Whether to measure the cost. People see it if they ask for it; JSON has always had it.
fn wants_cost(arguments: &DiffArgs) -> bool {
    let is_asked = arguments.cost || arguments.node.is_some() || !arguments.budget.is_empty();
    is_asked || (arguments.output == DiffFormat::Json && !arguments.no_cost)
}

fn compare(arguments: &DiffArgs, [base, head]: [&Cluster; 2], progress: &Progress) -> Result<Diff, DiffError> {
    // The report marks changes between the endpoints of the input, and pictures have a box for each of them.
    let keep_all =
        matches!(arguments.output, DiffFormat::Html | DiffFormat::Svg | DiffFormat::Dot | DiffFormat::Mermaid);
    match arguments.world {
        World::Open => diff::compare_open_watched(base, head, keep_all, &|finished, all| progress.share(finished, all)),
        World::Closed => diff::compare(base, head),
    }
}

/// What changes between two inputs, for every pod that could exist: as text and as JSON.
pub(super) struct ChangeReport {
    pub(super) text: OutputPage,
    pub(super) json: OutputPage,
}

/// Compares two inputs for another command.
pub(super) fn report(sides: [ReadInput; 2], most: usize, text: OutputPage) -> Result<ChangeReport> {
    let diff = diff::compare_open(&sides[0].cluster, &sides[1].cluster, false).map_err(failed)?;
    let (names, world) = (["before".to_owned(), "after".to_owned()], World::Open);
    let compared = Comparison::new(names, sides, diff, world, String::new());
    let [base, head] = compared.sides.each_ref().map(|it| &it.cluster);
    let namer = Namer::new(Some(base), head, &compared.diff);
    let places = CauseLines::find(&compared);
    let words = DiffWording { compared: &compared, namer: &namer, places: &places };
    let (text, json) = (text::text(&words, None, most, text), json::json(&words, None, usize::MAX)?);
    Ok(ChangeReport { text, json })
}

/// The answer in its format, without notes.
fn page(
    global: &GlobalArgs,
    arguments: &DiffArgs,
    words: &DiffWording<'_, '_>,
    costs: Option<&Costs>,
) -> Result<OutputPage> {
    let most = match arguments.max {
        Some(0) => usize::MAX,
        Some(most) => most,
        None if arguments.output == DiffFormat::Text => MOST_ROWS,
        None => usize::MAX,
    };
    Ok(match arguments.output {
        DiffFormat::Text => text::text(words, costs, most, OutputPage::for_stdout(global.color)),
        DiffFormat::Json => json::json(words, costs, most)?,
        DiffFormat::Md => md::markdown(words, costs, most),
        DiffFormat::Sarif => annotations::sarif(words, most)?,
        DiffFormat::Github => annotations::github(words, most),
        DiffFormat::Html => html::html(global, words)?,
        DiffFormat::Svg => views::graph(words, most),
        DiffFormat::Dot => views::digraph(words, most),
        DiffFormat::Mermaid => views::flowchart(words, most),
    })
}

/// Prints the answer with notes about its filter and about policies that it leaves out.
fn print(arguments: &DiffArgs, words: &DiffWording<'_, '_>, mut page: OutputPage) -> Result<()> {
    if let Some((sentence, _)) = &words.compared.filter {
        match arguments.output {
            DiffFormat::Text | DiffFormat::Json | DiffFormat::Md => {}
            DiffFormat::Sarif => sarif::add_notification(&mut page, "note", sentence)?,
            DiffFormat::Github => page.command("notice", &[("title", "weir: filtered")], sentence),
            _ => page::print_to_stderr(format_args!("note: {sentence}")),
        }
    }
    words.compared.sides[1].left_out.mark(&mut page, arguments.output)?;
    page.print()
}

fn failed(error: DiffError) -> anyhow::Error {
    match error {
        DiffError::Classify(error) => anyhow!(error).context("the input cannot be compared"),
        DiffError::World(error @ WorldError::TooLarge { .. }) => with_hint(
            error.to_string(),
            "use fewer label keys in the policies of one namespace, or compare only the pods of the input with `--world \
             closed`",
        ),
        DiffError::World(error @ WorldError::Contradiction(_)) => panic!("{error}"),
        DiffError::Witness(text) => panic!("the comparison contradicts the reference: {text}"),
    }
}
