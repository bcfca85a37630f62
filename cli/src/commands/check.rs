//! `weir check`: every finding in every input.

mod fix;
mod unaffected;

use anyhow::Result;
use weir_lint::{self as lint, LintWorld};
use weir_policy::answers::SeverityCounts;
use weir_policy::findings::{self, LocatedFinding};

use fix::FixOutcome;
use unaffected::SoundLints;

use super::CommandOutcome;
use crate::args::{CheckArgs, CheckFormat, GlobalArgs, World};
use crate::lints::Levels;
use crate::page::{self, OutputPage, Progress};
use crate::read::{self, ReadInput};
use crate::render;
use crate::render::text::count;

/// The most findings to show to people, unless `--max` sets another limit.
const MOST_FOR_PEOPLE: usize = 100;

pub(crate) fn run(global: &GlobalArgs, check: &CheckArgs) -> Result<CommandOutcome> {
    let mut read = match global.default_namespace().filter(|_| !check.input.options.all_namespaces) {
        Some(namespace) => read::read_namespace(global, &check.input, namespace)?,
        None => read::read(global, &check.input)?,
    };
    let levels = levels(&read, check)?;
    if check.fix {
        match fix::run(global, check, &levels, read)? {
            FixOutcome::Shown => return Ok(CommandOutcome::Clean),
            FixOutcome::Written(fixed) => read = *fixed,
        }
    }
    let mut skipped_lints = Vec::new();
    if read.complete {
        let progress = Progress::new(global.quiet, "checking");
        let lints = lint::lint(&read.objects, &read.cluster, world(check));
        drop(progress);
        let SoundLints { lints, skipped } = unaffected::sound_lints(&read, lints);
        skipped_lints = skipped;
        read.diagnostics.extend(lints);
    }
    levels.apply(&mut read.diagnostics);
    let findings = findings::located(&read.sources, &read.diagnostics);
    print(global, check, &read, &findings, &skipped_lints)?;
    let is_nothing = is_nothing(&read, &findings);
    if is_nothing && (global.quiet || check.output != CheckFormat::Text) {
        // Without it, a path whose content is gone would look like one without errors.
        page::print_to_stderr(format_args!("warning: {}", nothing_checked(&read)));
    }
    let tally = SeverityCounts::of(&findings);
    Ok(match tally {
        _ if !read.complete => CommandOutcome::Failed,
        _ if is_nothing && check.deny_warnings => CommandOutcome::Findings,
        _ if tally.errors > 0 || (check.deny_warnings && tally.warnings > 0) => CommandOutcome::Findings,
        _ => CommandOutcome::Clean,
    })
}

fn world(check: &CheckArgs) -> LintWorld {
    match check.world {
        World::Open => LintWorld::Open,
        World::Closed => LintWorld::Closed,
    }
}

fn levels(read: &ReadInput, check: &CheckArgs) -> Result<Levels> {
    let mut levels = Levels::default();
    for (code, level) in read.config.lints.iter().chain(&check.lints.levels) {
        levels.set(code, *level)?;
    }
    Ok(levels)
}

fn print(
    global: &GlobalArgs,
    check: &CheckArgs,
    read: &ReadInput,
    findings: &[LocatedFinding],
    skipped_lints: &[String],
) -> Result<()> {
    let most = match (check.max, check.output) {
        (Some(0), _) | (None, CheckFormat::Json | CheckFormat::Sarif | CheckFormat::Github) => usize::MAX,
        (Some(max), _) => max,
        (None, CheckFormat::Text) => MOST_FOR_PEOPLE,
    };
    let mut page = match check.output {
        CheckFormat::Text => {
            let mut page = render::text::findings(&read.sources, findings, OutputPage::for_stdout(global.color), most);
            if !global.quiet {
                summarize(&mut page, global, read, findings, most, skipped_lints);
            }
            page
        }
        CheckFormat::Json => render::json::findings(read, findings, most)?,
        CheckFormat::Sarif => render::sarif::findings(findings, most)?,
        CheckFormat::Github => render::github::findings(findings, most),
    };
    read.left_out.mark(&mut page, check.output)?;
    page.print()
}

fn summarize(
    page: &mut OutputPage,
    global: &GlobalArgs,
    read: &ReadInput,
    findings: &[LocatedFinding],
    most: usize,
    skipped_lints: &[String],
) {
    if findings.len() > most {
        page.line(format_args!("and {} more (--max 0 shows all)", findings.len() - most));
    }
    let counts = read.counts();
    let parts = [
        (counts.policies, "policy"),
        (counts.cluster_policies, "cluster policy"),
        (counts.lists, "list"),
        (counts.pods, "pod"),
        (counts.workloads, "workload"),
        (counts.services, "service"),
        (counts.namespaces, "namespace"),
        (counts.nodes, "node"),
    ];
    let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| count(*n, what)).collect();
    let checked = if parts.is_empty() { "no valid objects".to_owned() } else { parts.join(", ") };
    if is_nothing(read, findings) {
        page.line(nothing_checked(read));
        return;
    }
    if read.objects.is_empty() && findings.is_empty() {
        page.line("nothing was checked: no path could be read");
        return;
    }
    let tally = SeverityCounts::of(findings);
    let notes = if tally.notes > 0 { format!(", {}", count(tally.notes, "note")) } else { String::new() };
    let (errors, warnings) = (count(tally.errors, "error"), count(tally.warnings, "warning"));
    page.folded_line(2, format_args!("checked {checked}: {errors}, {warnings}{notes}"));
    skipped(page, global, read);
    if !read.complete {
        page.line("lints skipped: some paths could not be read");
    }
    skipped_lints.iter().for_each(|it| page.folded_line(2, format_args!("lints skipped: {it}")));
}

/// Whether all paths could be read, and had nothing to check.
fn is_nothing(read: &ReadInput, findings: &[LocatedFinding]) -> bool {
    read.complete && read.objects.is_empty() && findings.is_empty()
}

fn nothing_checked(read: &ReadInput) -> String {
    format!("nothing was checked: the input has no objects that weir reads ({})", read.no_objects())
}

fn skipped(page: &mut OutputPage, global: &GlobalArgs, read: &ReadInput) {
    let total: usize = read.skipped.iter().map(|(_, number)| number).sum();
    if total == 0 {
        return;
    }
    let kinds: Vec<String> = read.skipped.iter().map(|(kind, number)| format!("{number} {kind}")).collect();
    let shown = if global.verbose > 0 { kinds.len() } else { kinds.len().min(4) };
    let more = if shown < kinds.len() { ", …" } else { "" };
    let kinds = kinds[..shown].join(", ");
    page.folded_line(2, format_args!("skipped {} of other kinds ({kinds}{more})", count(total, "object")));
}
