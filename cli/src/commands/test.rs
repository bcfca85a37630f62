//! `weir test`: a file of expectations about flows.

mod file;
mod report;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use weir_model::eval::{Oracle, Verdict};

use super::CommandOutcome;
use crate::args::{GlobalArgs, TestArgs, TestFormat};
use crate::endpoint_lookup::EndpointLookup;
use crate::failure::with_hint;
use crate::question::FlowQuestion;
use crate::read;
use crate::verdict_reasons;
use file::Expectation;

/// The result of one expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectationStatus {
    Passed,
    /// The flow has the other verdict; with the reasons.
    Failed(Vec<String>),
    /// A name in the expectation does not exist.
    Unresolved(String),
}

/// An expectation and its result.
#[derive(Debug)]
struct ExpectationResult {
    expectation: Expectation,
    status: ExpectationStatus,
    /// A note that is printed with any result.
    note: Option<String>,
}

pub(crate) fn run(global: &GlobalArgs, test: &TestArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &test.input)? else { return Ok(CommandOutcome::Failed) };
    let name = test.expectations.display().to_string();
    let expectations = file::parse(load(&test.expectations, read.stdin_read)?, &name)?;
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let results: Vec<ExpectationResult> = expectations
        .into_iter()
        .map(|expectation| {
            let asked = expectation.question().ask(&lookup, &mut oracle);
            let namesake = asked.as_ref().ok().and_then(|answer| answer.namesake);
            let note = namesake.map(|it| FlowQuestion::namesake_note(&read.cluster, it));
            let status = match asked {
                Err(reason) => ExpectationStatus::Unresolved(reason),
                Ok(answer) if answer.verdict() == expectation.verdict => ExpectationStatus::Passed,
                Ok(answer) => {
                    let packets = answer.packets.iter().filter(|it| it.judgement.verdict() != expectation.verdict);
                    ExpectationStatus::Failed(
                        packets.flat_map(|it| verdict_reasons::lines(&read.cluster, &it.judgement)).collect(),
                    )
                }
            };
            ExpectationResult { expectation, status, note }
        })
        .collect();
    let mut page = match test.output {
        TestFormat::Text => report::text(&name, &results, global.quiet),
        TestFormat::Json => report::json(&name, &results)?,
        TestFormat::Junit => report::junit(&name, &results),
    };
    read.left_out.mark(&mut page, test.output)?;
    page.print()?;
    Ok(outcome(&results))
}

fn outcome(results: &[ExpectationResult]) -> CommandOutcome {
    let any = |is: fn(&ExpectationStatus) -> bool| results.iter().any(|it| is(&it.status));
    match () {
        () if any(|status| matches!(status, ExpectationStatus::Unresolved(_))) => CommandOutcome::Failed,
        () if any(|status| matches!(status, ExpectationStatus::Failed(_))) => CommandOutcome::Findings,
        () => CommandOutcome::Clean,
    }
}

fn load(path: &Path, stdin_read: bool) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    if stdin_read {
        return Err(with_hint("standard input (`-`) is named twice", "it can contain either objects or expectations"));
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}

/// The opposite verdict, which a failed expectation found.
fn opposite(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Allow => Verdict::Deny,
        Verdict::Deny => Verdict::Allow,
    }
}
